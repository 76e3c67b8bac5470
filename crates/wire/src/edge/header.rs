//! The header of a packet of a connection over several links, and its acknowledgement.

use super::{EdgeError, MAX_LINKS, Order, PIECE_LEN, Piece, Seq, VERSION};
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub const HEADER_LEN: usize = Raw::LEN;
/// The most packets that may be open at a time: those that a bitmap can have, and the one before.
pub const MAX_WINDOW: u32 = 32 * MAX_WORDS as u32 + 1;
/// The most bytes of an acknowledgement.
pub const MAX_ACK_LEN: usize = RawAck::LEN + MAX_LINKS * RawHeard::LEN + MAX_WORDS * 4;

/// The most words of a bitmap.
pub(super) const MAX_WORDS: usize = 128;
/// The unit of times in an acknowledgement, ns.
const HELD_UNIT: u64 = 2_000;
/// Where the check is in the header.
const CHECK: std::ops::Range<usize> = 28..32;
/// The front of a packet without an acknowledgement is no longer.
const SHORT: usize = Raw::LEN + PIECE_LEN;

pub(super) const PACKET: u8 = 1 << 0;
pub(super) const ACK: u8 = 1 << 1;
const ASKS: u8 = 1 << 2;
const ORDER_SHIFT: u8 = 3;
const ORDER: u8 = 3 << ORDER_SHIFT;
pub(super) const PIECE: u8 = 1 << 5;
const RESERVED: u8 = 3 << 6;

/// The header of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The receiver's number of the connection.
    pub connection: u32,
    /// The sender's number of the link.
    pub link: u8,
    /// The packets that the sender has put on this link before. An acknowledgement that goes alone, and does not ask, is no
    /// such packet, and has 0.
    pub count: u32,
    /// The sequence number of the packet that follows, if one follows, and when it may be performed.
    pub packet: Option<(Seq, Order)>,
    /// All packets before this one have arrived.
    pub received: Seq,
    /// When the packet was sent, µs of the sender's clock, of which only differences mean something.
    pub sent: u32,
    /// The sender asks for an acknowledgement.
    pub asks: bool,
}

/// What a side has heard on a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heard {
    /// The number that the sender of those packets gave the link.
    pub link: u8,
    /// The largest count that has come.
    pub newest: u32,
    /// How long ago it came, ns; in steps of 2 µs, at most 131 ms.
    pub held: u64,
    /// When it came by the clock of this side, less `Header::sent`, µs: how long it took, plus what the clocks differ by.
    pub delay: u32,
}

/// An acknowledgement. One that is parsed takes the place, and the memory, of an earlier one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ack {
    /// All packets before this one have been performed.
    pub performed: Seq,
    /// So many packets of them have failed, and the sender has told it or will, in packets.
    pub failures: u32,
    /// Each link at most once.
    pub heard: Vec<Heard>,
    /// Which packets after `Header::received` have arrived: bit *b* of word *k* is packet `received` + 1 + 32*k* + *b*.
    pub bitmap: Vec<u32>,
}

impl Header {
    /// Writes the header, the acknowledgement and the piece, if there are such, to the front of `out`; returns their length.
    ///
    /// # Panics
    /// If `out` is shorter than that, or if the acknowledgement has more links or words than fit into one.
    pub fn emit(&self, ack: Option<&Ack>, piece: Option<&Piece>, out: &mut [u8]) -> usize {
        let (seq, order) = self.packet.unwrap_or_default();
        let (kind, after) = match order {
            Order::Any => (0, Seq(0)),
            Order::AfterOne(seq) => (1, seq),
            Order::AfterAll(seq) => (2, seq),
        };
        let bit = |bit: u8, is: bool| if is { bit } else { 0 };
        let bits = bit(PACKET, self.packet.is_some()) | bit(ACK, ack.is_some()) | bit(ASKS, self.asks);
        let raw = Raw {
            flags: bits | (kind << ORDER_SHIFT) | bit(PIECE, piece.is_some()),
            version: VERSION,
            link: self.link,
            zero: 0,
            connection: self.connection.into(),
            seq: seq.0.into(),
            count: self.count.into(),
            order: after.0.into(),
            received: self.received.0.into(),
            sent: self.sent.into(),
            check: U32::ZERO,
        };
        out[..Raw::LEN].copy_from_slice(raw.as_bytes());
        let mut len = Raw::LEN + ack.map_or(0, |ack| ack.emit(&mut out[Raw::LEN..]));
        if let Some(piece) = piece {
            piece.emit(&mut out[len..]);
            len += PIECE_LEN;
        }
        let check = crc32fast::hash(&out[..len]);
        out[CHECK].copy_from_slice(&check.to_be_bytes());
        len
    }

