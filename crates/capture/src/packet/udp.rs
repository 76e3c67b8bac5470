//! UDP datagrams in IPv4 and IPv6 packets.

use super::address::Address;
use super::ethertype::{IPV4, IPV6, u16_at};
use std::net::{Ipv4Addr, Ipv6Addr};
use weir_wire::ip::UDP_LEN;

/// A UDP datagram in an IP packet.
#[derive(Clone, Copy)]
pub(crate) struct Udp<'a> {
    pub from: Address,
    pub to: Address,
    pub src_port: u16,
    pub dst_port: u16,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// The IP header with its options or extension headers, and the UDP header.
    pub ip_udp: &'a [u8],
    /// Whether there are no options and no extension headers.
    pub is_plain: bool,
    /// The captured part of the payload.
    pub payload: &'a [u8],
    /// Bytes of the payload on the wire.
    pub payload_len: usize,
}

/// The UDP datagram in an IP packet. `None` for all else, and for fragments.
#[inline]
pub(crate) fn find(ethertype: u16, ip: &[u8]) -> Option<Udp<'_>> {
    match ethertype {
        IPV4 => ipv4(ip),
        IPV6 => ipv6(ip),
        _ => None,
    }
}

const PROTOCOL_UDP: u8 = 17;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
/// Limit of the number of extension headers, which have each a place of their own in IPv6.
const MAX_EXTENSIONS: usize = 8;

#[inline]
fn ipv4(ip: &[u8]) -> Option<Udp<'_>> {
    let head: &[u8; IPV4_HEADER] = ip.first_chunk()?;
    let header_len = usize::from(head[0] & 0x0f) * 4;
    let fragment = u16::from_be_bytes([head[6], head[7]]) & 0x3fff;
    if head[0] >> 4 != 4 || header_len < IPV4_HEADER || head[9] != PROTOCOL_UDP || fragment != 0 {
        return None;
    }
    let address = |at: usize| Some(Address::Ipv4(Ipv4Addr::from(*head[at..].first_chunk::<4>()?)));
    datagram(ip, header_len, header_len == IPV4_HEADER, address(12)?, address(16)?, head[1])
}

#[inline]
fn ipv6(ip: &[u8]) -> Option<Udp<'_>> {
    let head: &[u8; IPV6_HEADER] = ip.first_chunk()?;
    if head[0] >> 4 != 6 {
        return None;
    }
    let header_len = match head[6] {
        PROTOCOL_UDP => IPV6_HEADER,
        other => skip_extensions(other, ip)?,
    };
    let address = |at: usize| Some(Address::Ipv6(Ipv6Addr::from(*head[at..].first_chunk::<16>()?)));
    let traffic_class = head[0] << 4 | head[1] >> 4;
    datagram(ip, header_len, header_len == IPV6_HEADER, address(8)?, address(24)?, traffic_class)
}

/// Bytes before the UDP header; `None` if another protocol or a fragment follows.
fn skip_extensions(mut next: u8, ip: &[u8]) -> Option<usize> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const DESTINATION: u8 = 60;
    let mut at = IPV6_HEADER;
    for _ in 0..MAX_EXTENSIONS {
        let head: &[u8; 8] = ip.get(at..)?.first_chunk()?;
        at += match next {
            PROTOCOL_UDP => return Some(at),
            HOP_BY_HOP | ROUTING | DESTINATION => 8 + usize::from(head[1]) * 8,
            // The header of a packet that is not divided.
            FRAGMENT if u16::from_be_bytes([head[2], head[3]]) & 0xfff9 == 0 => 8,
            _ => return None,
        };
        next = head[0];
    }
    None
}

#[inline]
fn datagram(ip: &[u8], udp_at: usize, is_plain: bool, from: Address, to: Address, class: u8) -> Option<Udp<'_>> {
    let (ip_udp, rest) = ip.split_at_checked(udp_at + UDP_LEN)?;
    let udp: &[u8; UDP_LEN] = ip_udp.last_chunk()?;
    let payload_len = usize::from(u16_at(udp, 4)?).checked_sub(UDP_LEN)?;
    Some(Udp {
        from,
        to,
        src_port: u16_at(udp, 0)?,
        dst_port: u16_at(udp, 2)?,
        traffic_class: class,
        ip_udp,
        is_plain,
        // Short frames are padded; the UDP length is that of the datagram.
        payload: &rest[..payload_len.min(rest.len())],
        payload_len,
    })
}
