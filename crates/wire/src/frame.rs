//! Frames: the encoding of WRITE, SEND and READ response packets between two Weir peers that agreed on it.
//!
//! RoCE packets of one message differ in length: the first packet of a WRITE has a RETH, READ responses have an AETH at
//! the ends only. A frame has one header of fixed length for all of them, so that full packets of one or several
//! messages are of one size and share a UDP_SEGMENT send. Every frame says where its payload belongs, whatever came
//! before it. The fields, big-endian:
//!
//! | offset | bytes | field |
//! | ---: | ---: | --- |
//! | 0 | 12 | BTH; the transport header version is [`VERSION`], the seven reserved bits before the PSN are 0 |
//! | 12 | 8 | WRITE: address of the first byte of this payload; otherwise 0 |
//! | 20 | 4 | WRITE: rkey; otherwise the number of messages before this one, 24 bits |
//! | 24 | 4 | offset of this payload in its message |
//! | 28 | 4 | length of the message |
//! | 32 | 4 | XRC requests: XRCETH; otherwise 0 |
//! | 36 | 4 | immediate data, IETH or AETH, if the opcode has one; otherwise 0 |
//! | 40 | | payload, pad to a multiple of 4 bytes, ICRC (or what replaces it) |

use crate::ext::{Aeth, Ieth, ImmDt, RawFrame, Reth, XrcEth};
use crate::packet::{Bth, Headers, Packet, ParseError};
use crate::placement::{Destination, Placement};
use crate::{ICRC_LEN, Opcode, Operation, Service};
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// The transport header version in the BTH of a frame. RoCE has version 0 only: other adapters drop frames.
pub const VERSION: u8 = 1;
/// Bytes of a frame before its payload.
pub const HEADER_LEN: usize = RawFrame::LEN;

/// What the parser and the writer of frames ask about an opcode, as bits: one look-up for each packet.
mod has {
    /// Packets with the opcode may be frames.
    pub const FRAME: u8 = 1 << 0;
    /// The frame belongs to a WRITE.
    pub const DESTINATION: u8 = 1 << 1;
    /// The RoCE packet has a RETH.
    pub const RETH: u8 = 1 << 2;
    /// The RoCE packet has an XRCETH or a header of four bytes: immediate data, AETH, IETH.
    pub const MORE: u8 = 1 << 3;
}

/// Indexed by opcode.
const BITS: [u8; 256] = {
    let mut bits = [0; 256];
    let mut code = 0;
    while code < bits.len() {
        let opcode = Opcode(code as u8);
        let framed = opcode.has_payload()
            && !matches!(opcode.service(), Service::Ud)
            && !matches!(opcode.operation(), None | Some(Operation::AtomicWrite));
        if framed {
            let more = opcode.has_xrceth() || opcode.has_imm() || opcode.has_aeth() || opcode.has_ieth();
            bits[code] = has::FRAME
                | (has::DESTINATION * is_write(opcode) as u8)
                | (has::RETH * opcode.has_reth() as u8)
                | (has::MORE * more as u8);
        }
        code += 1;
    }
    bits
};

/// Whether packets with this opcode may be frames: they carry payload of a WRITE, a SEND or a READ response.
#[inline]
pub const fn is_framed(opcode: Opcode) -> bool {
    opcode_has(opcode, has::FRAME)
}

#[inline]
const fn opcode_has(opcode: Opcode, bit: u8) -> bool {
    BITS[opcode.0 as usize] & bit != 0
}

/// Whether a frame with this opcode belongs to a WRITE.
const fn is_write(opcode: Opcode) -> bool {
    matches!(
        opcode.operation(),
        Some(
            Operation::WriteFirst
                | Operation::WriteMiddle
                | Operation::WriteLast
                | Operation::WriteLastImm
                | Operation::WriteOnly
                | Operation::WriteOnlyImm
        )
    )
}

/// Whether a UDP payload is a frame of RC within a WRITE or the response to a READ, neither its first nor its last. Over
/// several links such frames may overtake each other: each says where its payload belongs.
#[inline]
pub fn may_overtake(bytes: &[u8]) -> bool {
    let operation = bytes.first().and_then(|opcode| Opcode(*opcode).operation());
    let is_within = matches!(operation, Some(Operation::WriteMiddle | Operation::ReadResponseMiddle));
    is_frame(bytes) && is_within && Opcode(bytes[0]).service() == Service::Rc
}

