//! A peer: the connection to it, and what is on its way there.

use crate::flow::Flow;
use crate::hello::{Hello, Name};
use crate::ids::{OpId, UnexpectedId};
use crate::message::Message;
use crate::port::{ConnectionId, Slot};
use crate::queue::SendQueue;
use std::collections::VecDeque;
use std::time::Duration;

/// What an endpoint knows of a peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub name: Name,
    /// It came by itself: the program has not named it.
    pub stranger: bool,
    /// What it says of itself, since it is connected or about to be.
    pub hello: Option<Hello>,
    /// Of the messages that have not matched, bytes that it was told of when the connection began.
    pub told_unexpected: u32,
    pub state: State,
    /// Control messages and payload that answer the peer, in order. They go before `pending`.
    pub answers: VecDeque<Answer>,
    /// Operations that have not left yet, in order.
    pub pending: VecDeque<OpId>,
    /// Announcements of this side that have not matched.
    pub announcing: u32,
    /// Announcements of the peer that have not matched.
    pub announced: u32,
    /// Bounce buffers that are posted as receives on its connection.
    pub receives: Vec<Slot>,
    /// The message of which parts are arriving.
    pub assembly: Option<Assembly>,
    /// It is in the list of peers that have something to do.
    pub busy: bool,
}

/// The connection to a peer.
#[derive(Debug)]
pub(crate) enum State {
    /// There is none.
    Idle,
    /// This side connects; `since` when.
    Connecting {
        connection: ConnectionId,
        since: Duration,
    },
    /// This side has accepted.
    Accepting {
        connection: ConnectionId,
    },
    /// The peer refused, because it connects itself. This side has waited `since` and connects again at `again`.
    Expecting {
        since: Duration,
        again: Duration,
    },
    Connected(Box<Connected>),
}

/// An established connection.
#[derive(Debug)]
pub(crate) struct Connected {
    pub id: ConnectionId,
    pub queue: SendQueue,
    pub flow: Flow,
    /// Longest message that the peer can take, bytes.
    pub longest: usize,
}

/// Something that is sent as soon as there is room.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The announced message has matched the receive.
    Grant(OpId),
    /// The receiver has all that it wants of the announced message.
    Finished(u32),
    /// The next runs of a granted send.
    Write { op: OpId, done: u64 },
    /// The next bytes of a granted send.
    Payload { op: OpId, sent: u64 },
    /// The next runs of a receive that READs.
    Read { op: OpId, done: u64 },
    /// Results of an atomic.
    AtomicDone { id: u32, refused: bool, values: Vec<u8> },
}

/// A message of which parts arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assembly {
    pub into: Into,
    pub len: u64,
    pub arrived: u64,
}

/// Where an arriving message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Into {
    Receive(OpId),
    Unexpected(UnexpectedId),
}

impl Peer {
    pub fn new(name: Name) -> Peer {
        Peer {
            name,
            stranger: false,
            hello: None,
            told_unexpected: 0,
            state: State::Idle,
            answers: VecDeque::new(),
            pending: VecDeque::new(),
            announcing: 0,
            announced: 0,
            receives: Vec::new(),
            assembly: None,
            busy: false,
        }
    }

    /// The established connection.
    pub fn connected(&mut self) -> Option<&mut Connected> {
        match &mut self.state {
            State::Connected(connected) => Some(connected),
            _ => None,
        }
    }

    /// The connection, whatever its state.
    pub fn connection(&self) -> Option<ConnectionId> {
        match &self.state {
            State::Connecting { connection, .. } | State::Accepting { connection } => Some(*connection),
            State::Connected(connected) => Some(connected.id),
            State::Idle | State::Expecting { .. } => None,
        }
    }

    /// Whether something waits for room or for the connection.
    pub fn has_work(&self) -> bool {
        !self.answers.is_empty() || !self.pending.is_empty()
    }

    /// Whether something waits for a connection that nothing establishes yet.
    pub fn wants_connection(&self) -> bool {
        self.has_work() && !matches!(self.state, State::Connected(_) | State::Accepting { .. })
    }
}

impl Connected {
    /// Whether a message may leave.
    pub fn may_send(&self, message: &Message<'_>) -> bool {
        let allowed = match message {
            Message::Credit => self.flow.must_tell(),
            Message::Eager { .. } | Message::More { .. } | Message::Announce { .. } | Message::Atomic { .. } => {
                self.flow.may_send()
            }
            // Answers. If they could not leave instead of a message that only returns credits, the peer might ask for more
            // for ever.
            _ => self.flow.may_send() || self.flow.must_return(),
        };
        allowed && self.queue.has_room()
    }
}
