//! Which thread holds the engine: at most one at a time. A thread that only needs a turn does not wait: the holder
//! takes another turn for it.
//!
//! The whole state is one atomic word, so that the leaving holder sees every request that was made before, on any
//! processor. An uncontended turn costs two changes of that word. Model-checked in `tests/handover.rs`.

use crate::sync::{AtomicU8, AtomicU32, Ordering, UnsafeCell};
use crate::sync::{RankedCondvar, RankedGuard, RankedMutex, rank};
use std::time::{Duration, Instant};

/// A value that at most one thread at a time holds.
pub struct Handover<T> {
    state: AtomicU8,
    /// Failed attempts since the holder's turn began. Approximate: threads may overwrite each other's counts.
    missed: AtomicU32,
    /// A thread that polls repeatedly sleeps after this many failed attempts.
    attempts_before_sleep: u32,
    /// Locked from before a thread sets `AWAITED` until it sleeps, and by the holder while it hands over to sleepers.
    pub(super) asleep: RankedMutex<Asleep, { rank::SLEEPERS }>,
    free: RankedCondvar,
    inner: UnsafeCell<T>,
}

/// The threads that sleep until the engine is free.
pub(super) struct Asleep {
    count: u32,
    /// A woken thread found the engine held again, because pollers usually win that race. The next holder hands the
    /// engine over to a sleeping thread.
    pass_next: bool,
    /// The engine was handed over: it stays `HELD`, and the first sleeper that wakes is its holder.
    handed_to_sleeper: bool,
}

/// A thread holds the engine.
const HELD: u8 = 1;
/// A thread requests a turn: the holder takes another turn before it leaves.
const REQUESTED: u8 = 2;
/// A thread sleeps until the engine is free.
const AWAITED: u8 = 4;

// SAFETY: only the holder touches `inner`, and there is one holder at a time.
unsafe impl<T: Send> Sync for Handover<T> {}

impl<T> Handover<T> {
    /// A free `Handover` of `inner`. Threads that poll repeatedly sleep after `attempts_before_sleep` failed attempts
    /// in one turn of the holder.
    pub fn new(inner: T, attempts_before_sleep: u32) -> Self {
        let asleep = RankedMutex::new(Asleep { count: 0, pass_next: false, handed_to_sleeper: false });
        Handover {
            state: AtomicU8::new(0),
            missed: AtomicU32::new(0),
            attempts_before_sleep,
            asleep,
            free: RankedCondvar::new(),
            inner: UnsafeCell::new(inner),
        }
    }

    /// Runs `first` unless another thread holds the engine (`None` then), and `another` for turns requested meanwhile.
    #[inline]
    pub fn attempt<R>(&self, first: impl FnOnce(&mut T) -> R, another: impl Fn(&mut T)) -> Option<R> {
        let free = self.state.fetch_or(HELD, Ordering::AcqRel) & HELD == 0;
        free.then(|| self.work(first, another))
    }

    /// As [`attempt`](Self::attempt), for threads that poll repeatedly. The holder may need the core of such a thread,
    /// and cannot get it otherwise if that thread has a real-time priority. So after `attempts_before_sleep` failed
    /// attempts within one turn of the holder, the thread sleeps until the engine is free, for `at_most` at the
    /// longest.
    #[inline]
    pub fn attempt_or_sleep<R>(
        &self,
        at_most: Duration,
        first: impl FnOnce(&mut T) -> R,
        another: impl Fn(&mut T),
    ) -> Option<R> {
        let held = self.state.fetch_or(HELD, Ordering::AcqRel) & HELD == 0
            || self.has_missed_often() && self.sleep_within(self.asleep.lock(), at_most);
        held.then(|| self.work(first, another))
    }

    /// Whether a thread holds it at this moment.
    #[inline]
    pub fn is_held(&self) -> bool {
        self.state.load(Ordering::Relaxed) & HELD != 0
    }

    fn has_missed_often(&self) -> bool {
        let missed = self.missed.load(Ordering::Relaxed) + 1;
        let often = missed >= self.attempts_before_sleep;
        self.missed.store(if often { 0 } else { missed }, Ordering::Relaxed);
        often
    }

    /// Ensures a turn that begins after this call began: on this thread, or as another turn of the holder.
    #[inline]
    pub fn request_turn(&self, turn: impl Fn(&mut T)) {
        if self.attempt(&turn, &turn).is_none() && self.state.fetch_or(HELD | REQUESTED, Ordering::AcqRel) & HELD == 0 {
            // The holder left in between. REQUESTED, which was set here, is still set, and costs one more turn.
            self.work(&turn, &turn);
        }
    }

    /// Runs `first` as soon as no other thread holds the engine, and `another` for turns requested meanwhile. The
    /// holder must not call it.
    pub fn wait<R>(&self, first: impl FnOnce(&mut T) -> R, another: impl Fn(&mut T)) -> R {
        if self.state.fetch_or(HELD, Ordering::AcqRel) & HELD != 0 {
            self.sleep();
        }
        self.work(first, another)
    }

