//! The header of a packet of a connection over several links.

use super::{Ack, EdgeError, MAX_LINKS, Order, PIECE_LEN, Piece, Seq, VERSION};
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header with neither `received` nor an order that names a packet.
pub const HEADER_LEN: usize = size_of::<Raw>();
/// The most bytes of the header.
pub const MAX_HEADER_LEN: usize = HEADER_LEN + RECEIVED_LEN + ORDER_LEN;
/// Bytes of [`Header::received`].
pub const RECEIVED_LEN: usize = 4;

const ORDER_LEN: usize = 4;
/// Where the check is in the header.
const CHECK: std::ops::Range<usize> = HEADER_LEN - 4..HEADER_LEN;
/// The front of a packet without an acknowledgement is no longer.
const SHORT: usize = MAX_HEADER_LEN + PIECE_LEN;

const PACKET: u8 = 1 << 0;
const ACK: u8 = 1 << 1;
const ASKS: u8 = 1 << 2;
const ORDER_SHIFT: u8 = 3;
const ORDER: u8 = 3 << ORDER_SHIFT;
const PIECE: u8 = 1 << 5;
const RECEIVED: u8 = 1 << 6;
const RESERVED: u8 = 1 << 7;

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
    /// All packets before this one have arrived. An acknowledgement needs it; other packets have it if there is room.
    pub received: Option<Seq>,
    /// When the packet was sent, µs of the sender's clock, of which only differences mean something.
    pub sent: u32,
    /// The sender asks for an acknowledgement.
    pub asks: bool,
}

impl Header {
    /// Bytes on the wire.
    pub fn wire_len(&self) -> usize {
        let order = self.packet.map_or(0, |(_, order)| order.wire_len());
        HEADER_LEN + self.received.map_or(0, |_| RECEIVED_LEN) + order
    }

    /// Writes the header, the acknowledgement and the piece, if there are such, to the front of `out`; returns their length.
    /// The payload of the piece follows them, and nothing else.
    ///
    /// # Panics
    /// If `out` is shorter than that, or if the acknowledgement has more links or words than fit into one, or no `received`.
    pub fn emit(&self, ack: Option<&Ack>, piece: Option<&Piece>, out: &mut [u8]) -> usize {
        assert!(ack.is_none() || self.received.is_some(), "an acknowledgement that does not say what has arrived");
        let (seq, order) = self.packet.unwrap_or_default();
        let (kind, after) = match order {
            Order::Any => (0, None),
            Order::AfterOne(seq) => (1, Some(seq)),
            Order::AfterAll(seq) => (2, Some(seq)),
        };
        let bit = |bit: u8, is: bool| if is { bit } else { 0 };
        let bits = bit(PACKET, self.packet.is_some()) | bit(ACK, ack.is_some()) | bit(ASKS, self.asks);
        let raw = Raw {
            flags: bits | (kind << ORDER_SHIFT) | bit(PIECE, piece.is_some()) | bit(RECEIVED, self.received.is_some()),
            version: VERSION,
            link: self.link,
            connection: self.connection.into(),
            seq: seq.0.into(),
            count: self.count.into(),
            sent: self.sent.into(),
            check: U32::ZERO,
        };
        out[..HEADER_LEN].copy_from_slice(raw.as_bytes());
        let mut len = HEADER_LEN;
        for Seq(seq) in [self.received, after].into_iter().flatten() {
            out[len..len + 4].copy_from_slice(&seq.to_be_bytes());
            len += 4;
        }
        if let Some(ack) = ack {
            len += ack.emit(&mut out[len..]);
        }
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
        Header::parse_some(bytes, bytes.len(), true, ack)
    }

