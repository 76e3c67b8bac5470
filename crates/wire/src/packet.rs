//! A whole packet as a UDP datagram carries it: BTH, extension headers, payload, pad, ICRC.

use crate::ext::{Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Ieth, ImmDt, RawBth, Reth, XrcEth};
use crate::{ICRC_LEN, Opcode, Psn};
use thiserror::Error;
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most bytes that a BTH and its extension headers take: XRC compare-and-swap.
pub const MAX_HEADERS: usize = RawBth::LEN + XrcEth::LEN + AtomicEth::LEN;

/// Base transport header (IBTA 9.2), unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// Solicited event.
    pub solicited: bool,
    /// Path migration request; real adapters set it, Soft-RoCE does not.
    pub mig_req: bool,
    /// Bytes of padding after the payload, 0 ..= 3.
    pub pad: u8,
    /// Transport header version; only 0 exists.
    pub version: u8,
    /// Partition key.
    pub pkey: u16,
    /// FECN, BECN and the six reserved bits, as they stand.
    pub congestion: u8,
    /// Destination QP, 24 bits.
    pub dest_qp: u32,
    /// The responder is asked for an acknowledgement.
    pub ack_req: bool,
    /// The seven reserved bits before the PSN.
    pub reserved: u8,
    /// Packet sequence number.
    pub psn: Psn,
}

/// BTH and extension headers of one packet; those that the opcode does not call for are `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    pub bth: Bth,
    pub deth: Option<Deth>,
    pub xrceth: Option<XrcEth>,
    pub feth: Option<Feth>,
    pub reth: Option<Reth>,
    pub atomic: Option<AtomicEth>,
    pub aeth: Option<Aeth>,
    pub atomic_ack: Option<AtomicAckEth>,
    pub imm: Option<ImmDt>,
    pub ieth: Option<Ieth>,
}

/// A parsed packet: headers by value, payload by reference. Its ICRC is read, not yet verified (see [`crate::icrc`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// BTH and extension headers.
    pub headers: Headers,
    /// Payload without pad.
    pub payload: &'a [u8],
    /// The ICRC as the packet carries it.
    pub icrc: u32,
}

/// Why bytes are no packet.
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
}

impl Bth {
    /// A header as Weir sends it: default partition, no flags.
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

    fn from_raw(raw: &RawBth) -> Self {
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

    fn to_raw(self) -> RawBth {
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
    /// A BTH with no extension headers yet.
    pub fn new(bth: Bth) -> Self {
        Headers {
            bth,
            deth: None,
            xrceth: None,
            feth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            imm: None,
            ieth: None,
        }
    }

    /// Bytes that the headers take on the wire.
    pub fn len(&self) -> usize {
        fn size<T>(header: &Option<T>) -> usize {
            header.as_ref().map_or(0, |_| size_of::<T>())
        }
        RawBth::LEN
            + size(&self.deth)
            + size(&self.xrceth)
            + size(&self.feth)
            + size(&self.reth)
            + size(&self.atomic)
            + size(&self.aeth)
            + size(&self.atomic_ack)
            + size(&self.imm)
            + size(&self.ieth)
    }

    /// Never: a BTH is always there.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the headers to the front of `out` and returns their length.
    ///
    /// # Panics
    /// If `out` is shorter than [`Headers::len`].
    pub fn emit(&self, out: &mut [u8]) -> usize {
        fn put<T: IntoBytes + Immutable>(out: &mut [u8], at: &mut usize, header: &T) {
            let bytes = header.as_bytes();
            out[*at..*at + bytes.len()].copy_from_slice(bytes);
            *at += bytes.len();
        }
        fn put_some<T: IntoBytes + Immutable>(out: &mut [u8], at: &mut usize, header: &Option<T>) {
            if let Some(header) = header {
                put(out, at, header);
            }
        }
        let mut at = 0;
        put(out, &mut at, &self.bth.to_raw());
        put_some(out, &mut at, &self.deth);
        put_some(out, &mut at, &self.xrceth);
        put_some(out, &mut at, &self.feth);
        put_some(out, &mut at, &self.reth);
        put_some(out, &mut at, &self.atomic);
        put_some(out, &mut at, &self.aeth);
        put_some(out, &mut at, &self.atomic_ack);
        put_some(out, &mut at, &self.imm);
        put_some(out, &mut at, &self.ieth);
        at
    }
}

impl<'a> Packet<'a> {
    /// Reads a UDP payload; every length is checked here.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let mut rest = Reader { len: bytes.len(), rest: bytes };
        let bth = Bth::from_raw(&rest.take::<RawBth>()?);
        let opcode = bth.opcode;
        if bth.version != 0 {
            return Err(ParseError::Version(bth.version));
        }
        if opcode.operation().is_none() {
            return Err(ParseError::UnknownOpcode(opcode.0));
        }
        let mut headers = Headers::new(bth);
        if opcode.has_deth() {
            headers.deth = Some(rest.take()?);
        }
        if opcode.has_xrceth() {
            headers.xrceth = Some(rest.take()?);
        }
        if opcode.has_feth() {
            headers.feth = Some(rest.take()?);
        }
        if opcode.has_reth() {
            headers.reth = Some(rest.take()?);
        }
        if opcode.has_atomic() {
            headers.atomic = Some(rest.take()?);
        }
        if opcode.has_aeth() {
            headers.aeth = Some(rest.take()?);
        }
        if opcode.has_atomic_ack() {
            headers.atomic_ack = Some(rest.take()?);
        }
        if opcode.has_imm() {
            headers.imm = Some(rest.take()?);
        }
        if opcode.has_ieth() {
            headers.ieth = Some(rest.take()?);
        }
        let (body, icrc) = rest.split_icrc()?;
        let pad = usize::from(bth.pad);
        if pad > body.len() {
            return Err(ParseError::Pad { pad: bth.pad, payload: body.len() });
        }
        Ok(Packet { headers, payload: &body[..body.len() - pad], icrc })
    }
}

/// What is left of the packet, and how long the whole was.
struct Reader<'a> {
    len: usize,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, ParseError> {
        let (header, rest) = T::read_from_prefix(self.rest).map_err(|_| self.truncated(size_of::<T>() + ICRC_LEN))?;
        self.rest = rest;
        Ok(header)
    }

    fn split_icrc(&self) -> Result<(&'a [u8], u32), ParseError> {
        let (body, icrc) = self.rest.split_last_chunk::<ICRC_LEN>().ok_or_else(|| self.truncated(ICRC_LEN))?;
        Ok((body, u32::from_le_bytes(*icrc)))
    }

    fn truncated(&self, need: usize) -> ParseError {
        ParseError::Truncated { len: self.len, need: self.len - self.rest.len() + need }
    }
}
