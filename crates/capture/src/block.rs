//! The blocks of a pcapng file, appended to a buffer. Each is complete, and its length is a multiple of four.

use crate::frame::{Direction, Frame, LINKTYPE_ETHERNET};

/// The description of the interface in the file.
#[derive(Clone, Copy, Debug)]
pub struct InterfaceInfo<'a> {
    /// Interface name.
    pub name: &'a str,
    /// Description of the interface.
    pub description: &'a str,
    /// Name of the capturing program.
    pub application: &'a str,
}

/// An interface of which packets are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedInterface<'a> {
    pub name: &'a str,
    /// In the file only beside other interfaces.
    pub mac: Option<[u8; 6]>,
}

/// The metadata of a packet in the file.
#[derive(Clone, Copy, Debug)]
pub struct PacketInfo<'a> {
    /// Its interface: the place in the description of the file, 0 if there is one.
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub timestamp: u64,
    /// Sent or received.
    pub direction: Direction,
    /// A comment; empty for none. Only its first 4096 bytes are kept.
    pub comment: &'a str,
}

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;

mod option {
    pub const END: u16 = 0;
    pub const COMMENT: u16 = 1;
    pub const SHB_USERAPPL: u16 = 4;
    pub const IF_NAME: u16 = 2;
    pub const IF_DESCRIPTION: u16 = 3;
    pub const IF_MACADDR: u16 = 6;
    pub const IF_TSRESOL: u16 = 9;
    pub const EPB_FLAGS: u16 = 2;
    pub const ISB_STARTTIME: u16 = 2;
    pub const ISB_ENDTIME: u16 = 3;
    pub const ISB_IFRECV: u16 = 4;
    pub const ISB_IFDROP: u16 = 5;
}

/// The longest comment in a file, bytes.
pub const MAX_COMMENT: usize = 4096;
/// Bytes of a block before its length, and with it: the least of a block that says where it ends.
pub const LENGTH_AT: usize = 4;
pub const START: usize = 8;
/// Bytes of a packet's block around its frame, without a comment: header, padding, direction, end, length.
const AROUND: usize = 28 + 3 + 8 + 4 + 4;

/// The most bytes of a packet's block.
pub const fn most(frame: usize, comment: usize) -> usize {
    let comment = if comment > MAX_COMMENT { MAX_COMMENT } else { comment };
    AROUND + frame + if comment == 0 { 0 } else { 4 + comment + 3 }
}

/// Starts a section: its header, with a comment unless that is empty, and its Ethernet interface. `snap`: the most
/// bytes that are kept of a frame, 0 for no limit.
pub fn section(out: &mut Vec<u8>, info: &InterfaceInfo<'_>, snap: u32, comment: &str) {
    section_header(out, info.application, comment);
    interface(out, LINKTYPE_ETHERNET, info.name, info.description, snap);
}

/// The same with several interfaces, each of which has the description and its MAC address.
pub fn section_of_several<'a>(
    out: &mut Vec<u8>,
    info: &InterfaceInfo<'_>,
    interfaces: impl Iterator<Item = RecordedInterface<'a>>,
    snap: u32,
    comment: &str,
) {
    section_header(out, info.application, comment);
    for RecordedInterface { name, mac } in interfaces {
        described(out, LINKTYPE_ETHERNET, name, info.description, snap, mac);
    }
}

/// Starts a section, written by a program of this name.
pub fn section_header(out: &mut Vec<u8>, application: &str, comment: &str) {
    block(out, SECTION_HEADER, |body| {
        body.extend(BYTE_ORDER_MAGIC.to_le_bytes());
        body.extend(1u16.to_le_bytes());
        body.extend(0u16.to_le_bytes());
        body.extend((-1i64).to_le_bytes());
        put_comment(body, comment);
        put_option(body, option::SHB_USERAPPL, application.as_bytes());
        put_option(body, option::END, &[]);
    });
}

/// Describes an interface of this LINKTYPE. Its time stamps are nanoseconds.
pub fn interface(out: &mut Vec<u8>, link_type: u16, name: &str, description: &str, snap: u32) {
    described(out, link_type, name, description, snap, None);
}

fn described(out: &mut Vec<u8>, link_type: u16, name: &str, description: &str, snap: u32, mac: Option<[u8; 6]>) {
    block(out, INTERFACE_DESCRIPTION, |body| {
        body.extend(link_type.to_le_bytes());
        body.extend([0; 2]);
        body.extend(snap.to_le_bytes());
        put_option(body, option::IF_NAME, name.as_bytes());
        if !description.is_empty() {
            put_option(body, option::IF_DESCRIPTION, description.as_bytes());
        }
        if let Some(mac) = mac {
            put_option(body, option::IF_MACADDR, &mac);
        }
        put_option(body, option::IF_TSRESOL, &[9]);
        put_option(body, option::END, &[]);
    });
}

