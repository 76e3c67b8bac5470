//! No file makes the reader panic, loop, or use unlimited memory.

use proptest::prelude::*;
use std::io::Cursor;
use weir_capture::{Direction, InterfaceInfo, PacketInfo, Reader, Writer, roce};

/// Reads all frames; the length of the file limits their number.
fn read_all(bytes: Vec<u8>) {
    let len = bytes.len();
    let Ok(mut reader) = Reader::new(Cursor::new(bytes)) else { return };
    let mut items = 0;
    for frame in reader.owned_frames().flatten() {
        assert!(frame.data.len() <= len);
        let _ = roce::find_udp(&frame.data);
        items += 1;
    }
    assert!(items <= len / 12);
}

fn sample() -> Vec<u8> {
    let mut bytes = Vec::new();
    let info = InterfaceInfo { name: "eth0", description: "", application: "weir" };
    let mut writer = Writer::new(&mut bytes, &info, 1);
    for i in 0..8u64 {
        let info = PacketInfo { timestamp: i, direction: Direction::In, comment: "remark" };
        writer.packet(&info, &[&[0x45; 60]]).unwrap();
    }
    writer.statistics(9, 8, 0);
    writer.flush().unwrap();
    drop(writer);
    bytes
}

fn magic() -> impl Strategy<Value = Vec<u8>> {
    let magics: [&[u8]; 7] = [
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
        read_all([start, rest].concat());
    }

    #[test]
    fn damaged_files_cause_no_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = sample();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        read_all(bytes);
    }

    #[test]
    fn random_frames_cause_no_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..120),
        ethertype in prop::sample::select(vec![[8u8, 0], [0x86, 0xdd], [0x81, 0]]),
    ) {
        let mut frame = bytes;
        if frame.len() > 15 {
            frame[12..14].copy_from_slice(&ethertype);
            frame[14] = if ethertype[0] == 8 { 0x45 } else { 0x60 };
        }
        if let Some(datagram) = roce::find_udp(&frame) {
            prop_assert!(datagram.payload.len() <= datagram.payload_len);
        }
    }
}
