//! Finds the RoCEv2 packet in an Ethernet frame.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_wire::ROCE_PORT;
use weir_wire::ip::{Envelope, UDP_LEN};

/// A UDP datagram in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Addresses, ports and the other fields that the ICRC covers.
    pub envelope: Envelope,
    /// The IP and the UDP header, 28 or 48 bytes.
    pub ip_udp: &'a [u8],
    /// The captured part of the UDP payload.
    pub payload: &'a [u8],
    /// Length of the payload on the wire, bytes.
    pub payload_len: usize,
    /// The innermost VLAN identifier.
    pub vlan: Option<u16>,
    /// TOS or traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
}

impl Datagram<'_> {
    /// Whether the payload is complete.
    pub fn is_complete(&self) -> bool {
        self.payload.len() == self.payload_len
    }

    /// Whether the UDP destination port is RoCEv2's (4791).
    pub fn is_roce(&self) -> bool {
        self.envelope.dst_port == ROCE_PORT
    }
}

/// The RoCEv2 packet in an Ethernet frame: UDP to port 4791. `None` for all else.
pub fn find(frame: &[u8]) -> Option<Datagram<'_>> {
    find_udp(frame).filter(Datagram::is_roce)
}

/// The UDP datagram in an Ethernet frame, to any port. `None` for all else, and for fragments, IPv4 options and IPv6
/// extension headers, which RoCE does not use.
pub fn find_udp(frame: &[u8]) -> Option<Datagram<'_>> {
    let (ethertype, vlan, ip) = skip_ethernet(frame)?;
    match ethertype {
        ETHERTYPE_IPV4 => ipv4(ip, vlan),
        ETHERTYPE_IPV6 => ipv6(ip, vlan),
        _ => None,
    }
}

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const VLAN_TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const PROTOCOL_UDP: u8 = 17;

fn skip_ethernet(frame: &[u8]) -> Option<(u16, Option<u16>, &[u8])> {
    let mut at = 12;
    let mut vlan = None;
    loop {
        let ethertype = u16_at(frame, at)?;
        if !VLAN_TAGS.contains(&ethertype) {
            return Some((ethertype, vlan, &frame[at + 2..]));
        }
        vlan = Some(u16_at(frame, at + 2)? & 0xfff);
        at += 4;
    }
}

fn ipv4(ip: &[u8], vlan: Option<u16>) -> Option<Datagram<'_>> {
    let head: &[u8; 20] = ip.first_chunk()?;
    let fragment = u16::from_be_bytes([head[6], head[7]]);
    if head[0] != 0x45 || head[9] != PROTOCOL_UDP || fragment & 0x3fff != 0 {
        return None;
    }
    let address = |at: usize| Some(IpAddr::V4(Ipv4Addr::from(*head[at..].first_chunk::<4>()?)));
    let envelope = Envelope {
        src: address(12)?,
        dst: address(16)?,
        src_port: u16_at(ip, 20)?,
        dst_port: u16_at(ip, 22)?,
        ip_id: u16::from_be_bytes([head[4], head[5]]),
        dont_fragment: fragment & 0x4000 != 0,
    };
    datagram(ip, envelope, vlan, head[1])
}

fn ipv6(ip: &[u8], vlan: Option<u16>) -> Option<Datagram<'_>> {
    let head: &[u8; 40] = ip.first_chunk()?;
    if head[0] >> 4 != 6 || head[6] != PROTOCOL_UDP {
        return None;
    }
    let address = |at: usize| Some(IpAddr::V6(Ipv6Addr::from(*head[at..].first_chunk::<16>()?)));
    let envelope = Envelope {
        src: address(8)?,
        dst: address(24)?,
        src_port: u16_at(ip, 40)?,
        dst_port: u16_at(ip, 42)?,
        ip_id: 0,
        dont_fragment: true,
    };
    datagram(ip, envelope, vlan, head[0] << 4 | head[1] >> 4)
}

fn datagram(ip: &[u8], envelope: Envelope, vlan: Option<u16>, traffic_class: u8) -> Option<Datagram<'_>> {
    let headers = envelope.len();
    let udp_len = usize::from(u16_at(ip, headers - 4)?);
    let (ip_udp, rest) = ip.split_at_checked(headers)?;
    let payload_len = udp_len.checked_sub(UDP_LEN)?;
    // Short frames are padded; the UDP length is that of the datagram.
    let payload = &rest[..payload_len.min(rest.len())];
    Some(Datagram { envelope, ip_udp, payload, payload_len, vlan, traffic_class })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(src: &str, dst: &str) -> Envelope {
        let [src, dst] = [src, dst].map(|text| text.parse().unwrap());
        Envelope { src, dst, src_port: 20480, dst_port: ROCE_PORT, ip_id: 7, dont_fragment: true }
    }

    fn frame(tags: &[u16], envelope: &Envelope, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2; 12];
        for tag in tags {
            bytes.extend([0x81, 0x00]);
            bytes.extend(tag.to_be_bytes());
        }
        let ethertype = if envelope.src.is_ipv4() { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
        bytes.extend(ethertype.to_be_bytes());
        let mut head = [0; 48];
        let len = envelope.emit(payload.len(), 0x6a, 64, &mut head);
        bytes.extend(&head[..len]);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn both_families_with_and_without_vlan() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::2")] {
            for tags in [&[][..], &[5], &[0x2003, 0x7fff]] {
                let mut expected = envelope(src, dst);
                let mut bytes = frame(tags, &expected, b"payload");
                bytes.extend([0; 9]);
                if expected.src.is_ipv6() {
                    expected.ip_id = 0;
                }
                let got = find(&bytes).unwrap();
                assert_eq!(got.envelope, expected);
                assert_eq!(got.payload, b"payload");
                assert!(got.is_complete());
                assert_eq!(got.traffic_class, 0x6a);
                assert_eq!(got.vlan, tags.last().map(|tag| tag & 0xfff));
                assert_eq!(got.ip_udp.len(), expected.len());
            }
        }
    }

    #[test]
    fn a_capture_with_a_length_limit_is_not_whole() {
        let bytes = frame(&[], &envelope("10.0.0.1", "10.0.0.2"), &[9; 100]);
        let got = find(&bytes[..14 + 28 + 40]).unwrap();
        assert_eq!((got.payload.len(), got.payload_len, got.is_complete()), (40, 100, false));
        for len in 0..14 + 28 {
            assert_eq!(find(&bytes[..len]), None, "{len}");
        }
    }

    #[test]
    fn other_traffic_is_not_roce() {
        let mut other = envelope("10.0.0.1", "10.0.0.2");
        other.dst_port = 53;
        let mut bytes = frame(&[], &other, b"x");
        assert_eq!(find(&bytes), None);
        assert!(find_udp(&bytes).is_some());
        bytes[14 + 6] = 0x20;
        assert_eq!(find_udp(&bytes), None, "a fragment");
    }
}
