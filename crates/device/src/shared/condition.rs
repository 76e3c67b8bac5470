//! Whether an adapter works.

use std::sync::atomic::{AtomicU8, Ordering};

/// Whether an adapter works.
pub struct Condition(AtomicU8);

const WORKS: u8 = 0;
/// It fails as soon as the engine is free.
const MARKED: u8 = 1;
const FAILED: u8 = 2;

impl Condition {
    /// It works.
    pub fn new() -> Condition {
        Condition(AtomicU8::new(WORKS))
    }

    /// Returns whether it works.
    #[inline]
    pub fn works(&self) -> bool {
        self.0.load(Ordering::Acquire) == WORKS
    }

    /// It must fail.
    pub fn mark_failed(&self) {
        let _ = self.0.compare_exchange(WORKS, MARKED, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns whether it must fail, and has not failed yet.
    #[inline]
    pub fn is_marked_failed(&self) -> bool {
        self.0.load(Ordering::Relaxed) == MARKED
    }

    /// Marks the adapter as failed and inoperative. Returns false if it has failed before.
    pub fn fail(&self) -> bool {
        self.0.swap(FAILED, Ordering::AcqRel) != FAILED
    }
}
