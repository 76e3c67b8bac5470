//! Buffers for packets that are on the way, or wait.

/// A packet in a buffer.
#[derive(Debug)]
pub(super) struct Kept {
    buffer: Box<[u8]>,
    len: usize,
}

impl Kept {
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

/// Buffers of one size, which are used again.
#[derive(Debug)]
pub(super) struct Pool {
    free: Vec<Box<[u8]>>,
    size: usize,
}

/// More free buffers than these are given back.
const MOST_FREE: usize = 4096;

impl Pool {
    /// Buffers of so many bytes.
    pub fn new(size: usize) -> Pool {
        Pool { free: vec![], size }
    }

    /// The most bytes of a packet.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Copies a packet.
    ///
    /// # Panics
    /// If it is longer than a buffer.
    pub fn keep(&mut self, packet: &[u8]) -> Kept {
        let mut buffer = self.free.pop().unwrap_or_else(|| vec![0; self.size].into());
        buffer[..packet.len()].copy_from_slice(packet);
        Kept { buffer, len: packet.len() }
    }

    /// The packet is not needed any more.
    pub fn give_back(&mut self, kept: Kept) {
        if self.free.len() < MOST_FREE {
            self.free.push(kept.buffer);
        }
    }
}
