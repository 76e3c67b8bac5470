//! A queue of events behind a descriptor that an application may read, poll and set non-blocking.

use crate::Errno;
use crate::os::descriptors;
use crate::os::grow::with_room;
use crate::os::locks::{RankedGuard, RankedMutex, rank};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A queue of events, and an eventfd that counts them.
pub struct Notify<T> {
    fd: ManuallyDrop<OwnedFd>,
    events: RankedMutex<VecDeque<T>, { rank::EVENTS }>,
}

/// Unread events for which there is room from the beginning: the engine raises events in its turns.
const ROOM: usize = 256;

impl<T> Notify<T> {
    /// An empty queue. Error: EMFILE.
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: creates a descriptor, which `OwnedFd` owns.
        let fd = unsafe {
            let fd = libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC);
            if fd < 0 {
                return Err(std::io::Error::last_os_error().into());
            }
            OwnedFd::from_raw_fd(fd)
        };
        descriptors::lend(fd.as_raw_fd());
        let fd = ManuallyDrop::new(fd);
        Ok(Notify { fd, events: RankedMutex::new(VecDeque::with_capacity(ROOM)) })
    }

    /// The descriptor that is readable while there are events.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Adds an event.
    pub fn push(&self, event: T) {
        let Ok(mut events) = with_room(1, || self.events(), |events| events) else {
            tracing::error!("an event is lost: out of memory");
            return;
        };
        events.push_back(event);
        // Under the lock: `remove` must find the count of each event that it drops.
        // The program may have closed the descriptor, and use the number for a file of its own.
        if !descriptors::is_marked(self.fd()) {
            return;
        }
        let one = 1u64;
        // SAFETY: writes eight bytes from the stack. It blocks only at 2^64 - 2 events. As a raw system call it is no
        // cancellation point.
        unsafe { libc::syscall(libc::SYS_write, self.fd(), &raw const one, 8) };
    }

    /// Takes the oldest event. Blocks unless the descriptor is non-blocking: EAGAIN then. EINTR passes through.
    pub fn take(&self) -> Result<T, Errno> {
        loop {
            let mut count = 0u64;
            // SAFETY: reads eight bytes onto the stack.
            if unsafe { libc::read(self.fd(), (&raw mut count).cast(), 8) } != 8 {
                return Err(std::io::Error::last_os_error().into());
            }
            if let Some(event) = self.pop() {
                return Ok(event);
            }
        }
    }

    /// Takes the oldest event, after the caller has read eight bytes from the descriptor. `None`: [`Notify::remove`]
    /// has dropped the event since the descriptor was read.
    pub fn pop(&self) -> Option<T> {
        self.events().pop_front()
    }

    fn events(&self) -> RankedGuard<'_, VecDeque<T>, { rank::EVENTS }> {
        self.events.lock()
    }

    /// Drops the events for which `unwanted` is true.
    pub fn remove(&self, unwanted: impl Fn(&T) -> bool) {
        let mut events = self.events();
        let before = events.len();
        events.retain(|event| !unwanted(event));
        (events.len()..before).for_each(|_| self.take_count());
    }

    /// Lowers the descriptor's count by one if it is not 0. It is 0 if a thread that waits for an event has read it:
    /// that thread finds no event, and reads again. It does not wait, because the caller holds the lock of the events.
    /// Where the kernel cannot read without waiting (before Linux 5.8), the count stays: the descriptor is then
    /// readable once without an event.
    fn take_count(&self) {
        if !descriptors::is_marked(self.fd()) {
            return;
        }
        let mut count = 0u64;
        let buffer = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
        // The offset -1, in two words, stands for none.
        // SAFETY: eight bytes onto the stack. As a raw system call it is no cancellation point.
        unsafe {
            libc::syscall(libc::SYS_preadv2, self.fd(), &raw const buffer, 1, -1isize, -1isize, libc::RWF_NOWAIT)
        };
    }
}

impl<T> Drop for Notify<T> {
    fn drop(&mut self) {
        if descriptors::take_back(self.fd()) {
            // SAFETY: dropped once, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};
    use std::time::{Duration, Instant};

    /// The waiting thread may read the count of an event that is removed at the same time.
    #[test]
    fn events_can_be_removed_while_a_thread_waits_for_one() {
        let notify = Arc::new(Notify::new().unwrap());
        let (waiter, remover) = (notify.clone(), notify.clone());
        let (done, ended) = mpsc::channel();
        let waited = done.clone();
        std::thread::spawn(move || {
            while waiter.take() != Ok(0) {}
            waited.send(()).unwrap();
        });
        std::thread::spawn(move || {
            for round in 0..10_000 {
                remover.push(1);
                // Until the other thread is about to read, which takes some microseconds.
                let (began, time) = (Instant::now(), Duration::from_nanos(round * 37 % 40_000));
                while began.elapsed() < time {
                    std::hint::spin_loop();
                }
                remover.remove(|event| *event == 1);
                std::thread::sleep(Duration::from_micros(20));
            }
            remover.push(0);
            done.send(()).unwrap();
        });
        for _ in 0..2 {
            ended.recv_timeout(Duration::from_secs(60)).expect("neither thread hangs");
        }
        let mut poll = libc::pollfd { fd: notify.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: a pollfd on the stack.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, 0) }, 0, "no count without an event is left");
    }

    /// An event is removed by another thread than the one that adds it.
    #[test]
    fn a_removed_event_leaves_no_count() {
        let notify = Arc::new(Notify::new().unwrap());
        let pusher = notify.clone();
        let (done, ended) = mpsc::channel();
        let pushes = std::thread::spawn(move || {
            (0..200_000).for_each(|_| pusher.push(1));
            done.send(()).unwrap();
        });
        while ended.try_recv().is_err() {
            notify.remove(|event| *event == 1);
        }
        pushes.join().unwrap();
        notify.remove(|_| true);
        let mut poll = libc::pollfd { fd: notify.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: a pollfd on the stack.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, 0) }, 0, "no count without an event is left");
    }

    #[test]
    fn events_come_in_order_and_can_be_removed() {
        let notify = Notify::new().unwrap();
        // SAFETY: sets a flag of a descriptor of this test.
        unsafe { libc::fcntl(notify.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(notify.take(), Err(Errno(libc::EAGAIN)));
        for event in [1, 2, 3, 2] {
            notify.push(event);
        }
        notify.remove(|event| *event == 2);
        assert_eq!(notify.take(), Ok(1));
        assert_eq!(notify.take(), Ok(3));
        assert_eq!(notify.take(), Err(Errno(libc::EAGAIN)));
    }
}
