//! Links: rate, latency, loss. Each direction is a pipe, which packets leave in the order in which they entered.

use crate::ids::Node;
use crate::packet::{PacketKey, Packets};
use std::time::Duration;
use weir_transport::{Instant, Mtu};

/// A link with the same properties in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bits per second for packets, without coding overhead.
    pub rate: f64,
    /// From the last bit sent to the last bit received.
    pub latency: Duration,
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Packets with more payload are lost.
    pub mtu: Mtu,
    /// Bytes on the wire in addition to each packet's BTH ..= ICRC.
    pub overhead: u32,
    pub disorder: Disorder,
}

/// What a link does to single packets, besides losing them: shares of all packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Disorder {
    /// They arrive later than they should, after packets behind them.
    pub late: f64,
    /// By at most this time; times are uniformly distributed.
    pub by: Duration,
    /// They arrive twice, the second time within [`Disorder::by`].
    pub twice: f64,
    /// They arrive with a changed bit: the receiver drops them (IBTA 7.8.1).
    pub damaged: f64,
}

impl Disorder {
    /// All packets arrive once, in order and unchanged.
    pub const NONE: Disorder = Disorder { late: 0.0, by: Duration::ZERO, twice: 0.0, damaged: 0.0 };
}

impl Link {
    /// InfiniBand FDR 4x: 56.25 Gbit/s in 64b/66b coding; LRH 8 and VCRC 2 bytes; 1 µs.
    pub const FDR: Link = Link { rate: 54.545e9, overhead: 10, ..Link::ethernet(0.0) };

    /// RoCEv2 over Ethernet of `gbit` Gbit/s: preamble 8, MAC 14, IPv4 20, UDP 8, FCS 4, gap 12 bytes; 1 µs.
    pub const fn ethernet(gbit: f64) -> Link {
        let (latency, disorder) = (Duration::from_micros(1), Disorder::NONE);
        Link { rate: gbit * 1e9, latency, loss: 0.0, mtu: Mtu::M4096, overhead: 66, disorder }
    }

    /// The same link with this probability of loss.
    pub const fn lossy(self, loss: f64) -> Link {
        Link { loss, ..self }
    }
}

/// No packet has more bytes (BTH ..= ICRC).
const LARGEST: u32 = 8192;

/// A direction of a link, and the queue before it.
///
/// Packets leave in sequence at the link's rate. So the number of waiting bytes follows from the time at which the
/// last packet will have left, and the queue needs no events of its own.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub link: Link,
    pub to: Node,
    /// Bytes that may wait before it.
    buffer: u64,
    picoseconds_per_byte: f64,
    /// The length of the last packet that entered, and the picoseconds that it needs: most packets are equally long.
    last: (u32, u64),
    /// Nanoseconds.
    latency: u64,
    /// While fewer than this many picoseconds of packets wait, any packet fits into the queue.
    plenty: u64,
    /// When the last packet that entered will have left, picoseconds.
    free: u64,
    /// The first and the last packet on their way through it; each has the key of the next.
    ends: Option<(PacketKey, PacketKey)>,
}

impl Pipe {
    pub fn new(link: Link, to: Node, buffer: u64) -> Self {
        let picoseconds_per_byte = 8e12 / link.rate;
        let latency = link.latency.as_nanos() as u64;
        // Rounded down by more than what the division in `fits` may be off.
        let plenty = (buffer.saturating_sub(LARGEST.into()) as f64 * picoseconds_per_byte * (1.0 - 1e-9)) as u64;
        Pipe { link, to, buffer, picoseconds_per_byte, last: (u32::MAX, 0), latency, plenty, free: 0, ends: None }
    }

    /// When the last packet that entered will have left, rounded up to nanoseconds.
    pub fn free(&self) -> Instant {
        Instant(self.free.div_ceil(1000))
    }

    /// Bytes that wait before it.
    pub fn waiting(&self, now: Instant) -> u64 {
        (self.free.saturating_sub(now.0 * 1000) as f64 / self.picoseconds_per_byte) as u64
    }

    /// Whether a packet of `bytes` bytes (BTH ..= ICRC) fits into the queue.
    #[inline]
    pub fn has_room(&self, now: Instant, bytes: u32) -> bool {
        let time = self.free.saturating_sub(now.0 * 1000);
        // Without the division, in most cases.
        time < self.plenty && bytes <= LARGEST || self.fits(time, bytes)
    }

    /// Whether a packet fits behind packets that need this many picoseconds.
    fn fits(&self, time: u64, bytes: u32) -> bool {
        (time as f64 / self.picoseconds_per_byte) as u64 + u64::from(bytes) <= self.buffer
    }

    /// Reserves the time on the wire that a packet needs. Returns when the next packet may leave, rounded up to
    /// nanoseconds, and when this packet arrives.
    #[inline]
    pub fn occupy(&mut self, now: Instant, bytes: u32) -> (Instant, Instant) {
        // Events have whole nanoseconds: a gap below 1 ns is rounding, and is not kept.
        let since = (now.0 * 1000).saturating_sub(self.free);
        let start = if since < 1000 { self.free } else { now.0 * 1000 };
        if bytes != self.last.0 {
            let on_wire = i64::from(bytes) + i64::from(self.link.overhead);
            self.last = (bytes, (on_wire as f64 * self.picoseconds_per_byte) as u64);
        }
        self.free = start + self.last.1;
        let free = self.free.div_ceil(1000);
        (Instant(free), Instant(free.saturating_add(self.latency)))
    }

    /// Puts a packet into the pipe. True if it is the only packet: the caller must schedule its arrival.
    #[inline]
    pub fn put(&mut self, packets: &mut Packets, arrival: Instant, packet: PacketKey) -> bool {
        packets[packet].arrival = arrival;
        packets[packet].next = None;
        match &mut self.ends {
            Some((_, last)) => {
                packets[*last].next = Some(packet);
                *last = packet;
                false
            }
            None => {
                self.ends = Some((packet, packet));
                true
            }
        }
    }

    /// Removes the packet that arrives; also returns the arrival of the next one.
    #[inline]
    pub fn take(&mut self, packets: &Packets) -> Option<(PacketKey, Option<Instant>)> {
        let (first, last) = self.ends?;
        let next = packets[first].next;
        self.ends = next.map(|next| (next, last));
        Some((first, next.map(|next| packets[next].arrival)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::HostId;
    use weir_transport::Chance;

    #[test]
    fn a_packet_fits_if_its_bytes_and_those_that_wait_do() {
        let mut chance = Chance::seeded(1);
        for (buffer, gbit) in [(0, 100.0), (5000, 100.0), (1 << 15, 1.0), (1 << 20, 54.545), (1 << 30, 400.0)] {
            let mut pipe = Pipe::new(Link::ethernet(gbit), Node::Host(HostId(0)), buffer);
            let (mut full, mut now) = (0, 0);
            for _ in 0..20_000 {
                let bytes = 1 + (chance.bits() % 5000) as u32;
                let fits = pipe.has_room(Instant(now), bytes);
                assert_eq!(fits, pipe.fits(pipe.free.saturating_sub(now * 1000), bytes), "{buffer} {gbit}");
                if fits {
                    pipe.occupy(Instant(now), bytes);
                } else {
                    full += 1;
                    now += chance.bits() % 10_000;
                }
            }
            assert!(full > 0 || buffer == 1 << 30, "{buffer}");
        }
    }
}
