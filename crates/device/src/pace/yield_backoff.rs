//! Yield back-off: a spinning thread offers its core to others, because the thread that it waits for may have none.
//!
//! An offer that returns at once means that no other thread wants the core, and the next one is made later, up to
//! `MAX_INTERVAL` polls later. An offer that another thread takes means that the core is shared: as long as that goes
//! on, each empty poll is followed by an offer.
//!
//! No offer is made for 100 ms after another thread kept the core for more than 1 ms three times in a row: a thread that
//! computes takes a whole time slice at each offer, and a poller that offered its core every microsecond would hardly
//! run. Three times, because two pollers that share a core find each other so: while one makes no offers, each offer of
//! the other takes a time slice.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The most empty polls between two offers: some 50 µs.
const MAX_INTERVAL: u32 = 64;
/// Nanoseconds. A yield that lasts longer than this was taken by another thread. By itself it takes less than 1 µs.
const TAKEN: u64 = 3_000;
/// Nanoseconds. A yield that lasts longer than this means that the other thread computes; a thread in a ping-pong gives
/// the core back earlier.
const MAX_YIELD: u64 = 1_000_000;
/// Offers in a row that took longer than `MAX_YIELD`, after which there are none for a while.
const LONG_YIELDS: u32 = 3;
/// Nanoseconds without an offer then: many time slices, which the scheduler divides fairly.
const BACKOFF: u64 = 100_000_000;

/// When the core is offered again. The counts are approximate: threads may overwrite each other's.
pub struct YieldBackoff {
    not_before: AtomicU64,
    /// Offers in a row that took long.
    long_yields: AtomicU32,
    /// Empty polls since the last offer.
    polls: AtomicU32,
    /// Empty polls between two offers.
    interval: AtomicU32,
}

impl YieldBackoff {
    /// Offers at once.
    pub fn new() -> YieldBackoff {
        YieldBackoff {
            not_before: AtomicU64::new(0),
            long_yields: AtomicU32::new(0),
            polls: AtomicU32::new(0),
            interval: AtomicU32::new(MAX_INTERVAL),
        }
    }

    /// A poll found nothing. Returns whether the core should be offered now.
    #[inline]
    pub fn polled_in_vain(&self) -> bool {
        let polls = self.polls.load(Ordering::Relaxed) + 1;
        let due = polls >= self.interval.load(Ordering::Relaxed);
        self.polls.store(if due { 0 } else { polls }, Ordering::Relaxed);
        due
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
        let took = back.saturating_sub(before);
        let long_yields = if took > MAX_YIELD { self.long_yields.load(Ordering::Relaxed) + 1 } else { 0 };
        if long_yields >= LONG_YIELDS {
            self.not_before.store(back + BACKOFF, Ordering::Relaxed);
        }
        self.long_yields.store(long_yields % LONG_YIELDS, Ordering::Relaxed);
        let interval = if took > TAKEN { 1 } else { self.interval.load(Ordering::Relaxed) * 2 };
        self.interval.store(interval.min(MAX_INTERVAL), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Offers the core at `now`, which another thread takes for `takes` nanoseconds. Returns whether an offer was made.
    fn offer(yield_backoff: &YieldBackoff, now: &Cell<u64>, takes: u64) -> bool {
        let given = Cell::new(false);
        yield_backoff.offer(
            || now.get(),
            || {
                given.set(true);
                now.set(now.get() + takes);
            },
        );
        given.get()
    }

    /// The number of empty polls up to the next offer.
    fn polls_to_offer(yield_backoff: &YieldBackoff) -> u32 {
        1 + (0..1000).take_while(|_| !yield_backoff.polled_in_vain()).count() as u32
    }

    #[test]
    fn no_offers_for_a_while_after_another_thread_kept_the_core() {
        let (yield_backoff, now) = (YieldBackoff::new(), Cell::new(1));
        let offer = |takes: u64| offer(&yield_backoff, &now, takes);
        let long = MAX_YIELD + 1;
        assert!(offer(long) && offer(long) && offer(MAX_YIELD), "a thread in a ping-pong has the core");
        for _ in 0..3 {
            assert!(offer(long) && offer(long) && offer(long), "an offer is made before its cost is known");
            assert!(!offer(0) && !offer(0));
            now.set(now.get() + BACKOFF - 1);
            assert!(!offer(0));
            now.set(now.get() + 1);
        }
        assert!(offer(0) && offer(0));
    }

    #[test]
    fn each_empty_poll_offers_the_core_while_another_thread_takes_it() {
        let (yield_backoff, now) = (YieldBackoff::new(), Cell::new(1));
        assert_eq!(polls_to_offer(&yield_backoff), MAX_INTERVAL);
        for _ in 0..3 {
            assert!(offer(&yield_backoff, &now, TAKEN + 1));
            assert_eq!(polls_to_offer(&yield_backoff), 1);
        }
        let until_rare: Vec<u32> = std::iter::repeat_with(|| {
            assert!(offer(&yield_backoff, &now, TAKEN));
            polls_to_offer(&yield_backoff)
        })
        .take(8)
        .collect();
        assert_eq!(until_rare, [2, 4, 8, 16, 32, 64, 64, 64], "no other thread wants the core");
    }
}
