//! Writes pcapng: one section, one Ethernet interface, timestamps in nanoseconds.
//!
//! Only complete blocks are written, so that a file ends between two blocks even if the process is killed.

use crate::frame::{Direction, LINKTYPE_ETHERNET};
use std::io::{self, Write};

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

/// The metadata of a packet in the file.
#[derive(Clone, Copy, Debug)]
pub struct PacketInfo<'a> {
    /// Nanoseconds since 1970.
    pub timestamp: u64,
    /// Sent or received.
    pub direction: Direction,
    /// A comment; empty for none. Only its first 4096 bytes are kept.
    pub comment: &'a str,
}

/// Writes pcapng blocks.
pub struct Writer<W> {
    out: W,
    buffer: Vec<u8>,
    started: u64,
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
    pub const IF_TSRESOL: u16 = 9;
    pub const EPB_FLAGS: u16 = 2;
    pub const ISB_STARTTIME: u16 = 2;
    pub const ISB_ENDTIME: u16 = 3;
    pub const ISB_IFRECV: u16 = 4;
    pub const ISB_IFDROP: u16 = 5;
}

/// Buffered bytes above which they are written.
const BUFFER: usize = 1 << 18;
const MAX_COMMENT: usize = 4096;

impl<W: Write> Writer<W> {
    /// Starts a file; `now` in nanoseconds since 1970.
    pub fn new(out: W, info: &InterfaceInfo<'_>, now: u64) -> Self {
        let mut writer = Writer { out, buffer: Vec::with_capacity(BUFFER + (1 << 17)), started: now };
        writer.block(SECTION_HEADER, |body| {
            body.extend(BYTE_ORDER_MAGIC.to_le_bytes());
            body.extend(1u16.to_le_bytes());
            body.extend(0u16.to_le_bytes());
            body.extend((-1i64).to_le_bytes());
            put_option(body, option::SHB_USERAPPL, info.application.as_bytes());
            put_option(body, option::END, &[]);
        });
        writer.block(INTERFACE_DESCRIPTION, |body| {
            body.extend(LINKTYPE_ETHERNET.to_le_bytes());
            body.extend([0; 2]);
            body.extend(0u32.to_le_bytes()); // no limit
            put_option(body, option::IF_NAME, info.name.as_bytes());
            put_option(body, option::IF_DESCRIPTION, info.description.as_bytes());
            put_option(body, option::IF_TSRESOL, &[9]);
            put_option(body, option::END, &[]);
        });
        writer
    }

    /// Adds a frame, given as slices.
    pub fn packet(&mut self, info: &PacketInfo<'_>, slices: &[&[u8]]) -> io::Result<()> {
        let len: usize = slices.iter().map(|slice| slice.len()).sum();
        self.block(ENHANCED_PACKET, |body| {
            body.extend(0u32.to_le_bytes());
            put_timestamp(body, info.timestamp);
            body.extend((len as u32).to_le_bytes());
            body.extend((len as u32).to_le_bytes());
            for slice in slices {
                body.extend_from_slice(slice);
            }
            pad(body, len);
            if !info.comment.is_empty() {
                put_option(body, option::COMMENT, prefix(info.comment, MAX_COMMENT).as_bytes());
            }
            let direction: u32 = match info.direction {
                Direction::In => 1,
                Direction::Out => 2,
            };
            put_option(body, option::EPB_FLAGS, &direction.to_le_bytes());
            put_option(body, option::END, &[]);
        });
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    /// Adds interface statistics: the number of all frames, and of those that could not be written.
    pub fn statistics(&mut self, now: u64, received: u64, dropped: u64) {
        let started = self.started;
        self.block(INTERFACE_STATISTICS, |body| {
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

    /// Writes all buffered blocks. After an error they are discarded.
    pub fn flush(&mut self) -> io::Result<()> {
        let outcome = self.out.write_all(&self.buffer).and_then(|()| self.out.flush());
        self.buffer.clear();
        outcome
    }

    /// Whether there are buffered blocks.
    pub fn is_pending(&self) -> bool {
        !self.buffer.is_empty()
    }

    fn block(&mut self, kind: u32, fill: impl FnOnce(&mut Vec<u8>)) {
        let start = self.buffer.len();
        self.buffer.extend(kind.to_le_bytes());
        self.buffer.extend([0; 4]);
        fill(&mut self.buffer);
        let len = (self.buffer.len() - start + 4) as u32;
        self.buffer[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
        self.buffer.extend(len.to_le_bytes());
    }
}

fn put_timestamp(body: &mut Vec<u8>, nanoseconds: u64) {
    body.extend(((nanoseconds >> 32) as u32).to_le_bytes());
    body.extend((nanoseconds as u32).to_le_bytes());
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

/// The longest prefix of `text` with at most `max` bytes.
fn prefix(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}
