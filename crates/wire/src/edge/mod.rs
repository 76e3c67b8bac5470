//! Packets of a connection over several links: a header in front of a frame or RoCE packet, or of a piece of a MultiEdge
//! operation; an acknowledgement; or both. And the hellos that begin such a connection.
//!
//! The header has two numbers. The *sequence number* says which packet of the connection it is, and a packet that goes
//! again keeps it. The *count* says how many packets the sender has put on this link before: a link keeps their order,
//! so a count that is missing shows a loss at once, however late other links are. The fields, big-endian:
//!
//! | offset | bytes | field |
//! | ---: | ---: | --- |
//! | 0 | 1 | bit 0: a packet follows, and it has a sequence number; bit 1: an acknowledgement follows; bit 2: the sender asks for one; bits 3 and 4: what `order` is (0 it is not there, 1 one packet, 2 all); bit 5: the packet begins with a piece; bit 6: `received` is there, which an acknowledgement needs |
//! | 1 | 1 | 4 zero bits, and [`VERSION`] where a BTH has its transport header version |
//! | 2 | 1 | number of the link, 0 ..= 63 |
//! | 3 | 4 | the receiver's number of the connection |
//! | 7 | 4 | sequence number; 0 without a packet |
//! | 11 | 4 | count; 0 without a packet and without asking |
//! | 15 | 4 | when it was sent, µs of the sender's clock |
//! | 19 | 4 | check: CRC-32 of the header, of the acknowledgement and of the piece, with 0 here. What else the packet carries has its own |
//! | 23 | 0 or 4 | received: all packets before this sequence number have arrived |
//! | | 0 or 4 | order: the sequence number that bits 3 and 4 speak of |
//! | | | acknowledgement, piece, packet |
//!
//! The acknowledgement, which repeats no field of the header:
//!
//! | offset | bytes | field |
//! | ---: | ---: | --- |
//! | 0 | 4 | performed: all packets before this sequence number have been performed |
//! | 4 | 4 | failures: of these packets, how many have failed, in packets that say so |
//! | 8 | 1 | number of links *n* |
//! | 9 | 1 | number of words *w* |
//! | 10 | 2 | 0 |
//! | 12 | 12*n* | for each link its number (1 byte), 0 (1 byte), how long ago its newest packet came (2 bytes, 2 µs, at most 65535), the count of that packet (4 bytes), when it came by the receiver's clock less when it was sent (4 bytes, µs) |
//! | | 4*w* | bitmap: bit *b* of word *k* (bit 0 is the lowest): packet `received` + 1 + 32*k* + *b* has arrived |

mod ack;
mod front;
mod header;
mod hello;
mod piece;

pub use ack::{Ack, Heard, MAX_ACK_LEN, MAX_WINDOW, ack_len};
pub use front::Front;
pub use header::{HEADER_LEN, Header, MAX_HEADER_LEN, Parsed, RECEIVED_LEN};
pub use hello::{Address, Hello, MAGIC, MAX_HELLO_LEN};
pub use piece::{Action, PIECE_LEN, Piece};

use std::fmt;

/// Where RoCE packets have 0 and frames 1.
pub const VERSION: u8 = 2;
/// The most links of a connection.
pub const MAX_LINKS: usize = 64;

/// The sequence number of a packet: 32 bits, wrapping. Order is defined within half of the number space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Seq(pub u32);

impl Seq {
    /// The signed distance from `other` to `self`.
    pub const fn since(self, other: Seq) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// The number `count` packets later.
    pub const fn plus(self, count: u32) -> Seq {
        Seq(self.0.wrapping_add(count))
    }

    /// The number `count` packets earlier.
    pub const fn minus(self, count: u32) -> Seq {
        Seq(self.0.wrapping_sub(count))
    }

    /// The number after this one.
    pub const fn next(self) -> Seq {
        self.plus(1)
    }

    /// Whether `self` comes before `other`.
    pub const fn before(self, other: Seq) -> bool {
        self.since(other) < 0
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seq {}", self.0)
    }
}

/// When a packet may be performed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// At any time.
    #[default]
    Any,
    /// When this earlier packet has been performed.
    AfterOne(Seq),
    /// When this packet and all before it have been performed.
    AfterAll(Seq),
}

impl Order {
    /// Bytes that it adds to a header.
    pub const fn wire_len(self) -> usize {
        if matches!(self, Order::Any) { 0 } else { 4 }
    }
}

/// Why bytes are no packet of a connection over several links.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EdgeError {
    #[error("{len} bytes are too short for what the header says")]
    Truncated { len: usize },
    #[error("header version {0} instead of {VERSION}")]
    Version(u8),
    #[error("a bit is set that must be 0")]
    Reserved,
    #[error("no link has number {0}")]
    Link(u8),
    #[error("an acknowledgement speaks twice of link {0}")]
    Twice(u8),
    #[error("an acknowledgement speaks of {0} links")]
    Links(u8),
    #[error("a bitmap of {0} words is too long")]
    Bitmap(u8),
    #[error("the check is wrong: the packet is damaged")]
    Check,
    #[error("a piece of kind {0}")]
    Kind(u8),
    #[error("a piece ends beyond its WRITE")]
    Extent,
    #[error("{bytes} bytes follow a piece that has none")]
    Payload { bytes: u32 },
}

/// Whether a datagram between Weir peers has this header.
pub fn is_edge(bytes: &[u8]) -> bool {
    bytes.get(1).is_some_and(|flags| flags & 0x0f == VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_distance_wrap() {
        let last = Seq(u32::MAX);
        assert_eq!(last.next(), Seq(0));
        assert!(last.before(Seq(3)) && !Seq(3).before(last));
        assert_eq!((Seq(3).since(last), last.since(Seq(3))), (4, -4));
        assert_eq!(Seq(3).minus(4), last);
    }
}
