//! Operations of the program that have not ended.

use crate::atomic::{AtomicKind, Datatype, Operator};
use crate::buffer::{Buffer, Remote, RemoteBuffer};
use crate::event::Asked;
use crate::event::Failure;
use crate::ids::{OpId, PeerId};
use crate::message::Envelope;
use crate::registrar::Held;

/// An operation.
#[derive(Debug)]
pub(crate) enum Op {
    Send(Send),
    Receive(Receive),
    Rma(Rma),
    Atomic(Atomic),
}

/// Bytes that leave.
#[derive(Debug)]
pub(crate) enum Source {
    /// In the program's memory, until the operation ends.
    Program(Buffer),
    /// In a copy.
    Copied(Box<[u8]>),
}

/// A message to a peer.
#[derive(Debug)]
pub(crate) struct Send {
    pub asked: Asked,
    pub to: PeerId,
    pub envelope: Envelope,
    pub source: Source,
    pub len: u64,
    /// It ends only after it has matched a receive.
    pub matched: bool,
    pub held: Held,
    pub state: SendState,
}

/// How far a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendState {
    /// Nothing has left.
    New,
    /// So many bytes have left eagerly.
    Eager(u64),
    /// All has left. The operation ends when the last request completes.
    Sent,
    /// The announcement has left, and the message has not matched.
    Announced,
    /// It has matched.
    Granted { receiver: u32, len: u64, target: RemoteBuffer },
}

/// A receive.
#[derive(Debug)]
pub(crate) struct Receive {
    pub asked: Asked,
    pub tagged: bool,
    pub buffer: Buffer,
    /// It takes several messages, as long as at least so many bytes are left.
    pub multi: Option<Multi>,
    /// The message is not wanted.
    pub discards: bool,
    pub state: ReceiveState,
}

/// A receive for several messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Multi {
    /// Bytes used.
    pub used: u64,
    /// It gets no further messages when fewer bytes are left.
    pub least: u64,
    /// Messages that have matched and have not ended.
    pub open: u32,
    /// Why it gets no further messages, although there is room.
    pub failure: Option<Failure>,
}

/// How far a receive is.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // Receives end as matched ones; a box would be an allocation for each message.
pub(crate) enum ReceiveState {
    /// No message has matched.
    Posted,
    /// A message has matched.
    Matched(Matched),
}

/// The message that a receive takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matched {
    pub from: PeerId,
    pub envelope: Envelope,
    /// Bytes of the message.
    pub len: u64,
    /// Bytes of it that the receive takes.
    pub take: u64,
    /// Bytes of these that have arrived as payload.
    pub arrived: u64,
    /// Its number at the sender, and where it is there, if it was announced.
    pub announced: Option<(u32, RemoteBuffer)>,
    /// The peer has been told that it may send.
    pub granted: bool,
    /// The receive for several messages that this is a part of.
    pub parent: Option<OpId>,
    pub held: Held,
}

/// A READ or WRITE of the program.
#[derive(Debug)]
pub(crate) struct Rma {
    pub asked: Asked,
    pub to: PeerId,
    pub write: bool,
    pub local: Source,
    pub remote: Remote,
    pub immediate: Option<u32>,
    pub held: Held,
    /// Its memory cannot be registered, so that it goes through bounce buffers.
    pub bounced: bool,
    /// Bytes that are posted through bounce buffers, or otherwise runs.
    pub posted: u64,
}

/// An atomic of the program.
#[derive(Debug)]
pub(crate) struct Atomic {
    pub asked: Asked,
    pub to: PeerId,
    pub kind: AtomicKind,
    pub operator: Operator,
    pub datatype: Datatype,
    pub target: RemoteBuffer,
    /// Operands, then what is compared.
    pub operands: Vec<u8>,
    /// Where the values before go.
    pub result: Buffer,
    /// The request has left.
    pub sent: bool,
}

/// A message that no receive has matched.
#[derive(Debug)]
pub(crate) struct Unexpected {
    pub from: PeerId,
    pub envelope: Envelope,
    pub len: u64,
    pub content: Content,
}

/// What is here of an unexpected message.
#[derive(Debug)]
pub(crate) enum Content {
    /// Its bytes, as far as they have arrived.
    Here(Vec<u8>),
    /// Its number at the sender, and where it is there.
    Announced { id: u32, source: RemoteBuffer },
}

impl Op {
    /// The peer that it has to do with. `None`: a receive that has not matched.
    pub fn peer(&self) -> Option<PeerId> {
        match self {
            Op::Send(send) => Some(send.to),
            Op::Rma(rma) => Some(rma.to),
            Op::Atomic(atomic) => Some(atomic.to),
            Op::Receive(Receive { state: ReceiveState::Matched(matched), .. }) => Some(matched.from),
            Op::Receive(_) => None,
        }
    }
}

impl Source {
    /// Bytes.
    pub fn len(&self) -> u64 {
        match self {
            Source::Program(buffer) => buffer.len(),
            Source::Copied(bytes) => bytes.len() as u64,
        }
    }

    /// The program's buffer.
    pub fn buffer(&self) -> Option<&Buffer> {
        match self {
            Source::Program(buffer) => Some(buffer),
            Source::Copied(_) => None,
        }
    }
}
