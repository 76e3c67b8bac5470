//! Data behind a lock of the layer.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// A lock that one call may take and another may release.
///
/// # Safety
/// One caller at a time holds it.
pub unsafe trait Raw {
    fn lock(&self);

    /// The caller has locked it.
    fn unlock(&self);

    /// Runs `body` while it holds the lock.
    #[inline]
    fn with<R>(&self, body: impl FnOnce() -> R) -> R
    where
        Self: Sized,
    {
        self.lock();
        let _held = Held(self);
        body()
    }
}

/// A lock that is held, as long as this lives.
pub struct Held<'a, L: Raw>(pub &'a L);

impl<L: Raw> Drop for Held<'_, L> {
    #[inline]
    fn drop(&mut self) {
        self.0.unlock();
    }
}

/// The data.
#[derive(Default)]
pub struct Locked<T, L> {
    lock: L,
    data: UnsafeCell<T>,
}

// SAFETY: one thread at a time has the data.
unsafe impl<T: Send, L: Sync> Sync for Locked<T, L> {}

/// The data of a lock that is held, as long as it lives.
pub struct Taken<'a, T, L: Raw>(&'a Locked<T, L>);

impl<T, L> Locked<T, L> {
    pub const fn new(lock: L, data: T) -> Locked<T, L> {
        Locked { lock, data: UnsafeCell::new(data) }
    }
}

impl<T, L: Raw> Locked<T, L> {
    #[inline]
    pub fn lock(&self) -> Taken<'_, T, L> {
        self.lock.lock();
        Taken(self)
    }

    /// The lock itself, for a fork.
    pub fn raw(&self) -> &L {
        &self.lock
    }
}

impl<T, L: Raw> Deref for Taken<'_, T, L> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.data.get() }
    }
}

impl<T, L: Raw> DerefMut for Taken<'_, T, L> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held.
        unsafe { &mut *self.0.data.get() }
    }
}

impl<T, L: Raw> Drop for Taken<'_, T, L> {
    #[inline]
    fn drop(&mut self) {
        self.0.lock.unlock();
    }
}
