//! Who watches: each packet as it leaves, arrives or is lost; and counts of all.

use crate::network::Node;
use crate::qp::{HostId, QpId};
use std::cell::RefCell;
use std::ops::AddAssign;
use std::rc::Rc;
use weir_transport::Instant;
use weir_wire::Headers;

/// Why a packet did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// The sending adapter's own doing: packet damming.
    Adapter,
    /// By chance, on a link.
    Link,
    /// [`crate::Simulation::lose_if`] said so.
    Rule,
    /// It carries more than a link's MTU.
    TooLong,
    /// The buffer before a switch's output was full.
    Buffer,
    /// No way leads there, or nobody there has its QP.
    Nowhere,
}

/// What happened to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// It left its host; `lost`: on the first link, or before. (What is lost later is told by `Lost`.)
    Sent { lost: Option<Loss> },
    /// It came to the QP that it is for.
    Arrived,
    /// It was lost behind its first link.
    Lost(Loss),
}

/// A packet, seen.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub at: Instant,
    /// Where.
    pub node: Node,
    pub what: What,
    /// Counts all packets, in the order in which they were sent.
    pub packet: u64,
    /// The QP that it is from. Where it goes stands in the headers.
    pub from: QpId,
    pub to: HostId,
    /// It was sent before, or one after it was. Never of ACKs and NAKs.
    pub repeated: bool,
    pub headers: &'a Headers,
    /// Bytes.
    pub payload: usize,
}

/// How many packets did what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub requests: u64,
    pub responses: u64,
    /// Of both, those that were sent before.
    pub repeated: u64,
    /// Of those sent: lost by the adapter itself.
    pub lost_by_adapter: u64,
    /// Of those sent: lost on any link, by chance, rule or MTU.
    pub lost_on_links: u64,
    /// Of those sent: tail drops in switches.
    pub lost_in_buffers: u64,
    /// Of those sent: there was no such place.
    pub lost_nowhere: u64,
    /// Packets that came.
    pub arrived: u64,
}

impl Counts {
    /// Packets sent.
    pub fn sent(&self) -> u64 {
        self.requests + self.responses
    }

    /// Packets lost, however.
    pub fn lost(&self) -> u64 {
        self.lost_by_adapter + self.lost_on_links + self.lost_in_buffers + self.lost_nowhere
    }

    pub(crate) fn lose(&mut self, loss: Loss) {
        match loss {
            Loss::Adapter => self.lost_by_adapter += 1,
            Loss::Link | Loss::Rule | Loss::TooLong => self.lost_on_links += 1,
            Loss::Buffer => self.lost_in_buffers += 1,
            Loss::Nowhere => self.lost_nowhere += 1,
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
        self.lost_nowhere += other.lost_nowhere;
        self.arrived += other.arrived;
    }
}

/// A hash of all that was seen: two runs are the same if theirs are.
#[derive(Clone, Debug, Default)]
pub struct Trace(Rc<RefCell<(u64, u64)>>);

impl Trace {
    /// Give this to [`crate::Simulation::observe`].
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
            add(format!("{:?} {:?} {:?} {:?}", seen.node, seen.what, seen.from, seen.to).as_bytes());
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

    /// How much was seen.
    pub fn len(&self) -> u64 {
        self.0.borrow().1
    }

    /// Whether nothing was.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
