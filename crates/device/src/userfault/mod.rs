//! The net under invalidation: `userfaultfd` tells when on-demand memory is unmapped, moved or emptied by system calls
//! that no function of ours stands before: raw ones, and those of the C library itself, when it gives back what was freed.
//!
//! Memory is registered in write-protect mode, and never protected: there are events, and no faults. What it does not
//! tell of stands in ARCHITECTURE.md. Where it is forbidden, invalidation is what the interposed functions see.

mod monitor;
mod process;
mod sys;

pub use monitor::Listener;
pub(crate) use process::{forget_in_child, install, renew};
pub use process::{regions_are_ours, release, yield_to_program};
pub use sys::{Opened, UFFDIO_REGISTER};

use crate::{Errno, fork};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use sys::Userfaultfd;

/// By which way a userfaultfd with the events that we need can be had here.
pub fn available() -> Result<Opened, Errno> {
    Userfaultfd::open().map(|(_, opened)| opened)
}

/// One userfaultfd, its thread, and what it may not cover.
pub struct Net {
    userfault: Arc<Userfaultfd>,
    opened: Opened,
    /// Memory that the program's own userfaultfd has, or had: one mapping has one only.
    theirs: Mutex<Theirs>,
    /// Something of it was unmapped once: what is there now may not be covered.
    torn: AtomicBool,
}

/// Fixed, for it is changed within a call of the program's.
struct Theirs {
    ranges: [(u64, u64); 32],
    count: usize,
}

impl Net {
    /// Opens one and starts its thread, which runs as long as the process; a forked child closes the descriptor. The
    /// listener may be called before this returns. Errors: as [`available`]; EAGAIN if there can be no thread.
    pub fn start(listener: &'static dyn Listener) -> Result<Net, Errno> {
        let (userfault, opened) = Userfaultfd::open()?;
        let userfault = Arc::new(userfault);
        fork::register(&[userfault.raw()]);
        if let Err(error) = monitor::start(userfault.clone(), listener) {
            fork::forget(&[userfault.raw()]);
            return Err(error);
        }
        let theirs = Mutex::new(Theirs { ranges: [(0, 0); 32], count: 0 });
        Ok(Net { userfault, opened, theirs, torn: AtomicBool::new(false) })
    }

    /// How it was opened.
    pub fn opened(&self) -> Opened {
        self.opened
    }

    /// Asks for events on whole pages. Errors: as the kernel has them: EBUSY for memory that has a userfaultfd of the
    /// program's, EINVAL for kinds of memory that cannot be covered, ENOMEM for none at all.
    pub fn cover(&self, addresses: Range<u64>) -> Result<(), Errno> {
        let theirs = self.theirs();
        if theirs.overlap(&addresses) {
            return Err(Errno(libc::EBUSY));
        }
        self.userfault.register(addresses.start, addresses.end)
    }

    /// Again, if some of it may have been mapped anew.
    pub fn renew(&self, addresses: Range<u64>) {
        if self.torn.load(Ordering::Acquire) {
            let _ = self.cover(addresses);
        }
    }

    /// Something that it covered was unmapped or moved.
    pub fn tear(&self) {
        if !self.torn.load(Ordering::Relaxed) {
            self.torn.store(true, Ordering::Release);
        }
    }

    /// Asks for no more events on whole pages.
    pub fn uncover(&self, addresses: Range<u64>) {
        let theirs = self.theirs();
        if !theirs.overlap(&addresses) {
            let _ = self.userfault.unregister(addresses.start, addresses.end);
        }
    }

    /// The program is about to register this memory with a userfaultfd of its own. From now on it has it.
    pub fn yield_to_program(&self, addresses: Range<u64>) {
        let mut theirs = self.theirs();
        if !theirs.overlap(&addresses) {
            let _ = self.userfault.unregister(addresses.start, addresses.end);
        }
        theirs.add(addresses);
    }

