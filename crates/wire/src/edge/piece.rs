//! A piece of a MultiEdge operation, in front of the payload of a packet. The fields, big-endian:
//!
//! | offset | bytes | field |
//! | ---: | ---: | --- |
//! | 0 | 4 | number of the operation, or of what a READ asks for |
//! | 4 | 1 | bits 0 ..= 6: what it is for: 0 WRITE, 1 the rest of a WRITE does not come, 2 a WRITE has failed, 3 READ, 4 response, 5 the READ has failed; bit 7: the receiver is to be notified of the WRITE |
//! | 5 | 8 | address: of the WRITE, or of what the READ asks for; 0 otherwise |
//! | 13 | 4 | offset of these bytes in the WRITE, or in what was asked for |
//! | 17 | 4 | bytes of the whole WRITE, or that the READ asks for; 0 otherwise |

use super::EdgeError;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a piece, without its payload.
pub const PIECE_LEN: usize = size_of::<Raw>();

const NOTIFY: u8 = 1 << 7;

/// What a packet does for an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Of WRITEs and of what READs ask for; each has numbers of its own. The side that issued the operation gives it.
    pub number: u32,
    pub action: Action,
    /// Bytes of the WRITE, or of what was asked for, before this piece.
    pub offset: u32,
    /// Bytes of the piece: the payload, or those that are asked for; 0 of others.
    pub bytes: u32,
}

/// What a piece is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Bytes for the receiver. `address`: of the WRITE; `total`: its bytes; `notify`: the receiver is told when all of them
    /// are there.
    Write { address: u64, total: u32, notify: bool },
    /// The rest of a WRITE to the receiver does not come.
    Abandon,
    /// A WRITE of the receiver has failed.
    WriteFailed,
    /// Asks for bytes of the receiver.
    Read { address: u64 },
    /// Bytes that the receiver has asked for.
    Response,
    /// They cannot be read.
    ReadFailed,
}

impl Piece {
    /// Bytes that follow the piece.
    pub fn payload(&self) -> u32 {
        if matches!(self.action, Action::Write { .. } | Action::Response) { self.bytes } else { 0 }
    }

    /// Writes the piece to the front of `out`.
    pub(super) fn emit(&self, out: &mut [u8]) {
        let (kind, address, total, notify) = match self.action {
            Action::Write { address, total, notify } => (0, address, total, notify),
            Action::Abandon => (1, 0, 0, false),
            Action::WriteFailed => (2, 0, 0, false),
            Action::Read { address } => (3, address, self.bytes, false),
            Action::Response => (4, 0, 0, false),
            Action::ReadFailed => (5, 0, 0, false),
        };
        let raw = Raw {
            number: self.number.into(),
            kind: kind | if notify { NOTIFY } else { 0 },
            address: address.into(),
            offset: self.offset.into(),
            total: total.into(),
        };
        out[..PIECE_LEN].copy_from_slice(raw.as_bytes());
    }

    /// Reads a piece, and returns the bytes after it. `behind`: how many these are. If the piece is `alone`, they are its
    /// payload; otherwise another packet may be among them. Error `None`: the piece is truncated.
    pub(super) fn read(bytes: &[u8], behind: u32, alone: bool) -> Result<(Piece, &[u8]), Option<EdgeError>> {
        let (raw, rest) = Raw::ref_from_prefix(bytes).map_err(|_| None)?;
        let (address, offset, total) = (raw.address.get(), raw.offset.get(), raw.total.get());
        let notify = raw.kind & NOTIFY != 0;
        let (action, mut bytes) = match raw.kind & !NOTIFY {
            0 => (Action::Write { address, total, notify }, behind),
            1 => (Action::Abandon, 0),
            2 => (Action::WriteFailed, 0),
            3 => (Action::Read { address }, total),
            4 => (Action::Response, behind),
            5 => (Action::ReadFailed, 0),
            kind => return Err(Some(EdgeError::Kind(kind))),
        };
        let is_write = matches!(action, Action::Write { .. });
        let has_address = is_write || matches!(action, Action::Read { .. });
        if notify && !is_write || !has_address && (address, total) != (0, 0) {
            return Err(Some(EdgeError::Reserved));
        }
        if is_write {
            let most = total.checked_sub(offset).ok_or(Some(EdgeError::Extent))?;
            bytes = if alone { bytes } else { bytes.min(most) };
            if bytes > most {
                return Err(Some(EdgeError::Extent));
            }
        }
        let piece = Piece { number: raw.number.get(), action, offset, bytes };
        if alone && piece.payload() != behind {
            return Err(Some(EdgeError::Payload { bytes: behind }));
        }
        Ok((piece, rest))
    }
}

