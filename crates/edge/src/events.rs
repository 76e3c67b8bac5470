//! What the program is told of a connection: operations that are complete, and notifications.

use crate::error::Error;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Notifications that wait for the program, at most; others wait in the protocol.
const MOST_NOTIFICATIONS: usize = 4096;
/// Operations that are not complete, or that the program has not been told of.
pub const MOST_OPERATIONS: usize = 1 << 16;

/// What has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// An operation of this side is complete, and its buffer may be used again. One that has failed may have written a part.
    Completed { handle: u32, result: Result<(), Error> },
    /// The peer has performed a WRITE with NOTIFY. One of 0 bytes writes nothing: its address is any number.
    Notified { address: u64, bytes: u32 },
}

/// What has happened, and the program does not know.
#[derive(Debug, Default)]
pub struct Events {
    /// Operations that the program has not been told of.
    operations: HashMap<u32, Open>,
    /// In order. A completion that was asked for by its handle remains, and counts no more.
    queue: VecDeque<Queued>,
    notifications: usize,
    /// Readable while there are events.
    descriptor: Option<OwnedFd>,
    is_signalled: bool,
    /// The connection has ended: the descriptor stays readable.
    has_ended: bool,
}

/// An operation that the program has not been told of.
#[derive(Debug, Default)]
struct Open {
    /// `Some`: it is complete.
    end: Option<Result<(), Error>>,
    /// Calls that wait for it. While there are any, its end is for them, and is no event.
    claims: u32,
}

#[derive(Clone, Copy, Debug)]
enum Queued {
    Completed(u32),
    Notified { address: u64, bytes: u32 },
}

impl Events {
    /// Whether another notification is taken.
    pub fn has_room(&self) -> bool {
        self.notifications < MOST_NOTIFICATIONS
    }

    /// Operations that the program has not been told of.
    pub fn operations(&self) -> usize {
        self.operations.len()
    }

    /// Whether the program has issued this operation.
    pub fn has(&self, handle: u32) -> bool {
        self.operations.contains_key(&handle)
    }

    /// An operation begins.
    pub fn begin(&mut self, handle: u32) {
        self.operations.insert(handle, Open::default());
    }

    /// A call waits for an operation: its end is not given to others that ask for events.
    pub fn claim(&mut self, handle: u32) {
        if let Some(open) = self.operations.get_mut(&handle) {
            open.claims += 1;
        }
    }

    /// The call does not wait any more. If it was the last one and the operation is complete, that is an event, and the result
    /// is true.
    pub fn release(&mut self, handle: u32) -> bool {
        let Some(open) = self.operations.get_mut(&handle).filter(|open| open.claims > 0) else { return false };
        open.claims -= 1;
        let is_event = open.claims == 0 && open.end.is_some();
        if is_event {
            self.queue.push_back(Queued::Completed(handle));
            self.signal();
        }
        is_event
    }

    /// An operation is complete.
    pub fn complete(&mut self, handle: u32, result: Result<(), Error>) {
        if let Some(open) = self.operations.get_mut(&handle) {
            open.end = Some(result);
            if open.claims == 0 {
                self.queue.push_back(Queued::Completed(handle));
                self.signal();
            }
        }
    }

    /// A notification has come.
    pub fn notify(&mut self, address: u64, bytes: u32) {
        self.notifications += 1;
        self.queue.push_back(Queued::Notified { address, bytes });
        self.signal();
    }

    /// The connection has ended: all operations that are not complete fail.
    pub fn fail_all(&mut self, error: &Error) {
        let mut open: Vec<u32> =
            self.operations.iter().filter(|(_, open)| open.end.is_none()).map(|(n, _)| *n).collect();
        open.sort_unstable();
        open.into_iter().for_each(|handle| self.complete(handle, Err(error.clone())));
        self.has_ended = true;
        self.signal();
    }

    /// The oldest event.
    pub fn pop(&mut self) -> Option<Event> {
        let event = loop {
            match self.queue.pop_front() {
                Some(Queued::Completed(handle)) => {
                    if let Some(result) = self.operations.remove(&handle).and_then(|open| open.end) {
                        break Some(Event::Completed { handle, result });
                    }
                }
                Some(Queued::Notified { address, bytes }) => {
                    self.notifications -= 1;
                    break Some(Event::Notified { address, bytes });
                }
                None => break None,
            }
        };
        self.trim();
        event
    }

    /// The end of an operation, if it is complete.
    pub fn take(&mut self, handle: u32) -> Result<Option<Result<(), Error>>, Error> {
        let open = self.operations.get_mut(&handle).ok_or(Error::UnknownHandle(handle))?;
        let end = open.end.take();
        if end.is_some() {
            self.operations.remove(&handle);
            self.trim();
        }
        Ok(end)
    }

