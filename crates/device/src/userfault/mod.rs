//! The backstop of invalidation: `userfaultfd` reports when ODP memory is unmapped, moved or emptied by system
//! calls that Weir does not interpose: raw ones, and those of the C library itself when it releases freed memory.
//!
//! Memory is registered in write-protect mode but never protected: there are events, but no faults. docs/memory.md
//! ("Which changes are seen") lists the changes that it does not report. Where it is forbidden, only the interposed
//! functions invalidate.

mod monitor;
mod process;

pub use monitor::Listener;
pub(crate) use process::{cover_again, forget_in_child, install};
pub use process::{regions_are_ours, release, yield_to_program};
pub use weir_userfault::{Opened, UFFDIO_REGISTER};

use crate::Errno;
use crate::os::descriptors;
use crate::os::locks::{RankedGuard, RankedMutex, rank};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_userfault::Userfaultfd;

/// The way in which a userfaultfd with the needed events can be opened.
pub fn available() -> Result<Opened, Errno> {
    Ok(Userfaultfd::open()?.1)
}

/// A userfaultfd, its thread, and the memory that it must not cover.
pub struct UnmapEvents {
    userfault: Arc<Userfaultfd>,
    opened: Opened,
    /// Memory that the program's own userfaultfd covers or covered: a mapping can have a single userfaultfd.
    program_ranges: RankedMutex<ProgramRanges, { rank::PROGRAM_RANGES }>,
    /// Some covered memory was unmapped: what is mapped there now may not be covered.
    stale: AtomicBool,
}

/// Of fixed size, because it is changed within a call of the program.
struct ProgramRanges {
    ranges: [(u64, u64); 32],
    count: usize,
}

impl UnmapEvents {
    /// Opens a userfaultfd and starts its thread, which runs as long as the process; a forked child closes the
    /// descriptor. The listener may be called before this returns. Errors: as [`available`]; EAGAIN if no thread can
    /// be started.
    pub fn start(listener: &'static dyn Listener) -> Result<UnmapEvents, Errno> {
        let (userfault, opened) = Userfaultfd::open()?;
        let userfault = Arc::new(userfault);
        descriptors::register(&[userfault.raw()]);
        if let Err(error) = monitor::start(userfault.clone(), listener) {
            descriptors::forget(&[userfault.raw()]);
            return Err(error);
        }
        let program_ranges = RankedMutex::new(ProgramRanges { ranges: [(0, 0); 32], count: 0 });
        Ok(UnmapEvents { userfault, opened, program_ranges, stale: AtomicBool::new(false) })
    }

    /// The way in which it was opened.
    pub fn opened(&self) -> Opened {
        self.opened
    }

    /// Requests events on whole pages. Errors of the kernel: EBUSY for memory with a userfaultfd of the program,
    /// EINVAL for memory that cannot be covered, ENOMEM for unmapped memory.
    pub fn cover(&self, addresses: Range<u64>) -> Result<(), Errno> {
        let program_ranges = self.program_ranges();
        if program_ranges.overlap(&addresses) {
            return Err(Errno(libc::EBUSY));
        }
        Ok(self.userfault.register(addresses.start, addresses.end)?)
    }

    /// Covers the addresses again, if some of them may have been mapped anew.
    pub fn cover_again(&self, addresses: Range<u64>) {
        if self.stale.load(Ordering::Acquire) {
            let _ = self.cover(addresses);
        }
    }

    /// Covered memory was unmapped or moved.
    pub fn mark_stale(&self) {
        if !self.stale.load(Ordering::Relaxed) {
            self.stale.store(true, Ordering::Release);
        }
    }

    /// Requests no more events on whole pages.
    pub fn uncover(&self, addresses: Range<u64>) {
        let program_ranges = self.program_ranges();
        if !program_ranges.overlap(&addresses) {
            let _ = self.userfault.unregister(addresses.start, addresses.end);
        }
    }

