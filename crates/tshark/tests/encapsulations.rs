//! tshark and Weir read the same fields in a packet of every opcode in every encapsulation, complete and not.

use std::path::Path;
use weir_capture::LinkType;
use weir_capture::testing::{Carried, Order, Stored, opcodes, pcap, pcapng, transport};
use weir_tshark::{Comparison, compare_files};

/// tshark 4.0 does not know LINKTYPE_INFINIBAND; `compare_files` makes it take this number for it.
const LINKTYPE_USER0: u16 = 147;

/// A frame of each opcode.
fn frames(carried: Carried) -> Vec<Vec<u8>> {
    opcodes().map(|opcode| carried.frame(&transport(opcode, if opcode.has_payload() { 61 } else { 0 }))).collect()
}

fn stored<'a>(carried: Carried, frames: &'a [Vec<u8>], snap: usize) -> Vec<Stored<'a>> {
    let one = |(n, frame): (usize, &'a Vec<u8>)| Stored {
        time: 1_700_000_000_000_000_000 + n as u64 * 1_001,
        link_type: carried.link_type(),
        data: &frame[..frame.len().min(snap)],
        orig_len: frame.len(),
    };
    frames.iter().enumerate().map(one).collect()
}

fn for_tshark<'a>(packets: &[Stored<'a>]) -> Vec<Stored<'a>> {
    let infiniband = LinkType::Infiniband.number();
    let link_type = |number| if number == infiniband { LINKTYPE_USER0 } else { number };
    packets.iter().map(|packet| Stored { link_type: link_type(packet.link_type), ..*packet }).collect()
}

fn compare_both(folder: &Path, packets: &[Stored<'_>], write: impl Fn(&[Stored<'_>]) -> Vec<u8>) -> Comparison {
    let [ours, theirs] = ["ours", "theirs"].map(|name| folder.join(name));
    std::fs::write(&ours, write(packets)).unwrap();
    std::fs::write(&theirs, write(&for_tshark(packets))).unwrap();
    compare_files(&ours, &theirs).unwrap()
}

fn assert_all_pass(comparison: &Comparison, count: usize, what: &str) {
    assert!(comparison.failures.is_empty(), "{what}: {}", comparison.failures.join("\n"));
    assert_eq!((comparison.passed, comparison.skipped), (count, 0), "{what}");
}

#[test]
#[ignore = "needs tshark"]
fn tshark_agrees_about_every_opcode_in_every_encapsulation() {
    let folder = tempfile::tempdir().unwrap();
    let all: Vec<(Carried, Vec<Vec<u8>>)> = Carried::ALL.map(|carried| (carried, frames(carried))).into();
    for ((carried, frames), order) in all.iter().zip([Order::Little, Order::Big].into_iter().cycle()) {
        let packets = stored(*carried, frames, usize::MAX);
        let comparison = compare_both(folder.path(), &packets, |packets| pcap(order, true, packets));
        assert_all_pass(&comparison, frames.len(), &format!("{carried:?}, {order:?}"));
    }
    // All in one file, which has an interface for each link type.
    let packets: Vec<Stored<'_>> =
        all.iter().flat_map(|(carried, frames)| stored(*carried, frames, usize::MAX)).collect();
    assert_eq!(packets.len(), 18 * 64);
    for order in [Order::Little, Order::Big] {
        let comparison = compare_both(folder.path(), &packets, |packets| pcapng(order, packets));
        assert_all_pass(&comparison, packets.len(), &format!("{order:?}"));
    }
}

#[test]
#[ignore = "needs tshark"]
fn tshark_agrees_about_packets_without_their_payload() {
    let folder = tempfile::tempdir().unwrap();
    for carried in Carried::ALL {
        // Long enough for the longest headers: 16 + 8 + 40 + 12 + 32 bytes.
        let frames: Vec<Vec<u8>> = opcodes()
            .filter(|opcode| opcode.has_payload())
            .map(|opcode| carried.frame(&transport(opcode, 500)))
            .collect();
        let packets = stored(carried, &frames, 128);
        let comparison = compare_both(folder.path(), &packets, |packets| pcap(Order::Little, true, packets));
        assert_all_pass(&comparison, frames.len(), &format!("{carried:?}"));
    }
}