/// Writes the header of a frame to the front of `out` and returns its length. The opcode must be framed, and the
/// placement must be of its kind; the header version in `headers` and its RETH are not used.
///
/// # Panics
/// If `out` is shorter than [`HEADER_LEN`].
#[inline]
pub fn emit(headers: &Headers, placement: &Placement, out: &mut [u8]) -> usize {
    let (address, key) = match placement.destination {
        Destination::Memory { address, rkey } => (address, rkey),
        Destination::Message { number } => (0, number & 0xff_ffff),
    };
    let (srq, word) = match opcode_has(headers.bth.opcode, has::MORE) {
        true => (headers.get::<XrcEth>().map_or(U32::ZERO, |xrceth| xrceth.srq), word(headers)),
        false => (U32::ZERO, U32::ZERO),
    };
    let raw = RawFrame {
        bth: Bth { version: VERSION, reserved: 0, ..headers.bth }.to_raw(),
        address: U64::new(address),
        key: U32::new(key),
        offset: U32::new(placement.offset),
        length: U32::new(placement.length),
        srq,
        word,
    };
    out[..HEADER_LEN].copy_from_slice(raw.as_bytes());
    HEADER_LEN
}

/// The header of four bytes that the opcode has besides RETH and XRCETH, or zero.
#[inline]
fn word(headers: &Headers) -> U32 {
    if let Some(imm) = headers.get::<ImmDt>() {
        imm.imm
    } else if let Some(aeth) = headers.get::<Aeth>() {
        aeth.syndrome_msn
    } else if let Some(ieth) = headers.get::<Ieth>() {
        ieth.rkey
    } else {
        U32::ZERO
    }
}

/// Parses a UDP payload that is a RoCE packet or a frame, by its header version.
#[inline]
pub fn parse_any(bytes: &[u8]) -> Result<Packet<'_>, ParseError> {
    if is_frame(bytes) { parse(bytes) } else { Packet::parse(bytes) }
}

/// Whether a UDP payload between Weir peers has the header version of a frame.
#[inline]
pub fn is_frame(bytes: &[u8]) -> bool {
    bytes.get(1).is_some_and(|flags| flags & 0x0f == VERSION)
}

/// Parses a UDP payload that is a frame, and checks every length and reserved bit. The result is the packet that RoCE
/// has for the same content (with header version 0), and its placement.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<Packet<'_>, ParseError> {
    let truncated = || ParseError::Truncated { len: bytes.len(), need: HEADER_LEN + ICRC_LEN };
    let (raw, rest) = RawFrame::ref_from_prefix(bytes).map_err(|_| truncated())?;
    let (body, icrc) = rest.split_last_chunk::<ICRC_LEN>().ok_or_else(truncated)?;
    let bth = Bth::from_raw(&raw.bth);
    let opcode = bth.opcode;
    if bth.version != VERSION {
        return Err(ParseError::Version(bth.version));
    }
    if !is_framed(opcode) {
        return Err(ParseError::UnknownOpcode(opcode.0));
    }
    let pad = usize::from(bth.pad);
    let len = body.len().checked_sub(pad).ok_or(ParseError::Pad { pad: bth.pad, payload: body.len() })?;
    if !body.len().is_multiple_of(4) {
        return Err(ParseError::Unaligned { body: body.len() });
    }
    let placement = raw
        .placement(opcode_has(opcode, has::DESTINATION))
        .filter(|_| bth.reserved == 0)
        .ok_or(ParseError::Reserved)?;
    if u64::from(placement.offset) + len as u64 > u64::from(placement.length) {
        return Err(ParseError::Beyond { offset: placement.offset, payload: len, length: placement.length });
    }
    let headers = raw.headers(Bth { version: 0, ..bth }, &placement).ok_or(ParseError::Reserved)?;
    Ok(Packet { headers, payload: &body[..len], icrc: u32::from_le_bytes(*icrc), placement: Some(placement) })
}

