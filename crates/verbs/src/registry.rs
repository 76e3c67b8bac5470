//! The CQs, QPs and SRQs of a context that are not destroyed, and the number of events of each that the application
//! has received.
//!
//! Events name their object by a cookie, never by address. If an object is destroyed just after its event was taken
//! from the adapter, the lookup here fails and the event is dropped.

use crate::abi::{ibv_cq, ibv_qp, ibv_srq};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The CQs, QPs and SRQs of a context that are not destroyed, by cookie.
#[derive(Default)]
pub struct Registry {
    cqs: Mutex<Objects<ibv_cq>>,
    qps: Mutex<Objects<ibv_qp>>,
    srqs: Mutex<Objects<ibv_srq>>,
}

/// An object and the number of its events that the application has received.
pub struct Entry<T> {
    object: NonNull<T>,
    /// Completion events that the application has received.
    pub completion_events: u32,
    /// Asynchronous events that the application has received.
    pub async_events: u32,
}

/// Objects of one kind.
pub struct Objects<T>(HashMap<u64, Entry<T>>);

impl Registry {
    /// The CQs, locked.
    pub fn cqs(&self) -> MutexGuard<'_, Objects<ibv_cq>> {
        self.cqs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The QPs, locked.
    pub fn qps(&self) -> MutexGuard<'_, Objects<ibv_qp>> {
        self.qps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The SRQs, locked.
    pub fn srqs(&self) -> MutexGuard<'_, Objects<ibv_srq>> {
        self.srqs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number for a new object, unique in this process.
pub fn new_cookie() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A new number for `handle` members, unique in this process.
pub fn new_handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl<T> Objects<T> {
    /// Adds an object, which must be removed before it is freed.
    pub fn insert(&mut self, cookie: u64, object: NonNull<T>) {
        self.0.insert(cookie, Entry { object, completion_events: 0, async_events: 0 });
    }

    /// Removes an object; the application receives no further event of it.
    pub fn remove(&mut self, cookie: u64) -> Option<Entry<T>> {
        self.0.remove(&cookie)
    }

    /// Finds an object, to count an event.
    pub fn get(&mut self, cookie: u64) -> Option<&mut Entry<T>> {
        self.0.get_mut(&cookie)
    }

    /// All objects.
    pub fn objects(&self) -> impl Iterator<Item = NonNull<T>> {
        self.0.values().map(|entry| entry.object)
    }
}

impl<T> Entry<T> {
    /// Valid while the lock is held under which the entry was found, or while an event is unacknowledged.
    pub fn object(&self) -> *mut T {
        self.object.as_ptr()
    }
}

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Objects(HashMap::new())
    }
}

// SAFETY: this type only stores the addresses; the objects (CQs, QPs and SRQs) may be used from any thread.
unsafe impl<T> Send for Objects<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_object_is_returned_with_its_count() {
        let mut objects = Objects::<u8>::default();
        let cookie = new_cookie();
        objects.insert(cookie, NonNull::dangling());
        objects.get(cookie).unwrap().async_events += 2;
        assert_eq!(objects.remove(cookie).unwrap().async_events, 2);
        assert!(objects.get(cookie).is_none());
    }
}
