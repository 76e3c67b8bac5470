//! What an endpoint tells the program.

use crate::hello::Rejection;
use crate::ids::PeerId;
use crate::port::Errno;
use thiserror::Error;

/// An operation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What the program gave with the operation.
    pub context: u64,
    pub kind: Kind,
    /// The program wants to know of it even if it has succeeded.
    pub reported: bool,
    /// Bytes received. Of other operations, bytes of the operation. Of a WRITE by a peer in several requests, those of the last.
    pub len: u64,
    /// The received message's tag.
    pub tag: Option<u64>,
    /// What the peer's program attached.
    pub data: Option<u64>,
    /// The sender of a received message.
    pub from: Option<PeerId>,
    /// Where the received message is, in a buffer for several messages.
    pub addr: u64,
    /// A buffer for several messages gets no further ones.
    pub released: bool,
    pub result: Result<(), Failure>,
}

impl Event {
    /// The end of an operation of the program, of which there is nothing else to say.
    pub(crate) fn of(asked: Asked, kind: Kind, len: u64, result: Result<(), Failure>) -> Event {
        let (context, reported) = (asked.context, asked.report);
        let (tag, data, from) = (None, None, None);
        Event { context, kind, reported, len, tag, data, from, addr: 0, released: false, result }
    }
}

/// What all operations of the program have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// What the program gave with the operation.
    pub context: u64,
    /// The program wants to know of success, too.
    pub report: bool,
}

/// Which operation it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A send; with a tag?
    Send {
        tagged: bool,
    },
    /// A receive; with a tag?
    Receive {
        tagged: bool,
    },
    Write,
    Read,
    /// An atomic; does it return values?
    Atomic {
        fetches: bool,
    },
    /// A peer has written and attached data.
    WrittenByPeer,
}

/// Why an operation has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    #[error("the message was {by} bytes longer than the receive's buffer")]
    Truncated { by: u64 },
    #[error("cancelled")]
    Cancelled,
    #[error("the peer's memory does not permit the operation")]
    Denied,
    #[error("the connection to the peer has ended")]
    Disconnected,
    #[error("the peer cannot be reached: {0}")]
    Unreachable(Reason),
    #[error("the program's memory cannot be used: {0}")]
    Memory(Errno),
}

/// Why a connection is not established.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Reason {
    #[error("{0}")]
    Rejected(Rejection),
    #[error("{0}")]
    System(Errno),
    #[error("no answer within the time allowed")]
    Timeout,
}

/// An operation that cannot begin now. The program tries again after progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no room at present")]
pub struct Again;
