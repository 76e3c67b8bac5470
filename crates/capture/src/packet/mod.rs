//! Finds the RDMA packet in a frame of any link type.

mod address;
pub(crate) mod ethertype;
mod infiniband;
pub(crate) mod links;
mod rdma;
pub(crate) mod udp;

pub use address::Address;
pub use links::{LinkContent, LinkDatagram, find_links};
pub use rdma::{Edge, Encapsulation, RdmaPacket};

use crate::frame::{Frame, LinkType};
use ethertype::Network;
use weir_wire::{ROCE_PORT, SLOT_PORTS};

/// The RDMA packet in a frame. `None` for all that is not RDMA, and for fragments of IP packets. Packets over several links
/// are found behind their header; what else links carry is found by [`find_links`].
#[inline]
pub fn find<'a>(frame: &Frame<'a>) -> Option<RdmaPacket<'a>> {
    find_in(frame.link_type, frame.data)
}

/// The RDMA packet in the bytes of a frame.
#[inline]
pub fn find_in(link_type: LinkType, data: &[u8]) -> Option<RdmaPacket<'_>> {
    match link_type {
        LinkType::Infiniband => infiniband::infiniband(data),
        _ => in_network(ethertype::behind(link_type, data)?),
    }
}

#[inline]
fn in_network(network: Network<'_>) -> Option<RdmaPacket<'_>> {
    let Network { ethertype, vlan, bytes } = network;
    if ethertype == ethertype::ROCE_V1 {
        return infiniband::roce_v1(bytes, vlan);
    }
    let udp = udp::find(ethertype, bytes)?;
    if udp.dst_port != ROCE_PORT {
        let between_slots = SLOT_PORTS.contains(&udp.dst_port) && SLOT_PORTS.contains(&udp.src_port);
        return if between_slots { links::rdma(&udp, vlan) } else { None };
    }
    Some(RdmaPacket::in_udp(&udp, vlan))
}