#[test]
#[ignore = "needs tshark"]
fn tshark_numbers_the_same_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("blocks.pcapng");
    let frame = Carried::Ipv4.frame(&transport(opcodes().next().unwrap(), 8));
    let packet = [Stored { time: 5, link_type: 1, data: &frame, orig_len: frame.len() }];
    let file = pcapng(Order::Little, &packet);
    let block_at = file.len() - frame.len().next_multiple_of(4) - 32;
    let block = |kind: u32, body: &[u8]| {
        let len = (body.len() as u32 + 12).to_le_bytes();
        [&kind.to_le_bytes()[..], &len, body, &len].concat()
    };
    let sysdig = [&[0; 2][..], &1000u64.to_le_bytes(), &7u64.to_le_bytes(), &[26, 0, 0, 0, 1, 0], &[0; 8]].concat();
    let journal = b"__CURSOR=abc\n__REALTIME_TIMESTAMP=1421337516123456\nMESSAGE=abcd\n";
    let mut journal = journal.to_vec();
    journal.resize(journal.len().next_multiple_of(4), 0);
    for (kind, body, is_numbered) in [
        (3, [&(frame.len() as u32).to_le_bytes()[..], &frame, &[0; 2]].concat(), true),
        (9, journal, true),
        (0xbad, b"\xd9\x7e\0\0data".to_vec(), true),
        (0x4000_0bad, b"\xd9\x7e\0\0data".to_vec(), true),
        (0x204, sysdig.clone(), true),
        (0x216, sysdig.clone(), true),
        (0x221, sysdig, true),
        (4, vec![0; 4], false),
        (5, vec![0; 12], false),
        (10, b"KSLT\x04\0\0\0abcd".to_vec(), false),
        (0x8000_0001, vec![0; 8], false),
        (0x7777, vec![0; 8], false),
    ] {
        assert_eq!(body.len() % 4, 0, "block type {kind:#x}");
        let packet = &file[block_at..];
        std::fs::write(&path, [&file[..block_at], packet, &block(kind, &body), packet].concat()).unwrap();
        let output = std::process::Command::new("tshark")
            .args(["-n", "-T", "fields", "-e", "frame.number", "-r"])
            .arg(&path)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let theirs: u64 = text.lines().last().unwrap().parse().unwrap();
        assert_eq!(theirs, if is_numbered { 3 } else { 2 }, "block type {kind:#x}");
        let mut reader = weir_capture::open(&path).unwrap();
        assert_eq!(reader.owned_frames().last().unwrap().unwrap().number, theirs, "block type {kind:#x}");
    }
}

#[test]
#[ignore = "needs tshark"]
fn a_difference_in_a_network_header_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    for (carried, at) in [(Carried::Ipv4, 14 + 12), (Carried::RoceV1, 14 + 8), (Carried::Local, 2)] {
        let bytes = carried.frame(&transport(opcodes().next().unwrap(), 60));
        let mut other = bytes.clone();
        other[at] ^= 0x40;
        // The damaged packet has a wrong ICRC and is only skipped; behind other bytes both have none to check.
        let packets = [bytes, other].map(|bytes| {
            let packet = Stored { time: 5, link_type: carried.link_type(), data: &bytes[..80], orig_len: bytes.len() };
            let [ours, theirs] = [&[packet][..], &for_tshark(&[packet])].map(|packets| pcap(Order::Big, true, packets));
            (ours, theirs)
        });
        let [ours, theirs] = ["ours", "theirs"].map(|name| folder.path().join(name));
        std::fs::write(&ours, &packets[0].0).unwrap();
        std::fs::write(&theirs, &packets[1].1).unwrap();
        let Comparison { passed, failures, .. } = compare_files(&ours, &theirs).unwrap();
        assert_eq!((passed, failures.len()), (0, 1), "{carried:?}");
    }
}
