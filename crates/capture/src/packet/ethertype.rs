//! Finds the network header behind an Ethernet or a Linux cooked header and VLAN tags.

use crate::frame::LinkType;

pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const IPV6: u16 = 0x86dd;
/// RoCE v1 (IBTA annex A16).
pub(crate) const ROCE_V1: u16 = 0x8915;
const VLAN_TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];

/// What follows the link header.
pub(crate) struct Network<'a> {
    pub ethertype: u16,
    /// The innermost VLAN identifier.
    pub vlan: Option<u16>,
    pub bytes: &'a [u8],
}

/// Behind the header of a link type; `None` for one without ethertypes.
#[inline]
pub(crate) fn behind(link_type: LinkType, frame: &[u8]) -> Option<Network<'_>> {
    match link_type {
        LinkType::Ethernet => of_ethernet(frame),
        LinkType::Cooked => of_cooked(frame),
        LinkType::Cooked2 => of_cooked2(frame),
        LinkType::Infiniband | LinkType::Other(_) => None,
    }
}

/// Behind an Ethernet header.
#[inline]
pub(crate) fn of_ethernet(frame: &[u8]) -> Option<Network<'_>> {
    skip_tags(u16_at(frame, 12)?, &frame[14..])
}

/// Behind a Linux cooked header, version 1.
fn of_cooked(frame: &[u8]) -> Option<Network<'_>> {
    skip_tags(u16_at(frame, 14)?, &frame[16..])
}

/// Behind a Linux cooked header, version 2.
fn of_cooked2(frame: &[u8]) -> Option<Network<'_>> {
    skip_tags(u16_at(frame, 0)?, frame.get(20..)?)
}

#[inline]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

/// `bytes` follow the ethertype.
#[inline]
fn skip_tags(mut ethertype: u16, mut bytes: &[u8]) -> Option<Network<'_>> {
    let mut vlan = None;
    while VLAN_TAGS.contains(&ethertype) {
        vlan = Some(u16_at(bytes, 0)? & 0xfff);
        ethertype = u16_at(bytes, 2)?;
        bytes = &bytes[4..];
    }
    Some(Network { ethertype, vlan, bytes })
}
