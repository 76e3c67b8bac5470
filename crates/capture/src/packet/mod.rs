//! Finds the RDMA packet in a frame of any link type.

mod address;
pub(crate) mod ethertype;
mod infiniband;
mod rdma;
pub(crate) mod udp;

pub use address::Address;
pub use rdma::{Encapsulation, RdmaPacket};

use crate::frame::{Frame, LinkType};
use ethertype::Network;
use rdma::Covered;
use weir_wire::ROCE_PORT;

/// The RDMA packet in a frame. `None` for all that is not RDMA, and for fragments of IP packets.
#[inline]
pub fn find<'a>(frame: &Frame<'a>) -> Option<RdmaPacket<'a>> {
    find_in(frame.link_type, frame.data)
}

/// The RDMA packet in the bytes of a frame.
#[inline]
pub fn find_in(link_type: LinkType, data: &[u8]) -> Option<RdmaPacket<'_>> {
    match link_type {
        LinkType::Ethernet => in_network(ethertype::of_ethernet(data)?),
        LinkType::Cooked => in_network(ethertype::of_cooked(data)?),
        LinkType::Cooked2 => in_network(ethertype::of_cooked2(data)?),
        LinkType::Infiniband => infiniband::infiniband(data),
        LinkType::Other(_) => None,
    }
}

#[inline]
fn in_network(network: Network<'_>) -> Option<RdmaPacket<'_>> {
    let Network { ethertype, vlan, bytes } = network;
    if ethertype == ethertype::ROCE_V1 {
        return infiniband::roce_v1(bytes, vlan);
    }
    let udp = udp::find(ethertype, bytes).filter(|udp| udp.dst_port == ROCE_PORT)?;
    Some(RdmaPacket {
        from: udp.from,
        to: udp.to,
        encapsulation: Encapsulation::RoceV2 { src_port: udp.src_port },
        vlan,
        traffic_class: udp.traffic_class,
        transport: udp.payload,
        transport_len: udp.payload_len,
        covered: if udp.is_plain { Covered::IpUdp(udp.ip_udp) } else { Covered::Unknown },
    })
}
