//! Memory that goes away: pinned registrations of it must not be used any more.
//!
//! A registration of the pin-down cache outlives the operation that made it. If the program unmaps the memory and maps other
//! memory at the same address, an adapter still uses the old pages. So each cached range is watched by userfaultfd(2),
//! which reports that it is unmapped, removed or moved. Where the kernel forbids that, nothing is cached.
//!
//! The thread that unmaps memory waits until the event is read, perhaps within malloc. So the monitor's thread allocates
//! nothing. It reads an event and notes it under one lock, which the cache takes before it looks something up: when
//! munmap(2) has returned, the event is there. Another thread may get the address before that. So the cache also asks
//! the kernel whether a change is under way, and waits for its event.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use weir_userfault::{Event, Userfaultfd};

/// Ranges that are noted one by one; if there are more, all memory counts as gone.
const NOTED: usize = 256;
/// All addresses.
const EVERYTHING: (u64, u64) = (0, u64::MAX);
const PAGE: u64 = 4096;

/// Watches memory.
pub struct Monitor {
    shared: Arc<Shared>,
    /// Ends the thread when it is closed.
    end: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    process: u32,
    /// What is watched, as often as it was asked for: first and last byte's successor.
    watched: Vec<(u64, u64)>,
}

struct Shared {
    userfault: Userfaultfd,
    gone: Mutex<Gone>,
}

/// Ranges that have gone and that the cache does not know of.
struct Gone {
    ranges: [(u64, u64); NOTED],
    count: usize,
    /// Nothing is reported any more.
    ended: bool,
}

impl Monitor {
    /// Starts the thread. Errors: those of userfaultfd(2), and EAGAIN if no thread can be started.
    pub fn start() -> io::Result<Monitor> {
        let (userfault, _) = Userfaultfd::open()?;
        let shared =
            Arc::new(Shared { userfault, gone: Mutex::new(Gone { ranges: [(0, 0); NOTED], count: 0, ended: false }) });
        let (reader, writer) = pipe()?;
        let watched = shared.clone();
        // A small stack: the thread calls little.
        let builder = std::thread::Builder::new().name("weir-odp-unmap".to_owned()).stack_size(128 << 10);
        let thread = builder.spawn(move || {
            watch(&watched, &reader);
            // What happens from now on is not seen.
            if let Ok(mut gone) = watched.gone.lock() {
                let (start, len) = EVERYTHING;
                gone.note(start, len);
                gone.ended = true;
            }
        })?;
        let process = std::process::id();
        Ok(Monitor { shared, end: Some(writer), thread: Some(thread), process, watched: Vec::new() })
    }

    /// Reports from now on when this memory goes away. False: it cannot be watched.
    pub fn watch(&mut self, addr: u64, len: u64) -> bool {
        let (start, end) = whole_pages(addr, len);
        // A forked child's memory is its own.
        let watches = self.process == std::process::id() && self.shared.gone.lock().is_ok_and(|gone| !gone.ended);
        let watches = watches && self.shared.userfault.register(start, end).is_ok();
        if watches {
            self.watched.push((start, end));
        }
        watches
    }

    /// Reports no more of this memory, for which [`Self::watch`] was called: its changes need not wait for the monitor.
    pub fn unwatch(&mut self, addr: u64, len: u64) {
        let (start, end) = whole_pages(addr, len);
        let Some(at) = self.watched.iter().position(|&watched| watched == (start, end)) else { return };
        self.watched.swap_remove(at);
        // Another registration may need some of the pages.
        if !self.watched.iter().any(|&(first, last)| first < end && start < last) {
            // Memory that is not mapped any more needs no unregistering.
            let _ = self.shared.userfault.unregister(start, end);
        }
    }

    /// The next range that has gone: address and bytes.
    pub fn next_gone(&self) -> Option<(u64, u64)> {
        while self.shared.userfault.is_changing() && self.shared.gone.lock().is_ok_and(|gone| !gone.ended) {
            std::thread::yield_now();
        }
        let mut gone = self.shared.gone.lock().ok()?;
        gone.count = gone.count.checked_sub(1)?;
        Some(gone.ranges[gone.count])
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // A child of fork(2) may have the descriptor, too: what stays watched would wait for a thread that is not there.
        if self.process == std::process::id() {
            for &(start, end) in &self.watched {
                let _ = self.shared.userfault.unregister(start, end);
            }
        }
        self.end = None;
        if self.process == std::process::id()
            && let Some(thread) = self.thread.take()
        {
            // A panic of the thread has been reported, and changes nothing here.
            let _ = thread.join();
        }
    }
}