    /// The descriptor that is readable while there are events.
    pub fn descriptor(&mut self) -> io::Result<RawFd> {
        if let Some(descriptor) = &self.descriptor {
            return Ok(descriptor.as_raw_fd());
        }
        let descriptor = eventfd()?;
        let number = descriptor.as_raw_fd();
        self.descriptor = Some(descriptor);
        if !self.queue.is_empty() || self.has_ended {
            self.signal();
        }
        Ok(number)
    }

    /// Makes the descriptor readable, until there are no events.
    pub fn signal(&mut self) {
        if let Some(descriptor) = self.descriptor.as_ref().filter(|_| !self.is_signalled) {
            raise(descriptor);
            self.is_signalled = true;
        }
    }

    /// Forgets what the program has been told of by handles.
    fn trim(&mut self) {
        let operations = &self.operations;
        let is_known =
            |queued: &Queued| matches!(queued, Queued::Completed(handle) if !operations.contains_key(handle));
        while self.queue.front().is_some_and(is_known) {
            self.queue.pop_front();
        }
        if self.queue.len() > 2 * (operations.len() + self.notifications) + 64 {
            self.queue.retain(|queued| !is_known(queued));
        }
        if self.queue.is_empty() && self.is_signalled && !self.has_ended {
            self.is_signalled = false;
            self.descriptor.iter().for_each(lower);
        }
    }
}

/// An eventfd.
pub fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: makes a descriptor, of which this process is the owner.
    let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is new.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Makes an eventfd readable.
pub fn raise(descriptor: &OwnedFd) {
    let one = 1u64;
    // SAFETY: 8 bytes on the stack.
    unsafe { libc::write(descriptor.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Makes an eventfd unreadable.
pub fn lower(descriptor: &OwnedFd) {
    let mut count = 0u64;
    // SAFETY: 8 bytes on the stack.
    unsafe { libc::read(descriptor.as_raw_fd(), (&raw mut count).cast(), 8) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(descriptor: RawFd) -> bool {
        let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd on the stack.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    #[test]
    fn events_come_in_order_and_once() {
        let mut events = Events::default();
        let descriptor = events.descriptor().unwrap();
        (0..3).for_each(|handle| events.begin(handle));
        assert!(!is_readable(descriptor));
        events.complete(1, Ok(()));
        events.notify(7, 8);
        events.complete(0, Err(Error::Remote));
        assert!(is_readable(descriptor));
        assert_eq!(events.take(0), Ok(Some(Err(Error::Remote))));
        assert_eq!((events.take(0), events.take(2)), (Err(Error::UnknownHandle(0)), Ok(None)));
        assert_eq!(events.pop(), Some(Event::Completed { handle: 1, result: Ok(()) }));
        assert_eq!(events.pop(), Some(Event::Notified { address: 7, bytes: 8 }));
        assert!(!is_readable(descriptor));
        events.fail_all(&Error::Ended);
        assert!(is_readable(descriptor));
        assert_eq!(events.pop(), Some(Event::Completed { handle: 2, result: Err(Error::Ended) }));
        assert_eq!((events.pop(), events.operations()), (None, 0));
        assert!(is_readable(descriptor), "the program is to see that the connection has ended");
    }

    #[test]
    fn what_a_call_waits_for_is_no_event() {
        let mut events = Events::default();
        let descriptor = events.descriptor().unwrap();
        (0..3).for_each(|handle| events.begin(handle));
        [0, 1, 1, 2].into_iter().for_each(|handle| events.claim(handle));
        events.complete(0, Ok(()));
        assert_eq!((events.pop(), is_readable(descriptor)), (None, false));
        assert_eq!(events.take(0), Ok(Some(Ok(()))));
        assert!(!events.release(0));
        // One of two calls gives up, and then the other.
        assert!(!events.release(1));
        events.complete(1, Ok(()));
        assert_eq!((events.pop(), is_readable(descriptor)), (None, false));
        assert!(events.release(1));
        assert!(is_readable(descriptor));
        assert_eq!(events.pop(), Some(Event::Completed { handle: 1, result: Ok(()) }));
        events.fail_all(&Error::Ended);
        assert_eq!((events.pop(), events.take(2)), (None, Ok(Some(Err(Error::Ended)))));
    }

    #[test]
    fn completions_that_are_asked_for_leave_nothing() {
        let mut events = Events::default();
        events.begin(u32::MAX);
        events.complete(u32::MAX, Ok(()));
        for handle in 0..1000 {
            events.begin(handle);
            events.complete(handle, Ok(()));
            assert_eq!(events.take(handle), Ok(Some(Ok(()))));
        }
        assert!(events.queue.len() < 100, "{}", events.queue.len());
        assert!(events.has_room());
    }
}
