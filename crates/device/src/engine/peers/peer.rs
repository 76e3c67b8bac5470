//! A peer, which is a Weir process or a foreign adapter: its state, and what is under way to it.

use crate::engine::peers::connection::TRIES;
use crate::engine::peers::flow::Flow;
use crate::engine::peers::identity::PeerKey;
use crate::engine::peers::members::Members;
use crate::engine::waiting::WaitList;
use crate::shared::route::Route;
use std::net::SocketAddr;
use std::time::Duration;
use weir_transport::Instant;
use weir_wire::ROCE_PORT;

/// A Weir process at the other end, or a foreign adapter.
pub struct Peer {
    /// The route to it.
    pub route: Route,
    /// The port of its slot, for hellos, and for packets if it is a Weir process.
    pub slot_port: u16,
    /// Whether it is a Weir process.
    pub state: State,
    /// The incarnation that QPs were last proven to belong to; another process may have its port by now.
    pub incarnation: Option<u64>,
    /// The parameters in the last answer, if another process than that incarnation gave it: only datagrams use them.
    pub unidentified: Option<Weir>,
    /// The QPs that are bound to it.
    pub members: Members,
    /// It was said that it proves nothing.
    pub unproven_reported: bool,
    /// Hellos sent since a QP with ICRC missed an ACK: the peer is suspected to be dead, and another process may have
    /// its port. `None`: it is not suspected.
    pub suspected: Option<u32>,
    /// Cost in bytes of requests under way to it.
    pub in_flight: usize,
    /// Bytes of READ responses under way from it.
    pub reading: usize,
    /// Bytes sent without acknowledgement: UC and UD.
    pub flow: Flow,
    /// QPs that wait for its state to be known or its window to open.
    pub waiting: WaitList,
    /// Hellos sent in the current series.
    pub attempts: u32,
    /// When the next hello is due.
    pub next_attempt: Option<Instant>,
    /// Consecutive hellos sent at once because an answer was full of proofs.
    pub rounds: u32,
    /// When it last answered a hello.
    pub confirmed: Option<Instant>,
    /// The window in the last hello to it.
    pub announced_window: usize,
    /// The shared memory through which packets go to it.
    pub ring: RingState,
    /// The process of this incarnation wrote what no Weir process writes: it gets no shared memory again.
    pub lied: Option<u64>,
    /// When a datagram last went there; a QP sends datagrams without being bound to the peer.
    pub datagrams: Option<Instant>,
}

/// Whether a peer is a Weir process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    /// It has not answered yet.
    Unknown,
    /// Another Weir process.
    Weir(Weir),
    /// It does not answer: a real adapter or Soft-RoCE, at port 4791.
    Foreign,
}

/// Whether packets to a peer go through shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingState {
    /// They do not.
    None,
    /// The engine's thread will connect to the peer.
    Wanted { tries: u32, at: Instant },
    /// The thread has connected, or is about to.
    Connecting { tries: u32 },
    /// There is a ring, which has this index.
    Up(usize),
}

/// The parameters in the last hello of a Weir peer; once QPs are proven to belong to an incarnation of it, in the last
/// hello of this incarnation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weir {
    /// It runs under the same kernel: a burst arrives as it was sent.
    pub near: bool,
    /// Packets in both directions carry an ICRC.
    pub icrc: bool,
    /// Payload of connected QPs travels in frames in both directions ([`weir_wire::frame`]).
    pub frames: bool,
    /// Both sides offer shared memory.
    pub local: bool,
    /// Bytes that may be under way to it.
    pub window: usize,
    /// How long to keep trying while it does not answer.
    pub patience: Duration,
}

impl Peer {
    /// Returns whether it may share memory with this process: both sides offer it, and the peer has kept to the rules.
    pub fn may_share(&self) -> bool {
        let lied = self.lied.is_some() && self.lied == self.incarnation;
        self.weir().is_some_and(|weir| weir.local) && !self.members.is_empty() && !lied
    }

    /// The peer's parameters if it is a Weir process.
    pub fn weir(&self) -> Option<Weir> {
        match self.state {
            State::Weir(weir) => Some(weir),
            State::Unknown | State::Foreign => None,
        }
    }

    /// As [`weir`](Self::weir), for datagrams: they go to any process that answers at the port.
    pub fn for_datagrams(&self) -> Option<Weir> {
        self.unidentified.or(self.weir())
    }

    /// The destination of its packets, as a foreign adapter or as a Weir process.
    pub fn to(&self, foreign: bool) -> SocketAddr {
        self.route.to(if foreign { ROCE_PORT } else { self.slot_port })
    }

    /// Returns whether requests to it are held back until it shows that it is alive.
    pub fn is_suspected(&self) -> bool {
        self.suspected.is_some_and(|asked| asked <= TRIES)
    }

    /// Returns whether it is suspected and has not answered `TRIES` hellos.
    pub fn is_silent(&self) -> bool {
        self.suspected.is_some_and(|asked| asked > TRIES)
    }

    /// The key under which it is found.
    pub fn key(&self) -> PeerKey {
        (self.route.local, self.route.remote, self.slot_port)
    }

    /// Counts a hello that asks a suspected peer.
    pub fn ask_again(&mut self) {
        self.suspected = self.suspected.map(|asked| asked + 1);
    }
}
