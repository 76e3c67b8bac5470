//! Bringing pages in. The kernel does it and reports what touching the pages would signal; a kernel before 5.14 does not
//! know how, and a sandbox may forbid it: then each page is touched, under the guard of the copy.

use crate::memory::copy;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: u64 = 4096;

/// Brings in `len` bytes at `start`, both of whole pages, for writing or for reading. Whether all of the pages are there
/// and may be used that way. [`copy::install_handler`] ran.
pub fn populate(start: u64, len: u64, write: bool) -> bool {
    advise(start, len, write).unwrap_or_else(|| (0..len / PAGE).all(|page| touch(start + page * PAGE, write)))
}

/// From now on pages are touched, as on a kernel before 5.14.
pub fn do_without() {
    FORBIDDEN.store(true, Ordering::Relaxed);
}

/// Whether the kernel brings pages in here.
pub fn is_available() -> bool {
    is_known(libc::MADV_POPULATE_READ) && is_known(libc::MADV_POPULATE_WRITE)
}

static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Has the kernel do it; `None` if it does not know how.
fn advise(start: u64, len: u64, write: bool) -> Option<bool> {
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    if FORBIDDEN.load(Ordering::Relaxed) {
        return None;
    }
    loop {
        // SAFETY: populating faults pages in, as touching them would, and reports instead of signalling.
        if unsafe { libc::madvise(start as *mut libc::c_void, len as usize, advice) } == 0 {
            return Some(true);
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // Whatever a sandbox says in the kernel's place.
            _ if !is_known(advice) => return None,
            _ => return Some(false),
        }
    }
}

fn is_known(advice: libc::c_int) -> bool {
    // SAFETY: no bytes.
    unsafe { libc::madvise(std::ptr::without_provenance_mut(4096), 0, advice) == 0 }
}

/// The same for one page, the way of a program.
fn touch(addr: u64, write: bool) -> bool {
    let mut byte = 0;
    // SAFETY: `byte` is ours; the page may be in any state, and adding nothing at once does not change it.
    unsafe {
        if write {
            copy::fetch_add(addr as *mut u64, 0).is_ok()
        } else {
            copy::copy(&mut byte, addr as *const u8, 1).is_ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::sync::atomic::AtomicU64;

    /// Two new pages, perhaps of a file.
    fn map(protection: libc::c_int, file: Option<&File>) -> u64 {
        let (flags, fd) = match file {
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
            Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        };
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), 2 * PAGE as usize, protection, flags, fd, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        start as u64
    }

    fn file(len: u64) -> File {
        // SAFETY: a new descriptor.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"weir-test".as_ptr(), libc::MFD_CLOEXEC)) };
        file.set_len(len).unwrap();
        file
    }

    fn says_what_can_be_used() {
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        let (whole, half) = (file(2 * PAGE), file(PAGE));
        for (protection, file, read, write) in [
            (writable, None, true, true),
            (libc::PROT_READ, None, true, false),
            (libc::PROT_NONE, None, false, false),
            (writable, Some(&whole), true, true),
            (libc::PROT_READ, Some(&whole), true, false),
            // The second page lies beyond the file's end.
            (writable, Some(&half), false, false),
        ] {
            for (wanted, can) in [(false, read), (true, write)] {
                let start = map(protection, file);
                assert_eq!(populate(start, 2 * PAGE, wanted), can, "{protection} {file:?}, to be written: {wanted}");
            }
        }
        assert!(!populate(PAGE, PAGE, false), "never mapped");
    }

    #[test]
    fn populating_says_what_can_be_used() {
        copy::install_handler();
        says_what_can_be_used();
    }

    #[test]
    fn an_old_kernel_says_the_same() {
        copy::install_handler();
        std::thread::spawn(|| {
            weir_stage::old_kernel::install(true).unwrap();
            assert!(!is_available(), "the filter is at work");
            says_what_can_be_used();
        })
        .join()
        .unwrap();
    }

    #[test]
    fn touching_changes_nothing_that_a_program_writes_meanwhile() {
        const WRITES: u64 = 200_000;
        copy::install_handler();
        let start = map(libc::PROT_READ | libc::PROT_WRITE, None);
        // SAFETY: mapped above, and never unmapped.
        let word = unsafe { &*(start as *const AtomicU64) };
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                (0..WRITES).for_each(|_| {
                    word.fetch_add(1, Ordering::Relaxed);
                })
            });
            while !writer.is_finished() {
                assert!(touch(start, true) && touch(start, false));
            }
        });
        assert_eq!(word.load(Ordering::Relaxed), WRITES);
    }
}
