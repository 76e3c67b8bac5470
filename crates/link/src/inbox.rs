//! Received datagrams, staged until they are checked.

use crate::Fate;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// One received buffer: datagrams of equal size (the last may be shorter) from one source, as UDP_GRO joins them.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Source address and port.
    pub from: SocketAddr,
    /// Local address that it was sent to.
    pub to: IpAddr,
    /// Local port that it was sent to.
    pub to_port: u16,
    /// Interface that it arrived on.
    pub ifindex: u32,
    /// Offset in the inbox.
    pub start: usize,
    /// Total bytes.
    pub len: usize,
    /// Bytes of each datagram except the last.
    pub segment: usize,
    /// Bytes at the front of each datagram that are not for the receiver.
    pub skip: usize,
    /// They came over several links: packets within a message may come before earlier ones of it.
    pub over_links: bool,
    /// The decision of fault injection; other code sets [`Fate::empty`].
    pub fate: Fate,
}

impl Arrival {
    /// One datagram of `len` bytes at `start`; its local address is not yet known.
    pub fn new(from: SocketAddr, to_port: u16, start: usize, len: usize) -> Self {
        let to = Ipv4Addr::UNSPECIFIED.into();
        let (skip, over_links, fate) = (0, false, Fate::empty());
        Arrival { from, to, to_port, ifindex: 0, start, len, segment: len, skip, over_links, fate }
    }
}

/// A staging buffer of fixed slots of 64 KiB, and the arrivals in them.
pub struct Inbox {
    /// Staged bytes; arrivals refer to it by offsets.
    pub bytes: Box<[u8]>,
    /// The arrivals, in order.
    pub arrivals: Vec<Arrival>,
    /// Bytes after the slots.
    spare: usize,
}

/// Bytes of a slot: the largest buffer that UDP_GRO delivers.
pub const SLOT: usize = 1 << 16;

impl Inbox {
    /// An empty inbox of `slots` slots.
    pub fn new(slots: usize) -> Self {
        Self::with_spare(slots, 0)
    }

    /// The same with `spare` bytes more, in which a carrier puts what has come earlier.
    pub fn with_spare(slots: usize, spare: usize) -> Self {
        Inbox { bytes: vec![0; slots * SLOT + spare].into(), arrivals: Vec::with_capacity(slots * 64), spare }
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        (self.bytes.len() - self.spare) / SLOT
    }

    /// The bytes after the slots.
    pub fn spare(&self) -> std::ops::Range<usize> {
        self.bytes.len() - self.spare..self.bytes.len()
    }

    /// The datagrams of an arrival, in order.
    pub fn datagrams(&self, arrival: &Arrival) -> impl DoubleEndedIterator<Item = &[u8]> + ExactSizeIterator + Clone {
        let skip = arrival.skip;
        let datagrams = self.bytes[arrival.start..arrival.start + arrival.len].chunks(arrival.segment.max(1));
        datagrams.map(move |datagram| datagram.get(skip..).unwrap_or_default())
    }
}
