//! Packets over several links are found behind their header in every encapsulation of UDP, and what else links carry is no
//! packet.

use weir_capture::packet::{Address, LinkContent, find_in, find_links};
use weir_capture::testing::{Carried, SLOTS, behind, edge_header, frame_of, opcodes, transport};
use weir_capture::{Frame, LinkType};
use weir_wire::edge::{Action, Header, Hello, Piece, Seq};
use weir_wire::{ICRC_LEN, Reth, frame};

/// The encapsulations that have UDP, with the link types that the finder sees.
fn carriers() -> impl Iterator<Item = (Carried, LinkType)> {
    let has_udp = |carried: &Carried| carried.udp(SLOTS, &[]).is_some() && *carried != Carried::ErfEthernet;
    Carried::ALL.into_iter().filter(has_udp).map(|carried| (carried, LinkType::from_number(carried.link_type())))
}

/// What [`find_links`] finds in a frame.
fn content(link_type: LinkType, bytes: &[u8]) -> Option<LinkContent> {
    find_links(&Frame::new(1, 0, link_type, bytes)).map(|datagram| datagram.content)
}

#[test]
fn every_opcode_is_found_behind_the_header() {
    let mut count = 0;
    for (carried, link_type) in carriers() {
        for opcode in opcodes() {
            let payload = if opcode.has_payload() { 61 } else { 0 };
            let roce = [transport(opcode, payload), vec![0xcc; ICRC_LEN]].concat();
            let framed = frame::is_framed(opcode).then(|| [frame_of(opcode, payload), vec![0xcc; ICRC_LEN]].concat());
            for (inner, acknowledges) in [Some(roce), framed].into_iter().flatten().zip([false, true]) {
                let header = edge_header(0x0102_0304, 1, 0x0a0b_0c0d);
                let bytes = carried.udp(SLOTS, &behind(&header, acknowledges, None, &inner)).unwrap();
                let found = find_in(link_type, &bytes).unwrap_or_else(|| panic!("{opcode:?} in {carried:?}"));
                let edge = found.edge.unwrap();
                assert_eq!((edge.header, [edge.from_port, edge.to_port]), (header, SLOTS));
                assert_eq!((found.transport, found.transport_len), (&inner[..], inner.len()));
                assert_eq!(found.icrc_ok(), None, "it is not computed for the addresses of the link");
                let [from, to] = carried.addresses().unwrap().map(Address::from);
                assert_eq!((found.from, found.to, found.vlan), (from, to, carried.vlan()));
                let headers = found.headers().unwrap();
                assert_eq!((headers.bth.opcode, headers.bth.version, headers.bth.dest_qp), (opcode, 0, 0x12_3456));
                assert_eq!(Some(headers.bth), found.bth());
                assert_eq!(found.payload_len(&headers), Ok(payload));
                assert_eq!(headers.get::<Reth>().map(|reth| reth.dma_len.get()), opcode.has_reth().then_some(10_000));
                assert_eq!(content(link_type, &bytes), Some(LinkContent::Packet(header)));
                count += 1;
            }
        }
    }
    assert_eq!(count, 10 * (opcodes().count() + 48));
}

#[test]
fn a_packet_that_is_not_completely_captured_has_its_headers() {
    for (carried, link_type) in carriers() {
        let opcode = weir_wire::Opcode(0x0a);
        for inner in [transport(opcode, 600), frame_of(opcode, 600)] {
            let headers_len = inner.len() - 600;
            let datagram = behind(&edge_header(7, 0, 9), true, None, &[&inner[..], &[0; ICRC_LEN]].concat());
            let bytes = carried.udp(SLOTS, &datagram).unwrap();
            let (front, around) = (datagram.len() - inner.len() - ICRC_LEN, bytes.len() - datagram.len());
            for kept in 0..bytes.len() {
                let found = find_in(link_type, &bytes[..kept]);
                assert_eq!(found.is_some(), kept >= around + front, "{carried:?}, {kept} bytes");
                let Some(found) = found else { continue };
                assert_eq!(found.transport_len, inner.len() + ICRC_LEN);
                assert_eq!(found.headers().is_ok(), kept >= around + front + headers_len);
                if let Ok(headers) = found.headers() {
                    assert_eq!(found.payload_len(&headers), Ok(600));
                }
            }
        }
    }
}

#[test]
fn what_else_links_carry_is_recognised_and_is_no_packet() {
    let alone = Header { packet: None, count: 0, ..edge_header(7, 1, 0) };
    let question = Header { asks: true, count: 5, ..alone };
    let piece = Piece { number: 3, action: Action::Response, offset: 0, bytes: 64 };
    let of_piece = edge_header(7, 1, 4);
    let hello = Hello { ask: 1, answer: 2, connection: 3, first: Seq(4), ..Hello::default() };
    for (carried, link_type) in carriers() {
        for (datagram, expected) in [
            (behind(&alone, true, None, &[]), LinkContent::Alone(alone)),
            (behind(&question, false, None, &[]), LinkContent::Alone(question)),
            (behind(&of_piece, true, Some(&piece), &[9; 64]), LinkContent::Piece(of_piece, piece)),
            (hello.encode(), LinkContent::Hello(hello.clone())),
        ] {
            // Pieces also go between ports of libweir-edge.
            for ports in [SLOTS, [7000, 7001]] {
                let bytes = carried.udp(ports, &datagram).unwrap();
                assert_eq!(find_in(link_type, &bytes), None, "{expected:?} in {carried:?}");
                assert_eq!(content(link_type, &bytes), Some(expected.clone()));
                // A capture may have none of a piece's payload.
                let payload = if matches!(expected, LinkContent::Piece(..)) { 64 } else { 0 };
                assert_eq!(content(link_type, &bytes[..bytes.len() - payload]), Some(expected.clone()));
            }
        }
    }
}

/// A sender hands several packets to the kernel as one, which some captures have.
#[test]
fn the_first_of_several_pieces_together_is_found() {
    let action = Action::Write { address: 1, total: 64, notify: true };
    let (header, piece) = (edge_header(7, 1, 4), Piece { number: 3, action, offset: 0, bytes: 64 });
    let one = behind(&header, false, Some(&piece), &[9; 64]);
    for (carried, link_type) in carriers() {
        let bytes = carried.udp([7000, 7001], &[one.clone(), one.clone()].concat()).unwrap();
        assert_eq!(content(link_type, &bytes), Some(LinkContent::Piece(header, piece)), "{carried:?}");
    }
}

#[test]
fn damage_and_other_ports_hide_a_packet() {
    let inner = [transport(weir_wire::Opcode(0x04), 8), vec![0; ICRC_LEN]].concat();
    let datagram = behind(&edge_header(7, 1, 4), true, None, &inner);
    let front = datagram.len() - inner.len();
    let find = |ports: [u16; 2], datagram: &[u8]| {
        find_in(LinkType::Ethernet, &Carried::Ipv4.udp(ports, datagram).unwrap()).is_some()
    };
    assert!(find(SLOTS, &datagram));
    for ports in [[SLOTS[0], 4790], [4790, SLOTS[1]], [20_479, SLOTS[1]], [SLOTS[0], 21_504]] {
        assert!(!find(ports, &datagram), "{ports:?}");
    }
    for at in 0..front {
        let mut damaged = datagram.clone();
        damaged[at] ^= 0x10;
        assert!(!find(SLOTS, &damaged), "byte {at}");
    }
    assert!(!find(SLOTS, &inner), "without the header it is no packet of a slot's port");
}
