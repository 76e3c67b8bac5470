//! An RDMA packet as a capture has it.

use super::address::Address;
use weir_wire::{Bth, Headers, ICRC_LEN, ParseError, icrc};

/// An RDMA packet as a capture has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaPacket<'a> {
    /// Network address of the sender.
    pub from: Address,
    /// Network address of the receiver.
    pub to: Address,
    /// What carries the packet.
    pub encapsulation: Encapsulation,
    /// The innermost VLAN identifier.
    pub vlan: Option<u16>,
    /// TOS of IPv4, or traffic class of IPv6 or of the GRH: DSCP in the upper six bits, ECN in the lower two. 0 without
    /// any of them.
    pub traffic_class: u8,
    /// The captured bytes from the BTH on, at most to the end of the ICRC. Fewer than `transport_len` if the capture
    /// has a length limit.
    pub transport: &'a [u8],
    /// Bytes from the BTH to the end of the ICRC on the wire.
    pub transport_len: usize,
    pub(crate) covered: Covered<'a>,
}

/// What carries an RDMA packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encapsulation {
    /// UDP over IPv4 or IPv6.
    RoceV2 { src_port: u16 },
    /// A GRH in an Ethernet frame.
    RoceV1,
    /// An LRH. Without a GRH the LIDs are the packet's addresses; with a GRH the GIDs are.
    Infiniband { from_lid: u16, to_lid: u16, service_level: u8 },
}

/// The headers in front of the BTH that the ICRC covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Covered<'a> {
    /// IPv4 without options or IPv6 without extension headers, and UDP.
    IpUdp(&'a [u8]),
    Grh(&'a [u8; 40]),
    Lrh(&'a [u8; 8]),
    /// Headers that RoCE does not use, and for which no rule exists.
    Unknown,
}

impl RdmaPacket<'_> {
    /// The ECN bits: 0 = not capable, 1 and 2 = capable, 3 = congestion experienced.
    #[inline]
    pub fn ecn(&self) -> u8 {
        self.traffic_class & 3
    }

    /// The DSCP.
    #[inline]
    pub fn dscp(&self) -> u8 {
        self.traffic_class >> 2
    }

    /// Whether all bytes from the BTH to the ICRC are captured.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.transport.len() == self.transport_len
    }

    /// The BTH, whatever its opcode; `None` if it is not captured.
    #[inline]
    pub fn bth(&self) -> Option<Bth> {
        Bth::parse(self.transport)
    }

    /// BTH and extension headers. They are also those of a packet of which the payload is not captured.
    #[inline]
    pub fn headers(&self) -> Result<Headers, ParseError> {
        Headers::parse(self.transport, self.transport_len.saturating_sub(ICRC_LEN))
    }

    /// Bytes of payload on the wire, without pad, of a packet with these headers.
    #[inline]
    pub fn payload_len(&self, headers: &Headers) -> Result<usize, ParseError> {
        headers.payload_len(self.transport_len.saturating_sub(headers.len() + ICRC_LEN))
    }

    /// Whether the ICRC is right. `None` if the packet is not completely captured, is too short to have an ICRC, or
    /// came with IPv4 options or IPv6 extension headers.
    pub fn icrc_ok(&self) -> Option<bool> {
        if !self.is_complete() || self.transport.len() < BTH_LEN + ICRC_LEN {
            return None;
        }
        let (body, trailer) = self.transport.split_last_chunk::<ICRC_LEN>()?;
        let computed = match self.covered {
            Covered::IpUdp(ip_udp) => icrc::compute_framed(ip_udp, body),
            Covered::Grh(grh) => icrc::compute_global(grh, body),
            Covered::Lrh(lrh) => icrc::compute_local(lrh, body),
            Covered::Unknown => return None,
        };
        Some(computed == u32::from_le_bytes(*trailer))
    }
}

const BTH_LEN: usize = 12;
