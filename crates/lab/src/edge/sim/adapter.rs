//! A network adapter of a host, at one end of a link.

use super::costs::{FRAME, LEAST};
use std::collections::VecDeque;
use std::time::Duration;
use weir_transport::Instant;
use weir_transport::edge::{Ack, Header, Piece};
use weir_wire::edge::PIECE_LEN;

/// A packet, without its payload.
#[derive(Clone, Debug)]
pub struct Packet {
    pub header: Header,
    pub ack: Option<Ack>,
    pub piece: Option<Piece>,
}

impl Packet {
    /// Bytes of payload.
    pub fn payload(&self) -> u32 {
        self.piece.map_or(0, |piece| piece.payload())
    }

    /// Bytes on the wire, with all that Ethernet adds.
    fn bytes(&self) -> u32 {
        let ack = self.ack.as_ref().map_or(0, |ack| ack.wire_len() as u32);
        let piece = self.piece.map_or(0, |piece| PIECE_LEN as u32 + piece.payload());
        (self.header.wire_len() as u32 + ack + piece).max(LEAST) + FRAME
    }
}

/// An adapter: it sends what it is given in order, and keeps what has come, and notes of what has left, until the host asks.
#[derive(Debug)]
pub struct Adapter {
    /// Gbit/s, which are bits in a ns.
    rate: f64,
    /// When it has sent all that it has.
    busy: Instant,
    leaving: VecDeque<(Instant, u32)>,
    coming: VecDeque<(Instant, Packet)>,
    /// Packets that have left, of which the host does not know.
    pub left: u32,
    /// Packets that have come, of which the host does not know.
    pub arrived: VecDeque<Packet>,
    /// It raises no interrupt before.
    pub quiet: Instant,
}

impl Adapter {
    pub fn new(gbits: f64) -> Adapter {
        Adapter {
            rate: gbits,
            busy: Instant(0),
            leaving: VecDeque::new(),
            coming: VecDeque::new(),
            left: 0,
            arrived: VecDeque::new(),
            quiet: Instant(0),
        }
    }

    /// Whether interrupts of this adapter are coalesced, which those of 1 Gbit/s are not.
    pub fn coalesces(&self) -> bool {
        self.rate > 2.0
    }

    /// Sends a packet after those before it; returns when it has left.
    pub fn send(&mut self, now: Instant, packet: &Packet) -> Instant {
        let time = f64::from(packet.bytes()) * 8.0 / self.rate;
        self.busy = now.max(self.busy) + Duration::from_nanos(time.round() as u64);
        self.leaving.push_back((self.busy, packet.payload()));
        self.busy
    }

    /// A packet of the peer comes at `at`, after those before it.
    pub fn expect(&mut self, at: Instant, packet: Packet) {
        self.coming.push_back((at, packet));
    }

    /// When something leaves or comes next.
    pub fn next(&self) -> Option<Instant> {
        let leaves = self.leaving.front().map(|(at, _)| *at);
        leaves.into_iter().chain(self.coming.front().map(|(at, _)| *at)).min()
    }

    /// Time has passed; returns the bytes of payload that memory was read or written for.
    pub fn advance(&mut self, now: Instant) -> u32 {
        let mut bytes = 0;
        while let Some((_, payload)) = first_by(&mut self.leaving, now) {
            self.left += 1;
            bytes += payload;
        }
        while let Some((_, packet)) = first_by(&mut self.coming, now) {
            bytes += packet.payload();
            self.arrived.push_back(packet);
        }
        bytes
    }

    /// Whether there is something that the host does not know.
    pub fn has_events(&self) -> bool {
        self.left > 0 || !self.arrived.is_empty()
    }
}

/// Takes the first of a queue if its time has come.
fn first_by<T>(queue: &mut VecDeque<(Instant, T)>, now: Instant) -> Option<(Instant, T)> {
    queue.front().is_some_and(|(at, _)| *at <= now).then(|| queue.pop_front()).flatten()
}