    /// Parses a header, the acknowledgement after it into `ack`, and the piece after that. An error leaves anything in
    /// `ack`.
    pub fn parse<'a>(bytes: &'a [u8], ack: &mut Ack) -> Result<Parsed<'a>, EdgeError> {
        let truncated = EdgeError::Truncated { len: bytes.len() };
        let (raw, rest) = Raw::ref_from_prefix(bytes).map_err(|_| truncated)?;
        if raw.version & 0x0f != VERSION {
            return Err(EdgeError::Version(raw.version & 0x0f));
        }
        let (seq, after) = (Seq(raw.seq.get()), Seq(raw.order.get()));
        let order = match (raw.flags & ORDER) >> ORDER_SHIFT {
            0 if after == Seq(0) => Order::Any,
            1 => Order::AfterOne(after),
            2 => Order::AfterAll(after),
            _ => return Err(EdgeError::Reserved),
        };
        let has_packet = raw.flags & PACKET != 0;
        let has_piece = raw.flags & PIECE != 0;
        if raw.version >> 4 != 0 || raw.zero != 0 || raw.flags & RESERVED != 0 {
            return Err(EdgeError::Reserved);
        }
        if !has_packet && (has_piece || (seq, order) != Default::default()) {
            return Err(EdgeError::Reserved);
        }
        if !has_packet && raw.flags & ASKS == 0 && raw.count != U32::ZERO {
            return Err(EdgeError::Reserved);
        }
        if usize::from(raw.link) >= MAX_LINKS {
            return Err(EdgeError::Link(raw.link));
        }
        let header = Header {
            connection: raw.connection.get(),
            link: raw.link,
            count: raw.count.get(),
            packet: has_packet.then_some((seq, order)),
            received: Seq(raw.received.get()),
            sent: raw.sent.get(),
            asks: raw.flags & ASKS != 0,
        };
        let has_ack = raw.flags & ACK != 0;
        let rest = if has_ack { ack.read(rest).map_err(|error| error.unwrap_or(truncated))? } else { rest };
        let (piece, rest) = match has_piece {
            true => Piece::read(rest).map(|(piece, rest)| (Some(piece), rest)),
            false => Ok((None, rest)),
        }
        .map_err(|error| error.unwrap_or(truncated))?;
        if check(&bytes[..bytes.len() - rest.len()]) != raw.check.get() {
            return Err(EdgeError::Check);
        }
        Ok(Parsed { header, has_ack, piece, rest })
    }
}

/// CRC-32 of a front, with zeros in place of what it has.
fn check(front: &[u8]) -> u32 {
    // Most are short, and one call is cheaper than three.
    let mut short = [0; SHORT];
    if let Some(short) = short.get_mut(..front.len()) {
        short.copy_from_slice(front);
        short[CHECK].fill(0);
        return crc32fast::hash(short);
    }
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&front[..CHECK.start]);
    hasher.update(&[0; 4]);
    hasher.update(&front[CHECK.end..]);
    hasher.finalize()
}

/// A packet that has been parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parsed<'a> {
    pub header: Header,
    /// An acknowledgement was there.
    pub has_ack: bool,
    /// The packet begins with it.
    pub piece: Option<Piece>,
    /// What else the packet carries.
    pub rest: &'a [u8],
}

/// Bytes of an acknowledgement that speaks of so many links, and of so many packets after `Header::received`.
pub const fn ack_len(links: usize, packets: usize) -> usize {
    RawAck::LEN + links * RawHeard::LEN + packets.div_ceil(32) * 4
}

impl Ack {
    /// Bytes on the wire.
    pub fn wire_len(&self) -> usize {
        ack_len(self.heard.len(), self.bitmap.len() * 32)
    }

    fn emit(&self, out: &mut [u8]) -> usize {
        assert!(self.heard.len() <= MAX_LINKS && self.bitmap.len() <= MAX_WORDS);
        let raw = RawAck {
            performed: self.performed.0.into(),
            failures: self.failures.into(),
            links: self.heard.len() as u8,
            words: self.bitmap.len() as u8,
            zero: U16::ZERO,
        };
        out[..RawAck::LEN].copy_from_slice(raw.as_bytes());
        let mut at = RawAck::LEN;
        for heard in &self.heard {
            let held = (heard.held / HELD_UNIT).min(u64::from(u16::MAX)) as u16;
            let (newest, delay) = (heard.newest.into(), heard.delay.into());
            let raw = RawHeard { link: heard.link, zero: 0, held: held.into(), newest, delay };
            out[at..at + RawHeard::LEN].copy_from_slice(raw.as_bytes());
            at += RawHeard::LEN;
        }
        for word in &self.bitmap {
            out[at..at + 4].copy_from_slice(&word.to_be_bytes());
            at += 4;
        }
        at
    }

