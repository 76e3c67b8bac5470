//! The Ethernet, IP and UDP headers around a datagram in the file. Those of a burst differ in few fields.

use std::net::IpAddr;
use weir_wire::ip::{Envelope, UDP_LEN};

/// Bytes of Ethernet, IPv6 and UDP headers.
const MOST: usize = ETHERNET + 48;
const ETHERNET: usize = 14;
const TTL: u8 = 64;

/// Headers, of which [`Head::fill`] sets what differs between datagrams.
pub struct Head {
    bytes: [u8; MOST],
    len: usize,
    is_v4: bool,
    /// IPv4: the sum of the IP header without the fields that `fill` sets. IPv6: that of the UDP checksum's pseudo
    /// header without the length.
    sum: u32,
}

impl Head {
    /// The headers of datagrams that this side (`mac`, if it has an address) sends or receives.
    pub fn new(envelope: &Envelope, is_out: bool, mac: Option<[u8; 6]>) -> Head {
        let (own, other) = if is_out { (envelope.src, envelope.dst) } else { (envelope.dst, envelope.src) };
        // A multicast group has a MAC address of its own, on every receiver.
        let real = mac.filter(|_| !own.is_multicast());
        let (own, other) = (real.unwrap_or_else(|| mac_of(own)), mac_of(other));
        let (to, from) = if is_out { (other, own) } else { (own, other) };
        let mut bytes = [0; MOST];
        bytes[..6].copy_from_slice(&to);
        bytes[6..12].copy_from_slice(&from);
        let is_v4 = envelope.src.is_ipv4();
        bytes[12..14].copy_from_slice(if is_v4 { &[0x08, 0x00] } else { &[0x86, 0xdd] });
        let len = envelope.emit(0, 0, TTL, &mut bytes[ETHERNET..]);
        let ip = &mut bytes[ETHERNET..];
        let sum = if is_v4 {
            ip[2..8].fill(0);
            sum_words(&ip[..20])
        } else {
            sum_words(&ip[8..40]) + 17
        };
        Head { bytes, len: ETHERNET + len, is_v4, sum: sum as u32 }
    }

    /// Sets lengths and checksums for a datagram of so many bytes, and the fields of IPv4 that the envelope has. The
    /// UDP checksum of IPv4 is none; that of IPv6 is the sum of the pseudo header, as with checksum offload.
    #[inline]
    pub fn fill(&mut self, datagram: usize, envelope: &Envelope) {
        let udp_len = (UDP_LEN + datagram) as u16;
        let udp = self.len - UDP_LEN;
        self.bytes[udp + 4..udp + 6].copy_from_slice(&udp_len.to_be_bytes());
        let ip = &mut self.bytes[ETHERNET..];
        if self.is_v4 {
            let (total, flags) = (20 + udp_len, u16::from(envelope.dont_fragment) << 14);
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            ip[4..6].copy_from_slice(&envelope.ip_id.to_be_bytes());
            ip[6..8].copy_from_slice(&flags.to_be_bytes());
            let sum = self.sum + u32::from(total) + u32::from(envelope.ip_id) + u32::from(flags);
            ip[10..12].copy_from_slice(&(!fold(u64::from(sum))).to_be_bytes());
        } else {
            ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
            let partial = fold(u64::from(self.sum) + u64::from(udp_len));
            self.bytes[udp + 6..udp + 8].copy_from_slice(&partial.to_be_bytes());
        }
    }

    /// Replaces the UDP checksum of IPv6 by that of the datagram, given in two parts.
    pub fn complete_checksum(&mut self, datagram: [&[u8]; 2]) {
        if !self.is_v4 {
            let at = self.len - 2;
            self.bytes[at..at + 2].fill(0);
            let checksum = udp_checksum(&self.bytes[ETHERNET..self.len], datagram);
            self.bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        }
    }

