//! The synchronization primitives of the model-checked modules: `tests/handover.rs`, `tests/polling.rs`,
//! `tests/gathering.rs`, `tests/arming.rs` and `tests/standby.rs` replace them by those of loom.

pub use crate::os::locks::{RankedCondvar, RankedGuard, RankedMutex, rank};
pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// As `std::cell::UnsafeCell`, with loom's interface.
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// A cell with this value.
    pub fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Calls `work` with a pointer to the value. A caller that dereferences it must ensure that no other thread
    /// accesses it.
    #[inline]
    pub fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
        work(self.0.get())
    }
}
