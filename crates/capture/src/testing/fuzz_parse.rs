//! Any bytes as a UDP payload, and as an Ethernet frame: an error, or a packet or Weir frame that emits the same bytes
//! again.

use crate::roce;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_wire::ip::Envelope;
use weir_wire::{ICRC_LEN, MAX_HEADERS, Packet, frame, icrc};

/// Parses the bytes in each way that does not depend on a file.
pub fn parse(bytes: &[u8]) {
    packet(bytes);
    if let Some(datagram) = roce::find_udp(bytes) {
        assert!(datagram.payload.len() <= datagram.payload_len);
        packet(datagram.payload);
        if datagram.payload.len() >= 16 {
            let body = &datagram.payload[..datagram.payload.len() - ICRC_LEN];
            icrc::compute_framed(datagram.ip_udp, body);
        }
    }
}

fn packet(bytes: &[u8]) {
    any_frame(bytes);
    let Ok(packet) = Packet::parse(bytes) else { return };
    let mut again = [0; MAX_HEADERS];
    let len = packet.headers.emit(&mut again);
    assert_eq!(again[..len], bytes[..len]);
    assert_eq!(len + packet.payload.len() + usize::from(packet.headers.bth.pad) + ICRC_LEN, bytes.len());
    if bytes.len() > 1 << 15 {
        return;
    }
    for (src, dst) in [
        (IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv4Addr::BROADCAST)),
        (IpAddr::from(Ipv6Addr::LOCALHOST), IpAddr::from(Ipv6Addr::UNSPECIFIED)),
    ] {
        let envelope = Envelope { src, dst, src_port: 1, dst_port: 4791, ip_id: 7, dont_fragment: true };
        if let icrc::Verdict::GoodWithId(ip_id) = icrc::verify(&envelope, bytes) {
            assert_eq!(icrc::verify(&Envelope { ip_id, ..envelope }, bytes), icrc::Verdict::Good);
        }
    }
}

/// The same for a frame. Bytes of another header version are taken for a frame too.
fn any_frame(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    if let Some(flags) = bytes.get_mut(1) {
        *flags = *flags & 0xf0 | frame::VERSION;
    }
    let Ok(packet) = frame::parse(&bytes) else { return };
    let placement = packet.placement.expect("a frame has a placement");
    assert!(u64::from(placement.offset) + packet.payload.len() as u64 <= u64::from(placement.length));
    let mut again = [0; frame::HEADER_LEN];
    frame::emit(&packet.headers, &placement, &mut again);
    assert_eq!(again[..], bytes[..frame::HEADER_LEN]);
    let pad = usize::from(packet.headers.bth.pad);
    assert_eq!(frame::HEADER_LEN + packet.payload.len() + pad + ICRC_LEN, bytes.len());
}