    /// The same of a datagram of `len` bytes that begins with `bytes`: a capture may not have all of it, and have several
    /// as one, of which this is the first. The bytes of a piece are then at most what they may be.
    pub fn parse_start<'a>(bytes: &'a [u8], len: usize, ack: &mut Ack) -> Result<Parsed<'a>, EdgeError> {
        Header::parse_some(bytes, len, false, ack)
    }

    fn parse_some<'a>(bytes: &'a [u8], len: usize, alone: bool, ack: &mut Ack) -> Result<Parsed<'a>, EdgeError> {
        let truncated = EdgeError::Truncated { len: bytes.len() };
        let (raw, mut rest) = Raw::ref_from_prefix(bytes).map_err(|_| truncated)?;
        if raw.version & 0x0f != VERSION {
            return Err(EdgeError::Version(raw.version & 0x0f));
        }
        let has = |bit: u8| raw.flags & bit != 0;
        let mut number = || {
            let (number, behind) = rest.split_first_chunk().ok_or(truncated)?;
            rest = behind;
            Ok(Seq(u32::from_be_bytes(*number)))
        };
        let received = has(RECEIVED).then(&mut number).transpose()?;
        let order = match (raw.flags & ORDER) >> ORDER_SHIFT {
            0 => Order::Any,
            1 => Order::AfterOne(number()?),
            2 => Order::AfterAll(number()?),
            _ => return Err(EdgeError::Reserved),
        };
        let seq = Seq(raw.seq.get());
        if raw.version >> 4 != 0 || has(RESERVED) || has(ACK) && received.is_none() {
            return Err(EdgeError::Reserved);
        }
        if !has(PACKET) && (has(PIECE) || (seq, order) != Default::default()) {
            return Err(EdgeError::Reserved);
        }
        if !has(PACKET) && !has(ASKS) && raw.count != U32::ZERO {
            return Err(EdgeError::Reserved);
        }
        if usize::from(raw.link) >= MAX_LINKS {
            return Err(EdgeError::Link(raw.link));
        }
        let header = Header {
            connection: raw.connection.get(),
            link: raw.link,
            count: raw.count.get(),
            packet: has(PACKET).then_some((seq, order)),
            received,
            sent: raw.sent.get(),
            asks: has(ASKS),
        };
        if has(ACK) {
            rest = ack.read(rest).map_err(|error| error.unwrap_or(truncated))?;
        }
        let mut piece = None;
        if has(PIECE) {
            let front = bytes.len() - rest.len() + PIECE_LEN;
            let read = Piece::read(rest, len.saturating_sub(front) as u32, alone);
            let (read, behind) = read.map_err(|error| error.unwrap_or(truncated))?;
            (piece, rest) = (Some(read), behind);
        }
        if check(&bytes[..bytes.len() - rest.len()]) != raw.check.get() {
            return Err(EdgeError::Check);
        }
        Ok(Parsed { header, has_ack: has(ACK), piece, rest })
    }
}

/// Bytes in front of the acknowledgement, and whether an acknowledgement, a piece and a packet are behind them, by the bits
/// of a header.
pub(super) const fn parts(flags: u8) -> (usize, [bool; 3]) {
    let received = if flags & RECEIVED != 0 { RECEIVED_LEN } else { 0 };
    let order = if flags & ORDER != 0 { ORDER_LEN } else { 0 };
    (HEADER_LEN + received + order, [flags & ACK != 0, flags & PIECE != 0, flags & PACKET != 0])
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
    /// What else the packet carries: of a piece, its payload.
    pub rest: &'a [u8],
}

