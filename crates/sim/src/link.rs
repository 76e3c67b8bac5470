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
}

impl Link {
    /// InfiniBand FDR 4x: 56.25 Gbit/s in 64b/66b coding; LRH 8 and VCRC 2 bytes; 1 µs.
    pub const FDR: Link =
        Link { rate: 54.545e9, latency: Duration::from_micros(1), loss: 0.0, mtu: Mtu::M4096, overhead: 10 };

    /// RoCEv2 over Ethernet of `gbit` Gbit/s: preamble 8, MAC 14, IPv4 20, UDP 8, FCS 4, gap 12 bytes; 1 µs.
    pub const fn ethernet(gbit: f64) -> Link {
        Link { rate: gbit * 1e9, latency: Duration::from_micros(1), loss: 0.0, mtu: Mtu::M4096, overhead: 66 }
    }

    /// The same link with this probability of loss.
    pub const fn lossy(self, loss: f64) -> Link {
        Link { loss, ..self }
    }
}

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
    /// When the last packet that entered will have left, picoseconds.
    free: u64,
    /// The first and the last packet on their way through it; each has the key of the next.
    ends: Option<(PacketKey, PacketKey)>,
}

impl Pipe {
    pub fn new(link: Link, to: Node, buffer: u64) -> Self {
        let picoseconds_per_byte = 8e12 / link.rate;
        Pipe { link, to, buffer, picoseconds_per_byte, free: 0, ends: None }
    }

    /// When the next packet may leave, rounded up to nanoseconds.
    pub fn free_at(&self) -> Instant {
        Instant(self.free.div_ceil(1000))
    }

    /// Whether a packet of `bytes` bytes (BTH ..= ICRC) fits into the queue.
    pub fn has_room(&self, now: Instant, bytes: usize) -> bool {
        let waiting = match self.free.saturating_sub(now.0 * 1000) {
            0 => 0,
            time => (time as f64 / self.picoseconds_per_byte) as u64,
        };
        waiting + bytes as u64 <= self.buffer
    }

    /// Reserves the time on the wire that a packet needs; returns when it arrives.
    pub fn occupy(&mut self, now: Instant, bytes: usize) -> Instant {
        // Events have whole nanoseconds: a gap below 1 ns is rounding, and is not kept.
        let since = (now.0 * 1000).saturating_sub(self.free);
        let start = if since < 1000 { self.free } else { now.0 * 1000 };
        let bytes = bytes + self.link.overhead as usize;
        // As signed integers, which processors convert in one instruction.
        self.free = start + (bytes as i64 as f64 * self.picoseconds_per_byte) as i64 as u64;
        self.free_at() + self.link.latency
    }

    /// Puts a packet into the pipe. True if it is the only packet: the caller must schedule its arrival.
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
    pub fn take(&mut self, packets: &Packets) -> Option<(PacketKey, Option<Instant>)> {
        let (first, last) = self.ends?;
        let next = packets[first].next;
        self.ends = next.map(|next| (next, last));
        Some((first, next.map(|next| packets[next].arrival)))
    }
}