/// The headers that RoCE has for a frame, of which `bytes` are the first and `room` are before the ICRC: the payload need
/// not be there.
pub fn headers(bytes: &[u8], room: usize) -> Result<Headers, ParseError> {
    let truncated = ParseError::Truncated { len: bytes.len(), need: HEADER_LEN + ICRC_LEN };
    let (raw, _) = RawFrame::ref_from_prefix(&bytes[..room.min(bytes.len())]).map_err(|_| truncated)?;
    let bth = Bth::from_raw(&raw.bth);
    if bth.version != VERSION {
        return Err(ParseError::Version(bth.version));
    }
    if !is_framed(bth.opcode) {
        return Err(ParseError::UnknownOpcode(bth.opcode.0));
    }
    let placement = raw.placement(opcode_has(bth.opcode, has::DESTINATION)).filter(|_| bth.reserved == 0);
    let headers = placement.and_then(|placement| raw.headers(Bth { version: 0, ..bth }, &placement));
    headers.ok_or(ParseError::Reserved)
}

impl RawFrame {
    /// The placement; `None` if a bit is set that must be zero.
    #[inline]
    fn placement(&self, write: bool) -> Option<Placement> {
        let (address, key) = (self.address.get(), self.key.get());
        let destination = match write {
            true => Destination::Memory { address, rkey: key },
            false if address == 0 && key <= 0xff_ffff => Destination::Message { number: key },
            false => return None,
        };
        Some(Placement { destination, offset: self.offset.get(), length: self.length.get() })
    }

