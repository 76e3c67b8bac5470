//! The packet in a frame is found in every encapsulation, and its ICRC is verified.

use std::net::IpAddr;
use weir_capture::packet::{Address, Encapsulation, RdmaPacket, find, find_in};
use weir_capture::testing::{Carried, Order, Stored, opcodes, pcap, pcapng, transport};
use weir_capture::{Direction, LinkType, OwnedFrame, Reader};
use weir_wire::{ICRC_LEN, Opcode};

/// The frames of a file with these packets, of one encapsulation.
fn read(carried: Carried, frame: &[u8], orig_len: usize) -> OwnedFrame {
    let stored = Stored { time: 7, link_type: carried.link_type(), data: frame, orig_len };
    let both = [pcap(Order::Big, true, &[stored]), pcapng(Order::Little, &[stored])].map(|file| {
        let mut reader = Reader::new(std::io::Cursor::new(file)).unwrap();
        let frames: Vec<OwnedFrame> = reader.owned_frames().map(Result::unwrap).collect();
        <[OwnedFrame; 1]>::try_from(frames).unwrap()
    });
    let [[a], [b]] = both;
    assert_eq!(a, b);
    a
}

fn is_erf(carried: Carried) -> bool {
    matches!(carried, Carried::ErfLocal | Carried::ErfGlobal | Carried::ErfEthernet)
}

/// Checks all but the packet's own bytes.
fn check(carried: Carried, found: &RdmaPacket<'_>) {
    let [from_lid, to_lid] = Carried::LIDS;
    let [from, to] = match carried.addresses() {
        Some(addresses) => addresses.map(Address::from),
        None => [Address::Lid(from_lid), Address::Lid(to_lid)],
    };
    assert_eq!((found.from, found.to), (from, to), "{carried:?}");
    let expected = match carried {
        Carried::RoceV1 | Carried::RoceV1Vlan | Carried::CookedRoceV1 => Encapsulation::RoceV1,
        Carried::Local | Carried::Global | Carried::ErfLocal | Carried::ErfGlobal => {
            Encapsulation::Infiniband { from_lid, to_lid, service_level: Carried::SERVICE_LEVEL }
        }
        _ => Encapsulation::RoceV2 { src_port: Carried::SRC_PORT },
    };
    assert_eq!(found.encapsulation, expected, "{carried:?}");
    assert_eq!(found.vlan, carried.vlan(), "{carried:?}");
    match carried {
        Carried::Local | Carried::ErfLocal => assert_eq!(found.traffic_class, 0),
        _ => assert_eq!((found.traffic_class, found.dscp(), found.ecn()), (Carried::TRAFFIC_CLASS, 0x1a, 2)),
    }
}

#[test]
fn every_opcode_is_found_in_every_encapsulation() {
    let mut count = 0;
    for carried in Carried::ALL {
        for opcode in opcodes() {
            let payload = if opcode.has_payload() { 61 } else { 0 };
            let sent = transport(opcode, payload);
            let bytes = carried.frame(&sent);
            let frame = read(carried, &bytes, bytes.len());
            let found = find_in(frame.link_type, &frame.data).unwrap_or_else(|| panic!("{opcode:?} in {carried:?}"));
            check(carried, &found);
            let (body, _) = found.transport.split_last_chunk::<ICRC_LEN>().unwrap();
            assert_eq!(body, sent, "{opcode:?} in {carried:?}");
            let headers = found.headers().unwrap();
            assert_eq!(headers.bth.opcode, opcode);
            assert_eq!(found.payload_len(&headers), Ok(payload));
            let has_rule = !matches!(carried, Carried::Ipv4Options | Carried::Ipv6Extensions);
            assert_eq!(found.icrc_ok(), has_rule.then_some(true), "{opcode:?} in {carried:?}");
            assert_eq!(frame.timestamp, if is_erf(carried) { Carried::ERF_TIME } else { 7 });
            count += 1;
        }
    }
    assert_eq!(count, 18 * opcodes().count());
}

