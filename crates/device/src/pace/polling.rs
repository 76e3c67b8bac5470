//! Whether a program polls. If so, it drives the engine, and the engine's thread leaves the sockets alone (*ticking*);
//! otherwise the thread drives it (*watching*). Model-checked in `tests/polling.rs`.
//!
//! Only polls that found the CQ empty count, because only they look for arrivals: a program that finds its completions
//! in the CQ at once moves no packets, however often it polls.

use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Empty polls within `PERIOD` that make a program a poller. A program that takes an event and drains its CQ stays
/// below, as does one that polls occasionally.
pub const POLLER_AFTER: u32 = 24;
/// Nanoseconds: two of the thread's checks.
const PERIOD: u64 = 2 * TICK;
/// How often the thread checks whether a poller still polls (nanoseconds).
pub const TICK: u64 = 500_000;
/// Weighted polls between two checks below which a program is no longer a poller.
const STILL_POLLS: u32 = POLLER_AFTER / 2;
/// A poll with work counts as this many further empty polls, because it takes as long.
const POLLS_PER_WORK: u32 = 8;

const WATCHING: u8 = 0;
const TICKING: u8 = 1;

/// Shared between polling threads and the engine's thread.
pub struct Polling {
    mode: AtomicU8,
    /// Empty polls since `counted_from`.
    empty: AtomicU32,
    counted_from: AtomicU64,
    /// Polls that looked for arrivals, and how many of them found work. Approximate: threads may overwrite each
    /// other's counts.
    polls: AtomicU32,
    works: AtomicU32,
    /// The weighted polls at the thread's last check.
    seen: AtomicU32,
    /// The thread never ticks, even if a program polls.
    watchful: bool,
}

impl Polling {
    /// No program polls. `watchful`: the thread never ticks, so that deadlines are met when a program stops polling.
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

    /// Returns whether a program polls repeatedly.
    #[inline]
    pub fn program_polls(&self) -> bool {
        self.mode.load(Ordering::Relaxed) == TICKING
    }

    /// A poll looked for arrivals; `worked`: it found work. Returns how many such polls there were, wrapping.
    #[inline]
    pub fn note_drive(&self, worked: bool) -> u32 {
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        if worked {
            self.works.store(self.works.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
        polls
    }

    /// A poll drove the engine and found nothing, at the time `now` (nanoseconds). Returns true if that made the
    /// program a poller; the caller must wake the thread then.
    #[inline]
    pub fn note_empty_poll(&self, now: impl FnOnce() -> u64) -> bool {
        if self.program_polls() || self.empty.fetch_add(1, Ordering::Relaxed) < POLLER_AFTER {
            return false;
        }
        self.empty.store(0, Ordering::Relaxed);
        let now = now();
        let often = now.saturating_sub(self.counted_from.swap(now, Ordering::Relaxed)) <= PERIOD && !self.watchful;
        if often {
            self.seen.store(self.weighted_polls(), Ordering::Relaxed);
            self.mode.store(TICKING, Ordering::SeqCst);
        }
        often
    }

    /// A program is about to sleep until an event comes. Returns true if it was a poller; the caller must wake the
    /// thread then.
    pub fn hand_over(&self) -> bool {
        self.empty.store(0, Ordering::Relaxed);
        self.mode.swap(WATCHING, Ordering::SeqCst) == TICKING
    }

    /// The thread checks whether a program still polls, a `TICK` after the switch or the last check. Returns whether it
    /// does; if not, the thread watches again.
    pub fn still_polled(&self) -> bool {
        let weighted = self.weighted_polls();
        let since = weighted.wrapping_sub(self.seen.swap(weighted, Ordering::Relaxed));
        if self.program_polls() && since >= STILL_POLLS {
            return true;
        }
        self.hand_over();
        false
    }

    /// The number of polls, in which a poll with work counts as `POLLS_PER_WORK` further ones. It wraps.
    fn weighted_polls(&self) -> u32 {
        let works = self.works.load(Ordering::Relaxed).wrapping_mul(POLLS_PER_WORK);
        works.wrapping_add(self.polls.load(Ordering::Relaxed))
    }
}
