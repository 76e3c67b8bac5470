//! A queue of events behind a descriptor that an application may read, poll and set non-blocking.

use crate::Errno;
use crate::os::descriptors;
use crate::os::grow::with_room;
use crate::os::locks::{RankedGuard, RankedMutex, rank};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// A queue of events, and an eventfd that counts them.
pub struct Notify<T> {
    fd: ManuallyDrop<OwnedFd>,
    queue: RankedMutex<Queue<T>, { rank::EVENTS }>,
    /// Whether [`Queue::ahead`] is not 0, for [`Notify::push`].
    any_ahead: AtomicBool,
}

struct Queue<T> {
    events: VecDeque<T>,
    /// Counts of removed events that the descriptor did not have then. A thread has read such a count and has not looked for
    /// the event yet: it may take the next event, and the count of that one stays. Or the count comes later.
    ahead: usize,
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
        let queue = Queue { events: VecDeque::with_capacity(ROOM), ahead: 0 };
        Ok(Notify { fd, queue: RankedMutex::new(queue), any_ahead: AtomicBool::new(false) })
    }

    /// The descriptor that is readable while there are events.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Adds an event.
    pub fn push(&self, event: T) {
        let Ok(mut queue) = with_room(1, || self.queue(), |queue| &mut queue.events) else {
            tracing::error!("an event is lost: out of memory");
            return;
        };
        queue.events.push_back(event);
        // The write wakes a thread that takes the lock at once, perhaps on this core.
        drop(queue);
        // The program may have closed the descriptor, and use the number for a file of its own.
        if !descriptors::is_marked(self.fd()) {
            return;
        }
        let one = 1u64;
        // SAFETY: writes eight bytes from the stack. It blocks only at 2^64 - 2 events. As a raw system call it is no
        // cancellation point.
        unsafe { libc::syscall(libc::SYS_write, self.fd(), &raw const one, 8) };
        // The event was removed before its count was there.
        if self.any_ahead.load(Ordering::SeqCst) {
            self.settle(&mut self.queue());
        }
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
        let mut queue = self.queue();
        let event = queue.events.pop_front();
        if event.is_none() {
            queue.ahead = queue.ahead.saturating_sub(1);
        }
        self.settle(&mut queue);
        event
    }

    fn queue(&self) -> RankedGuard<'_, Queue<T>, { rank::EVENTS }> {
        self.queue.lock()
    }

    /// Drops the events for which `unwanted` is true.
    pub fn remove(&self, unwanted: impl Fn(&T) -> bool) {
        let mut queue = self.queue();
        let before = queue.events.len();
        queue.events.retain(|event| !unwanted(event));
        for _ in queue.events.len()..before {
            queue.ahead += usize::from(self.take_count() == Count::Zero);
        }
        // Before the last look: a count that comes after it is settled by the thread that adds it.
        self.any_ahead.store(queue.ahead > 0, Ordering::SeqCst);
        self.settle(&mut queue);
    }

    /// Takes the counts that are left without an event.
    fn settle(&self, queue: &mut Queue<T>) {
        while queue.ahead > 0 && queue.events.is_empty() && self.take_count() == Count::Lowered {
            queue.ahead -= 1;
        }
        self.any_ahead.store(queue.ahead > 0, Ordering::SeqCst);
    }

    /// Lowers the descriptor's count by one if it is not 0. It is 0 if a thread that waits for an event has read it:
    /// that thread finds no event, and reads again, or another event. It does not wait, because the caller holds the lock
    /// of the events. Where the kernel cannot read without waiting (before Linux 5.8), the count stays: the descriptor is
    /// then readable once without an event.
    fn take_count(&self) -> Count {
        if !descriptors::is_marked(self.fd()) {
            return Count::Unknown;
        }
        let mut count = 0u64;
        let buffer = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
        // The offset -1, in two words, stands for none.
        // SAFETY: eight bytes onto the stack. As a raw system call it is no cancellation point.
        let read = unsafe {
            libc::syscall(libc::SYS_preadv2, self.fd(), &raw const buffer, 1, -1isize, -1isize, libc::RWF_NOWAIT)
        };
        match Errno::from(std::io::Error::last_os_error()) {
            _ if read == 8 => Count::Lowered,
            Errno(libc::EAGAIN) => Count::Zero,
            _ => Count::Unknown,
        }
    }
}

/// What became of the descriptor's count.
#[derive(PartialEq, Eq)]
enum Count {
    Lowered,
    Zero,
    /// The program has closed the descriptor, or the kernel cannot read it without waiting.
    Unknown,
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

    /// The thread that has read the count of the removed event takes the next one. Nothing else would read the count of
    /// that one.
    #[test]
    fn an_event_that_is_removed_while_a_thread_reads_its_count_leaves_no_count() {
        let notify = Notify::new().unwrap();
        // SAFETY: sets a flag of a descriptor of this test.
        unsafe { libc::fcntl(notify.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        let read_count = || {
            let mut count = 0u64;
            // SAFETY: eight bytes onto the stack.
            unsafe { libc::read(notify.fd(), (&raw mut count).cast(), 8) == 8 }
        };
        for later in [1, 2] {
            notify.push(0);
            assert!(read_count());
            notify.remove(|event| *event == 0);
            (1..=later).for_each(|event| notify.push(event));
            assert_eq!(notify.pop(), Some(1));
            for event in 2..=later {
                assert_eq!(notify.take(), Ok(event));
            }
            assert!(!read_count(), "a count without an event, of {later} later events");
        }
        // Here it finds the queue empty, and is no longer ahead of the next event.
        notify.push(0);
        assert!(read_count());
        notify.remove(|event| *event == 0);
        assert_eq!(notify.pop(), None);
        notify.push(1);
        assert_eq!((notify.take(), notify.take()), (Ok(1), Err(Errno(libc::EAGAIN))));
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