impl Gone {
    fn note(&mut self, start: u64, end: u64) {
        if self.count == NOTED {
            self.ranges[0] = EVERYTHING;
            self.count = 1;
        } else {
            self.ranges[self.count] = (start, end.saturating_sub(start));
            self.count += 1;
        }
    }
}

fn watch(shared: &Shared, end: &OwnedFd) {
    let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    loop {
        let mut polled = [poll(shared.userfault.raw()), poll(end.as_raw_fd())];
        // SAFETY: the list is as long as is said.
        let ready = unsafe { libc::poll(polled.as_mut_ptr(), 2, -1) };
        if ready < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) {
            continue;
        }
        if ready < 0 || polled[1].revents != 0 || !shared.userfault.is_ours() {
            return;
        }
        let Ok(mut gone) = shared.gone.lock() else { return };
        match shared.userfault.read() {
            Ok(Some(Event::Unmap { start, end } | Event::Remove { start, end })) => gone.note(start, end),
            Ok(Some(Event::Remap { from, to, len })) => {
                gone.note(from, from.saturating_add(len));
                gone.note(to, to.saturating_add(len));
            }
            Ok(Some(Event::Other) | None) => {}
            Err(_) => return,
        }
    }
}

fn whole_pages(addr: u64, len: u64) -> (u64, u64) {
    (addr & !(PAGE - 1), addr.saturating_add(len).next_multiple_of(PAGE))
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: a place for two descriptors.
    if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both are new.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pages: usize) -> u64 {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: maps new memory.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), pages * 4096, protection, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        // SAFETY: the new memory.
        unsafe { std::ptr::write_bytes(memory.cast::<u8>(), 7, pages * 4096) };
        memory as u64
    }

    #[test]
    #[ignore = "needs userfaultfd"]
    fn memory_that_is_unmapped_or_emptied_is_gone_when_the_call_returns() {
        let mut monitor = Monitor::start().unwrap();
        let memory = map(8);
        assert!(monitor.watch(memory + 100, 5 * 4096));
        let pointer = |page: u64| std::ptr::with_exposed_provenance_mut((memory + page * 4096) as usize);
        // SAFETY: memory of this test.
        unsafe { assert_eq!(libc::madvise(pointer(1), 4096, libc::MADV_DONTNEED), 0) };
        assert_eq!(monitor.next_gone(), Some((memory + 4096, 4096)));
        // SAFETY: as above.
        unsafe { assert_eq!(libc::munmap(pointer(2), 2 * 4096), 0) };
        assert_eq!(monitor.next_gone(), Some((memory + 2 * 4096, 2 * 4096)));
        // SAFETY: memory that is not watched.
        unsafe { assert_eq!(libc::munmap(pointer(7), 4096), 0) };
        assert_eq!(monitor.next_gone(), None);
        assert!(monitor.watch(memory + 5 * 4096, 100) && monitor.watch(memory + 5 * 4096, 4096));
        monitor.unwatch(memory + 5 * 4096, 100);
        // SAFETY: memory that is still watched once.
        unsafe { assert_eq!(libc::madvise(pointer(5), 4096, libc::MADV_DONTNEED), 0) };
        assert_eq!(monitor.next_gone(), Some((memory + 5 * 4096, 4096)));
        monitor.unwatch(memory + 5 * 4096, 4096);
        monitor.unwatch(memory + 100, 5 * 4096);
        // SAFETY: memory that is not watched any more.
        unsafe { assert_eq!(libc::madvise(pointer(5), 4096, libc::MADV_DONTNEED), 0) };
        assert_eq!(monitor.next_gone(), None);
        drop(monitor);
        // SAFETY: the rest of the memory, which nothing watches any more.
        unsafe { assert_eq!(libc::munmap(pointer(0), 7 * 4096), 0) };
    }

    #[test]
    fn too_many_ranges_count_as_everything() {
        let mut gone = Gone { ranges: [(0, 0); NOTED], count: 0, ended: false };
        (0..=NOTED as u64).for_each(|n| gone.note(n * 4096, (n + 1) * 4096));
        assert_eq!((gone.count, gone.ranges[0]), (1, EVERYTHING));
    }
}
