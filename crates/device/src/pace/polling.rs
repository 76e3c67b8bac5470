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
/// How often the thread checks whether a poller still polls, at the most (nanoseconds).
pub const TICK: u64 = 500_000;
/// The longest time that a check may wait for another timer (nanoseconds): the kernel's own tick is as long with HZ=250.
pub const MAX_WAIT: u64 = 4_000_000;
/// A check may wait for this part of the time that the program has polled.
const WAIT_DIVISOR: u64 = 8;
/// When the last poll is longer ago than this (nanoseconds), the program is no longer a poller. A turn of a poll may take
/// half as long.
pub const STOPPED_AFTER: u64 = 200_000;
/// The same while the program takes a turn at the moment of the check (nanoseconds): a turn may be long. A post takes a
/// turn too, but looks for no arrivals, so a program that only posts must not remain a poller.
pub const LONGEST_TURN: u64 = 5_000_000;

const WATCHING: u8 = 0;
const TICKING: u8 = 1;

/// Shared between polling threads and the engine's thread.
pub struct Polling {
    mode: AtomicU8,
    /// Empty polls since `counted_from`.
    empty: AtomicU32,
    counted_from: AtomicU64,
    /// When a poll last looked for arrivals (nanoseconds).
    last_poll: AtomicU64,
    /// When the program became a poller (nanoseconds).
    polls_from: AtomicU64,
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
            last_poll: AtomicU64::new(0),
            polls_from: AtomicU64::new(0),
            watchful,
        }
    }

    /// Returns whether a program polls repeatedly.
    #[inline]
    pub fn program_polls(&self) -> bool {
        self.mode.load(Ordering::Relaxed) == TICKING
    }

    /// A poll looks for arrivals at the time `now` (nanoseconds).
    #[inline]
    pub fn note_poll(&self, now: u64) {
        self.last_poll.store(now, Ordering::Relaxed);
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
            self.polls_from.store(now, Ordering::Relaxed);
            self.note_poll(now);
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

    /// When a poll last looked for arrivals (nanoseconds).
    pub fn last_poll(&self) -> u64 {
        self.last_poll.load(Ordering::Relaxed)
    }

    /// The thread checks at the time `now` (nanoseconds) whether a program still polls. Returns whether it does; if not,
    /// the thread watches again. `drives`: the program takes a turn at this moment.
    pub fn still_polled(&self, now: u64, drives: bool) -> bool {
        let since = now.saturating_sub(self.last_poll());
        if self.program_polls() && since <= if drives { LONGEST_TURN } else { STOPPED_AFTER } {
            return true;
        }
        self.hand_over();
        false
    }

    /// How long the thread's next check may wait for another timer, beyond a `TICK` (nanoseconds). A timer interrupt of
    /// its own would take a poller's core for longer than a message takes. The longer a program has polled, the later
    /// the thread may notice that it has stopped.
    pub fn check_may_wait(&self, now: u64) -> u64 {
        let polled_for = now.saturating_sub(self.polls_from.load(Ordering::Relaxed));
        let wait = (polled_for / WAIT_DIVISOR).min(MAX_WAIT);
        // Shorter waits save no interrupt.
        if wait < TICK { 0 } else { wait }
    }
}
