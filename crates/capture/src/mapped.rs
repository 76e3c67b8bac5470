//! A capture file in memory, of which only the pages that are looked at are read.
//!
//! Payloads are most of a capture, and few of them are looked at: a read(2) would copy all of it.
//!
//! A page that the file has no more, or that its disk cannot read, raises SIGBUS. The handler here puts zeros in its
//! place and marks the mapping; [`Input`](crate::input::Input) then ends with an error. Faults at other addresses go on
//! to the handler that was there before.
// The only unsafe code of this crate: it maps memory and handles a signal.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*, compiler_fence, fence};

/// A file, mapped from its start.
pub(crate) struct Mapped {
    file: File,
    start: *mut u8,
    len: usize,
    slot: &'static Slot,
    /// Pages before this offset were given back.
    released: usize,
}

// SAFETY: the mapping is the value's own, and is only read.
unsafe impl Send for Mapped {}

/// What the signal handler knows of a mapping.
struct Slot {
    taken: AtomicBool,
    start: AtomicUsize,
    len: AtomicUsize,
    /// The file became shorter, or a page could not be read.
    failed: AtomicBool,
}

/// Mappings at a time; files beyond are read by read(2).
static SLOTS: [Slot; 64] = [const {
    Slot {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        failed: AtomicBool::new(false),
    }
}; 64];

/// The action for SIGBUS that was there before; `None` if there can be none of ours.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

impl Mapped {
    /// Maps a file; `None` if it is no regular file, or cannot be mapped.
    pub(crate) fn new(file: &File) -> Option<Mapped> {
        let file = file.try_clone().ok()?;
        let len = length(&file)?;
        BEFORE.get_or_init(handle).as_ref()?;
        let slot = SLOTS.iter().find(|slot| slot.taken.compare_exchange(false, true, AcqRel, Relaxed).is_ok())?;
        slot.failed.store(false, Relaxed);
        let mut mapped = Mapped { file, start: ptr::null_mut(), len: 0, slot, released: 0 };
        mapped.map(len).ok()?;
        Some(mapped)
    }

    /// The file's bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped, until the value is dropped or maps more, for which it must not be borrowed. Another program may
        // change the file meanwhile: then the bytes are not those of any moment, which a parser of unknown files bears.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// Whether the bytes are not the file's, because it became shorter or a page could not be read.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        // Not before what was looked at.
        compiler_fence(SeqCst);
        self.slot.failed.load(Relaxed)
    }

    /// Notices that the file is shorter than the mapping: within its last page that raises no signal.
    pub(crate) fn check(&self) {
        if length(&self.file).is_none_or(|len| len < self.len) {
            self.slot.failed.store(true, Relaxed);
        }
    }

    /// Maps what was added to the file, if anything was.
    pub(crate) fn grow(&mut self) -> io::Result<()> {
        length(&self.file).filter(|len| *len > self.len).map_or(Ok(()), |len| self.map(len))
    }

    /// Gives back the memory of all whole pages before an offset.
    pub(crate) fn release(&mut self, until: usize) {
        let until = until / page() * page();
        if until > self.released {
            // SAFETY: a part of the mapping. Bytes that are looked at again are read again.
            unsafe { libc::madvise(self.start.add(self.released).cast(), until - self.released, libc::MADV_DONTNEED) };
            self.released = until;
        }
    }

    /// Replaces the mapping.
    fn map(&mut self, len: usize) -> io::Result<()> {
        // SAFETY: a new mapping.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, self.file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.unmap();
        (self.start, self.len, self.released) = (start.cast(), len, 0);
        fence(Release);
        self.slot.start.store(start as usize, Relaxed);
        self.slot.len.store(len, Release);
        Ok(())
    }

    fn unmap(&mut self) {
        self.slot.len.store(0, Relaxed);
        if self.len > 0 {
            // SAFETY: the value's own mapping, which nothing borrows.
            unsafe { libc::munmap(self.start.cast(), self.len) };
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.unmap();
        self.slot.taken.store(false, Release);
    }
}

