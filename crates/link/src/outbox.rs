//! Datagrams on their way out, staged in one buffer that stays in the cache; or, where the carrier takes that, staged
//! in part, with payload left where it lies.

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
    /// Hop limit; 0: the system's own.
    pub hops: u8,
    /// Offset in the outbox.
    pub start: usize,
    /// Bytes in all.
    pub len: usize,
    /// Pieces that it consists of: the first of them in [`Outbox::pieces`], and how many. None: it lies in the outbox
    /// as a whole, from `start` on.
    pub pieces: (usize, usize),
    /// Bytes of each datagram but the last.
    pub segment: usize,
    /// What fault injection did to it: [`Fate::empty`] from everybody else, but for what the adapter itself loses.
    pub fate: Fate,
}

/// A piece of a group: an address in this process and a length, laid out as `iovec`. Sending it reads memory by a system
/// call, which tells if it is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Piece {
    /// First byte.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
}

/// The most pieces of one group: the kernel's limit (UIO_MAXIOV).
pub const MAX_PIECES: usize = 1024;

/// A staging buffer and the groups in it.
pub struct Outbox {
    /// Staged bytes; groups point into it.
    pub bytes: Box<[u8]>,
    /// Bytes used.
    pub len: usize,
    /// What to send, in order.
    pub groups: Vec<Group>,
    /// Pieces of groups that do not lie in the outbox as a whole.
    pub pieces: Vec<Piece>,
}

impl Group {
    /// An empty group for a destination.
    pub fn new(to: SocketAddr, from: IpAddr, ifindex: u32) -> Self {
        Group { to, from, ifindex, hops: 0, start: 0, len: 0, pieces: (0, 0), segment: 0, fate: Fate::empty() }
    }

    /// Number of datagrams.
    pub fn count(&self) -> usize {
        self.len.div_ceil(self.segment.max(1))
    }
}

impl Outbox {
    /// An empty outbox for `capacity` bytes and `groups` groups; neither grows.
    pub fn new(capacity: usize, groups: usize) -> Self {
        Outbox { bytes: vec![0; capacity].into(), len: 0, groups: Vec::with_capacity(groups), pieces: Vec::new() }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.len = 0;
        self.groups.clear();
        self.pieces.clear();
    }

    /// Bytes of all groups.
    pub fn total(&self) -> usize {
        self.groups.iter().map(|group| group.len).sum()
    }

    /// Makes the last group consist of pieces, if it does not yet; a new group has none to begin with.
    pub fn open_pieces(&mut self) {
        let Some(group) = self.groups.last_mut() else { return };
        if group.pieces.1 == 0 {
            group.pieces.0 = self.pieces.len();
            if group.len > 0 {
                self.pieces.push(Piece { addr: self.bytes[group.start..].as_ptr().addr(), len: group.len });
                group.pieces.1 = 1;
            }
        }
    }

    /// Appends a piece to the last group, joined to the one before where they touch.
    pub fn add_piece(&mut self, piece: Piece) {
        let Some(group) = self.groups.last_mut() else { return };
        group.len += piece.len;
        match self.pieces[group.pieces.0..].last_mut() {
            Some(last) if last.addr + last.len == piece.addr => last.len += piece.len,
            _ => {
                self.pieces.push(piece);
                group.pieces.1 += 1;
            }
        }
    }

    /// The address of a staged byte.
    pub fn addr(&self, at: usize) -> usize {
        self.bytes[at..].as_ptr().addr()
    }

    /// The datagrams of a group that lies in the outbox as a whole, in order.
    pub fn datagrams(&self, group: &Group) -> impl Iterator<Item = &[u8]> {
        debug_assert_eq!(group.pieces.1, 0, "offered to a carrier that does not take pieces");
        self.bytes[group.start..group.start + group.len].chunks(group.segment.max(1))
    }
}