    fn theirs(&self) -> MutexGuard<'_, Theirs> {
        self.theirs.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Theirs {
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
            // A program that does much of it gets more than it asks for.
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
    use std::time::{Duration, Instant};

    const PAGE: u64 = 4096;

    /// Writes down what it hears.
    #[derive(Default)]
    struct Diary(Mutex<Vec<Entry>>);

    #[derive(Debug, PartialEq, Eq)]
    enum Entry {
        Settled,
        Changed(Range<u64>),
    }

    impl Listener for Diary {
        fn settle(&self) {
            self.0.lock().unwrap().push(Entry::Settled);
        }

        fn changed(&self, addresses: Range<u64>) {
            self.0.lock().unwrap().push(Entry::Changed(addresses));
        }
    }

    impl Diary {
        /// So many entries, which come soon.
        fn read(&self, count: usize) -> Vec<Entry> {
            let began = Instant::now();
            while self.0.lock().unwrap().len() < count && began.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    /// A net and its diary.
    fn net() -> (Net, &'static Diary) {
        let diary: &Diary = Box::leak(Box::default());
        (Net::start(diary).expect("the kernel allows userfaultfd"), diary)
    }

    /// Fresh memory of so many pages, without access for neighbours to merge with.
    fn pages(count: u64) -> Range<u64> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let len = (count * PAGE) as usize;
        // SAFETY: where the kernel likes.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at as u64..at as u64 + count * PAGE
    }

    #[test]
    #[ignore = "needs userfaultfd"]
    fn raw_system_calls_are_heard_of_accesses_first() {
        let (net, diary) = net();
        let memory = pages(8);
        let at = |page: u64| memory.start + page * PAGE;
        net.cover(memory.clone()).unwrap();
        net.cover(memory.clone()).unwrap();
        // SAFETY: our own pages, which nobody uses.
        unsafe {
            assert_eq!(libc::syscall(SYS_madvise, at(1), 2 * PAGE, MADV_DONTNEED), 0);
            assert_eq!(diary.read(2), [Entry::Settled, Entry::Changed(at(1)..at(3))]);
            assert_eq!(libc::syscall(SYS_munmap, at(0), 2 * PAGE), 0);
            // It was read before munmap returned, so that the first is there; the second comes right after.
            assert_eq!(diary.0.lock().unwrap()[0], Entry::Settled);
            assert_eq!(diary.read(2), [Entry::Settled, Entry::Changed(at(0)..at(2))]);
            let moved = libc::syscall(SYS_mremap, at(4), PAGE, 4 * PAGE, libc::MREMAP_MAYMOVE) as u64;
            assert_ne!(moved, at(4));
            let heard = diary.read(3);
            assert!(heard.contains(&Entry::Changed(at(4)..at(5))), "{heard:x?}");
            // It is not covered any more where it is now.
            diary.read(0);
            assert_eq!(libc::syscall(SYS_munmap, moved, 4 * PAGE), 0);
            net.uncover(memory.clone());
            assert_eq!(libc::syscall(SYS_munmap, at(6), 2 * PAGE), 0);
        }
        std::thread::sleep(Duration::from_millis(20));
        let rest = diary.read(0);
        assert!(!rest.contains(&Entry::Changed(at(6)..at(8))), "{rest:x?}");
        for page in [2, 3, 5] {
            // SAFETY: what is left; elsewhere another test may be.
            unsafe { libc::munmap(at(page) as *mut libc::c_void, PAGE as usize) };
        }
    }

    #[test]
    #[ignore = "needs userfaultfd"]
    fn the_programs_own_userfaultfd_comes_first() {
        let (net, diary) = net();
        let (own, _) = Userfaultfd::open().unwrap();
        let memory = pages(4);
        net.cover(memory.clone()).unwrap();
        assert_eq!(own.register(memory.start, memory.end), Err(Errno(libc::EBUSY)));
        net.yield_to_program(memory.clone());
        assert_eq!(own.register(memory.start, memory.end), Ok(()));
        assert_eq!(net.cover(memory.clone()), Err(Errno(libc::EBUSY)));
        net.uncover(memory.clone());
        net.renew(memory.clone());
        let unmap = std::thread::spawn({
            let memory = memory.clone();
            // SAFETY: our own pages, which nobody uses.
            move || unsafe { libc::syscall(SYS_munmap, memory.start, 4 * PAGE) }
        });
        let event = loop {
            if let Some(event) = own.read().unwrap() {
                break event;
            }
        };
        assert_eq!(event, sys::Event::Unmap { start: memory.start, end: memory.end });
        assert_eq!(unmap.join().unwrap(), 0);
        assert_eq!(diary.read(0), []);
    }

    #[test]
    #[ignore = "needs userfaultfd"]
    fn nobody_hangs_when_the_descriptor_is_taken_away() {
        let (net, diary) = net();
        let memory = pages(2);
        net.cover(memory.clone()).unwrap();
        // SAFETY: what a program does that closes all descriptors; another file gets the number.
        unsafe {
            let zero = libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            assert!(zero >= 0 && libc::dup3(zero, net.userfault.raw(), libc::O_CLOEXEC) >= 0);
            libc::close(zero);
            assert_eq!(libc::syscall(SYS_munmap, memory.start, 2 * PAGE), 0);
        }
        assert_eq!(diary.read(0), []);
        std::mem::forget(net);
    }

    #[test]
    #[ignore = "needs userfaultfd"]
    fn a_child_neither_hears_nor_waits() {
        let (net, diary) = net();
        let memory = pages(2);
        net.cover(memory.clone()).unwrap();
        // SAFETY: the child makes system calls only.
        let child = unsafe {
            match libc::fork() {
                0 => libc::_exit(libc::syscall(SYS_munmap, memory.start, 2 * PAGE) as i32),
                child => child,
            }
        };
        let mut status = -1;
        let began = Instant::now();
        // SAFETY: our child.
        while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
            if began.elapsed() > Duration::from_secs(10) {
                // SAFETY: as above.
                unsafe { libc::kill(child, libc::SIGKILL) };
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(status, 0);
        assert_eq!(diary.read(0), []);
        // SAFETY: our own pages, which nobody uses.
        unsafe { libc::munmap(memory.start as *mut libc::c_void, (2 * PAGE) as usize) };
    }

    #[test]
    fn what_programs_have_grows_over_its_places() {
        let mut theirs = Theirs { ranges: [(0, 0); 32], count: 0 };
        for n in 0..40 {
            theirs.add(n * 100..n * 100 + 10);
            theirs.add(n * 100..n * 100 + 10);
        }
        assert!(theirs.count <= 32);
        for n in 0..40 {
            assert!(theirs.overlap(&(n * 100 + 9..n * 100 + 11)), "{n}");
        }
        assert!(!theirs.overlap(&(5000..6000)));
    }
}
