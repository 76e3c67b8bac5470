//! Packets behind InfiniBand's network headers: the local route header (LRH) and the global route header (GRH).

use super::address::Address;
use super::rdma::{Covered, Encapsulation, RdmaPacket};
use std::net::Ipv6Addr;

/// The RDMA packet behind the GRH of a RoCE v1 frame.
pub(crate) fn roce_v1(bytes: &[u8], vlan: Option<u16>) -> Option<RdmaPacket<'_>> {
    let (grh, rest) = bytes.split_first_chunk::<GRH_LEN>()?;
    let global = Global::parse(grh)?;
    // Short frames are padded; the GRH has the length of the packet.
    Some(global.packet(Encapsulation::RoceV1, vlan, rest, global.payload_len))
}

/// The RDMA packet in an InfiniBand packet, which starts with its LRH. The VCRC does not belong to it.
pub(crate) fn infiniband(bytes: &[u8]) -> Option<RdmaPacket<'_>> {
    let (lrh, rest) = bytes.split_first_chunk::<LRH_LEN>()?;
    if lrh[0] & 0x0f != LINK_VERSION {
        return None;
    }
    let word = |at: usize| u16::from_be_bytes([lrh[at], lrh[at + 1]]);
    let (to_lid, from_lid) = (word(2), word(6));
    let encapsulation = Encapsulation::Infiniband { from_lid, to_lid, service_level: lrh[1] >> 4 };
    // Words of four bytes, from the LRH to the ICRC (IBTA 7.7.8).
    let len = usize::from(word(4) & 0x7ff) * 4;
    match lrh[1] & 3 {
        NEXT_IS_BTH => {
            let transport_len = len.checked_sub(LRH_LEN)?;
            Some(RdmaPacket {
                from: Address::Lid(from_lid),
                to: Address::Lid(to_lid),
                encapsulation,
                vlan: None,
                traffic_class: 0,
                transport: &rest[..transport_len.min(rest.len())],
                transport_len,
                edge: None,
                covered: Covered::Lrh(lrh),
            })
        }
        NEXT_IS_GRH => {
            let (grh, rest) = rest.split_first_chunk::<GRH_LEN>()?;
            let transport_len = len.checked_sub(LRH_LEN + GRH_LEN)?;
            Some(Global::parse(grh)?.packet(encapsulation, None, rest, transport_len))
        }
        _ => None,
    }
}

const LRH_LEN: usize = 8;
const GRH_LEN: usize = 40;
/// LVer of the LRH (IBTA 7.7.2).
const LINK_VERSION: u8 = 0;
/// LNH of the LRH (IBTA 7.7.5): the BTH follows.
const NEXT_IS_BTH: u8 = 2;
/// A GRH and then the BTH follow.
const NEXT_IS_GRH: u8 = 3;
/// NxtHdr of a GRH in front of a BTH (IBTA 8.3.5).
const NEXT_HEADER: u8 = 0x1b;

/// A GRH in front of a BTH.
struct Global<'a> {
    grh: &'a [u8; GRH_LEN],
    /// Bytes after the GRH, ICRC included.
    payload_len: usize,
}

impl<'a> Global<'a> {
    fn parse(grh: &'a [u8; GRH_LEN]) -> Option<Self> {
        let payload_len = usize::from(u16::from_be_bytes([grh[4], grh[5]]));
        (grh[0] >> 4 == 6 && grh[6] == NEXT_HEADER).then_some(Global { grh, payload_len })
    }

    fn packet(&self, encapsulation: Encapsulation, vlan: Option<u16>, rest: &'a [u8], len: usize) -> RdmaPacket<'a> {
        let gid = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&self.grh[at..at + 16]);
            Address::Ipv6(Ipv6Addr::from(octets))
        };
        RdmaPacket {
            from: gid(8),
            to: gid(24),
            encapsulation,
            vlan,
            traffic_class: self.grh[0] << 4 | self.grh[1] >> 4,
            transport: &rest[..len.min(rest.len())],
            transport_len: len,
            edge: None,
            covered: Covered::Grh(self.grh),
        }
    }
}
