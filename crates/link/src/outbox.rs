//! Datagrams on their way out, staged in one buffer that stays in the cache.

use crate::Fate;
use std::net::{IpAddr, SocketAddr};

/// Datagrams of equal size (the last may be shorter) to one destination: one UDP_SEGMENT send.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Where to.
    pub to: SocketAddr,
    /// Source address, of the same family.
    pub from: IpAddr,
    /// Interface to leave by, 0 = by route. Link-local addresses need one.
    pub ifindex: u32,
    /// Offset in the outbox.
    pub start: usize,
    /// Bytes in all.
    pub len: usize,
    /// Bytes of each datagram but the last.
    pub segment: usize,
    /// What fault injection did to it: [`Fate::empty`] from everybody else.
    pub fate: Fate,
}

/// A staging buffer and the groups in it.
pub struct Outbox {
    /// Staged bytes; groups point into it.
    pub bytes: Box<[u8]>,
    /// Bytes used.
    pub len: usize,
    /// What to send, in order.
    pub groups: Vec<Group>,
}

impl Group {
    /// An empty group for a destination.
    pub fn new(to: SocketAddr, from: IpAddr, ifindex: u32) -> Self {
        Group { to, from, ifindex, start: 0, len: 0, segment: 0, fate: Fate::empty() }
    }

    /// Number of datagrams.
    pub fn count(&self) -> usize {
        self.len.div_ceil(self.segment.max(1))
    }
}

impl Outbox {
    /// An empty outbox for `capacity` bytes and `groups` groups; neither grows.
    pub fn new(capacity: usize, groups: usize) -> Self {
        Outbox { bytes: vec![0; capacity].into(), len: 0, groups: Vec::with_capacity(groups) }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.len = 0;
        self.groups.clear();
    }

    /// The datagrams of a group, in order.
    pub fn datagrams(&self, group: &Group) -> impl Iterator<Item = &[u8]> {
        self.bytes[group.start..group.start + group.len].chunks(group.segment.max(1))
    }
}
