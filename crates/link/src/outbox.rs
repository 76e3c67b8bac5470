//! Outgoing datagrams, staged in one buffer that stays in the cache; or, where the carrier supports iovecs, staged in
//! part, with payload left in application memory.

use crate::Fate;
use std::net::{IpAddr, SocketAddr};

/// Datagrams of equal size (the last may be shorter) to one destination: one UDP_SEGMENT send.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Destination.
    pub to: SocketAddr,
    /// Source address, of the same family.
    pub from: IpAddr,
    /// Outgoing interface, 0 = by route. Link-local addresses need an interface.
    pub ifindex: u32,
    /// Hop limit; 0: the system's default.
    pub hops: u8,
    /// Its datagrams may have any IPv4 Identification: no ICRC covers it. The kernel numbers those of a connected socket.
    pub any_id: bool,
    /// Offset in the outbox.
    pub start: usize,
    /// Total bytes.
    pub len: usize,
    /// Its iovecs: index of the first in [`Outbox::iovecs`], and their number. 0 iovecs: the group is contiguous in
    /// the outbox, from `start` on.
    pub iovecs: (usize, usize),
    /// Bytes of each datagram except the last.
    pub segment: usize,
    /// The decision of fault injection; other code sets [`Fate::empty`], except for datagrams that the adapter itself
    /// loses.
    pub fate: Fate,
}

/// A part of a group: an address in this process and a length, with the layout of `iovec`. The send call reads the
/// memory, and fails with EFAULT if it is not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Iovec {
    /// First byte.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
}

/// The most iovecs of one group: the kernel's limit (UIO_MAXIOV).
pub const MAX_IOVECS: usize = 1024;

/// A staging buffer and the groups in it.
pub struct Outbox {
    /// Staged bytes; groups refer to it by offsets.
    pub bytes: Box<[u8]>,
    /// Bytes used.
    pub len: usize,
    /// The groups to send, in order.
    pub groups: Vec<Group>,
    /// Iovecs of groups that are not contiguous in the outbox.
    pub iovecs: Vec<Iovec>,
}

impl Group {
    /// An empty group for a destination.
    pub fn new(to: SocketAddr, from: IpAddr, ifindex: u32) -> Self {
        let (hops, any_id, fate) = (0, false, Fate::empty());
        Group { to, from, ifindex, hops, any_id, start: 0, len: 0, iovecs: (0, 0), segment: 0, fate }
    }

    /// Number of datagrams.
    pub fn count(&self) -> usize {
        self.len.div_ceil(self.segment.max(1))
    }
}

impl Outbox {
    /// An empty outbox for `capacity` bytes and `groups` groups, without iovecs; these do not grow.
    pub fn new(capacity: usize, groups: usize) -> Self {
        Self::with_iovecs(capacity, groups, 0)
    }

    /// The same with room for `iovecs` iovecs.
    pub fn with_iovecs(capacity: usize, groups: usize, iovecs: usize) -> Self {
        let (groups, iovecs) = (Vec::with_capacity(groups), Vec::with_capacity(iovecs));
        Outbox { bytes: vec![0; capacity].into(), len: 0, groups, iovecs }
    }

    /// Whether `more` further iovecs fit, and the one that [`start_iovecs`](Self::start_iovecs) may add.
    pub fn has_room_for_iovecs(&self, more: usize) -> bool {
        self.iovecs.len() + 1 + more <= self.iovecs.capacity()
    }

    /// Removes all groups and bytes.
    pub fn clear(&mut self) {
        self.len = 0;
        self.groups.clear();
        self.iovecs.clear();
    }

    /// Total bytes of all groups.
    pub fn total(&self) -> usize {
        self.groups.iter().map(|group| group.len).sum()
    }

    /// Converts the last group to iovecs, unless it has some; an empty group starts with none.
    pub fn start_iovecs(&mut self) {
        let Some(group) = self.groups.last_mut() else { return };
        if group.iovecs.1 == 0 {
            group.iovecs.0 = self.iovecs.len();
            if group.len > 0 {
                self.iovecs.push(Iovec { addr: self.bytes[group.start..].as_ptr().addr(), len: group.len });
                group.iovecs.1 = 1;
            }
        }
    }

    /// Appends an iovec to the last group; contiguous iovecs are merged. The caller has checked that there is room.
    pub fn add_iovec(&mut self, iovec: Iovec) {
        let Some(group) = self.groups.last_mut() else { return };
        group.len += iovec.len;
        match self.iovecs[group.iovecs.0..].last_mut() {
            Some(last) if last.addr + last.len == iovec.addr => last.len += iovec.len,
            _ => {
                self.iovecs.push(iovec);
                group.iovecs.1 += 1;
            }
        }
    }

    /// The address of a staged byte.
    pub fn addr(&self, at: usize) -> usize {
        self.bytes[at..].as_ptr().addr()
    }

    /// The datagrams of a group that is contiguous in the outbox, in order.
    pub fn datagrams(&self, group: &Group) -> impl Iterator<Item = &[u8]> {
        debug_assert_eq!(group.iovecs.1, 0, "this carrier does not take iovecs");
        self.bytes[group.start..group.start + group.len].chunks(group.segment.max(1))
    }
}
