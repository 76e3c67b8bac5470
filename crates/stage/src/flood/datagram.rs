//! A UDP datagram with any addresses.

use std::net::Ipv4Addr;

/// Bytes of an IPv4 header and a UDP header.
pub const HEADERS: usize = 28;
/// The time to live of packets that are forged: a sniffer knows them by it.
pub const FORGED_TTL: u8 = 63;

/// A packet with these addresses. The kernel fills in length and checksum of the IP header; UDP has no checksum.
pub fn packet(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0u8; HEADERS];
    (packet[0], packet[6], packet[8], packet[9]) = (0x45, 0x40, FORGED_TTL, libc::IPPROTO_UDP as u8);
    packet[12..16].copy_from_slice(&from.0.octets());
    packet[16..20].copy_from_slice(&to.0.octets());
    packet[20..22].copy_from_slice(&from.1.to_be_bytes());
    packet[22..24].copy_from_slice(&to.1.to_be_bytes());
    packet[24..26].copy_from_slice(&(8 + payload.len() as u16).to_be_bytes());
    packet.extend(payload);
    packet
}