    /// Returns the bytes after the acknowledgement. Error `None`: it is truncated.
    fn read<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Option<EdgeError>> {
        self.heard.clear();
        self.bitmap.clear();
        let (raw, rest) = RawAck::ref_from_prefix(bytes).map_err(|_| None)?;
        let (links, words) = (usize::from(raw.links), usize::from(raw.words));
        if raw.zero != U16::ZERO {
            return Err(Some(EdgeError::Reserved));
        }
        if links > MAX_LINKS {
            return Err(Some(EdgeError::Links(raw.links)));
        }
        if words > MAX_WORDS {
            return Err(Some(EdgeError::Bitmap(raw.words)));
        }
        (self.performed, self.failures) = (Seq(raw.performed.get()), raw.failures.get());
        let (heard, rest) = <[RawHeard]>::ref_from_prefix_with_elems(rest, links).map_err(|_| None)?;
        let (bitmap, rest) = <[U32]>::ref_from_prefix_with_elems(rest, words).map_err(|_| None)?;
        let mut seen = 0u64;
        for raw in heard {
            if usize::from(raw.link) >= MAX_LINKS {
                return Err(Some(EdgeError::Link(raw.link)));
            }
            if raw.zero != 0 {
                return Err(Some(EdgeError::Reserved));
            }
            if seen & 1 << raw.link != 0 {
                return Err(Some(EdgeError::Twice(raw.link)));
            }
            seen |= 1 << raw.link;
            let held = u64::from(raw.held.get()) * HELD_UNIT;
            self.heard.push(Heard { link: raw.link, newest: raw.newest.get(), held, delay: raw.delay.get() });
        }
        self.bitmap.extend(bitmap.iter().map(|word| word.get()));
        Ok(rest)
    }
}

/// The header in wire format.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    flags: u8,
    version: u8,
    link: u8,
    zero: u8,
    connection: U32,
    seq: U32,
    count: U32,
    order: U32,
    received: U32,
    sent: U32,
    check: U32,
}

impl Raw {
    const LEN: usize = size_of::<Raw>();
}

/// The front of an acknowledgement in wire format.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawAck {
    performed: U32,
    failures: U32,
    links: u8,
    words: u8,
    zero: U16,
}

impl RawAck {
    const LEN: usize = size_of::<RawAck>();
}

/// A link in an acknowledgement in wire format.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeard {
    link: u8,
    zero: u8,
    held: U16,
    newest: U32,
    delay: U32,
}

impl RawHeard {
    const LEN: usize = size_of::<RawHeard>();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::{Action, is_edge};

    fn header() -> Header {
        Header {
            connection: 0x0102_0304,
            link: 5,
            count: 0x2122_2324,
            packet: Some((Seq(0x1112_1314), Order::AfterAll(Seq(0x3132_3334)))),
            received: Seq(0x4142_4344),
            sent: 0x9192_9394,
            asks: true,
        }
    }

    fn ack() -> Ack {
        let heard = vec![Heard { link: 63, newest: 0x6162_6364, held: 0x0506 * 2_000, delay: 0xa1a2_a3a4 }];
        Ack { performed: Seq(0x5152_5354), failures: 0x8182_8384, heard, bitmap: vec![0x7172_7374, 1] }
    }

    fn bytes(header: &Header, ack: Option<&Ack>) -> Vec<u8> {
        let mut out = vec![0xee; HEADER_LEN + MAX_ACK_LEN];
        let len = header.emit(ack, None, &mut out);
        out.truncate(len);
        out
    }

    #[test]
    fn the_layout_is_as_documented() {
        let expected = [
            &[0x17, 2, 5, 0][..],
            &[1, 2, 3, 4],
            &[0x11, 0x12, 0x13, 0x14],
            &[0x21, 0x22, 0x23, 0x24],
            &[0x31, 0x32, 0x33, 0x34],
            &[0x41, 0x42, 0x43, 0x44],
            &[0x91, 0x92, 0x93, 0x94],
            &[0, 0, 0, 0],
            &[0x51, 0x52, 0x53, 0x54],
            &[0x81, 0x82, 0x83, 0x84],
            &[1, 2, 0, 0],
            &[63, 0, 5, 6, 0x61, 0x62, 0x63, 0x64, 0xa1, 0xa2, 0xa3, 0xa4],
            &[0x71, 0x72, 0x73, 0x74, 0, 0, 0, 1],
        ];
        let (header, ack) = (header(), ack());
        let mut emitted = bytes(&header, Some(&ack));
        let expected = expected.concat();
        assert_eq!(emitted[CHECK], crc32fast::hash(&expected).to_be_bytes());
        assert_eq!(
            (&emitted[..CHECK.start], &emitted[CHECK.end..]),
            (&expected[..CHECK.start], &expected[CHECK.end..])
        );
        assert_eq!(emitted.len(), HEADER_LEN + ack.wire_len());
        emitted.extend(b"rest");
        let mut parsed = Ack::default();
        assert_eq!(
            Header::parse(&emitted, &mut parsed),
            Ok(Parsed { header, has_ack: true, piece: None, rest: &b"rest"[..] })
        );
        assert_eq!(parsed, ack);
        assert!(is_edge(&emitted) && !crate::frame::is_frame(&emitted));
    }

