//! Which CQs, QPs and SRQs of a context are alive, and how many events of each the application has been handed.
//!
//! Events name their object by a number, never by address: an event that was taken from the adapter just before its
//! object was destroyed finds nothing here, and is dropped.

use crate::{cq::Cq, qp::Qp, srq::Srq};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The living CQs, QPs and SRQs of a context, by cookie.
#[derive(Default)]
pub struct Registry {
    cqs: Mutex<Living<Cq>>,
    qps: Mutex<Living<Qp>>,
    srqs: Mutex<Living<Srq>>,
}

/// An object and the events of it that the application was handed.
pub struct Entry<T> {
    object: NonNull<T>,
    pub completion_events: u32,
    pub async_events: u32,
}

/// Objects of one kind.
pub struct Living<T>(HashMap<u64, Entry<T>>);

impl Registry {
    pub fn cqs(&self) -> MutexGuard<'_, Living<Cq>> {
        self.cqs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn qps(&self) -> MutexGuard<'_, Living<Qp>> {
        self.qps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn srqs(&self) -> MutexGuard<'_, Living<Srq>> {
        self.srqs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number for a new object, used once in this process.
pub fn new_cookie() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl<T> Living<T> {
    /// Enters an object, which must be removed before it is freed.
    pub fn insert(&mut self, cookie: u64, object: NonNull<T>) {
        self.0.insert(cookie, Entry { object, completion_events: 0, async_events: 0 });
    }

    /// Takes an object out; no event of it will be handed out from now on.
    pub fn remove(&mut self, cookie: u64) -> Option<Entry<T>> {
        self.0.remove(&cookie)
    }

    /// Finds an object to count an event.
    pub fn get(&mut self, cookie: u64) -> Option<&mut Entry<T>> {
        self.0.get_mut(&cookie)
    }

    /// All of them.
    pub fn objects(&self) -> impl Iterator<Item = NonNull<T>> {
        self.0.values().map(|entry| entry.object)
    }
}

impl<T> Entry<T> {
    /// Alive as long as the lock under which the entry was found is held, or an event is not acknowledged.
    pub fn object(&self) -> *mut T {
        self.object.as_ptr()
    }
}

impl<T> Default for Living<T> {
    fn default() -> Self {
        Living(HashMap::new())
    }
}

// SAFETY: the addresses are only handed out; what is behind them is used as `Cq`, `Qp` and `Srq` allow from any thread.
unsafe impl<T> Send for Living<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_object_takes_its_count_along() {
        let mut living = Living::<u8>::default();
        let cookie = new_cookie();
        living.insert(cookie, NonNull::dangling());
        living.get(cookie).unwrap().async_events += 2;
        assert_eq!(living.remove(cookie).unwrap().async_events, 2);
        assert!(living.get(cookie).is_none());
    }
}
