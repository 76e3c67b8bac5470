//! A node of a mesh, and what it is told.

use super::port::{MemoryPort, Qp};
use crate::endpoint::Endpoint;
use crate::event::{Event, Reason};
use crate::hello::{Hello, Name};
use crate::port::{ConnectionId, Port, Slot};
use std::collections::VecDeque;

/// An end of a connection: node, connection, and a number that no other QP of the mesh ever has.
pub(super) type End = (usize, ConnectionId, u64);

/// What a node's program is told when it calls.
#[derive(Debug)]
pub(super) enum Completion {
    Incoming(Hello),
    Established(Option<Hello>),
    Refused(Reason),
    Lost,
    Sent { number: u64 },
    Failed { number: u64, denied: bool },
    Received { slot: Slot, len: usize },
    Written { slot: Slot, len: u64, immediate: u32 },
}

/// A process.
#[derive(Debug)]
pub struct Node {
    /// `None`: the process is dead, or hostile.
    pub endpoint: Option<Endpoint>,
    pub port: MemoryPort,
    /// What the endpoint has told the program.
    pub events: Vec<Event>,
    pub(super) completions: VecDeque<(End, Completion)>,
    /// Registrations of the program that peers may use.
    pub(super) windows: usize,
    /// There is no process.
    pub dead: bool,
    /// The process sends what it likes.
    pub(super) hostile: bool,
    /// Requests for connections are lost.
    pub unreachable: bool,
    /// Requests for connections are refused.
    pub refuses: bool,
}

impl Node {
    pub(super) fn new(endpoint: Endpoint, port: MemoryPort) -> Node {
        Node {
            endpoint: Some(endpoint),
            port,
            events: Vec::new(),
            completions: VecDeque::new(),
            windows: 0,
            dead: false,
            hostile: false,
            unreachable: false,
            refuses: false,
        }
    }

    /// The endpoint.
    ///
    /// # Panics
    /// If the process is dead.
    pub fn endpoint(&self) -> &Endpoint {
        self.endpoint.as_ref().expect("the node is alive")
    }

    /// Answers that wait, of the peer with most of them.
    pub fn most_answers(&self) -> usize {
        self.endpoint().peers.iter().map(|peer| peer.answers.len()).max().unwrap_or(0)
    }

    pub(super) fn qp(&mut self, end: End) -> Option<&mut Qp> {
        self.port.qps.get_mut(&end.1).filter(|qp| qp.uid == end.2)
    }

    /// Receives of a hostile node.
    pub(super) fn raw_receives(&mut self) -> Vec<Slot> {
        (0..32).filter_map(|_| self.port.new_slot()).collect()
    }

    /// What a hostile node says of itself.
    pub fn raw_hello(&mut self, name: Name) -> Hello {
        let slot = self.port.new_slot().expect("a bounce buffer");
        let len = self.port.slot(slot).len() as u32;
        self.port.free_slot(slot);
        Hello { name, receives: 32, slot: len, unexpected: 1 << 16, announced: 100 }
    }
}
