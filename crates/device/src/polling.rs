//! Whether a program polls: then it drives the engine, and the engine's thread keeps away (*ticking*); otherwise the
//! thread does (*watching*). Model-checked in `tests/polling.rs`.
//!
//! Only polls count that found nothing and so looked for arrivals: a program that finds its completions there at once
//! moves no packets, however often it polls.

use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Empty polls that make a program a poller if they come within `PERIOD`: one that takes an event and drains its CQ
/// stays below, and so does one that polls now and then.
pub const POLLER_AFTER: u32 = 24;
/// Nanoseconds: two of the thread's looks.
const PERIOD: u64 = 2 * TICK;
/// How often the thread looks after a poller (nanoseconds).
pub const TICK: u64 = 500_000;
/// What a poller does at least between two looks, in polls without work.
const STILL_POLLS: u32 = POLLER_AFTER / 2;
/// A turn with work takes as long as so many without.
const WORTH_OF_WORK: u32 = 8;

const WATCHING: u8 = 0;
const TICKING: u8 = 1;

/// Shared between those who poll and the engine's thread.
pub struct Polling {
    mode: AtomicU8,
    /// Empty polls since `counted_from`.
    empty: AtomicU32,
    counted_from: AtomicU64,
    /// Polls that looked for arrivals, and those of them that found work. Roughly: threads may overwrite each other's.
    polls: AtomicU32,
    works: AtomicU32,
    /// What these were worth at the thread's last look.
    seen: AtomicU32,
    /// The thread never keeps away, whoever polls.
    watchful: bool,
}

impl Polling {
    /// Nobody polls. `watchful`: the thread never keeps away, so that times are kept when a program that polled stops.
    pub fn new(watchful: bool) -> Polling {
        Polling {
            mode: AtomicU8::new(WATCHING),
            empty: AtomicU32::new(0),
            counted_from: AtomicU64::new(0),
            polls: AtomicU32::new(0),
            works: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            watchful,
        }
    }

    /// Whether a program polls again and again.
    #[inline]
    pub fn somebody_polls(&self) -> bool {
        self.mode.load(Ordering::Relaxed) == TICKING
    }

    /// A poll looked for arrivals, and there was work or not. Returns how many such polls there were, wrapping.
    #[inline]
    pub fn drove(&self, worked: bool) -> u32 {
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        if worked {
            self.works.store(self.works.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
        polls
    }

    /// A poll drove the engine in vain, at a time (nanoseconds). True: that made the program a poller, and the thread must hear of it.
    #[inline]
    pub fn in_vain(&self, now: impl FnOnce() -> u64) -> bool {
        if self.somebody_polls() || self.empty.fetch_add(1, Ordering::Relaxed) < POLLER_AFTER {
            return false;
        }
        self.empty.store(0, Ordering::Relaxed);
        let now = now();
        let often = now.saturating_sub(self.counted_from.swap(now, Ordering::Relaxed)) <= PERIOD && !self.watchful;
        if often {
            self.seen.store(self.worth(), Ordering::Relaxed);
            self.mode.store(TICKING, Ordering::SeqCst);
        }
        often
    }

    /// A program is about to sleep until an event comes. True: it was a poller, and the thread must hear of it.
    pub fn hand_over(&self) -> bool {
        self.empty.store(0, Ordering::Relaxed);
        self.mode.swap(WATCHING, Ordering::SeqCst) == TICKING
    }

    /// The thread looks whether somebody still polls, a `TICK` after it heard of it or looked last. If not, it watches
    /// from here on.
    pub fn look(&self) -> bool {
        let worth = self.worth();
        let since = worth.wrapping_sub(self.seen.swap(worth, Ordering::Relaxed));
        if self.somebody_polls() && since >= STILL_POLLS {
            return true;
        }
        self.hand_over();
        false
    }

    fn worth(&self) -> u32 {
        let works = self.works.load(Ordering::Relaxed).wrapping_mul(WORTH_OF_WORK);
        works.wrapping_add(self.polls.load(Ordering::Relaxed))
    }
}
