//! The allocator of the library's own small pieces: the C library's, and a reserve for when that has no more.
//!
//! A call that makes something begins only where there is memory for it (`weir_device::headroom`), and what is large is
//! asked for in a way that can fail. Between the look and the use of it other threads of the program may take what is
//! there, and some calls must do their work in any case: to destroy an object, to tell of an event. Their small pieces
//! come out of the reserve then, where Rust would abort the program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the reserve; they lie in the library, and cost no memory until they are used.
const RESERVE: usize = 256 << 10;
/// Larger pieces are not small: the code that asks for one looks whether it came.
const LARGEST: usize = 16 << 10;

/// Pieces are cut off one after another; when none is left in use, it begins again.
struct Reserve {
    bytes: UnsafeCell<Bytes>,
    /// Bytes that were cut off, and above them the number of pieces in use.
    state: AtomicU64,
}

#[repr(C, align(4096))]
struct Bytes([u8; RESERVE]);

/// In the state: one piece.
const PIECE: u64 = 1 << 32;

// SAFETY: each piece is its user's alone, and the state is changed as a whole.
unsafe impl Sync for Reserve {}

impl Reserve {
    const fn new() -> Reserve {
        Reserve { bytes: UnsafeCell::new(Bytes([0; RESERVE])), state: AtomicU64::new(0) }
    }

    /// A piece, or null.
    fn take(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LARGEST || layout.align() > align_of::<Bytes>() {
            return std::ptr::null_mut();
        }
        let cut = |state: u64| {
            let at = (state as u32 as usize).next_multiple_of(layout.align());
            let end = at + layout.size();
            (end <= RESERVE).then_some((state & !(PIECE - 1)) + PIECE + end as u64)
        };
        match self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, cut) {
            Ok(before) => {
                let at = (before as u32 as usize).next_multiple_of(layout.align());
                // SAFETY: within the bytes, as `cut` has seen to.
                unsafe { self.bytes.get().cast::<u8>().add(at) }
            }
            Err(_) => std::ptr::null_mut(),
        }
    }

    fn has(&self, piece: *const u8) -> bool {
        (piece as usize).wrapping_sub(self.bytes.get() as usize) < RESERVE
    }

    /// Takes a piece of its own back.
    fn give_back(&self) {
        let less = |state: u64| {
            let left = state - PIECE;
            Some(if left < PIECE { 0 } else { left })
        };
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }
}

/// The allocator.
pub struct Allocator(Reserve);

impl Allocator {
    pub const fn new() -> Allocator {
        Allocator(Reserve::new())
    }
}

// SAFETY: the system's allocator does the work, or the reserve, whose pieces are as large and aligned as asked for and
// go back where they came from.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let piece = unsafe { System.alloc(layout) };
        if piece.is_null() { self.0.take(layout) } else { piece }
    }

    #[inline]
    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if self.0.has(piece) {
            self.0.give_back();
        } else {
            // SAFETY: the caller's promise; it is the system's.
            unsafe { System.dealloc(piece, layout) }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let piece = unsafe { System.alloc_zeroed(layout) };
        if !piece.is_null() {
            return piece;
        }
        let piece = self.0.take(layout);
        if !piece.is_null() {
            // SAFETY: ours, and so large.
            unsafe { piece.write_bytes(0, layout.size()) };
        }
        piece
    }

    #[inline]
    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.0.has(piece) {
            // SAFETY: the caller's promise; it is the system's.
            let moved = unsafe { System.realloc(piece, layout, size) };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: the caller's promise: that size is one of a layout.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as above.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: both are as large as that, and the old one is given up.
            unsafe {
                moved.copy_from_nonoverlapping(piece, layout.size().min(size));
                self.dealloc(piece, layout);
            }
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_whole_again_when_all_is_back() {
        let reserve = Box::new(Reserve::new());
        let layout = Layout::from_size_align(1000, 64).unwrap();
        for _ in 0..3 {
            let mut pieces = vec![];
            loop {
                let piece = reserve.take(layout);
                if piece.is_null() {
                    break;
                }
                assert!(reserve.has(piece) && piece.addr().is_multiple_of(64));
                pieces.push(piece.addr());
            }
            assert_eq!(pieces.len(), RESERVE / 1024);
            assert!(pieces.windows(2).all(|pair| pair[1] - pair[0] >= 1000));
            pieces.iter().for_each(|_| reserve.give_back());
        }
    }

    #[test]
    fn what_is_large_is_not_of_the_reserve() {
        let reserve = Box::new(Reserve::new());
        assert!(reserve.take(Layout::from_size_align(LARGEST + 1, 8).unwrap()).is_null());
        assert!(!reserve.take(Layout::from_size_align(LARGEST, 8).unwrap()).is_null());
        assert!(!reserve.has((&raw const reserve).cast()));
    }
}
