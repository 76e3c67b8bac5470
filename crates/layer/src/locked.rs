//! Data behind a lock of the layer.

use crate::lock::Lock;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// A lock that one call may take and another may release.
pub trait Raw {
    fn lock(&self);

    /// The caller has locked it.
    fn unlock(&self);
}

/// The data.
#[derive(Default)]
pub struct Locked<T, L = Lock> {
    lock: L,
    data: UnsafeCell<T>,
}

// SAFETY: one thread at a time has the data.
unsafe impl<T: Send, L: Sync> Sync for Locked<T, L> {}

/// The data of a lock that is held, as long as it lives.
pub struct Taken<'a, T, L: Raw = Lock>(&'a Locked<T, L>);

impl<T> Locked<T> {
    pub const fn new(data: T) -> Locked<T> {
        Locked { lock: Lock::new(), data: UnsafeCell::new(data) }
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
