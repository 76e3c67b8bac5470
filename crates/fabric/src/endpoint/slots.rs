//! Bounce buffers: pinned memory of this process.

use crate::rdma::{Adapter, IBV_ACCESS_LOCAL_WRITE, Region};
use std::sync::Arc;
use weir_msg::Slot;

/// Buffers that are allocated and registered together.
const TOGETHER: usize = 8;
const PAGE: usize = 4096;

/// Bounce buffers of one size.
pub struct Slots {
    adapter: Arc<Adapter>,
    size: usize,
    chunks: Vec<Chunk>,
    free: Vec<Slot>,
}

/// Buffers one behind the other.
struct Chunk {
    /// Ends before the memory.
    region: Region,
    memory: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to the chunk alone.
unsafe impl Send for Chunk {}

impl Slots {
    /// None yet, of so many bytes each.
    pub fn new(adapter: &Arc<Adapter>, size: usize) -> Slots {
        Slots { adapter: adapter.clone(), size, chunks: Vec::new(), free: Vec::new() }
    }

    /// A buffer that nothing uses. `None`: no memory is left, or none may be pinned.
    pub fn take(&mut self) -> Option<Slot> {
        if self.free.is_empty() {
            let first = self.chunks.len() * TOGETHER;
            self.chunks.push(Chunk::new(&self.adapter, self.size * TOGETHER)?);
            // The first is used first.
            self.free.extend((first..first + TOGETHER).rev().map(|at| Slot(at as u32)));
        }
        self.free.pop()
    }

    /// A buffer is not needed any more.
    pub fn give_back(&mut self, slot: Slot) {
        self.free.push(slot);
    }

    /// The bytes of a buffer.
    pub fn bytes(&mut self, slot: Slot) -> &mut [u8] {
        let (address, size) = (self.address(slot), self.size);
        // SAFETY: the buffer is inside its chunk, and `self` is borrowed. The adapter writes only to buffers that are posted,
        // which the protocol does not look at.
        unsafe { std::slice::from_raw_parts_mut(address, size) }
    }

    /// The address of a buffer, and the key of its memory.
    pub fn local(&self, slot: Slot) -> (u64, u32) {
        (self.address(slot) as u64, self.chunks[slot.0 as usize / TOGETHER].region.lkey())
    }

    /// Bytes of each buffer.
    pub fn size(&self) -> usize {
        self.size
    }

    fn address(&self, slot: Slot) -> *mut u8 {
        let chunk = &self.chunks[slot.0 as usize / TOGETHER];
        // SAFETY: the chunk has room for as many buffers.
        unsafe { chunk.memory.add(slot.0 as usize % TOGETHER * self.size) }
    }
}

impl Chunk {
    fn new(adapter: &Arc<Adapter>, bytes: usize) -> Option<Chunk> {
        let bytes = bytes.next_multiple_of(PAGE);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: maps new memory.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the memory stays mapped until the region has ended.
        match unsafe { adapter.register(memory as u64, bytes, IBV_ACCESS_LOCAL_WRITE) } {
            Ok(region) => Some(Chunk { region, memory: memory.cast(), bytes }),
            Err(error) => {
                let text = format!("cannot pin {bytes} bytes for messages: {error} (see `ulimit -l`)");
                crate::core::warn(weir_fabric_abi::FI_LOG_EP_CTRL, &text);
                // SAFETY: mapped above, and nothing has a pointer to it.
                unsafe { libc::munmap(memory, bytes) };
                None
            }
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        for Chunk { region, memory, bytes } in self.chunks.drain(..) {
            drop(region);
            // SAFETY: the chunk's own memory, which the adapter does not use any more.
            unsafe { libc::munmap(memory.cast(), bytes) };
        }
    }
}
