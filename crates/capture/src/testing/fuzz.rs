//! Any bytes as a file, and as a frame.

use crate::packet::LinkContent;
use crate::packet::links::find_links_in;
use crate::{CaptureError, LinkType, Reader, packet};
use std::io::{self, Read};

/// Reads the bytes as a capture file, in reads as short as from a pipe. Nothing may panic, the frames lie in the file,
/// and an error names an offset in it.
pub fn read(bytes: &[u8]) {
    let source = Stepwise { bytes: bytes.to_vec(), at: 0, step: 1 + bytes.len() % 64 };
    match Reader::new(source) {
        Ok(reader) => frames(reader, bytes),
        Err(error) => in_range(&error, 0),
    }
}

/// Looks for the packet in the bytes as a frame of each link type.
pub fn find(bytes: &[u8]) {
    for link_type in [LinkType::Ethernet, LinkType::Infiniband, LinkType::Cooked, LinkType::Cooked2] {
        find_in(link_type, bytes);
    }
}

fn frames(mut reader: Reader, file: &[u8]) {
    // What a compressed file holds may be longer. The input of a fuzzer is short, and so is the time it has.
    let is_plain = matches!(file.first(), Some(0x0a | 0x4d | 0xa1 | 0xd4 | 0x34));
    let limit = if is_plain { file.len() } else { 1 << 22 };
    let (mut count, mut total, mut last) = (0, 0, 0);
    loop {
        match reader.next_frame() {
            Ok(Some(frame)) => {
                assert!(frame.number > last, "{} follows {last}", frame.number);
                last = frame.number;
                total += frame.data.len();
                count += 1;
                frame.comments().for_each(drop);
                find_in(frame.link_type, frame.data);
            }
            Ok(None) => break,
            Err(error) => {
                in_range(&error, if is_plain { file.len() as u64 } else { u64::MAX });
                assert!(matches!(reader.next_frame(), Ok(None)), "an error ends the file");
                break;
            }
        }
        if total > limit {
            assert!(!is_plain, "more bytes in the frames than in the file");
            return;
        }
    }
    assert!(!is_plain || count <= file.len() / 12);
}

fn find_in(link_type: LinkType, data: &[u8]) {
    let datagram = find_links_in(link_type, data);
    let Some(found) = packet::find_in(link_type, data) else { return };
    assert!(found.transport.len() <= found.transport_len && found.transport.len() <= data.len());
    assert_eq!(found.is_complete(), found.transport.len() == found.transport_len);
    assert!(found.is_complete() || found.icrc_ok().is_none());
    if let Some(edge) = found.edge {
        assert!(found.icrc_ok().is_none());
        let content = datagram.map(|datagram| datagram.content);
        assert_eq!(content, Some(LinkContent::Packet(edge.header)), "both find it");
    }
    if let Ok(headers) = found.headers() {
        assert_eq!(Some(headers.bth), found.bth());
        let shortest = if found.is_frame() { weir_wire::frame::HEADER_LEN } else { headers.len() };
        assert!(found.payload_len(&headers).is_err() || shortest <= found.transport_len);
    }
}

fn in_range(error: &CaptureError, len: u64) {
    match error {
        CaptureError::Open { .. } => panic!("nothing was opened: {error}"),
        CaptureError::Empty | CaptureError::NotACapture { .. } => {}
        CaptureError::Read { offset, .. }
        | CaptureError::Truncated { offset }
        | CaptureError::Corrupt { offset, .. } => assert!(*offset <= len, "{error}"),
    }
}

/// Returns a few bytes for each read.
struct Stepwise {
    bytes: Vec<u8>,
    at: usize,
    step: usize,
}

impl Read for Stepwise {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = &self.bytes[self.at..];
        let count = self.step.min(rest.len()).min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
    }
}
