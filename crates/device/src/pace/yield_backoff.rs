//! Yield back-off: a spinning thread offers its core to others, because the thread that it waits for may have none. It
//! makes no offer for 50 ms after another thread kept the core for more than 1 ms: a thread that computes takes a whole
//! time slice at each offer, and a poller that offered its core every microsecond would hardly run.

use std::sync::atomic::{AtomicU64, Ordering};

/// Nanoseconds. A yield that lasts longer than this means that the other thread computes; a thread in a ping-pong gives
/// the core back earlier.
const MAX_YIELD: u64 = 1_000_000;
/// Nanoseconds without an offer after one that took longer than `MAX_YIELD`: some time slices, which the scheduler
/// divides fairly.
const BACKOFF: u64 = 50_000_000;

/// When the core is offered again.
pub struct YieldBackoff {
    not_before: AtomicU64,
}

impl YieldBackoff {
    /// Offers at once.
    pub fn new() -> YieldBackoff {
        YieldBackoff { not_before: AtomicU64::new(0) }
    }

    /// Offers the core by `give` (such as sched_yield), unless a recent offer took too long. `clock` returns
    /// nanoseconds.
    #[inline]
    pub fn offer(&self, clock: impl Fn() -> u64, give: impl FnOnce()) {
        let before = clock();
        if before < self.not_before.load(Ordering::Relaxed) {
            std::hint::spin_loop();
            return;
        }
        give();
        let back = clock();
        if back.saturating_sub(before) > MAX_YIELD {
            self.not_before.store(back + BACKOFF, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn no_offers_for_a_while_after_another_thread_kept_the_core() {
        let (yield_backoff, now, given) = (YieldBackoff::new(), Cell::new(1), Cell::new(0));
        let offer = |takes: u64| {
            let before = given.get();
            yield_backoff.offer(
                || now.get(),
                || {
                    given.set(before + 1);
                    now.set(now.get() + takes);
                },
            );
            given.get() > before
        };
        assert!(offer(20_000) && offer(MAX_YIELD) && offer(20_000));
        assert!(offer(MAX_YIELD + 1), "an offer is made before its cost is known");
        assert!(!offer(0) && !offer(0));
        now.set(now.get() + BACKOFF - 1);
        assert!(!offer(0));
        now.set(now.get() + 1);
        assert!(offer(0) && offer(0));
    }
}
