//! The primitives of what is model-checked: `tests/handover.rs` and `tests/polling.rs` put loom's in
//! their place.

pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
pub use std::sync::{Condvar, Mutex, MutexGuard};

/// As `std::cell::UnsafeCell`, with loom's interface.
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Calls `work` with a pointer to the value. Whoever dereferences it answers for nobody else having it.
    #[inline]
    pub fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
        work(self.0.get())
    }
}