    /// The headers.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Bytes of the headers before a datagram.
pub fn len_of(envelope: &Envelope) -> usize {
    ETHERNET + envelope.len()
}

/// The MAC address for an IP address: that of a group (RFC 1112, RFC 2464), that in an EUI-64, or a locally
/// administered address.
fn mac_of(address: IpAddr) -> [u8; 6] {
    match address {
        IpAddr::V4(address) if address.is_multicast() => {
            let [_, b, c, d] = address.octets();
            [1, 0, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(address) if address.is_multicast() => {
            let [.., a, b, c, d] = address.octets();
            [0x33, 0x33, a, b, c, d]
        }
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [2, 0, a, b, c, d]
        }
        IpAddr::V6(address) => match address.octets() {
            [.., a, b, c, 0xff, 0xfe, d, e, f] => [a ^ 2, b, c, d, e, f],
            [.., a, b, c, d, e] => [2, a, b, c, d, e],
        },
    }
}

/// The UDP checksum over IPv6 (RFC 8200 8.1), never zero. The checksum field in `ip_udp` is zero.
fn udp_checksum(ip_udp: &[u8], payload: [&[u8]; 2]) -> u16 {
    // Pseudo header: the addresses, the UDP length and the protocol; then the UDP header.
    let mut sum = sum_words(&ip_udp[8..40]) + sum_words(&ip_udp[4..6]) + 17 + sum_words(&ip_udp[40..]);
    let [body, icrc] = payload;
    sum += sum_words(body);
    let rest = sum_words(icrc);
    // After an odd number of bytes, the bytes of each word are swapped.
    sum += if body.len() % 2 == 0 { rest } else { u64::from(fold(rest).swap_bytes()) };
    match !fold(sum) {
        0 => 0xffff,
        checksum => checksum,
    }
}

fn sum_words(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(2);
    let last = words.remainder().first().map_or(0, |byte| u64::from(*byte) << 8);
    words.map(|word| u64::from(u16::from_be_bytes([word[0], word[1]]))).sum::<u64>() + last
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_wire::ip::fill_ipv4_checksum;

    #[test]
    fn mac_addresses() {
        assert_eq!(mac_of("10.1.2.3".parse().unwrap()), [2, 0, 10, 1, 2, 3]);
        assert_eq!(mac_of("fe80::5054:ff:fe77:2".parse().unwrap()), [0x52, 0x54, 0, 0x77, 0, 2]);
        assert_eq!(mac_of("::1".parse().unwrap()), [2, 0, 0, 0, 0, 1]);
        assert_eq!(mac_of("239.129.2.3".parse().unwrap()), [1, 0, 0x5e, 1, 2, 3]);
        assert_eq!(mac_of("ff15::1:203".parse().unwrap()), [0x33, 0x33, 0, 1, 2, 3]);
    }

    #[test]
    fn checksum_of_a_split_payload() {
        let [src, dst] = ["fe80::1", "fe80::2"].map(|text| text.parse().unwrap());
        let envelope = Envelope { src, dst, src_port: 1, dst_port: 2, ip_id: 0, dont_fragment: true };
        for len in [0, 1, 2, 9, 100, 9000, 65000] {
            let body: Vec<u8> = (0..len).map(|n| (n * 37 + 5) as u8).collect();
            let mut ip_udp = [0; 48];
            envelope.emit(body.len(), 0, 64, &mut ip_udp);
            let whole = udp_checksum(&ip_udp, [&body, &[]]);
            let split = body.len().saturating_sub(4);
            assert_eq!(udp_checksum(&ip_udp, [&body[..split], &body[split..]]), whole);
            // A receiver's sum over all, checksum included, is all ones.
            ip_udp[46..].copy_from_slice(&whole.to_be_bytes());
            let all = sum_words(&ip_udp[8..]) + sum_words(&ip_udp[4..6]) + 17 + sum_words(&body);
            assert_eq!(fold(all), 0xffff);
        }
    }

    #[test]
    fn a_filled_head_is_that_of_the_envelope() {
        for (src, dst) in [("10.1.2.3", "10.255.254.253"), ("fe80::1", "2001:db8::ffff")] {
            let [src, dst] = [src, dst].map(|text| text.parse().unwrap());
            let first = Envelope { src, dst, src_port: 20480, dst_port: 4791, ip_id: 0, dont_fragment: true };
            let mut head = Head::new(&first, true, Some([7; 6]));
            for (len, ip_id, dont_fragment) in [(0, 0, true), (9000, 0xffff, false), (65_507, 3, true), (16, 9, false)]
            {
                let envelope = Envelope { ip_id, dont_fragment, ..first };
                head.fill(len, &envelope);
                let mut expected = [0; 48];
                let expected_len = envelope.emit(len, 0, TTL, &mut expected);
                if src.is_ipv4() {
                    fill_ipv4_checksum(&mut expected);
                } else {
                    let body = vec![0; len];
                    let checksum = udp_checksum(&expected, [&body, &[]]);
                    // The ports are not in the sum that offload leaves.
                    let ports = sum_words(&expected[40..46]);
                    let partial = &head.bytes()[60..62];
                    let partial = u64::from(u16::from_be_bytes([partial[0], partial[1]]));
                    assert_eq!(!fold(partial + ports), checksum, "{len} bytes");
                    head.complete_checksum([&body, &[]]);
                    expected[46..].copy_from_slice(&checksum.to_be_bytes());
                }
                assert_eq!(head.bytes()[ETHERNET..], expected[..expected_len], "{len} bytes");
                assert_eq!(head.bytes()[6..12], [7; 6]);
            }
        }
    }
}
