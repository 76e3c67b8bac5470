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

/// The most bytes in one UDP_SEGMENT send: an IP packet, less some margin.
pub const GROUP_BYTES: usize = 65_000;

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

    /// Whether a datagram of so many bytes to the same destination fits in: UDP_SEGMENT requires datagrams of one size,
    /// only the last may be shorter. `segments`: the most datagrams of a group.
    pub fn takes(&self, len: usize, segments: usize) -> bool {
        len <= self.segment
            && self.len.is_multiple_of(self.segment)
            && self.len + len <= GROUP_BYTES
            && self.count() < segments
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
    pub fn datagrams(&self, group: &Group) -> impl DoubleEndedIterator<Item = &[u8]> + ExactSizeIterator + Clone {
        debug_assert_eq!(group.iovecs.1, 0, "this carrier does not take iovecs");
        self.bytes[group.start..group.start + group.len].chunks(group.segment.max(1))
    }
    /// For each datagram of a group its first bytes, as far as they are staged in one place, and its length. All of it
    /// is staged, if the group is contiguous; otherwise at least its headers.
    pub fn starts(&self, group: &Group) -> impl Iterator<Item = (&[u8], usize)> {
        let segment = group.segment.max(1);
        let iovecs = &self.iovecs[group.iovecs.0..group.iovecs.0 + group.iovecs.1];
        // The iovec at which a datagram begins, and the offset in it.
        let (mut at, mut offset) = (0, 0);
        (0..group.len).step_by(segment).map(move |begin| {
            let len = segment.min(group.len - begin);
            if iovecs.is_empty() {
                let start = group.start + begin;
                return (&self.bytes[start..start + len], len);
            }
            let staged = iovecs.get(at).map_or(&[][..], |iovec| self.staged(iovec, offset, len));
            let mut rest = len;
            while let Some(iovec) = iovecs.get(at).filter(|iovec| iovec.len - offset <= rest) {
                rest -= iovec.len - offset;
                (at, offset) = (at + 1, 0);
            }
            offset += rest;
            (staged, len)
        })
    }

    /// The bytes of an iovec from an offset on, `most` at most; none if they are not in this outbox.
    fn staged(&self, iovec: &Iovec, offset: usize, most: usize) -> &[u8] {
        let Some(start) = iovec.addr.checked_sub(self.bytes.as_ptr().addr()) else { return &[] };
        let len = (iovec.len - offset).min(most);
        self.bytes.get(start + offset..start + offset + len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_start_where_their_headers_are_staged() {
        let elsewhere = [9u8; 64];
        let mut outbox = Outbox::with_iovecs(64, 2, 16);
        for (at, byte) in outbox.bytes.iter_mut().enumerate() {
            *byte = at as u8;
        }
        let to = "10.0.0.2:4791".parse().unwrap();
        outbox.groups.push(Group { segment: 20, ..Group::new(to, "10.0.0.1".parse().unwrap(), 0) });
        // Headers of 4 bytes and a tail of 2, between them 14 bytes of payload; the last datagram has 5.
        for (n, payload) in [14, 14, 5].into_iter().enumerate() {
            outbox.start_iovecs();
            outbox.add_iovec(Iovec { addr: outbox.addr(n * 6), len: 4 });
            outbox.add_iovec(Iovec { addr: elsewhere.as_ptr().addr(), len: payload });
            outbox.add_iovec(Iovec { addr: outbox.addr(n * 6 + 4), len: 2 });
        }
        assert_eq!(outbox.iovecs.len(), 7, "a tail and the headers behind it are one iovec");
        let starts: Vec<_> = outbox.starts(&outbox.groups[0]).map(|(staged, len)| (staged.to_vec(), len)).collect();
        let expected = [(vec![0, 1, 2, 3], 20), (vec![6, 7, 8, 9], 20), (vec![12, 13, 14, 15], 11)];
        assert_eq!(starts, expected);
        let contiguous = Group { start: 3, len: 25, iovecs: (0, 0), ..outbox.groups[0] };
        let starts: Vec<_> = outbox.starts(&contiguous).map(|(staged, len)| (staged[0], staged.len(), len)).collect();
        assert_eq!(starts, [(3, 20, 20), (23, 5, 5)]);
    }
}