/// A piece in wire format.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    number: U32,
    kind: u8,
    address: U64,
    offset: U32,
    total: U32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces() -> [Piece; 7] {
        let piece = |action, bytes| Piece { number: 0x0102_0304, action, offset: 0x1000, bytes };
        [
            piece(Action::Write { address: 0x1112_1314_1516_1718, total: 0x3000, notify: true }, 0x2000),
            piece(Action::Write { address: 1, total: u32::MAX, notify: false }, 0x2000),
            piece(Action::Abandon, 0),
            piece(Action::WriteFailed, 0),
            piece(Action::Read { address: u64::MAX }, 0x0203_0405),
            piece(Action::Response, 0x2000),
            piece(Action::ReadFailed, 0),
        ]
    }

    fn bytes(piece: &Piece) -> [u8; PIECE_LEN] {
        let mut out = [0xee; PIECE_LEN];
        piece.emit(&mut out);
        out
    }

    #[test]
    fn the_layout_is_as_documented() {
        let expected = [
            &[1, 2, 3, 4, 0x80][..],
            &[0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18],
            &[0, 0, 0x10, 0, 0, 0, 0x30, 0],
        ];
        assert_eq!(bytes(&pieces()[0]).as_slice(), expected.concat());
        assert_eq!(bytes(&pieces()[4])[17..], [2, 3, 4, 5], "what a READ asks for");
    }

    #[test]
    fn every_piece_comes_back_and_bad_ones_are_refused() {
        for piece in pieces() {
            let good = bytes(&piece);
            assert_eq!(Piece::read(&good, piece.payload(), true), Ok((piece, &[][..])));
            assert_eq!(Piece::read(&good[..PIECE_LEN - 1], 0, true), Err(None));
            let with = |at: usize, bit: u8| {
                let mut bad = good;
                bad[at] ^= bit;
                Piece::read(&bad, piece.payload(), true).err()
            };
            assert_eq!(with(4, 8), Some(Some(EdgeError::Kind(good[4] & !NOTIFY ^ 8))));
            let is_write = matches!(piece.action, Action::Write { .. });
            if !is_write {
                assert_eq!(with(4, NOTIFY), Some(Some(EdgeError::Reserved)), "{piece:?}");
            }
            if !is_write && !matches!(piece.action, Action::Read { .. }) {
                assert_eq!(with(5, 1), Some(Some(EdgeError::Reserved)), "{piece:?}");
                assert_eq!(with(20, 1), Some(Some(EdgeError::Reserved)), "{piece:?}");
            }
            let has_payload = is_write || piece.action == Action::Response;
            assert_eq!(piece.payload() > 0, has_payload);
            if !has_payload {
                assert_eq!(Piece::read(&good, 1, true), Err(Some(EdgeError::Payload { bytes: 1 })), "{piece:?}");
                assert_eq!(Piece::read(&good, 1, false), Ok((piece, &[][..])), "{piece:?}");
            }
        }
    }

    #[test]
    fn a_write_ends_within_its_bytes() {
        let write = |offset, bytes, total| {
            let action = Action::Write { address: 0, total, notify: false };
            Piece::read(&self::bytes(&Piece { number: 0, action, offset, bytes }), bytes, true).map(|_| ())
        };
        assert_eq!(write(10, 20, 30), Ok(()));
        assert_eq!(write(10, 21, 30), Err(Some(EdgeError::Extent)));
        assert_eq!(write(u32::MAX, 2, 1), Err(Some(EdgeError::Extent)));
        // A capture may have several packets as one.
        let last =
            Piece { number: 0, action: Action::Write { address: 0, total: 30, notify: false }, offset: 10, bytes: 20 };
        assert_eq!(Piece::read(&bytes(&last), 21, false), Ok((last, &[][..])));
    }
}
