//! The reader reads the writer's files unchanged, and the formats of other programs.

use std::io::Write;
use weir_capture::{CaptureError, Direction, InterfaceInfo, LinkType, OwnedFrame, PacketInfo, Reader, Writer, open};

const INFO: InterfaceInfo<'_> = InterfaceInfo { name: "eth0", description: "for a test", application: "weir test" };

fn read(bytes: &[u8]) -> Result<Vec<OwnedFrame>, CaptureError> {
    Reader::new(std::io::Cursor::new(bytes.to_vec()))?.owned_frames().collect()
}

/// A classic pcap file with a frame that is two bytes longer on the wire.
fn classic(magic: u32, link_type: u32, fraction: u32, frame: &[u8], big_endian: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let put = |bytes: &mut Vec<u8>, value: u32, len: usize| {
        if big_endian {
            bytes.extend(&value.to_be_bytes()[4 - len..]);
        } else {
            bytes.extend(&value.to_le_bytes()[..len]);
        }
    };
    put(&mut bytes, magic, 4);
    put(&mut bytes, 2, 2);
    put(&mut bytes, 4, 2);
    for word in [0, 0, 65535, link_type, 7, fraction, frame.len() as u32, frame.len() as u32 + 2] {
        put(&mut bytes, word, 4);
    }
    bytes.extend(frame);
    bytes
}

#[test]
fn written_packets_are_read_back_unchanged() {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes, &INFO, 1);
    let mut expected = Vec::new();
    for i in 0..600u64 {
        let data: Vec<u8> = (0..i * 7 % 9001).map(|n| (n * i) as u8).collect();
        let comment = ["", "lost by fault injection", "ä"][i as usize % 3];
        let direction = if i % 2 == 0 { Direction::In } else { Direction::Out };
        let info = PacketInfo { interface: 0, timestamp: (1 << 60) + i, direction, comment };
        let (front, back) = data.split_at(data.len() / 3);
        writer.packet(&info, &[front, back]).unwrap();
        expected.push(OwnedFrame {
            number: i + 1,
            timestamp: info.timestamp,
            link_type: LinkType::Ethernet,
            interface: 0,
            orig_len: data.len(),
            data,
            direction: Some(direction),
            comment: (!comment.is_empty()).then(|| comment.to_owned()),
        });
    }
    writer.statistics(9, 610, 10);
    writer.flush().unwrap();
    drop(writer);

    let mut reader = Reader::new(std::io::Cursor::new(bytes)).unwrap();
    let frames: Vec<OwnedFrame> = reader.owned_frames().collect::<Result<_, _>>().unwrap();
    assert!(frames == expected);
    assert_eq!((reader.statistics().received, reader.statistics().dropped), (Some(610), Some(10)));
}

#[test]
fn a_comment_of_any_length_leaves_the_file_readable() {
    let mut bytes = Vec::new();
    let comment = "ä".repeat(70_000);
    let mut writer = Writer::new(&mut bytes, &INFO, 1);
    let info = PacketInfo { interface: 0, timestamp: 0, direction: Direction::In, comment: &comment };
    writer.packet(&info, &[b"x"]).unwrap();
    writer.flush().unwrap();
    drop(writer);
    let frames = read(&bytes).unwrap();
    assert_eq!(frames[0].data, b"x");
    assert!(comment.starts_with(frames[0].comment.as_deref().unwrap()));
}

#[test]
fn classic_files_of_both_units_and_byte_orders() {
    for big_endian in [false, true] {
        for (magic, timestamp) in [(0xa1b2_c3d4, 7_000_123_000), (0xa1b2_3c4d, 7_000_000_123)] {
            for (number, link_type) in [
                (1, LinkType::Ethernet),
                (247, LinkType::Infiniband),
                (0xf400_0001, LinkType::Ethernet),
                (113, LinkType::Cooked),
                (276, LinkType::Cooked2),
                (105, LinkType::Other(105)),
            ] {
                let frames = read(&classic(magic, number, 123, b"12345", big_endian)).unwrap();
                let expected = OwnedFrame {
                    number: 1,
                    timestamp,
                    link_type,
                    interface: 0,
                    data: b"12345".to_vec(),
                    orig_len: 7,
                    direction: None,
                    comment: None,
                };
                assert_eq!(frames, [expected], "magic {magic:#x}, big endian: {big_endian}");
            }
        }
    }
}