/// The header in wire format, without its optional fields.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    flags: u8,
    version: u8,
    link: u8,
    connection: U32,
    seq: U32,
    count: U32,
    sent: U32,
    check: U32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::ack::{HELD_UNIT, MAX_WORDS};
    use crate::edge::{Action, Heard, MAX_ACK_LEN, is_edge};

    fn header() -> Header {
        Header {
            connection: 0x0102_0304,
            link: 5,
            count: 0x2122_2324,
            packet: Some((Seq(0x1112_1314), Order::AfterAll(Seq(0x3132_3334)))),
            received: Some(Seq(0x4142_4344)),
            sent: 0x9192_9394,
            asks: true,
        }
    }

    fn ack() -> Ack {
        let heard = vec![Heard { link: 63, newest: 0x6162_6364, held: 0x0506 * 2_000, delay: 0xa1a2_a3a4 }];
        Ack { performed: Seq(0x5152_5354), failures: 0x8182_8384, heard, bitmap: vec![0x7172_7374, 1] }
    }

    fn bytes(header: &Header, ack: Option<&Ack>) -> Vec<u8> {
        let mut out = vec![0xee; MAX_HEADER_LEN + MAX_ACK_LEN];
        let len = header.emit(ack, None, &mut out);
        out.truncate(len);
        out
    }

    #[test]
    fn the_layout_is_as_documented() {
        let expected = [
            &[0x57, 2, 5][..],
            &[1, 2, 3, 4],
            &[0x11, 0x12, 0x13, 0x14],
            &[0x21, 0x22, 0x23, 0x24],
            &[0x91, 0x92, 0x93, 0x94],
            &[0, 0, 0, 0],
            &[0x41, 0x42, 0x43, 0x44],
            &[0x31, 0x32, 0x33, 0x34],
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
        assert_eq!(emitted.len(), MAX_HEADER_LEN + ack.wire_len());
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
            for (asks, received) in [(false, None), (true, None), (false, Some(Seq(0))), (true, Some(Seq(3)))] {
                let count = if packet.is_some() || asks { 5 } else { 0 };
                let packet = packet.map(|order| (Seq(9), order));
                let header = Header { packet, asks, count, received, ..header() };
                let emitted = bytes(&header, None);
                let names = packet.is_some_and(|(_, order)| order != Order::Any);
                assert_eq!(emitted.len(), HEADER_LEN + 4 * usize::from(names) + 4 * usize::from(received.is_some()));
                let parsed = Parsed { header, has_ack: false, piece: None, rest: &[][..] };
                assert_eq!(Header::parse(&emitted, &mut Ack::default()), Ok(parsed));
            }
        }
    }

    #[test]
    fn the_largest_acknowledgement_fits() {
        let heard =
            (0..MAX_LINKS as u8).map(|link| Heard { link, newest: u32::MAX, held: u64::MAX, delay: 0 }).collect();
        let ack = Ack { performed: Seq(1), failures: 1, heard, bitmap: vec![u32::MAX; MAX_WORDS] };
        let emitted = bytes(&header(), Some(&ack));
        assert_eq!(emitted.len(), MAX_HEADER_LEN + MAX_ACK_LEN);
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
        let ack = MAX_HEADER_LEN;
        assert_eq!(with(1, 1), Err(EdgeError::Version(1)));
        for (at, value) in
            [(0, 0x5f), (0, 0x17), (0, 0xd7), (0, 0x56), (0, 0x76), (1, 0x12), (ack + 10, 1), (ack + 13, 1)]
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
        for at in [7, 11] {
            let mut bad = bytes(&none, None);
            bad[at] = 1;
            assert_eq!(parse(&bad), Err(EdgeError::Reserved), "a number without a packet");
        }
    }

    #[test]
    fn a_damaged_header_acknowledgement_or_piece_is_refused() {
        let piece = Piece { number: 1, action: Action::Response, offset: 3, bytes: 4 };
        let mut good = vec![0; MAX_HEADER_LEN + MAX_ACK_LEN + PIECE_LEN];
        let len = header().emit(Some(&ack()), Some(&piece), &mut good);
        good.truncate(len);
        good.extend([9; 4]);
        let parsed = Parsed { header: header(), has_ack: true, piece: Some(piece), rest: &good[len..] };
        assert_eq!(Header::parse(&good, &mut Ack::default()), Ok(parsed));
        let start = Header::parse_start(&good[..len + 1], good.len(), &mut Ack::default());
        assert_eq!(start, Ok(Parsed { rest: &[9], ..parsed }), "a capture has the start");
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