    #[test]
    fn every_kind_of_header_comes_back() {
        for packet in [None, Some(Order::Any), Some(Order::AfterOne(Seq(7))), Some(Order::AfterAll(Seq(0)))] {
            for asks in [false, true] {
                let count = if packet.is_some() || asks { 5 } else { 0 };
                let header = Header { packet: packet.map(|order| (Seq(9), order)), asks, count, ..header() };
                let parsed = Parsed { header, has_ack: false, piece: None, rest: &[][..] };
                assert_eq!(Header::parse(&bytes(&header, None), &mut Ack::default()), Ok(parsed));
            }
        }
    }

    #[test]
    fn the_largest_acknowledgement_fits() {
        let heard =
            (0..MAX_LINKS as u8).map(|link| Heard { link, newest: u32::MAX, held: u64::MAX, delay: 0 }).collect();
        let ack = Ack { performed: Seq(1), failures: 1, heard, bitmap: vec![u32::MAX; MAX_WORDS] };
        let emitted = bytes(&header(), Some(&ack));
        assert_eq!(emitted.len(), HEADER_LEN + MAX_ACK_LEN);
        let mut parsed = Ack::default();
        assert!(Header::parse(&emitted, &mut parsed).is_ok());
        assert_eq!(parsed.heard[63].held, 65535 * HELD_UNIT, "as long as can be said");
    }

    #[test]
    fn bad_packets_are_refused() {
        let good = bytes(&header(), Some(&ack()));
        let parse = |bytes: &[u8]| Header::parse(bytes, &mut Ack::default()).map(|_| ());
        assert_eq!(parse(&good), Ok(()));
        for len in 0..good.len() {
            assert_eq!(parse(&good[..len]), Err(EdgeError::Truncated { len }));
        }
        let with = |at: usize, value: u8| {
            let mut bad = good.clone();
            bad[at] = value;
            parse(&bad)
        };
        let ack = HEADER_LEN;
        assert_eq!(with(1, 1), Err(EdgeError::Version(1)));
        for (at, value) in
            [(0, 0x1f), (0, 0x57), (0, 0x97), (0, 0x16), (0, 0x36), (1, 0x12), (3, 1), (ack + 10, 1), (ack + 13, 1)]
        {
            assert_eq!(with(at, value), Err(EdgeError::Reserved), "byte {at}");
        }
        assert_eq!(with(2, 64), Err(EdgeError::Link(64)));
        assert_eq!(with(ack + 8, 65), Err(EdgeError::Links(65)));
        assert_eq!(with(ack + 12, 64), Err(EdgeError::Link(64)));
        assert_eq!(with(ack + 9, 129), Err(EdgeError::Bitmap(129)));
        let twice = Ack { heard: vec![Heard { link: 3, newest: 0, held: 0, delay: 0 }; 2], ..Ack::default() };
        assert_eq!(parse(&bytes(&header(), Some(&twice))), Err(EdgeError::Twice(3)));
        let none = Header { packet: None, asks: false, count: 0, ..header() };
        for at in [8, 12, 16] {
            let mut bad = bytes(&none, None);
            bad[at] = 1;
            assert_eq!(parse(&bad), Err(EdgeError::Reserved), "a number without a packet");
        }
    }

    #[test]
    fn a_damaged_header_acknowledgement_or_piece_is_refused() {
        let piece = Piece { number: 1, action: Action::Read { address: 2 }, offset: 3, bytes: 4 };
        let mut good = vec![0; HEADER_LEN + MAX_ACK_LEN + PIECE_LEN + 1];
        let len = header().emit(Some(&ack()), Some(&piece), &mut good);
        good.truncate(len + 1);
        let parsed = Parsed { header: header(), has_ack: true, piece: Some(piece), rest: &good[len..] };
        assert_eq!(Header::parse(&good, &mut Ack::default()), Ok(parsed));
        for at in 0..len {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(Header::parse(&bad, &mut Ack::default()).is_err(), "byte {at}");
        }
        for len in HEADER_LEN..len {
            assert_eq!(Header::parse(&good[..len], &mut Ack::default()), Err(EdgeError::Truncated { len }));
        }
    }
}
