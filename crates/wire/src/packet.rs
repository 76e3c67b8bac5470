//! A complete packet as a UDP datagram carries it: BTH, extension headers, payload, pad, ICRC.

use crate::ext::{Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Ieth, ImmDt, MAX_EXTENSIONS, RawBth, Reth, XrcEth};
use crate::extension::Extension;
use crate::placement::Placement;
use crate::{ICRC_LEN, Opcode, Psn};
use std::fmt;
use thiserror::Error;
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

/// The maximum length in bytes of a BTH and its extension headers: that of XRC compare-and-swap.
pub const MAX_HEADERS: usize = RawBth::LEN + MAX_EXTENSIONS;

/// Base transport header (IBTA 9.2), unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Service and operation of the packet.
    pub opcode: Opcode,
    /// Solicited event.
    pub solicited: bool,
    /// Path migration request; hardware adapters set it, Soft-RoCE does not.
    pub mig_req: bool,
    /// Bytes of padding after the payload, 0 ..= 3.
    pub pad: u8,
    /// Transport header version; only 0 exists.
    pub version: u8,
    /// Partition key.
    pub pkey: u16,
    /// FECN, BECN and the six reserved bits, unchanged.
    pub congestion: u8,
    /// Destination QP, 24 bits.
    pub dest_qp: u32,
    /// Requests an acknowledgement from the responder.
    pub ack_req: bool,
    /// The seven reserved bits before the PSN.
    pub reserved: u8,
    /// Packet sequence number.
    pub psn: Psn,
}

/// BTH and extension headers of one packet. The opcode determines which extension headers exist. They are stored in
/// wire format, so that parsing and emitting are cheap copies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Headers {
    /// Its opcode must stay the one that was passed to [`Headers::new`].
    pub bth: Bth,
    /// In wire order, followed by zeros.
    extensions: [u8; MAX_EXTENSIONS],
}

/// A parsed packet: headers by value, payload by reference. Its ICRC is not verified yet (see [`crate::icrc`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// BTH and extension headers.
    pub headers: Headers,
    /// Payload without pad.
    pub payload: &'a [u8],
    /// The ICRC in the packet.
    pub icrc: u32,
    /// Where the payload belongs, if the packet came as a [`crate::frame`].
    pub placement: Option<Placement>,
}

/// Why bytes are not a valid packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    #[error("packet of {len} bytes is too short: its headers and ICRC need {need}")]
    Truncated { len: usize, need: usize },
    #[error("unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
    #[error("transport header version {0} is not known")]
    Version(u8),
    #[error("pad count {pad} exceeds the {payload} bytes after the headers")]
    Pad { pad: u8, payload: usize },
    #[error("the {body} bytes of payload and pad of a frame are no multiple of 4")]
    Unaligned { body: usize },
    #[error("a field of a frame is not zero that must be")]
    Reserved,
    #[error("a frame has {payload} bytes at offset {offset} of a message of {length} bytes")]
    Beyond { offset: u32, payload: usize, length: u32 },
}

impl Bth {
    /// A header with Weir's defaults: default partition, no flags.
    pub fn new(opcode: Opcode, dest_qp: u32, psn: Psn) -> Self {
        Bth {
            opcode,
            solicited: false,
            mig_req: true,
            pad: 0,
            version: 0,
            pkey: crate::DEFAULT_PKEY,
            congestion: 0,
            dest_qp,
            ack_req: false,
            reserved: 0,
            psn,
        }
    }

    /// The header at the front of `bytes`, whatever its opcode; `None` if they are too few.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        RawBth::ref_from_prefix(bytes).ok().map(|(raw, _)| Bth::from_raw(raw))
    }

    /// Whether a member of the partition `own` may accept the packet: the low 15 bits are equal, and at least one of
    /// the two is a full member (IBTA 10.9.3).
    #[inline]
    pub fn is_in_partition_of(&self, own: u16) -> bool {
        const FULL: u16 = 0x8000;
        (self.pkey ^ own) & !FULL == 0 && (self.pkey | own) & FULL != 0 && own & !FULL != 0
    }

    #[inline]
    pub(crate) fn from_raw(raw: &RawBth) -> Self {
        let (dest, psn) = (raw.dest_qp.get(), raw.psn.get());
        Bth {
            opcode: Opcode(raw.opcode),
            solicited: raw.flags & 0x80 != 0,
            mig_req: raw.flags & 0x40 != 0,
            pad: raw.flags >> 4 & 3,
            version: raw.flags & 0x0f,
            pkey: raw.pkey.get(),
            congestion: (dest >> 24) as u8,
            dest_qp: dest & 0xff_ffff,
            ack_req: psn >> 31 != 0,
            reserved: (psn >> 24) as u8 & 0x7f,
            psn: Psn::new(psn),
        }
    }

    #[inline]
    pub(crate) fn to_raw(self) -> RawBth {
        RawBth {
            opcode: self.opcode.0,
            flags: u8::from(self.solicited) << 7
                | u8::from(self.mig_req) << 6
                | (self.pad & 3) << 4
                | (self.version & 0x0f),
            pkey: U16::new(self.pkey),
            dest_qp: U32::new(u32::from(self.congestion) << 24 | self.dest_qp & 0xff_ffff),
            psn: U32::new(u32::from(self.ack_req) << 31 | u32::from(self.reserved & 0x7f) << 24 | self.psn.get()),
        }
    }
}

impl Headers {
    /// A BTH, with all its extension headers zero.
    #[inline]
    pub fn new(bth: Bth) -> Self {
        Headers { bth, extensions: [0; MAX_EXTENSIONS] }
    }

