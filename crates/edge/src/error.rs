//! What can go wrong, as an errno and a message that says what to do.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use weir_links::InterfaceError;

/// Why a call or an operation failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    #[error("this process cannot read or write the local memory: check address and size")]
    Local,
    #[error("the peer has no such memory, or does not allow this: it must register the range, with the right access")]
    Remote,
    #[error("{0} refuses: no program listens there, or its backlog is full")]
    Refused(SocketAddr),
    #[error("{0} does not answer: check the address, that a program listens there, and that UDP passes the firewalls")]
    NoAnswer(SocketAddr),
    #[error("the peer was silent for {0:?}: its process or its network has failed; connect anew")]
    Silent(Duration),
    #[error("the peer has ended the connection; connect anew")]
    Ended,
    #[error("this side has ended the connection")]
    Closed,
    #[error("nothing came in time")]
    Timeout,
    #[error("{0} operations are open: wait for some of them to complete")]
    TooMany(usize),
    #[error("this node has a connection to {0}: open another node for a second one")]
    Connected(SocketAddr),
    #[error("{0}")]
    Invalid(String),
    #[error("no operation of this connection has handle {0}: its completion was taken before, or it never existed")]
    UnknownHandle(u32),
    #[error("the node belongs to the parent of this process: open another one")]
    Forked,
    #[error("UDP port {0} is in use: choose another one")]
    PortInUse(u16),
    #[error("{what}: {}", io::Error::from_raw_os_error(*errno))]
    System { what: &'static str, errno: i32 },
    #[error("{0}")]
    Links(String),
}

impl Error {
    /// As the C functions set errno.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Local => libc::EFAULT,
            Error::Remote => libc::EREMOTEIO,
            Error::Refused(_) => libc::ECONNREFUSED,
            Error::NoAnswer(_) | Error::Silent(_) | Error::Timeout => libc::ETIMEDOUT,
            Error::Ended => libc::ECONNRESET,
            Error::Closed => libc::ENOTCONN,
            Error::TooMany(_) => libc::ENOBUFS,
            Error::Connected(_) => libc::EISCONN,
            Error::Invalid(_) | Error::UnknownHandle(_) => libc::EINVAL,
            Error::Forked => libc::EPERM,
            Error::PortInUse(_) => libc::EADDRINUSE,
            Error::System { errno, .. } => *errno,
            Error::Links(_) => libc::ENODEV,
        }
    }

    /// The error of a system call.
    pub(crate) fn system(what: &'static str, error: &io::Error) -> Error {
        Error::System { what, errno: error.raw_os_error().unwrap_or(libc::EIO) }
    }
}

impl From<InterfaceError> for Error {
    fn from(error: InterfaceError) -> Error {
        Error::Links(error.to_string())
    }
}