    /// As [`wait`](Self::wait), but waits for `at_most` at the longest; `None` then.
    pub fn wait_within<R>(
        &self,
        at_most: Duration,
        first: impl FnOnce(&mut T) -> R,
        another: impl Fn(&mut T),
    ) -> Option<R> {
        let held =
            self.state.fetch_or(HELD, Ordering::AcqRel) & HELD == 0 || self.sleep_within(self.asleep.lock(), at_most);
        held.then(|| self.work(first, another))
    }

    /// As [`wait_within`](Self::wait_within), for a thread that may hold any locks: a signal handler may have
    /// interrupted it where it holds the sleepers' lock, and waits twice `at_most` at the longest.
    pub fn wait_in_handler_within<R>(
        &self,
        at_most: Duration,
        first: impl FnOnce(&mut T) -> R,
        another: impl Fn(&mut T),
    ) -> Option<R> {
        let held = self.state.fetch_or(HELD, Ordering::AcqRel) & HELD == 0
            || self.asleep.try_lock_within(at_most).is_some_and(|asleep| self.sleep_within(asleep, at_most));
        held.then(|| self.work(first, another))
    }

    /// Returns when this thread holds the engine.
    #[cold]
    fn sleep(&self) {
        let mut asleep = self.asleep.lock();
        asleep.count += 1;
        let mut woken = false;
        while !self.take(&mut asleep, woken) {
            asleep = self.free.wait(asleep);
            woken = true;
        }
        self.end_sleep(&mut asleep);
    }

    /// Sleeps for `at_most` at the longest. Returns whether this thread holds the engine then.
    #[cold]
    fn sleep_within(&self, mut asleep: RankedGuard<'_, Asleep, { rank::SLEEPERS }>, at_most: Duration) -> bool {
        let deadline = Instant::now() + at_most;
        asleep.count += 1;
        let mut woken = false;
        let taken = loop {
            if self.take(&mut asleep, woken) {
                break true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break false;
            }
            asleep = self.free.wait_timeout(asleep, left);
            woken = true;
        };
        self.end_sleep(&mut asleep);
        taken
    }

    /// Takes the engine if it is free or was handed over to the sleepers; otherwise sets `AWAITED`. Returns whether it
    /// took the engine.
    fn take(&self, asleep: &mut Asleep, woken: bool) -> bool {
        let taken = std::mem::take(&mut asleep.handed_to_sleeper)
            || self.state.fetch_or(HELD | AWAITED, Ordering::AcqRel) & HELD == 0;
        asleep.pass_next |= woken && !taken;
        taken
    }

    /// Called whether the engine was taken or not: `AWAITED` must not stay set when no thread sleeps.
    fn end_sleep(&self, asleep: &mut Asleep) {
        asleep.count -= 1;
        if asleep.count == 0 {
            asleep.pass_next = false;
            self.state.fetch_and(!AWAITED, Ordering::AcqRel);
        }
    }

    /// Runs `first`, then `another` until no further turn is requested.
    #[inline]
    fn work<R>(&self, first: impl FnOnce(&mut T) -> R, another: impl Fn(&mut T)) -> R {
        let held = Held(self);
        self.missed.store(0, Ordering::Relaxed);
        // SAFETY: this thread holds the engine, and lends `inner` for this call only.
        let result = self.inner.with_mut(|inner| first(unsafe { &mut *inner }));
        while !self.leave() {
            self.missed.store(0, Ordering::Relaxed);
            // SAFETY: as above.
            self.inner.with_mut(|inner| another(unsafe { &mut *inner }));
        }
        std::mem::forget(held);
        result
    }

    /// Releases the engine. Returns false if another turn is requested: the engine is still held then. Sleepers have
    /// precedence over a requested turn: REQUESTED stays set, and the sleeper that takes the engine runs that turn when
    /// it leaves.
    #[inline]
    fn leave(&self) -> bool {
        let mut before = HELD;
        loop {
            if before & AWAITED != 0 && self.leave_to_sleepers() {
                return true;
            }
            // There is no sleeper, or it has just timed out.
            let after = if before & REQUESTED != 0 { HELD } else { 0 };
            match self.state.compare_exchange(before & !AWAITED, after, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return after == 0,
                Err(now) => before = now,
            }
        }
    }

    /// Wakes the sleepers. Returns false if no thread sleeps any more.
    #[cold]
    fn leave_to_sleepers(&self) -> bool {
        let mut asleep = self.asleep.lock();
        if asleep.count == 0 {
            return false;
        }
        if std::mem::take(&mut asleep.pass_next) {
            asleep.handed_to_sleeper = true;
        } else {
            self.state.fetch_and(REQUESTED, Ordering::AcqRel);
        }
        drop(asleep);
        self.free.notify_all();
        true
    }
}

/// Releases the engine when the holder panics.
struct Held<'a, T>(&'a Handover<T>);

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.0.state.store(0, Ordering::Release);
        let _asleep = self.0.asleep.lock();
        self.0.free.notify_all();
    }
}
