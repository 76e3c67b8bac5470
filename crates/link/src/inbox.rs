//! Datagrams that have arrived, staged until they are checked.

use crate::Fate;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// One received buffer: datagrams of equal size (the last may be shorter) from one source, as UDP_GRO joins them.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Source address and port.
    pub from: SocketAddr,
    /// Our address that it was sent to.
    pub to: IpAddr,
    /// Our port that it was sent to.
    pub to_port: u16,
    /// Interface that it came by.
    pub ifindex: u32,
    /// Offset in the inbox.
    pub start: usize,
    /// Bytes in all.
    pub len: usize,
    /// Bytes of each datagram but the last.
    pub segment: usize,
    /// What fault injection did to it: [`Fate::empty`] from everybody else.
    pub fate: Fate,
}

impl Arrival {
    /// One datagram of `len` bytes at `start`, to an address that is still unknown.
    pub fn new(from: SocketAddr, to_port: u16, start: usize, len: usize) -> Self {
        let to = Ipv4Addr::UNSPECIFIED.into();
        Arrival { from, to, to_port, ifindex: 0, start, len, segment: len, fate: Fate::empty() }
    }
}

/// A staging buffer of fixed slots of 64 KiB, and what arrived in them.
pub struct Inbox {
    /// Staged bytes; arrivals point into it.
    pub bytes: Box<[u8]>,
    /// What has arrived, in order.
    pub arrivals: Vec<Arrival>,
}

/// Bytes of a slot: the largest that UDP_GRO hands over.
pub const SLOT: usize = 1 << 16;

impl Inbox {
    /// An empty inbox of `slots` slots.
    pub fn new(slots: usize) -> Self {
        Inbox { bytes: vec![0; slots * SLOT].into(), arrivals: Vec::with_capacity(slots * 64) }
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.bytes.len() / SLOT
    }

    /// The datagrams of an arrival, in order.
    pub fn datagrams(&self, arrival: &Arrival) -> impl DoubleEndedIterator<Item = &[u8]> + ExactSizeIterator + Clone {
        self.bytes[arrival.start..arrival.start + arrival.len].chunks(arrival.segment.max(1))
    }
}
