//! The word by which a sleeping consumer asks its producer to wake it. Model-checked in `tests/arming.rs`.
//!
//! The consumer arms the word, then looks at its ring again, then sleeps. The producer publishes, then looks at the
//! word. Each side has a sequentially consistent fence between its store and its load, so that at least one of them
//! sees the other's store: the consumer finds the packet, or the producer finds the word armed.

use crate::sync::{AtomicU32, Ordering, fence};

const AWAKE: u32 = 0;
const ARMED: u32 = 1;

/// The consumer will sleep unless it finds packets after this call.
#[inline]
pub fn arm(word: &AtomicU32) {
    word.store(ARMED, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// The consumer is awake.
#[inline]
pub fn disarm(word: &AtomicU32) {
    word.store(AWAKE, Ordering::Relaxed);
}

/// The producer has published packets. Returns whether it must wake the consumer: true once for each `arm`.
#[inline]
pub fn must_wake(word: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    word.load(Ordering::Relaxed) == ARMED
        && word.compare_exchange(ARMED, AWAKE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}
