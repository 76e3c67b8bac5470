//! A place in the stream of request PSNs, and what lies between two places.

use crate::config::Config;
use crate::qp::InFlight;
use crate::send_queue::{Kind, SendSlot};

/// What a packet costs a receive buffer beyond its payload, bytes.
pub(crate) const PACKET_COST: u64 = 512;

/// A packet boundary, counted from the first PSN on. Sums run along, so that the difference of two positions tells
/// what is under way between them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position {
    /// Packets before it. As 64 bits it orders what 24-bit PSNs cannot.
    pub seq: u64,
    /// The work request that the next packet belongs to.
    pub wr: u32,
    /// Packets of that work request before it.
    pub packet: u32,
    /// Cost in bytes of the request packets before it.
    cost: u64,
    /// Bytes asked for by READs before it.
    read_bytes: u64,
    /// READ requests and atomics before it.
    reads: u64,
    /// Messages before it less work requests before it, wrapping: see `messages`.
    extra: u32,
}

impl Position {
    /// Steps over `packets` PSNs of the work request that it stands in, which has that many left.
    #[inline(always)]
    pub fn advance(&mut self, slot: &SendSlot, packets: u32, config: &Config) {
        let to = self.packet + packets;
        debug_assert!(to <= slot.packets);
        match slot.kind {
            Kind::Data => self.cost += self.bytes_up_to(slot, to, config) + u64::from(packets) * PACKET_COST,
            Kind::Read => {
                let chunk = config.read_packets;
                let mut requests = to / chunk - self.packet / chunk;
                requests += u32::from(to == slot.packets && !to.is_multiple_of(chunk));
                self.read_bytes += self.bytes_up_to(slot, to, config);
                self.reads += u64::from(requests);
                self.extra = self.extra.wrapping_add(requests).wrapping_sub(u32::from(to == slot.packets));
                self.cost += u64::from(requests) * PACKET_COST;
            }
            Kind::Atomic | Kind::AtomicWrite => {
                self.reads += 1;
                self.cost += PACKET_COST;
            }
            Kind::Local => self.extra = self.extra.wrapping_sub(1),
        }
        self.seq += u64::from(packets);
        self.packet = to;
        if to == slot.packets {
            self.wr = self.wr.wrapping_add(1);
            self.packet = 0;
        }
    }

    /// Steps over whatever comes before another work request: it will never be sent.
    pub fn skip_to(&mut self, wr: u32) {
        self.wr = wr;
        self.packet = 0;
    }

    /// Messages that end before it, as the responder counts them, wrapping: each READ request is one, and what is local is
    /// none.
    #[inline]
    pub fn messages(&self) -> u32 {
        self.wr.wrapping_add(self.extra)
    }

    /// READ requests and atomics between `una` and this one.
    pub fn reads_since(&self, una: &Position) -> u64 {
        self.reads - una.reads
    }

    /// What is under way between `una` and this one.
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