/// The length of a regular file that has any.
fn length(file: &File) -> Option<usize> {
    let metadata = file.metadata().ok().filter(|metadata| metadata.is_file())?;
    usize::try_from(metadata.len()).ok().filter(|len| *len > 0)
}

fn page() -> usize {
    static PAGE: OnceLock<usize> = OnceLock::new();
    // SAFETY: asks for a constant of the system.
    *PAGE.get_or_init(|| usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096))
}

/// Sets the handler. Returns the action before.
fn handle() -> Option<libc::sigaction> {
    page();
    // SAFETY: all zeros is an action; the handler below calls only what a signal handler may call.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        let mut before = MaybeUninit::zeroed().assume_init();
        (libc::sigaction(libc::SIGBUS, &action, &mut before) == 0).then_some(before)
    }
}

unsafe extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's own pointer; SIGBUS of a fault has an address, one that was sent has none.
    let (sent, address) = unsafe { ((*info).si_code <= 0, (*info).si_addr() as usize) };
    let address = if sent { 0 } else { address };
    for slot in &SLOTS {
        let (len, start) = (slot.len.load(Acquire), slot.start.load(Relaxed));
        fence(Acquire);
        // Another thread changes this mapping: so it is not the one that faulted here.
        if slot.len.load(Relaxed) != len {
            continue;
        }
        if address.wrapping_sub(start) < len && zero(address / page() * page(), start + len) {
            return slot.failed.store(true, Relaxed);
        }
    }
    // SAFETY: the action that was there before, called with the kernel's arguments, or put back: then the fault comes again.
    unsafe {
        let Some(Some(before)) = BEFORE.get() else { libc::_exit(128 + signal) };
        match before.sa_sigaction {
            libc::SIG_IGN if sent => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                libc::sigaction(signal, before, ptr::null_mut());
                if sent {
                    libc::raise(signal);
                }
            }
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                let handler: unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
            handler => {
                let handler: unsafe extern "C" fn(c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

/// Puts zeros in place of a mapping's pages from this address on.
fn zero(from: usize, end: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: pages of one of the mappings of this file. The program's errno stays as it is.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let mapped = libc::mmap(from as *mut c_void, end - from, libc::PROT_READ, flags, -1, 0);
        *errno = before;
        mapped != libc::MAP_FAILED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_that_becomes_shorter_has_zeros_and_has_failed() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; 3 * page()]).unwrap();
        let mapped = Mapped::new(&file).unwrap();
        assert_eq!((mapped.bytes()[2 * page()], mapped.has_failed()), (7, false));
        file.set_len(1).unwrap();
        assert_eq!((mapped.bytes()[2 * page()], mapped.has_failed()), (0, true));
        assert_eq!(mapped.bytes()[0], 7, "what the file still has");
        drop(mapped);
        assert!(!Mapped::new(&file).unwrap().has_failed());
    }

    #[test]
    fn what_is_added_is_mapped_and_what_was_read_is_given_back() {
        let mut file = tempfile::tempfile().unwrap();
        assert!(Mapped::new(&file).is_none(), "an empty file");
        file.write_all(&vec![1; 2 * page()]).unwrap();
        let mut mapped = Mapped::new(&file).unwrap();
        mapped.grow().unwrap();
        assert_eq!(mapped.bytes().len(), 2 * page());
        file.write_all(&[2; 10]).unwrap();
        mapped.grow().unwrap();
        mapped.release(2 * page() + 3);
        assert_eq!((mapped.bytes().len(), mapped.bytes()[0], mapped.bytes()[2 * page()]), (2 * page() + 10, 1, 2));
    }

    #[test]
    fn what_is_no_regular_file_is_not_mapped() {
        assert!(Mapped::new(&File::open("/dev/null").unwrap()).is_none());
        assert!(Mapped::new(&File::open("/").unwrap()).is_none());
    }

    #[test]
    fn files_beyond_the_slots_are_not_mapped() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"x").unwrap();
        let all: Vec<_> = (0..SLOTS.len() + 1).map(|_| Mapped::new(&file)).collect();
        assert!(all.last().unwrap().is_none());
        drop(all);
        assert!(Mapped::new(&file).is_some());
    }
}
