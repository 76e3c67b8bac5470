//! Every packet in captures of a kernel's Soft-RoCE is parsed and emitted again byte for byte, ICRC included.

use std::collections::BTreeMap;
use std::path::Path;
use weir_capture::{open, roce};
use weir_wire::{ICRC_LEN, MAX_HEADERS, Packet, icrc};

/// Checks all packets of a file; returns the number of packets per opcode, and the numbers of those with a wrong ICRC.
fn check(name: &str) -> (BTreeMap<u8, usize>, Vec<u64>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/captures").join(name);
    let mut opcodes = BTreeMap::new();
    let mut wrong = Vec::new();
    for frame in open(path).unwrap().owned_frames() {
        let frame = frame.unwrap();
        let number = frame.number;
        let datagram = roce::find(&frame.data).unwrap_or_else(|| panic!("{name} frame {number} is not RoCEv2"));
        assert!(datagram.is_complete());
        let packet = Packet::parse(datagram.payload).unwrap_or_else(|error| panic!("{name} frame {number}: {error}"));
        *opcodes.entry(packet.headers.bth.opcode.0).or_default() += 1;

        let mut again = [0; MAX_HEADERS];
        let len = packet.headers.emit(&mut again);
        assert_eq!(len, packet.headers.len());
        let pad = vec![0; usize::from(packet.headers.bth.pad)];
        let again = [&again[..len], packet.payload, &pad, &packet.icrc.to_le_bytes()].concat();
        assert_eq!(again, datagram.payload, "{name} frame {number}");

        let mut ip_udp = [0; 48];
        let traffic_class = datagram.traffic_class;
        let ttl = if datagram.ip_udp.len() == 28 { datagram.ip_udp[8] } else { datagram.ip_udp[7] };
        let len = datagram.envelope.emit(datagram.payload.len(), traffic_class, ttl, &mut ip_udp);
        assert_eq!(len, datagram.envelope.len());
        // The IP and UDP headers are equal, except flow label and checksums, which differ between senders.
        let mut seen = datagram.ip_udp.to_vec();
        if len == 28 {
            weir_wire::ip::fill_ipv4_checksum(&mut ip_udp);
        } else {
            (seen[1], seen[2], seen[3]) = (seen[1] & 0xf0, 0, 0);
        }
        seen[len - 2..].fill(0);
        assert_eq!(ip_udp[..len], seen, "{name} frame {number}");

        let (body, trailer) = datagram.payload.split_last_chunk::<ICRC_LEN>().unwrap();
        let framed = icrc::compute_framed(datagram.ip_udp, body);
        assert_eq!(framed, icrc::compute(&datagram.envelope, body));
        let right = framed.to_le_bytes() == *trailer;
        let verdict = icrc::verify(&datagram.envelope, datagram.payload);
        assert_eq!(verdict == icrc::Verdict::Good, right);
        if !right {
            assert_eq!(verdict, icrc::Verdict::Bad, "an Identification makes it right");
            wrong.push(number);
        } else if len == 28 {
            // A plain UDP receiver does not see the Identification, and solves for it.
            let unseen = weir_wire::ip::Envelope { ip_id: 0, ..datagram.envelope };
            let expected = match datagram.envelope.ip_id {
                0 => icrc::Verdict::Good,
                id => icrc::Verdict::GoodWithId(id),
            };
            assert_eq!(icrc::verify(&unseen, datagram.payload), expected);
        }
    }
    (opcodes, wrong)
}

/// The rdma-core test suite over Soft-RoCE: every RC opcode except FLUSH and ATOMIC_WRITE, and SEND_ONLY over UD.
fn verbs_opcodes() -> BTreeMap<u8, usize> {
    BTreeMap::from([
        (0x00, 23),
        (0x01, 24),
        (0x02, 22),
        (0x03, 1),
        (0x04, 3),
        (0x05, 1),
        (0x06, 35),
        (0x07, 258),
        (0x08, 34),
        (0x09, 1),
        (0x0a, 4),
        (0x0b, 1),
        (0x0c, 13),
        (0x0d, 10),
        (0x0e, 78),
        (0x0f, 10),
        (0x10, 2),
        (0x11, 88),
        (0x12, 2),
        (0x13, 1),
        (0x14, 1),
        (0x17, 1),
        (0x64, 1),
    ])
}

#[test]
fn packets_of_soft_roce_over_ipv4_have_right_icrcs() {
    assert_eq!(check("rxe-verbs-1024.pcap"), (verbs_opcodes(), vec![]));
}

#[test]
fn packets_of_soft_roce_over_ipv6_have_right_icrcs() {
    assert_eq!(check("rxe-verbs-gid0-ipv6.pcap"), (verbs_opcodes(), vec![]));
}

#[test]
fn the_one_wrong_icrc_of_a_peer_in_user_space_is_found() {
    let (opcodes, wrong) = check("rxe-hostpeer.pcap");
    let expected = BTreeMap::from([(0x04, 1), (0x0a, 5), (0x0c, 1), (0x10, 1), (0x11, 5), (0x12, 1), (0x14, 1)]);
    assert_eq!(opcodes, expected);
    assert_eq!(wrong.len(), 1, "{wrong:?}");
}
