//! Writes pcapng: one section, one Ethernet interface, timestamps in nanoseconds.
//!
//! Only complete blocks are written, so that a file ends between two blocks even if the process is killed.

use crate::block::{self, InterfaceInfo, PacketInfo};
use std::io::{self, Write};

/// Writes pcapng blocks.
pub struct Writer<W> {
    out: W,
    buffer: Vec<u8>,
    started: u64,
}

/// Buffered bytes above which they are written.
const BUFFER: usize = 1 << 18;

impl<W: Write> Writer<W> {
    /// Starts a file; `now` in nanoseconds since 1970.
    pub fn new(out: W, info: &InterfaceInfo<'_>, now: u64) -> Self {
        let mut buffer = Vec::with_capacity(BUFFER + (1 << 17));
        block::section(&mut buffer, info, 0, "");
        Writer { out, buffer, started: now }
    }

    /// Adds a frame of the interface, number 0, given as slices.
    pub fn packet(&mut self, info: &PacketInfo<'_>, slices: &[&[u8]]) -> io::Result<()> {
        let len = slices.iter().map(|slice| slice.len()).sum();
        block::packet(&mut self.buffer, info, len, slices);
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    /// Adds interface statistics: the number of all frames, and of those that could not be written.
    pub fn statistics(&mut self, now: u64, received: u64, dropped: u64) {
        block::statistics(&mut self.buffer, (self.started, now), received, dropped);
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
}
