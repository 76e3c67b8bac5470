//! The library's allocator: the C library's malloc, and a small reserve for when malloc fails.
//!
//! A call that creates an object begins only if enough memory is available (`weir_device::headroom`), and it makes
//! its large allocations in a way that can fail. Between that check and the allocations other threads of the program
//! may use up the memory. Some calls must do their work in any case: they destroy an object or report an event. Their
//! small allocations then come out of the reserve, where Rust would otherwise abort the program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the reserve. It is in the library's .bss and takes no memory until it is used.
const RESERVE: usize = 256 << 10;
/// The largest block of the reserve. Code that allocates more checks whether the allocation succeeded.
const LARGEST: usize = 16 << 10;

/// Blocks are cut off one after another. When none is left in use, allocation starts again at the beginning.
struct Reserve {
    bytes: UnsafeCell<Bytes>,
    /// Bytes that are cut off in the lower half, the number of blocks in use in the upper half.
    state: AtomicU64,
}

#[repr(C, align(4096))]
struct Bytes([u8; RESERVE]);

/// One block in the upper half of the state.
const BLOCK: u64 = 1 << 32;

// SAFETY: each block has one user, and the state changes atomically as a whole.
unsafe impl Sync for Reserve {}

impl Reserve {
    const fn new() -> Reserve {
        Reserve { bytes: UnsafeCell::new(Bytes([0; RESERVE])), state: AtomicU64::new(0) }
    }

    /// A block, or null.
    fn take(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LARGEST || layout.align() > align_of::<Bytes>() {
            return std::ptr::null_mut();
        }
        let cut = |state: u64| {
            let at = (state as u32 as usize).next_multiple_of(layout.align());
            let end = at + layout.size();
            (end <= RESERVE).then_some((state & !(BLOCK - 1)) + BLOCK + end as u64)
        };
        match self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, cut) {
            Ok(before) => {
                let at = (before as u32 as usize).next_multiple_of(layout.align());
                // SAFETY: within the reserve, as `cut` has checked.
                unsafe { self.bytes.get().cast::<u8>().add(at) }
            }
            Err(_) => std::ptr::null_mut(),
        }
    }

    fn has(&self, block: *const u8) -> bool {
        (block as usize).wrapping_sub(self.bytes.get() as usize) < RESERVE
    }

    /// Takes back a block of this reserve.
    fn give_back(&self) {
        let less = |state: u64| {
            let left = state - BLOCK;
            Some(if left < BLOCK { 0 } else { left })
        };
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }
}

/// The allocator of the library: malloc, and the reserve when malloc fails.
pub struct Allocator(Reserve);

impl Allocator {
    /// An allocator with an unused reserve.
    pub const fn new() -> Allocator {
        Allocator(Reserve::new())
    }
}

// SAFETY: the system's allocator provides the memory, or the reserve. Blocks of the reserve have the size and
// alignment of their layout and are given back to the reserve.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: guaranteed by the caller.
        let block = unsafe { System.alloc(layout) };
        if block.is_null() { self.0.take(layout) } else { block }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if self.0.has(block) {
            self.0.give_back();
        } else {
            // SAFETY: guaranteed by the caller; the block is from the system's allocator.
            unsafe { System.dealloc(block, layout) }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: guaranteed by the caller.
        let block = unsafe { System.alloc_zeroed(layout) };
        if !block.is_null() {
            return block;
        }
        let block = self.0.take(layout);
        if !block.is_null() {
            // SAFETY: a new block of this size.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.0.has(block) {
            // SAFETY: guaranteed by the caller; the block is from the system's allocator.
            let moved = unsafe { System.realloc(block, layout, size) };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: the caller guarantees that `size` is valid in a layout.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as above.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: both blocks have at least this size, and the old one is not used again.
            unsafe {
                moved.copy_from_nonoverlapping(block, layout.size().min(size));
                self.dealloc(block, layout);
            }
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_starts_again_when_all_blocks_are_returned() {
        let reserve = Box::new(Reserve::new());
        let layout = Layout::from_size_align(1000, 64).unwrap();
        for _ in 0..3 {
            let mut blocks = vec![];
            loop {
                let block = reserve.take(layout);
                if block.is_null() {
                    break;
                }
                assert!(reserve.has(block) && block.addr().is_multiple_of(64));
                blocks.push(block.addr());
            }
            assert_eq!(blocks.len(), RESERVE / 1024);
            assert!(blocks.windows(2).all(|pair| pair[1] - pair[0] >= 1000));
            blocks.iter().for_each(|_| reserve.give_back());
        }
    }

    #[test]
    fn large_allocations_do_not_use_the_reserve() {
        let reserve = Box::new(Reserve::new());
        assert!(reserve.take(Layout::from_size_align(LARGEST + 1, 8).unwrap()).is_null());
        assert!(!reserve.take(Layout::from_size_align(LARGEST, 8).unwrap()).is_null());
        assert!(!reserve.has((&raw const reserve).cast()));
    }
}
