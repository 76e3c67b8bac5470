//! Observation of each packet as it leaves, arrives or is lost, and packet counts.

use crate::ids::{HostId, Node, QpId};
use std::cell::RefCell;
use std::ops::AddAssign;
use std::rc::Rc;
use weir_transport::Instant;
use weir_wire::Headers;

/// Why a packet did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// Lost by the receiving adapter after it had arrived: packet damming.
    Adapter,
    /// Lost at random, on a link.
    Link,
    /// Lost by [`crate::Simulation::lose_if`].
    Rule,
    /// A bit changed on a link: the receiving host dropped it.
    Damage,
    /// Its payload exceeds a link's MTU.
    TooLong,
    /// The buffer before a switch's output was full.
    Buffer,
    /// There is no route to the host, or the host has no such QP.
    NoDestination,
}

/// An event of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketEvent {
    /// It left its host; `lost`: on the first link, or before. (Later losses are reported by `Lost`.)
    Sent { lost: Option<Loss> },
    /// It arrived at its destination QP.
    Arrived,
    /// It was lost after its first link.
    Lost(Loss),
}

/// An observed event of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub at: Instant,
    /// The host or switch where it happened.
    pub node: Node,
    pub event: PacketEvent,
    /// Sequence number among all packets, in the order in which they were sent.
    pub packet: u64,
    /// The sending QP. The destination QP is in the headers.
    pub from: QpId,
    pub to: HostId,
    /// This PSN or a later one was sent before. Never set for ACKs and NAKs.
    pub repeated: bool,
    /// A switch marked it (congestion experienced).
    pub marked: bool,
    pub headers: &'a Headers,
    /// Payload length in bytes.
    pub payload: usize,
}

/// Packet counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub requests: u64,
    pub responses: u64,
    /// Requests and responses that were sent before.
    pub repeated: u64,
    /// Sent packets that the receiving adapter lost after they had arrived (they count as arrived, too).
    pub lost_by_adapter: u64,
    /// Sent packets that were lost on any link, at random, by rule, damage or MTU.
    pub lost_on_links: u64,
    /// Sent packets that switches dropped at the tail of a queue.
    pub lost_in_buffers: u64,
    /// Sent packets to a destination that does not exist.
    pub lost_without_destination: u64,
    /// Packets that arrived.
    pub arrived: u64,
}

impl Counts {
    /// Packets sent.
    pub fn sent(&self) -> u64 {
        self.requests + self.responses
    }

    /// Packets lost for any reason.
    pub fn lost(&self) -> u64 {
        self.lost_by_adapter + self.lost_on_links + self.lost_in_buffers + self.lost_without_destination
    }

    pub(crate) fn lose(&mut self, loss: Loss) {
        match loss {
            Loss::Adapter => self.lost_by_adapter += 1,
            Loss::Link | Loss::Rule | Loss::Damage | Loss::TooLong => self.lost_on_links += 1,
            Loss::Buffer => self.lost_in_buffers += 1,
            Loss::NoDestination => self.lost_without_destination += 1,
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.requests += other.requests;
        self.responses += other.responses;
        self.repeated += other.repeated;
        self.lost_by_adapter += other.lost_by_adapter;
        self.lost_on_links += other.lost_on_links;
        self.lost_in_buffers += other.lost_in_buffers;
        self.lost_without_destination += other.lost_without_destination;
        self.arrived += other.arrived;
    }
}

/// A hash of all observed events. Equal hashes mean that two runs were the same.
#[derive(Clone, Debug, Default)]
pub struct Trace(Rc<RefCell<(u64, u64)>>);

impl Trace {
    /// The observer to pass to [`crate::Simulation::observe`].
    pub fn watch(&self) -> impl FnMut(&Seen<'_>) + 'static {
        let state = self.0.clone();
        move |seen| {
            let (hash, count) = &mut *state.borrow_mut();
            let mut add = |bytes: &[u8]| {
                // FNV-1a.
                *hash = bytes.iter().fold(*hash, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
            };
            let mut headers = [0; weir_wire::MAX_HEADERS];
            let len = seen.headers.emit(&mut headers);
            add(&seen.at.0.to_le_bytes());
            add(format!("{:?} {:?} {:?} {:?}", seen.node, seen.event, seen.from, seen.to).as_bytes());
            add(&[u8::from(seen.repeated)]);
            add(&headers[..len]);
            add(&(seen.payload as u64).to_le_bytes());
            *count += 1;
        }
    }

    /// The hash so far.
    pub fn hash(&self) -> u64 {
        self.0.borrow().0
    }

    /// Number of observed events.
    pub fn len(&self) -> u64 {
        self.0.borrow().1
    }

    /// Whether no event was observed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
