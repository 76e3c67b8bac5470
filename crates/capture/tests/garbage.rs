//! No file makes the reader panic, loop, or use unlimited memory.

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use std::io::Write;
use weir_capture::testing::{
    Carried, SLOTS, behind, edge_header, frame_of, fuzz_find, fuzz_parse, fuzz_read, transport,
};
use weir_capture::{Direction, InterfaceInfo, PacketInfo, Writer, roce};
use weir_wire::edge::Header;
use weir_wire::{Opcode, frame};

#[test]
fn any_file_is_read_or_refused() {
    weir_trials::run("capture", fuzz_read);
}

#[test]
fn any_frame_has_a_packet_or_none() {
    weir_trials::run("rdma_packet", fuzz_find);
}

#[test]
fn what_is_parsed_is_emitted_again() {
    weir_trials::run("parse", fuzz_parse);
}

fn sample() -> Vec<u8> {
    let mut bytes = Vec::new();
    let info = InterfaceInfo { name: "eth0", description: "", application: "weir" };
    let mut writer = Writer::new(&mut bytes, &info, 1);
    for i in 0..8u64 {
        let info = PacketInfo { interface: 0, timestamp: i, direction: Direction::In, comment: "remark" };
        writer.packet(&info, &[&[0x45; 60]]).unwrap();
    }
    writer.statistics(9, 8, 0);
    writer.flush().unwrap();
    drop(writer);
    bytes
}

fn magic() -> impl Strategy<Value = Vec<u8>> {
    let magics: [&[u8]; 10] = [
        &[0x1f, 0x8b, 8, 0],
        &[0x28, 0xb5, 0x2f, 0xfd],
        &[0x50, 0x2a, 0x4d, 0x18],
        &[0xd4, 0xc3, 0xb2, 0xa1],
        &[0xa1, 0xb2, 0xc3, 0xd4],
        &[0x4d, 0x3c, 0xb2, 0xa1],
        &[0x34, 0xcd, 0xb2, 0xa1],
        &[0x0a, 0x0d, 0x0d, 0x0a, 0x1c, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a],
        &[0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 0x1c, 0x1a, 0x2b, 0x3c, 0x4d],
        &[],
    ];
    prop::sample::select(magics.map(<[u8]>::to_vec).to_vec())
}

proptest! {
    // `make soak` sets PROPTEST_CASES for more cases.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(400)))]

    #[test]
    fn random_bytes_behind_a_magic_number_cause_no_panic(
        start in magic(),
        rest in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        fuzz_read(&[start, rest].concat());
    }

    #[test]
    fn damaged_files_cause_no_panic(
        file in prop::sample::select(weir_trials::corpus("capture").into_iter().chain([sample()]).collect::<Vec<_>>()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = file;
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        fuzz_read(&bytes);
        // The same in a compressed file.
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&bytes).unwrap();
        fuzz_read(&gzip.finish().unwrap());
    }

    #[test]
    fn damaged_frames_cause_no_panic(
        carried in prop::sample::select(Carried::ALL.to_vec()),
        opcode in any::<u8>(),
        changes in prop::collection::vec((0..120usize, any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = carried.frame(&transport(Opcode(opcode), 40));
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        fuzz_find(&bytes);
        if let Some(datagram) = roce::find_udp(&bytes) {
            prop_assert!(datagram.payload.len() <= datagram.payload_len);
        }
    }

    #[test]
    fn damaged_frames_of_links_cause_no_panic(
        carried in prop::sample::select(Carried::ALL.to_vec()),
        opcode in any::<u8>(),
        framed in any::<bool>(),
        packet in any::<bool>(),
        changes in prop::collection::vec((0..160usize, any::<u8>()), 0..3),
        cut in any::<prop::sample::Index>(),
    ) {
        let opcode = Opcode(opcode);
        let inner = if framed && frame::is_framed(opcode) { frame_of(opcode, 40) } else { transport(opcode, 40) };
        let header = edge_header(7, 3, 9);
        let header = if packet { header } else { Header { packet: None, count: 0, ..header } };
        let Some(mut bytes) = carried.udp(SLOTS, &behind(&header, framed, None, &inner)) else { return Ok(()) };
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        fuzz_find(&bytes);
    }
}
