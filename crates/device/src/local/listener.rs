//! The socket by which peers ask for shared memory, and what the engine's thread watches of it.

use crate::os::{epoll, seqpacket};
use crate::slot::local_name;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Token of the socket.
pub const LISTENER: u64 = 0;
/// The most events of one look.
const EVENTS: usize = 32;

/// The socket, and the connections that are watched with it.
pub struct Listener {
    socket: OwnedFd,
    epoll: OwnedFd,
}

impl Listener {
    /// Listens at a slot's name. Error: another process has the name, or the system refuses.
    pub fn open(slot: u16) -> io::Result<Listener> {
        let socket = seqpacket::claim(&local_name(slot))?;
        let listener = Listener { socket, epoll: epoll::create()? };
        listener.watch(listener.socket.as_raw_fd(), LISTENER)?;
        Ok(listener)
    }

    /// Its descriptors, without those of connections.
    pub fn descriptors(&self) -> [RawFd; 2] {
        [self.socket.as_raw_fd(), self.epoll.as_raw_fd()]
    }

    /// The next connection.
    pub fn accept(&self) -> io::Result<OwnedFd> {
        seqpacket::accept(&self.socket)
    }

    /// Accepts no further connections until [`resume`](Self::resume). Those that were accepted stay.
    pub fn pause(&self) {
        self.unwatch(self.socket.as_raw_fd());
    }

    /// Accepts connections again.
    pub fn resume(&self) -> io::Result<()> {
        self.watch(self.socket.as_raw_fd(), LISTENER)
    }

    /// Watches a connection.
    pub fn watch(&self, connection: RawFd, token: u64) -> io::Result<()> {
        epoll::add(&self.epoll, connection, libc::EPOLLIN, token)
    }

    /// Stops watching a connection that is about to be closed: a forked child may keep it open for a moment.
    pub fn unwatch(&self, connection: RawFd) {
        epoll::remove(&self.epoll, connection);
    }

    /// Tokens of what is readable, some of them if there are many.
    pub fn readable(&self) -> Vec<u64> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        // SAFETY: as many events on the stack.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), EVENTS as i32, 0) };
        events[..count.max(0) as usize].iter().map(|event| event.u64).collect()
    }
}

impl AsRawFd for Listener {
    /// Readable when the socket or a connection is.
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}