#[test]
fn each_changed_bit_that_the_icrc_covers_makes_it_wrong() {
    for carried in Carried::ALL {
        let bytes = carried.frame(&transport(Opcode(0x04), 5));
        let frame = read(carried, &bytes, bytes.len());
        let found = find_in(frame.link_type, &frame.data).unwrap();
        if found.icrc_ok().is_none() {
            continue;
        }
        let start = found.transport.as_ptr() as usize - frame.data.as_ptr() as usize;
        let end = start + found.transport_len;
        let mut variant = 0;
        for at in 0..end {
            for bit in 0..8 {
                let mut data = frame.data.clone();
                data[at] ^= 1 << bit;
                let Some(found) = find_in(frame.link_type, &data).filter(|found| found.icrc_ok().is_some()) else {
                    continue;
                };
                let ok = found.icrc_ok() == Some(true);
                variant += usize::from(ok && at < start);
                // Byte 4 of the BTH: FECN, BECN and reserved bits.
                assert!(at < start || ok == (at == start + 4), "{carried:?}: bit {bit} of byte {at}");
            }
        }
        // The network header's bits that change on the path; link headers are not covered.
        let network = match carried {
            Carried::Local | Carried::ErfLocal => 4,
            // All of the LRH but length, next header and version; the GRH's variable fields.
            Carried::Global | Carried::ErfGlobal => 4 + 4 + 2 + 16 + 5 + 16 + 8 + 20 + 8,
            _ => continue,
        };
        assert_eq!(variant, network, "{carried:?}");
    }
}

#[test]
fn a_packet_that_is_not_completely_captured_has_its_headers_and_no_verdict() {
    for carried in Carried::ALL {
        let sent = transport(Opcode(0x0a), 600);
        let bytes = carried.frame(&sent);
        for kept in (0..bytes.len()).rev() {
            let frame = read(carried, &bytes[..kept], bytes.len());
            let Some(found) = find_in(frame.link_type, &frame.data) else { continue };
            check(carried, &found);
            assert_eq!(found.transport_len, sent.len() + ICRC_LEN);
            assert_eq!(found.is_complete(), found.transport.len() == found.transport_len);
            assert!(found.is_complete() || found.icrc_ok().is_none());
            assert_eq!(found.headers().is_ok(), found.transport.len() >= 28, "{carried:?}, {kept} bytes");
            if let Ok(headers) = found.headers() {
                assert_eq!(found.payload_len(&headers), Ok(600));
            }
        }
        let frame = read(carried, &bytes[..140], bytes.len());
        assert!(find_in(frame.link_type, &frame.data).is_some_and(|found| found.headers().is_ok()), "{carried:?}");
    }
}

#[test]
fn other_traffic_is_no_rdma_packet() {
    let sent = transport(Opcode(0x04), 8);
    // Byte and bits that make a frame something else: port, protocol, ethertype, version, next header, fragments.
    for (carried, at, bits) in [
        (Carried::Ipv4, 14 + 22, 1),
        (Carried::Ipv4, 14 + 9, 1),
        (Carried::Ipv4, 13, 1),
        (Carried::Ipv4, 14, 0x20),
        (Carried::Ipv4, 14 + 6, 0x20),
        (Carried::Ipv4, 14 + 7, 1),
        (Carried::Ipv6, 14 + 6, 1),
        (Carried::Ipv6, 14, 0x20),
        (Carried::Ipv6Extensions, 14 + 40 + 8 + 3, 1),
        (Carried::RoceV1, 14, 0x20),
        (Carried::RoceV1, 14 + 6, 1),
        (Carried::Local, 0, 1),
        (Carried::Local, 1, 2),
        (Carried::Global, 8, 0x20),
        (Carried::Global, 8 + 6, 1),
        (Carried::CookedIpv4, 14, 1),
        (Carried::Cooked2Ipv4, 0, 1),
    ] {
        let mut bytes = carried.frame(&sent);
        assert!(find_in(LinkType::from_number(carried.link_type()), &bytes).is_some());
        bytes[at] ^= bits;
        assert_eq!(find_in(LinkType::from_number(carried.link_type()), &bytes), None, "{carried:?}, byte {at}");
    }
    assert_eq!(find_in(LinkType::Other(147), &Carried::Ipv4.frame(&sent)), None);
}

#[test]
fn a_frame_of_the_reader_is_searched_without_a_copy() {
    let bytes = Carried::CookedIpv4.frame(&transport(Opcode(0x04), 8));
    let stored = Stored { time: 7, link_type: 113, data: &bytes, orig_len: bytes.len() };
    let mut reader = Reader::new(std::io::Cursor::new(pcap(Order::Little, false, &[stored; 2]))).unwrap();
    for number in 1..=2 {
        let frame = reader.next_frame().unwrap().unwrap();
        assert_eq!((frame.number, frame.direction), (number, Some(Direction::Out)), "the packet type of the header");
        let found = find(&frame).unwrap();
        assert!(frame.data.as_ptr_range().contains(&found.transport.as_ptr()));
        assert_eq!(found.from.ip(), Some(IpAddr::from([10, 0, 0, 1])));
    }
    assert!(reader.next_frame().unwrap().is_none());
}