    /// The headers of the RoCE packet with the same content; `None` if a field is set that the opcode does not have.
    #[inline]
    fn headers(&self, bth: Bth, placement: &Placement) -> Option<Headers> {
        let opcode = bth.opcode;
        let mut headers = Headers::new(bth);
        if opcode_has(opcode, has::RETH)
            && let Destination::Memory { address, rkey } = placement.destination
        {
            headers.put(Reth { va: address.into(), rkey: rkey.into(), dma_len: self.length });
        }
        if !opcode_has(opcode, has::MORE) {
            return (self.srq.get() | self.word.get() == 0).then_some(headers);
        }
        if opcode.has_xrceth() {
            headers.put(XrcEth { srq: self.srq });
        } else if self.srq.get() != 0 {
            return None;
        }
        if opcode.has_imm() {
            headers.put(ImmDt { imm: self.word });
        } else if opcode.has_aeth() {
            headers.put(Aeth { syndrome_msn: self.word });
        } else if opcode.has_ieth() {
            headers.put(Ieth { rkey: self.word });
        } else if self.word.get() != 0 {
            return None;
        }
        Some(headers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Psn;

    /// A frame of a 4 KiB message; every field has a value of its own.
    fn example(opcode: Opcode) -> (Headers, Placement) {
        let mut headers = Headers::new(Bth { ack_req: true, ..Bth::new(opcode, 0x12_3456, Psn::new(0x65_4321)) });
        headers.put(XrcEth { srq: 0x77.into() });
        headers.put(ImmDt { imm: 0xa1a2_a3a4.into() });
        headers.put(Aeth::new(0x1f, 5));
        headers.put(Ieth { rkey: 0xb1b2_b3b4.into() });
        let destination = match is_write(opcode) {
            true => Destination::Memory { address: 0x1122_3344_5566_7788, rkey: 0xc1c2_c3c4 },
            false => Destination::Message { number: 0xd1_d2d3 },
        };
        let placement = Placement { destination, offset: 64, length: 4096 };
        if let Destination::Memory { address, rkey } = destination {
            headers.put(Reth { va: address.into(), rkey: rkey.into(), dma_len: placement.length.into() });
        }
        (headers, placement)
    }

    fn bytes(headers: &Headers, placement: &Placement, payload: &[u8]) -> Vec<u8> {
        let mut headers = *headers;
        headers.bth.pad = (payload.len().wrapping_neg() & 3) as u8;
        let mut out = vec![0xee; HEADER_LEN];
        assert_eq!(emit(&headers, placement, &mut out), HEADER_LEN);
        out.extend(payload);
        out.resize(out.len() + usize::from(headers.bth.pad), 0);
        out.extend([1, 2, 3, 4]);
        out
    }

    #[test]
    fn the_layout_is_as_documented() {
        let (headers, placement) = example(Opcode::new(Service::Xrc, Operation::WriteLastImm));
        let frame = bytes(&headers, &placement, b"payload");
        let expected = [
            &[0xa9, 0x51, 0xff, 0xff, 0, 0x12, 0x34, 0x56, 0x80, 0x65, 0x43, 0x21][..],
            &[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88],
            &[0xc1, 0xc2, 0xc3, 0xc4],
            &[0, 0, 0, 64],
            &[0, 0, 0x10, 0],
            &[0, 0, 0, 0x77],
            &[0xa1, 0xa2, 0xa3, 0xa4],
            b"payload\0",
            &[1, 2, 3, 4],
        ];
        assert_eq!(frame, expected.concat());
    }

    #[test]
    fn exactly_the_opcodes_with_message_payload_are_framed() {
        let mut framed = vec![];
        for code in 0..=255 {
            let opcode = Opcode(code);
            let (headers, placement) = example(opcode);
            let frame = bytes(&headers, &placement, &[7; 64]);
            match parse(&frame) {
                Ok(packet) => {
                    let mut headers = headers;
                    headers.bth.pad = 0;
                    assert_eq!(packet.headers, headers, "{opcode:?}");
                    assert_eq!((packet.placement, packet.payload), (Some(placement), &[7; 64][..]), "{opcode:?}");
                    framed.push(code);
                }
                Err(error) => assert_eq!(error, ParseError::UnknownOpcode(code)),
            }
            let room = frame.len() - ICRC_LEN;
            for kept in 0..frame.len() {
                match super::headers(&frame[..kept], room) {
                    Ok(found) => assert_eq!((Ok(found), kept >= HEADER_LEN), (parse(&frame).map(|p| p.headers), true)),
                    Err(_) => assert!(kept < HEADER_LEN || parse(&frame).is_err()),
                }
            }
            assert_eq!(parse_any(&frame), parse(&frame));
            assert_eq!(Packet::parse(&frame), Err(ParseError::Version(VERSION)), "an adapter takes it for a packet");
        }
        let rc: Vec<u8> = (0x00..=0x0b).chain(0x0d..=0x10).chain(0x16..=0x17).collect();
        let uc: Vec<u8> = (0x20..=0x2b).collect();
        let xrc: Vec<u8> = rc.iter().map(|code| code | 0xa0).collect();
        assert_eq!(framed, [rc, uc, xrc].concat());
    }

    #[test]
    fn frames_within_writes_and_responses_may_overtake() {
        let may = (0..=255).filter(|code| may_overtake(&[*code, VERSION])).collect::<Vec<u8>>();
        assert_eq!(may, [0x07, 0x0e], "WRITE middle and READ response middle of RC");
        assert!(
            !may_overtake(&[0x07, 0]) && !may_overtake(&[0x07]) && !may_overtake(&[]),
            "a RoCE packet has no place"
        );
    }

    #[test]
    fn a_bad_frame_is_refused() {
        let send = example(Opcode::new(Service::Rc, Operation::SendMiddle));
        let good = bytes(&send.0, &send.1, &[7; 64]);
        assert!(parse(&good).is_ok());
        for len in 0..HEADER_LEN + ICRC_LEN {
            assert_eq!(parse(&good[..len]), Err(ParseError::Truncated { len, need: HEADER_LEN + ICRC_LEN }));
        }
        // The bytes that must be zero: reserved bits, address, number above 24 bits, XRCETH, the last word.
        for at in [8].into_iter().chain(12..21).chain(32..40) {
            let mut bad = good.clone();
            bad[at] |= 0x01;
            assert_eq!(parse(&bad), Err(ParseError::Reserved), "byte {at}");
        }
        let mut bad = good.clone();
        bad[1] = bad[1] & 0xf0 | 2;
        assert_eq!(parse(&bad), Err(ParseError::Version(2)));
        assert_eq!(parse_any(&bad), Err(ParseError::Version(2)));
        assert_eq!(parse(&good[..good.len() - 1]), Err(ParseError::Unaligned { body: 63 }));
        for (offset, beyond) in [(4096 - 64, false), (4096 - 63, true), (4097, true), (u32::MAX, true)] {
            let frame = bytes(&send.0, &Placement { offset, ..send.1 }, &[7; 64]);
            let expected = ParseError::Beyond { offset, payload: 64, length: 4096 };
            assert_eq!(parse(&frame).err(), beyond.then_some(expected));
        }
    }
}