#[test]
fn erf_records_are_unwrapped() {
    let mut record = (9u64 << 32).to_le_bytes().to_vec();
    record.extend([21, 4, 0, 24, 0, 0, 0, 6]);
    record.extend(b"packet\0\0");
    let frames = read(&classic(0xa1b2_c3d4, 197, 0, &record, false)).unwrap();
    assert_eq!(frames[0].link_type, LinkType::Infiniband);
    assert_eq!(frames[0].data, b"packet");
    assert_eq!(frames[0].timestamp, 9_000_000_000);
}

#[test]
fn a_big_endian_section_with_its_own_clock_is_read() {
    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let len = (body.len() as u32 + 12).to_be_bytes();
        [&kind.to_be_bytes()[..], &len, body, &len].concat()
    }
    let section = block(0x0a0d_0d0a, &[0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
    // if_tsresol 2^-10, if_tsoffset 100 s.
    let options = [0, 9, 0, 1, 0x8a, 0, 0, 0, 0, 14, 0, 8, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0, 0];
    let interface = block(1, &[&[0, 1, 0, 0, 0, 0, 0, 0][..], &options].concat());
    let flags = [0, 2, 0, 4, 0, 0, 0, 2, 0, 0, 0, 0];
    let packet =
        [&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x06, 0, 0, 0, 0, 2, 0, 0, 0, 9, b'h', b'i', 0, 0][..], &flags].concat();
    let frames = read(&[section, interface, block(6, &packet)].concat()).unwrap();
    assert_eq!(frames[0].timestamp, 101_500_000_000);
    assert_eq!((frames[0].data.as_slice(), frames[0].orig_len), (&b"hi"[..], 9));
    assert_eq!(frames[0].direction, Some(Direction::Out));
}

#[test]
fn damaged_files_are_errors_with_an_offset() {
    let missing = open("/nonexistent/file.pcap").err().unwrap();
    assert!(missing.to_string().contains("/nonexistent/file.pcap"));
    let mut text = tempfile::NamedTempFile::new().unwrap();
    text.write_all(b"this is no capture, whatever its name").unwrap();
    assert!(matches!(open(text.path()), Err(CaptureError::NotACapture { .. })));
    assert!(matches!(read(b""), Err(CaptureError::Empty)));

    let whole = classic(0xa1b2_c3d4, 1, 0, b"12345", false);
    assert!(matches!(read(&whole[..whole.len() - 1]), Err(CaptureError::Truncated { offset: 24 })));
    assert_eq!(read(&whole[..24]).unwrap(), []);

    let mut absurd = whole.clone();
    absurd[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(read(&absurd), Err(CaptureError::Truncated { .. } | CaptureError::Corrupt { .. })));

    // A process information block with a length of 4, and a packet block with a packet length beyond its end.
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes, &INFO, 1);
    writer.flush().unwrap();
    drop(writer);
    let start = bytes.len() as u64;
    let short = [&bytes[..], &0x8000_0001u32.to_le_bytes(), &[4, 0, 0, 0], &[0; 24]].concat();
    let greedy = [&bytes[..], &[6, 0, 0, 0, 36, 0, 0, 0], &[0; 12], &[200, 0, 0, 0], &[0; 8], &[36, 0, 0, 0]].concat();
    for bytes in [short, greedy] {
        let error = read(&bytes).unwrap_err();
        assert!(matches!(error, CaptureError::Corrupt { offset, .. } if offset == start), "{error}");
    }
}
