//! A position in the stream of request PSNs, and the distance between two positions.

use crate::config::Config;
use crate::limits::{InFlight, PACKET_COST};
use crate::send_queue::{Kind, SendSlot};

/// A packet boundary, counted from the first PSN. It carries running sums, so that the difference of two positions is
/// the amount in flight between them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position {
    /// Packets before it. 64 bits, because 24-bit PSNs wrap.
    pub seq: u64,
    /// The work request that the next packet belongs to.
    pub wr: u32,
    /// Packets of that work request before it.
    pub packet: u32,
    /// Cost in bytes of the request packets before it.
    cost: u64,
    /// Bytes requested by READs before it.
    read_bytes: u64,
    /// READ requests and atomics before it.
    reads: u64,
    /// Messages before it minus work requests before it, wrapping: see `messages`.
    extra: u32,
    /// Messages before the first packet of its work request.
    first: u32,
}

impl Position {
    /// Before the first packet, with so many messages before it.
    pub fn after_messages(messages: u32) -> Position {
        Position { extra: messages, first: messages, ..Position::default() }
    }

    /// Moves forward by `packets` PSNs of the current work request, which has at least that many left.
    #[inline(always)]
    pub fn advance(&mut self, slot: &SendSlot, packets: u32, config: &Config) {
        let to = self.packet + packets;
        debug_assert!(to <= slot.packets);
        match slot.kind {
            Kind::Data => self.cost += self.bytes_up_to(slot, to, config) + u64::from(packets) * PACKET_COST as u64,
            Kind::Read => {
                let chunk = config.read_packets;
                let mut requests = to / chunk - self.packet / chunk;
                requests += u32::from(to == slot.packets && !to.is_multiple_of(chunk));
                self.read_bytes += self.bytes_up_to(slot, to, config);
                self.reads += u64::from(requests);
                self.extra = self.extra.wrapping_add(requests).wrapping_sub(u32::from(to == slot.packets));
                self.cost += u64::from(requests) * PACKET_COST as u64;
            }
            Kind::Atomic | Kind::Answered => {
                self.reads += 1;
                self.cost += PACKET_COST as u64;
            }
            Kind::Local => self.extra = self.extra.wrapping_sub(1),
        }
        self.seq += u64::from(packets);
        self.packet = to;
        if to == slot.packets {
            self.wr = self.wr.wrapping_add(1);
            self.packet = 0;
            self.first = self.messages();
        }
    }

    /// Moves to work request `wr`; the packets in between are never sent.
    pub fn skip_to(&mut self, wr: u32) {
        self.wr = wr;
        self.packet = 0;
        self.first = self.messages();
    }

    /// The position of the first packet of its work request, and the number of messages before that.
    pub fn start(&self) -> (u64, u32) {
        (self.seq - u64::from(self.packet), self.first)
    }

    /// Number of messages that end before it, in the responder's count, wrapping: each READ request counts as one,
    /// local work requests count as none.
    #[inline]
    pub fn messages(&self) -> u32 {
        self.wr.wrapping_add(self.extra)
    }

    /// READ requests and atomics between `una` and this one.
    pub fn reads_since(&self, una: &Position) -> u64 {
        self.reads - una.reads
    }

    /// The amount in flight between `una` and this position.
    pub fn since(&self, una: &Position) -> InFlight {
        InFlight {
            request_bytes: (self.cost - una.cost) as usize,
            read_bytes: (self.read_bytes - una.read_bytes) as usize,
        }
    }

    /// Payload bytes from here to packet `to` of the work request.
    fn bytes_up_to(&self, slot: &SendSlot, to: u32, config: &Config) -> u64 {
        let (mtu, length) = (config.mtu as u64, u64::from(slot.length));
        (u64::from(to) * mtu).min(length) - (u64::from(self.packet) * mtu).min(length)
    }
}
