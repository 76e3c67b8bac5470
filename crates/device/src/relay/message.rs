//! A message of the holder to a slot: packets one after another, each with the addresses that the holder's socket
//! reported.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use weir_link::Arrival;
use weir_wire::ROCE_PORT;

/// Bytes of the longest message.
pub const LONGEST: usize = 32 << 10;
/// Bytes of the longest packet that can be handed over.
const LONGEST_PACKET: usize = 9216;
/// Source address and port, local address, interface, length.
const HEADER: usize = 16 + 2 + 16 + 4 + 2;

/// Appends a packet to a message of `len` bytes; returns the new length. `None` if there is no room for it.
pub fn append(message: &mut [u8; LONGEST], len: usize, arrival: &Arrival, packet: &[u8]) -> Option<usize> {
    if packet.len() > LONGEST_PACKET {
        return None;
    }
    let room = message[len..].get_mut(..HEADER + packet.len())?;
    room[..16].copy_from_slice(&octets(arrival.from.ip()));
    room[16..18].copy_from_slice(&arrival.from.port().to_be_bytes());
    room[18..34].copy_from_slice(&octets(arrival.to));
    room[34..38].copy_from_slice(&arrival.ifindex.to_be_bytes());
    room[38..40].copy_from_slice(&(packet.len() as u16).to_be_bytes());
    room[HEADER..].copy_from_slice(packet);
    Some(len + HEADER + packet.len())
}

/// The packets of a message, each with its position in it. Ends at the first malformed one.
pub fn packets(message: &[u8]) -> impl Iterator<Item = Arrival> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let header: &[u8; HEADER] = message.get(at..)?.first_chunk()?;
        let len = usize::from(u16::from_be_bytes([header[38], header[39]]));
        let start = at + HEADER;
        message.get(start..start + len)?;
        at = start + len;
        let port = u16::from_be_bytes([header[16], header[17]]);
        let mut arrival = Arrival::new(SocketAddr::new(address(&header[..16]), port), ROCE_PORT, start, len);
        arrival.to = address(&header[18..34]);
        arrival.ifindex = u32::from_be_bytes(header[34..38].try_into().expect("four bytes"));
        Some(arrival)
    })
}

fn address(octets: &[u8]) -> IpAddr {
    let octets: [u8; 16] = octets.try_into().expect("sixteen bytes");
    Ipv6Addr::from(octets).to_canonical()
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(from: &str, to: &str, ifindex: u32) -> Arrival {
        let mut arrival = Arrival::new(from.parse().unwrap(), ROCE_PORT, 0, 0);
        arrival.to = to.parse().unwrap();
        arrival.ifindex = ifindex;
        arrival
    }

    #[test]
    fn packets_are_parsed_as_appended() {
        let sent = [
            (arrival("10.1.2.3:7777", "10.1.2.4", 3), vec![1; 5]),
            (arrival("[fe80::1]:4791", "fe80::2", 7), vec![2; LONGEST_PACKET]),
            (arrival("10.1.2.3:1", "10.1.2.4", 0), vec![]),
        ];
        let (mut message, mut len) = (Box::new([0; LONGEST]), 0);
        for (arrival, packet) in &sent {
            len = append(&mut message, len, arrival, packet).unwrap();
        }
        let got: Vec<_> = packets(&message[..len]).collect();
        assert_eq!(got.len(), sent.len());
        for (got, (arrival, packet)) in got.iter().zip(&sent) {
            assert_eq!((got.from, got.to, got.ifindex), (arrival.from, arrival.to, arrival.ifindex));
            assert_eq!((&message[got.start..][..got.len], got.to_port), (&packet[..], ROCE_PORT));
        }
    }

    #[test]
    fn a_packet_without_room_is_not_appended() {
        let (mut message, arrival) = (Box::new([0; LONGEST]), arrival("10.1.2.3:7777", "10.1.2.4", 3));
        assert_eq!(append(&mut message, LONGEST - HEADER - 4, &arrival, &[1; 4]), Some(LONGEST));
        assert_eq!(append(&mut message, LONGEST - HEADER - 4, &arrival, &[1; 5]), None);
        assert_eq!(append(&mut message, LONGEST, &arrival, &[]), None);
        assert_eq!(append(&mut message, 0, &arrival, &[1; LONGEST_PACKET + 1]), None);
    }

    #[test]
    fn parsing_ends_at_a_malformed_packet() {
        let (mut message, arrival) = (Box::new([0; LONGEST]), arrival("10.1.2.3:7777", "10.1.2.4", 3));
        let len = append(&mut message, 0, &arrival, &[1; 100]).unwrap();
        let len = append(&mut message, len, &arrival, &[1; 100]).unwrap();
        for cut in 0..len {
            assert_eq!(packets(&message[..cut]).count(), cut / (HEADER + 100), "{cut} bytes");
        }
        assert_eq!(packets(&[0xff; 1000]).count(), 0);
    }
}
