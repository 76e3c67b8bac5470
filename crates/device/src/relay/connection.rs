//! A connection to the process that has a name, which never sends.

use crate::os::{descriptors, seqpacket};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// A connected socket, which a forked child must close.
pub struct Connection(OwnedFd);

impl Connection {
    /// Connects to the process that has a name; returns the user of the process, too. Errors: as of
    /// [`seqpacket::connect`].
    pub fn open(name: &str) -> io::Result<(Connection, u32)> {
        let socket = seqpacket::connect(name)?;
        descriptors::register(&[socket.as_raw_fd()]);
        let socket = Connection(socket);
        let user = seqpacket::user(&socket.0)?;
        Ok((socket, user))
    }

    /// Sends a message. Errors: as of [`seqpacket::send`].
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        seqpacket::send(&self.0, message)
    }

    /// The process at the other end, if this one sees it: not if it is in a PID namespace of which this one knows nothing.
    pub fn process(&self) -> Option<i32> {
        seqpacket::process(&self.0).ok().filter(|id| *id > 0)
    }

    /// Returns whether the other end, which never sends, has closed the connection.
    pub fn is_over(&self) -> bool {
        match seqpacket::receive(&self.0, &mut [0]) {
            Ok(len) => len == 0,
            Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        descriptors::forget(&[self.0.as_raw_fd()]);
    }
}
