//! An RDMA packet as a capture has it.

use super::address::Address;
use super::udp::Udp;
use weir_wire::{Bth, Headers, ICRC_LEN, ParseError, edge, frame, icrc};

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
    /// What is in front of it, if it is one of a connection over several links. The packet may be a frame
    /// ([`weir_wire::frame`]) then.
    pub edge: Option<Edge>,
    pub(crate) covered: Covered<'a>,
}

/// The header in front of a packet of a connection over several links, and the UDP ports, which are those of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    pub header: edge::Header,
    pub from_port: u16,
    pub to_port: u16,
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
    /// Headers that RoCE does not use, and for which no rule exists; or those of a link, which has other addresses than
    /// those that the ICRC is computed for.
    Unknown,
}

impl<'a> RdmaPacket<'a> {
    /// The payload of a UDP datagram as an RDMA packet.
    #[inline]
    pub(super) fn in_udp(udp: &Udp<'a>, vlan: Option<u16>) -> RdmaPacket<'a> {
        RdmaPacket {
            from: udp.from,
            to: udp.to,
            encapsulation: Encapsulation::RoceV2 { src_port: udp.src_port },
            vlan,
            traffic_class: udp.traffic_class,
            transport: udp.payload,
            transport_len: udp.payload_len,
            edge: None,
            covered: if udp.is_plain { Covered::IpUdp(udp.ip_udp) } else { Covered::Unknown },
        }
    }
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
        let bth = Bth::parse(self.transport)?;
        Some(if self.is_frame() { Bth { version: 0, ..bth } } else { bth })
    }

    /// Whether it is encoded as a frame.
    #[inline]
    pub fn is_frame(&self) -> bool {
        self.edge.is_some() && frame::is_frame(self.transport)
    }

    /// BTH and extension headers, of a frame those that RoCE has for it. They are also those of a packet of which the
    /// payload is not captured.
    #[inline]
    pub fn headers(&self) -> Result<Headers, ParseError> {
        let room = self.transport_len.saturating_sub(ICRC_LEN);
        if self.is_frame() { frame::headers(self.transport, room) } else { Headers::parse(self.transport, room) }
    }

    /// Bytes of payload on the wire, without pad, of a packet with these headers.
    #[inline]
    pub fn payload_len(&self, headers: &Headers) -> Result<usize, ParseError> {
        let len = if self.is_frame() { frame::HEADER_LEN } else { headers.len() };
        headers.payload_len(self.transport_len.saturating_sub(len + ICRC_LEN))
    }

    /// Whether the ICRC is right. `None` if it cannot be checked: the packet is not completely captured, is too short to
    /// have an ICRC, came with IPv4 options or IPv6 extension headers, or over a connection with several links.
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