/// A frame of another capture, with comments.
pub fn copied_packet(out: &mut Vec<u8>, interface: u32, frame: &Frame<'_>, comments: &[String]) {
    block(out, ENHANCED_PACKET, |body| {
        body.extend(interface.to_le_bytes());
        put_timestamp(body, frame.timestamp);
        body.extend((frame.data.len() as u32).to_le_bytes());
        body.extend((frame.orig_len as u32).to_le_bytes());
        body.extend_from_slice(frame.data);
        pad(body, frame.data.len());
        comments.iter().for_each(|comment| put_comment(body, comment));
        if let Some(direction) = frame.direction {
            put_option(body, option::EPB_FLAGS, &[flag(direction), 0, 0, 0]);
        }
        put_option(body, option::END, &[]);
    });
}

/// The value of `epb_flags` for a direction.
fn flag(direction: Direction) -> u8 {
    match direction {
        Direction::In => 1,
        Direction::Out => 2,
    }
}

/// A frame of `original` bytes, of which the slices are kept.
#[inline]
pub fn packet(out: &mut Vec<u8>, info: &PacketInfo<'_>, original: usize, slices: &[&[u8]]) {
    let start = out.len();
    let kept: usize = slices.iter().map(|slice| slice.len()).sum();
    let mut head = [0; 28];
    head[..4].copy_from_slice(&ENHANCED_PACKET.to_le_bytes());
    head[8..12].copy_from_slice(&info.interface.to_le_bytes());
    head[12..16].copy_from_slice(&((info.timestamp >> 32) as u32).to_le_bytes());
    head[16..20].copy_from_slice(&(info.timestamp as u32).to_le_bytes());
    head[20..24].copy_from_slice(&(kept as u32).to_le_bytes());
    head[24..28].copy_from_slice(&(original as u32).to_le_bytes());
    out.extend_from_slice(&head);
    for slice in slices {
        out.extend_from_slice(slice);
    }
    pad(out, kept);
    put_comment(out, info.comment);
    let direction = flag(info.direction);
    let mut tail = [0; 16];
    tail[..8].copy_from_slice(&[option::EPB_FLAGS as u8, 0, 4, 0, direction, 0, 0, 0]);
    let len = (out.len() + tail.len() - start) as u32;
    tail[12..].copy_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&tail);
    out[start + LENGTH_AT..start + START].copy_from_slice(&len.to_le_bytes());
}

/// Statistics between two times: the number of all frames, and of those that could not be written. They are those of all
/// interfaces together, and stand at the first.
pub fn statistics(out: &mut Vec<u8>, (started, now): (u64, u64), received: u64, dropped: u64) {
    block(out, INTERFACE_STATISTICS, |body| {
        body.extend(0u32.to_le_bytes());
        put_timestamp(body, now);
        for (code, time) in [(option::ISB_STARTTIME, started), (option::ISB_ENDTIME, now)] {
            body.extend(code.to_le_bytes());
            body.extend(8u16.to_le_bytes());
            put_timestamp(body, time);
        }
        put_option(body, option::ISB_IFRECV, &received.to_le_bytes());
        put_option(body, option::ISB_IFDROP, &dropped.to_le_bytes());
        put_option(body, option::END, &[]);
    });
}

/// The longest prefix of `text` with at most `max` bytes.
pub fn prefix(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

fn block(out: &mut Vec<u8>, kind: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    fill(out);
    let len = (out.len() - start + 4) as u32;
    out[start + LENGTH_AT..start + START].copy_from_slice(&len.to_le_bytes());
    out.extend(len.to_le_bytes());
}

fn put_timestamp(body: &mut Vec<u8>, nanoseconds: u64) {
    body.extend(((nanoseconds >> 32) as u32).to_le_bytes());
    body.extend((nanoseconds as u32).to_le_bytes());
}

fn put_comment(body: &mut Vec<u8>, comment: &str) {
    if !comment.is_empty() {
        put_option(body, option::COMMENT, prefix(comment, MAX_COMMENT).as_bytes());
    }
}

fn put_option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend_from_slice(value);
    pad(body, value.len());
}

/// Pads to a multiple of four bytes.
fn pad(body: &mut Vec<u8>, len: usize) {
    body.extend_from_slice(&[0; 3][..len.wrapping_neg() % 4]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_block_of_a_packet_is_longer_than_most() {
        for frame in [0, 1, 2, 3, 70, 65_535] {
            for comment in [0, 1, 2, 3, 4096, 5000] {
                let (mut out, text) = (Vec::new(), "x".repeat(comment));
                let info = PacketInfo { interface: 0, timestamp: 1, direction: Direction::Out, comment: &text };
                packet(&mut out, &info, frame, &[&vec![0; frame]]);
                let most = most(frame, comment);
                assert!(out.len() <= most && out.len() + 6 >= most && out.len() % 4 == 0, "{frame} {comment}");
                assert_eq!(out[LENGTH_AT..START], (out.len() as u32).to_le_bytes());
                assert_eq!(out[out.len() - 4..], out[LENGTH_AT..START]);
            }
        }
    }
}
