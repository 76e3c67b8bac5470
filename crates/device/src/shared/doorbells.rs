//! Doorbells: which QPs have work requests that the engine has not seen yet. Model-checked in `tests/handover.rs`.

use crate::sync::{AtomicBool, Ordering, RankedMutex, rank};

/// Numbers of the QPs that have rung, each once.
pub struct Doorbells {
    /// The list may have entries. `take` checks this first, because usually no QP has rung.
    any: AtomicBool,
    rung: RankedMutex<Vec<u32>, { rank::LEAF }>,
}

/// A QP's own doorbell.
pub struct Bell(AtomicBool);

impl Doorbells {
    /// No QP has rung. There is room for 64 numbers.
    pub fn new() -> Self {
        Doorbells { any: AtomicBool::new(false), rung: RankedMutex::new(Vec::with_capacity(64)) }
    }

    /// Rings. Stores before this call are visible to the thread that takes the doorbell.
    #[inline]
    pub fn ring(&self, bell: &Bell, number: u32) {
        if !bell.0.swap(true, Ordering::AcqRel) {
            let mut rung = self.rung.lock();
            rung.push(number);
            self.any.store(true, Ordering::Release);
        }
    }

    /// Takes all that have rung; the emptied `into` becomes the list, with its capacity. The caller clears each bell
    /// *before* it looks for the work that the QP rang for.
    #[inline]
    pub fn take(&self, into: &mut Vec<u32>) {
        if self.any.load(Ordering::Acquire) {
            let mut rung = self.rung.lock();
            self.any.store(false, Ordering::Relaxed);
            std::mem::swap(&mut *rung, into);
        }
    }

    /// Returns whether a QP may have rung.
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Makes room for `count` numbers, so that ringing does not allocate. This does not allocate under the lock
    /// either: a memory hook of the program may wait for the engine, and its holder for the lock.
    pub fn reserve(&self, count: usize) {
        if self.rung.lock().capacity() < count {
            let mut larger = Vec::with_capacity(2 * count);
            let mut rung = self.rung.lock();
            larger.append(&mut rung);
            std::mem::swap(&mut *rung, &mut larger);
            drop(rung);
        }
    }
}

impl Bell {
    /// A bell that has not rung.
    pub fn new() -> Self {
        Bell(AtomicBool::new(false))
    }

    /// Clears the bell, so that it may ring again. A swap, because a ring that found the bell set did not enter the
    /// list: the swap makes the stores before that ring visible.
    #[inline]
    pub fn clear(&self) {
        self.0.swap(false, Ordering::AcqRel);
    }
}