    /// The program is about to register this memory with a userfaultfd of its own: it is not covered any more.
    pub fn yield_to_program(&self, addresses: Range<u64>) {
        let mut program_ranges = self.program_ranges();
        if !program_ranges.overlap(&addresses) {
            let _ = self.userfault.unregister(addresses.start, addresses.end);
        }
        program_ranges.add(addresses);
    }

    fn program_ranges(&self) -> RankedGuard<'_, ProgramRanges, { rank::PROGRAM_RANGES }> {
        self.program_ranges.lock()
    }
}

impl ProgramRanges {
    fn overlap(&self, addresses: &Range<u64>) -> bool {
        self.ranges[..self.count].iter().any(|(start, end)| *start < addresses.end && addresses.start < *end)
    }

    fn add(&mut self, addresses: Range<u64>) {
        let inside = |(start, end): &(u64, u64)| *start <= addresses.start && addresses.end <= *end;
        if self.ranges[..self.count].iter().any(inside) {
            return;
        }
        if let Some(free) = self.ranges.get_mut(self.count) {
            *free = (addresses.start, addresses.end);
            self.count += 1;
        } else {
            // No entry is free: a single range that contains all of them replaces them.
            let all = self
                .ranges
                .iter()
                .fold((addresses.start, addresses.end), |all, range| (all.0.min(range.0), all.1.max(range.1)));
            self.ranges[0] = all;
            self.count = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{MADV_DONTNEED, SYS_madvise, SYS_mremap, SYS_munmap};
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    const PAGE: u64 = 4096;

    /// Records the calls of a listener.
    #[derive(Default)]
    struct CallLog(Mutex<Vec<Entry>>);

    #[derive(Debug, PartialEq, Eq)]
    enum Entry {
        Quiesced,
        Changed(Range<u64>),
    }

    impl Listener for CallLog {
        fn quiesce_all(&self) {
            self.0.lock().unwrap().push(Entry::Quiesced);
        }

        fn changed(&self, addresses: Range<u64>) {
            self.0.lock().unwrap().push(Entry::Changed(addresses));
        }
    }

    impl CallLog {
        /// Waits for this many entries, 5 s at most, and takes all entries.
        fn read(&self, count: usize) -> Vec<Entry> {
            let began = Instant::now();
            while self.0.lock().unwrap().len() < count && began.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    /// Unmap events, and the log of the calls to their listener.
    fn unmap_events() -> (UnmapEvents, &'static CallLog) {
        let log: &CallLog = Box::leak(Box::default());
        (UnmapEvents::start(log).expect("the kernel allows userfaultfd"), log)
    }

    /// Maps this many fresh pages.
    fn pages(count: u64) -> Range<u64> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let len = (count * PAGE) as usize;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at as u64..at as u64 + count * PAGE
    }

    #[test]
    #[ignore = "needs userfaultfd"]
    fn raw_system_calls_are_reported_after_accesses_have_ended() {
        let (events, log) = unmap_events();
        let memory = pages(8);
        let at = |page: u64| memory.start + page * PAGE;
        events.cover(memory.clone()).unwrap();
        events.cover(memory.clone()).unwrap();
        // SAFETY: pages of this test, which no other code uses.
        unsafe {
            assert_eq!(libc::syscall(SYS_madvise, at(1), 2 * PAGE, MADV_DONTNEED), 0);
            assert_eq!(log.read(2), [Entry::Quiesced, Entry::Changed(at(1)..at(3))]);
            assert_eq!(libc::syscall(SYS_munmap, at(0), 2 * PAGE), 0);
            // The first entry is present because munmap returns after the event is read; the second follows at once.
            assert_eq!(log.0.lock().unwrap()[0], Entry::Quiesced);
            assert_eq!(log.read(2), [Entry::Quiesced, Entry::Changed(at(0)..at(2))]);
            let moved = libc::syscall(SYS_mremap, at(4), PAGE, 4 * PAGE, libc::MREMAP_MAYMOVE) as u64;
            assert_ne!(moved, at(4));
            let entries = log.read(3);
            assert!(entries.contains(&Entry::Changed(at(4)..at(5))), "{entries:x?}");
            // The new address is not covered.
            log.read(0);
            assert_eq!(libc::syscall(SYS_munmap, moved, 4 * PAGE), 0);
            events.uncover(memory.clone());
            assert_eq!(libc::syscall(SYS_munmap, at(6), 2 * PAGE), 0);
        }
        std::thread::sleep(Duration::from_millis(20));
        let rest = log.read(0);
        assert!(!rest.contains(&Entry::Changed(at(6)..at(8))), "{rest:x?}");
        for page in [2, 3, 5] {
            // SAFETY: the rest of the mapping; another test may have mapped the other pages.
            unsafe { libc::munmap(at(page) as *mut libc::c_void, PAGE as usize) };
        }
    }

    #[test]
    #[ignore = "needs userfaultfd"]
    fn a_userfaultfd_of_the_program_replaces_weirs() {
        let (events, log) = unmap_events();
        let (own, _) = Userfaultfd::open().unwrap();
        let memory = pages(4);
        events.cover(memory.clone()).unwrap();
        let refused = own.register(memory.start, memory.end).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EBUSY));
        events.yield_to_program(memory.clone());
        own.register(memory.start, memory.end).unwrap();
        assert_eq!(events.cover(memory.clone()), Err(Errno(libc::EBUSY)));
        events.uncover(memory.clone());
        events.cover_again(memory.clone());
        let unmap = std::thread::spawn({
            let memory = memory.clone();
            // SAFETY: pages of this test, which no other code uses.
            move || unsafe { libc::syscall(SYS_munmap, memory.start, 4 * PAGE) }
        });
        let event = loop {
            if let Some(event) = own.read().unwrap() {
                break event;
            }
        };
        assert_eq!(event, weir_userfault::Event::Unmap { start: memory.start, end: memory.end });
        assert_eq!(unmap.join().unwrap(), 0);
        assert_eq!(log.read(0), []);
    }

    #[test]
    #[ignore = "needs userfaultfd"]
    fn munmap_returns_when_the_descriptor_was_replaced() {
        let (events, log) = unmap_events();
        let memory = pages(2);
        events.cover(memory.clone()).unwrap();
        // SAFETY: like a program that closes all descriptors; another file gets the number.
        unsafe {
            let zero = libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            assert!(zero >= 0 && libc::dup3(zero, events.userfault.raw(), libc::O_CLOEXEC) >= 0);
            libc::close(zero);
            assert_eq!(libc::syscall(SYS_munmap, memory.start, 2 * PAGE), 0);
        }
        assert_eq!(log.read(0), []);
        std::mem::forget(events);
    }

    #[test]
    #[ignore = "needs userfaultfd"]
    fn a_forked_child_gets_no_events_and_does_not_wait() {
        let (events, log) = unmap_events();
        let memory = pages(2);
        events.cover(memory.clone()).unwrap();
        // SAFETY: the child makes system calls only.
        let child = unsafe {
            match libc::fork() {
                0 => libc::_exit(libc::syscall(SYS_munmap, memory.start, 2 * PAGE) as i32),
                child => child,
            }
        };
        let mut status = -1;
        let began = Instant::now();
        // SAFETY: a child of this process.
        while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
            if began.elapsed() > Duration::from_secs(10) {
                // SAFETY: as above.
                unsafe { libc::kill(child, libc::SIGKILL) };
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(status, 0);
        assert_eq!(log.read(0), []);
        // SAFETY: pages of this test, which no other code uses.
        unsafe { libc::munmap(memory.start as *mut libc::c_void, (2 * PAGE) as usize) };
    }

    #[test]
    fn more_ranges_than_entries_are_merged() {
        let mut program_ranges = ProgramRanges { ranges: [(0, 0); 32], count: 0 };
        for n in 0..40 {
            program_ranges.add(n * 100..n * 100 + 10);
            program_ranges.add(n * 100..n * 100 + 10);
        }
        assert!(program_ranges.count <= 32);
        for n in 0..40 {
            assert!(program_ranges.overlap(&(n * 100 + 9..n * 100 + 11)), "{n}");
        }
        assert!(!program_ranges.overlap(&(5000..6000)));
    }
}