    /// An extension header, if the opcode has it.
    #[inline]
    pub fn get<T: Extension>(&self) -> Option<T> {
        let at = T::offset(self.bth.opcode)?;
        T::read_from_prefix(self.extensions.get(at..)?).ok().map(|(header, _)| header)
    }

    /// Sets an extension header, if the opcode has it.
    #[inline]
    pub fn put<T: Extension>(&mut self, header: T) {
        if let Some(at) = T::offset(self.bth.opcode)
            && let Some(field) = self.extensions.get_mut(at..)
        {
            // It fits: the offsets are those of the wire format.
            let _ = header.write_to_prefix(field);
        }
    }

    /// Parses the headers at the front of `bytes`, where they may take `room` bytes at most.
    #[inline]
    pub fn parse(bytes: &[u8], room: usize) -> Result<Self, ParseError> {
        let truncated = |need: usize| ParseError::Truncated { len: bytes.len(), need: need + ICRC_LEN };
        let bytes = &bytes[..room.min(bytes.len())];
        let (raw, rest) = RawBth::ref_from_prefix(bytes).map_err(|_| truncated(RawBth::LEN))?;
        let bth = Bth::from_raw(raw);
        let opcode = bth.opcode;
        if bth.version != 0 {
            return Err(ParseError::Version(bth.version));
        }
        if opcode.operation().is_none() && !opcode.is_reserved_request() {
            return Err(ParseError::UnknownOpcode(opcode.0));
        }
        let len = opcode.extensions_len();
        let extensions = rest.get(..len).ok_or_else(|| truncated(RawBth::LEN + len))?;
        let mut headers = Headers::new(bth);
        headers.extensions[..len].copy_from_slice(extensions);
        Ok(headers)
    }

    /// The bytes of payload among the `body` bytes between the headers and the ICRC; the rest is pad.
    #[inline]
    pub fn payload_len(&self, body: usize) -> Result<usize, ParseError> {
        let pad = self.bth.pad;
        body.checked_sub(usize::from(pad)).ok_or(ParseError::Pad { pad, payload: body })
    }

    /// Length in bytes of the headers on the wire.
    #[inline]
    pub fn len(&self) -> usize {
        RawBth::LEN + self.bth.opcode.extensions_len()
    }

    /// Always false: the BTH is always present.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the headers to the front of `out` and returns their length.
    ///
    /// # Panics
    /// If `out` is shorter than [`Headers::len`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let len = self.len();
        let (bth, extensions) = out[..len].split_at_mut(RawBth::LEN);
        bth.copy_from_slice(self.bth.to_raw().as_bytes());
        // Most packets have no extension header or a RETH: a copy of a known length is a store, others are a call.
        if let Ok(field) = <&mut [u8; Reth::LEN]>::try_from(&mut *extensions) {
            field.copy_from_slice(&self.extensions[..Reth::LEN]);
        } else if !extensions.is_empty() {
            extensions.copy_from_slice(&self.extensions[..extensions.len()]);
        }
        len
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn field<T: Extension + fmt::Debug>(headers: &Headers, name: &str, out: &mut fmt::DebugStruct<'_, '_>) {
            if let Some(header) = headers.get::<T>() {
                out.field(name, &header);
            }
        }
        let mut out = f.debug_struct("Headers");
        out.field("bth", &self.bth);
        field::<Deth>(self, "deth", &mut out);
        field::<XrcEth>(self, "xrceth", &mut out);
        field::<Feth>(self, "feth", &mut out);
        field::<Reth>(self, "reth", &mut out);
        field::<AtomicEth>(self, "atomic", &mut out);
        field::<Aeth>(self, "aeth", &mut out);
        field::<AtomicAckEth>(self, "atomic_ack", &mut out);
        field::<ImmDt>(self, "imm", &mut out);
        field::<Ieth>(self, "ieth", &mut out);
        out.finish()
    }
}

impl<'a> Packet<'a> {
    /// Parses a UDP payload and checks every length. A reserved operation of a reliable service is parsed without
    /// extension headers: the responder refuses it (IBTA 9.7.4.1.2).
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let headers = Headers::parse(bytes, bytes.len().saturating_sub(ICRC_LEN))?;
        let body = &bytes[headers.len()..];
        let (payload, icrc) = body.split_last_chunk::<ICRC_LEN>().expect("the headers end before the ICRC");
        let len = headers.payload_len(payload.len())?;
        Ok(Packet { headers, payload: &payload[..len], icrc: u32::from_le_bytes(*icrc), placement: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DEFAULT_PKEY, Operation, Service};

    #[test]
    fn partitions_match_by_number_and_one_full_member() {
        let from = |pkey| Bth { pkey, ..Bth::new(Opcode::new(Service::Rc, Operation::SendOnly), 1, Psn::new(0)) };
        for (theirs, own, matches) in [
            (0xffff, DEFAULT_PKEY, true),
            (0x7fff, DEFAULT_PKEY, true),
            (0xffff, 0x7fff, true),
            (0x7fff, 0x7fff, false),
            (0xfffe, DEFAULT_PKEY, false),
            (0x8001, 0x8001, true),
            (0x8001, DEFAULT_PKEY, false),
            (0x0000, DEFAULT_PKEY, false),
            (0x8000, 0x8000, false),
        ] {
            assert_eq!(from(theirs).is_in_partition_of(own), matches, "{theirs:#06x} {own:#06x}");
        }
    }
}
