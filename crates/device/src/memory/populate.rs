//! Populating pages. The kernel does it by madvise(2) and returns an error where touching a page would raise a
//! signal. Kernels before 5.14 do not support this, and a sandbox may forbid it. Then each page is touched by the
//! guarded copy.

use crate::memory::copy;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: u64 = 4096;

/// Populates `len` bytes at `start`, both multiples of the page size, for writing or for reading. Returns whether all
/// pages are present and permit that access. [`copy::install_handler`] must have run.
pub fn populate(start: u64, len: u64, write: bool) -> bool {
    advise(start, len, write).unwrap_or_else(|| (0..len / PAGE).all(|page| touch(start + page * PAGE, write)))
}

/// Disables the madvise; later calls touch pages, as on a kernel before 5.14.
pub fn disable_madvise() {
    FORBIDDEN.store(true, Ordering::Relaxed);
}

/// Returns whether the kernel supports populating by madvise, and no sandbox forbids it.
pub fn is_available() -> bool {
    is_known(libc::MADV_POPULATE_READ) && is_known(libc::MADV_POPULATE_WRITE)
}

static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Populates by madvise; `None` if that is not available.
fn advise(start: u64, len: u64, write: bool) -> Option<bool> {
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    if FORBIDDEN.load(Ordering::Relaxed) {
        return None;
    }
    loop {
        // SAFETY: populating faults pages in, as touching them would, and returns errors instead of raising signals.
        if unsafe { libc::madvise(start as *mut libc::c_void, len as usize, advice) } == 0 {
            return Some(true);
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // The errno does not matter: a sandbox may return any.
            _ if !is_known(advice) => return None,
            _ => return Some(false),
        }
    }
}

fn is_known(advice: libc::c_int) -> bool {
    // SAFETY: the range is empty.
    unsafe { libc::madvise(std::ptr::without_provenance_mut(4096), 0, advice) == 0 }
}

/// Faults in a single page by an access of the guarded copy.
fn touch(addr: u64, write: bool) -> bool {
    let mut byte = 0;
    // SAFETY: `byte` is a local; the page may be in any state, and atomically adding 0 does not change its contents.
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

    /// Maps two new pages, anonymous or of `file`.
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

    fn check_what_populate_reports() {
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        let (whole, half) = (file(2 * PAGE), file(PAGE));
        for (protection, file, read, write) in [
            (writable, None, true, true),
            (libc::PROT_READ, None, true, false),
            (libc::PROT_NONE, None, false, false),
            (writable, Some(&whole), true, true),
            (libc::PROT_READ, Some(&whole), true, false),
            // The second page is beyond the end of the file.
            (writable, Some(&half), false, false),
        ] {
            for (wanted, can) in [(false, read), (true, write)] {
                let start = map(protection, file);
                assert_eq!(populate(start, 2 * PAGE, wanted), can, "{protection} {file:?}, for writing: {wanted}");
            }
        }
        assert!(!populate(PAGE, PAGE, false), "never mapped");
    }

    #[test]
    fn populate_reports_whether_pages_permit_the_access() {
        copy::install_handler();
        check_what_populate_reports();
    }

    #[test]
    fn populate_reports_the_same_on_an_old_kernel() {
        copy::install_handler();
        std::thread::spawn(|| {
            weir_stage::old_kernel::install(true).unwrap();
            assert!(!is_available(), "the seccomp filter is active");
            check_what_populate_reports();
        })
        .join()
        .unwrap();
    }

    #[test]
    fn touching_a_page_keeps_concurrent_writes() {
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
