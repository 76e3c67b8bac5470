//! Finds the UDP datagram of RoCEv2 in an Ethernet frame, with all that a test of Weir's packets looks at.
//! [`crate::packet`] finds RDMA packets in every encapsulation.

use crate::packet::{ethertype, udp};
use weir_wire::ROCE_PORT;
use weir_wire::ip::Envelope;

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
    let network = ethertype::of_ethernet(frame)?;
    let udp = udp::find(network.ethertype, network.bytes).filter(|udp| udp.is_plain)?;
    let (ip_id, flags) = match network.ethertype {
        ethertype::IPV4 => (ethertype::u16_at(udp.ip_udp, 4)?, udp.ip_udp[6]),
        _ => (0, DONT_FRAGMENT),
    };
    let envelope = Envelope {
        src: udp.from.ip()?,
        dst: udp.to.ip()?,
        src_port: udp.src_port,
        dst_port: udp.dst_port,
        ip_id,
        dont_fragment: flags & DONT_FRAGMENT != 0,
    };
    Some(Datagram {
        envelope,
        ip_udp: udp.ip_udp,
        payload: udp.payload,
        payload_len: udp.payload_len,
        vlan: network.vlan,
        traffic_class: udp.traffic_class,
    })
}

/// The flag of IPv4, in byte 6 of its header.
const DONT_FRAGMENT: u8 = 0x40;

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
        let ethertype = if envelope.src.is_ipv4() { ethertype::IPV4 } else { ethertype::IPV6 };
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
