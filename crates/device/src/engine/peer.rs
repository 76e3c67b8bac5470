//! One process at the other end, or a foreign adapter: what is known of it, and what is under way to it.

use crate::engine::connection::TRIES;
use crate::engine::flow::Flow;
use crate::proof::PeerKey;
use crate::route::Route;
use std::net::SocketAddr;
use std::time::Duration;
use weir_transport::Instant;
use weir_wire::ROCE_PORT;

/// Index of a peer.
pub type PeerId = usize;

/// A process at the other end, or a foreign adapter.
pub struct Peer {
    /// How packets get there.
    pub route: Route,
    /// Its slot's port, where hellos go, and packets if it is a Weir process.
    pub slot_port: u16,
    /// What is known of it.
    pub state: State,
    /// The process that QPs here were last proven to belong to; another one may answer at its port by now.
    pub life: Option<u64>,
    /// Indices of the QPs that are bound to it, each once.
    pub members: Vec<u16>,
    /// Which of them is proven next to it.
    pub next_to_prove: usize,
    /// How often it was asked since a QP with ICRC missed an acknowledgement: it may have died, and another process may
    /// have its port.
    pub doubts: Option<u32>,
    /// Cost in bytes of requests under way to it.
    pub in_flight: usize,
    /// Bytes of READ responses under way from it.
    pub reading: usize,
    /// What went there without being acknowledged: UC and UD.
    pub flow: Flow,
    /// QPs that wait for its state or its window to open, each once.
    pub waiting: Vec<u16>,
    /// Hellos since it was last decided to ask.
    pub attempts: u32,
    /// When it is asked next.
    pub next_attempt: Option<Instant>,
    /// Questions in a row that were asked at once because an answer was full.
    pub rounds: u32,
    /// When it last answered.
    pub confirmed: Option<Instant>,
    /// The window that it was told.
    pub told: usize,
    /// When a datagram last went there: they do without being bound to it.
    pub datagrams: Option<Instant>,
}

/// What is known of a peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    /// Asked, not answered yet.
    Unknown,
    /// Another Weir process.
    Weir(Weir),
    /// It does not answer: a real adapter or Soft-RoCE, at port 4791.
    Foreign,
}

/// What a Weir peer has told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weir {
    /// It runs under the same kernel: a burst arrives as it was sent.
    pub near: bool,
    /// Packets between us carry an ICRC.
    pub icrc: bool,
    /// Bytes that may be under way to it.
    pub window: usize,
    /// How long to keep trying while it does not answer.
    pub patience: Duration,
}

impl Peer {
    /// What is known of the Weir process there.
    pub fn weir(&self) -> Option<Weir> {
        match self.state {
            State::Weir(weir) => Some(weir),
            State::Unknown | State::Foreign => None,
        }
    }

    /// Where its packets go if it is a Weir process, or a foreign adapter.
    pub fn to(&self, foreign: bool) -> SocketAddr {
        self.route.to(if foreign { ROCE_PORT } else { self.slot_port })
    }

    /// Whether requests to it are held back until it has shown that it lives.
    pub fn is_doubted(&self) -> bool {
        self.doubts.is_some_and(|asked| asked <= TRIES)
    }

    /// Whether it was asked in vain whether it lives.
    pub fn is_silent(&self) -> bool {
        self.doubts.is_some_and(|asked| asked > TRIES)
    }

    /// What it is found by.
    pub fn key(&self) -> PeerKey {
        (self.route.local, self.route.remote, self.slot_port)
    }

    /// It is asked once more whether it lives.
    pub fn ask_again(&mut self) {
        self.doubts = self.doubts.map(|asked| asked + 1);
    }
}
