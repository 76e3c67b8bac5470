//! Datagrams of connections over several links: packets with a header in front, and what else links carry.

use super::address::Address;
use super::ethertype;
use super::rdma::{Covered, Edge, RdmaPacket};
use super::udp::{self, Udp};
use crate::frame::{Frame, LinkType};
use weir_wire::edge::{Ack, Header, Hello, Piece, is_edge};

/// A datagram of a connection over several links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkDatagram {
    /// The addresses of the link.
    pub from: Address,
    pub to: Address,
    pub from_port: u16,
    pub to_port: u16,
    pub content: LinkContent,
}

/// What it carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkContent {
    /// A hello that begins a connection.
    Hello(Hello),
    /// A header. Nothing follows it but an acknowledgement.
    Alone(Header),
    /// A header, and a packet of MultiEdge's operations.
    Piece(Header, Piece),
    /// A header, and a packet that [`super::find`] finds if it is between slots.
    Packet(Header),
}

/// The datagram of a connection over several links in a frame, between any UDP ports. `None` for all else, for damaged ones,
/// and for those of which the header is not captured whole.
pub fn find_links(frame: &Frame<'_>) -> Option<LinkDatagram> {
    find_links_in(frame.link_type, frame.data)
}

/// The same in the bytes of a frame.
pub(crate) fn find_links_in(link_type: LinkType, data: &[u8]) -> Option<LinkDatagram> {
    let network = ethertype::behind(link_type, data)?;
    let udp = udp::find(network.ethertype, network.bytes)?;
    let content = if Hello::is_hello(udp.payload) {
        LinkContent::Hello(Hello::decode(udp.payload).ok()?)
    } else if is_edge(udp.payload) {
        let parsed = Header::parse_start(udp.payload, udp.payload_len, &mut Ack::default()).ok()?;
        match (parsed.header.packet, parsed.piece) {
            (None, _) => LinkContent::Alone(parsed.header),
            (Some(_), Some(piece)) => LinkContent::Piece(parsed.header, piece),
            (Some(_), None) => LinkContent::Packet(parsed.header),
        }
    } else {
        return None;
    };
    Some(LinkDatagram { from: udp.from, to: udp.to, from_port: udp.src_port, to_port: udp.dst_port, content })
}

/// The RDMA packet behind the header.
pub(crate) fn rdma<'a>(udp: &Udp<'a>, vlan: Option<u16>) -> Option<RdmaPacket<'a>> {
    if !is_edge(udp.payload) {
        return None;
    }
    let parsed = Header::parse_start(udp.payload, udp.payload_len, &mut Ack::default()).ok()?;
    if parsed.header.packet.is_none() || parsed.piece.is_some() {
        return None;
    }
    let front = udp.payload.len() - parsed.rest.len();
    Some(RdmaPacket {
        transport: parsed.rest,
        transport_len: udp.payload_len - front,
        edge: Some(Edge { header: parsed.header, from_port: udp.src_port, to_port: udp.dst_port }),
        covered: Covered::Unknown,
        ..RdmaPacket::in_udp(udp, vlan)
    })
}
