//! The memory that two processes share: sealed memory of a fixed size. The peer can change every byte at any time, so
//! readers of the memory check what they read after they have copied it.

use crate::os::sealed::{Rights, Sealed};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of packets in one ring: more than the windows of requests, of READ responses and of UC together, with what
/// they take in a ring.
pub const RING: usize = 2 << 20;
/// Bytes before the first ring: the control words of both.
pub const CONTROL: usize = 4096;
/// Bytes of a segment.
pub const LEN: usize = CONTROL + 2 * RING;
/// Distance of the control words of the two rings, and of the two words of a ring: each has cache lines of its own,
/// also where the processor fetches pairs of lines.
const CONTROL_OF_RING: usize = 256;
const ARMED: usize = 128;

/// A mapped segment. Unmapped when it is dropped.
pub struct Segment {
    memory: Sealed,
}

impl Segment {
    /// A new segment of zeros, and its file for the peer. Error: no memory, no descriptors, a sandbox.
    pub fn create() -> io::Result<(Segment, OwnedFd)> {
        let (memory, file) = Sealed::create(c"weir-local", LEN)?;
        Ok((Segment { memory }, file))
    }

    /// Maps the segment that a peer has handed over. `InvalidData` if the file is no sealed segment.
    pub fn open(file: &OwnedFd) -> io::Result<Segment> {
        Ok(Segment { memory: Sealed::open(file, LEN, Rights::ReadWrite)? })
    }

    /// The first byte of a ring's packets; there are [`RING`] bytes. `ring`: 0 from the maker to its peer, 1 back.
    #[inline]
    pub fn packets(&self, ring: usize) -> NonNull<u8> {
        // SAFETY: within the mapping.
        unsafe { self.memory.base().add(CONTROL + (ring & 1) * RING) }
    }

    /// How far the consumer of a ring has read.
    #[inline]
    pub fn consumed(&self, ring: usize) -> &AtomicU64 {
        // SAFETY: within the mapping, aligned, and accessed by atomics only.
        unsafe { self.memory.base().add((ring & 1) * CONTROL_OF_RING).cast().as_ref() }
    }

    /// Whether the consumer of a ring wants to be woken (`local/arming.rs`).
    #[inline]
    pub fn armed(&self, ring: usize) -> &AtomicU32 {
        // SAFETY: within the mapping, aligned, and accessed by atomics only.
        unsafe { self.memory.base().add((ring & 1) * CONTROL_OF_RING + ARMED).cast().as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn both_sides_see_one_memory() {
        let (made, file) = Segment::create().unwrap();
        let mapped = Segment::open(&file).unwrap();
        made.consumed(1).store(7, Ordering::Relaxed);
        made.armed(0).store(1, Ordering::Relaxed);
        assert_eq!((mapped.consumed(0).load(Ordering::Relaxed), mapped.consumed(1).load(Ordering::Relaxed)), (0, 7));
        assert_eq!((mapped.armed(0).load(Ordering::Relaxed), mapped.armed(1).load(Ordering::Relaxed)), (1, 0));
        // SAFETY: the last byte of the last ring, of this test's own segment.
        unsafe {
            made.packets(1).add(RING - 1).write_volatile(9);
            assert_eq!(mapped.packets(1).add(RING - 1).read_volatile(), 9);
        }
    }
}
