//! Which thread holds the engine: at most one at a time. A thread that only wants a turn does not wait: the holder
//! takes another turn for it.
//!
//! The whole state is one atomic word, so that the leaving holder sees every request that was made before, on any
//! processor. An uncontended turn costs two changes of that word. Model-checked in `tests/handover.rs`.

use crate::sync::{AtomicBool, AtomicU8, AtomicU32, Ordering, UnsafeCell};
use crate::sync::{RankedCondvar, RankedGuard, RankedMutex, rank};
use std::time::{Duration, Instant};

/// A value that at most one thread at a time holds.
pub struct Handover<T> {
    state: AtomicU8,
    /// Failed attempts since the holder's turn began. Approximate: threads may overwrite each other's counts.
    missed: AtomicU32,
    /// A thread that polls repeatedly sleeps after this many failed attempts.
    patient: u32,
    /// Locked from before a thread sets `AWAITED` until it sleeps, and by the holder while it hands over to sleepers.
    asleep: RankedMutex<Asleep, { rank::SLEEPERS }>,
    free: RankedCondvar,
    inner: UnsafeCell<T>,
}

/// The threads that sleep until the engine is free.
struct Asleep {
    count: u32,
    /// A woken thread found the engine held again, because pollers usually win that race. The next holder hands the
    /// engine over to a sleeping thread.
    overtaken: bool,
    /// The engine was handed over: it stays `HELD`, and the first sleeper that wakes is its holder.
    passed: bool,
}

/// A thread holds the engine.
const HELD: u8 = 1;
/// A thread wants a turn: the holder takes another turn before it leaves.
const WANTED: u8 = 2;
/// A thread sleeps until the engine is free.
const AWAITED: u8 = 4;

// SAFETY: only the holder touches `inner`, and there is one holder at a time.
unsafe impl<T: Send> Sync for Handover<T> {}

impl<T> Handover<T> {
    /// A free `Handover` of `inner`. Threads that poll repeatedly sleep after `patient` failed attempts in one turn of
    /// the holder.
    pub fn new(inner: T, patient: u32) -> Self {
        let asleep = RankedMutex::new(Asleep { count: 0, overtaken: false, passed: false });
        Handover {
            state: AtomicU8::new(0),
            missed: AtomicU32::new(0),
            patient,
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
    /// and cannot get it otherwise if that thread has a real-time priority. So after `patient` failed attempts within
    /// one turn of the holder, the thread sleeps until the engine is free, for `patience` at most.
    #[inline]
    pub fn attempt_or_sleep<R>(
        &self,
        patience: Duration,
        first: impl FnOnce(&mut T) -> R,
        another: impl Fn(&mut T),
    ) -> Option<R> {
        let held = self.state.fetch_or(HELD, Ordering::AcqRel) & HELD == 0
            || self.has_missed_often() && self.sleep_within(patience);
        held.then(|| self.work(first, another))
    }

    fn has_missed_often(&self) -> bool {
        let missed = self.missed.load(Ordering::Relaxed) + 1;
        let often = missed >= self.patient;
        self.missed.store(if often { 0 } else { missed }, Ordering::Relaxed);
        often
    }

    /// Ensures a turn that begins after this call began: on this thread, or as another turn of the holder.
    #[inline]
    pub fn want_turn(&self, turn: impl Fn(&mut T)) {
        if self.attempt(&turn, &turn).is_none() && self.state.fetch_or(HELD | WANTED, Ordering::AcqRel) & HELD == 0 {
            // The holder left in between. WANTED, which was set here, is still set, and costs one more turn.
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

    /// As [`wait`](Self::wait), but waits for `patience` at most; `None` then.
    pub fn wait_within<R>(
        &self,
        patience: Duration,
        first: impl FnOnce(&mut T) -> R,
        another: impl Fn(&mut T),
    ) -> Option<R> {
        let held = self.state.fetch_or(HELD, Ordering::AcqRel) & HELD == 0 || self.sleep_within(patience);
        held.then(|| self.work(first, another))
    }

    /// Returns when this thread holds the engine.
    #[cold]
    fn sleep(&self) {
        let mut asleep = self.begin_sleep();
        let mut woken = false;
        while !self.take(&mut asleep, woken) {
            asleep = self.free.wait(asleep);
            woken = true;
        }
        self.end_sleep(&mut asleep);
    }

    /// Sleeps for `patience` at most. Returns whether this thread holds the engine then.
    #[cold]
    fn sleep_within(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut asleep = self.begin_sleep();
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

    fn begin_sleep(&self) -> RankedGuard<'_, Asleep, { rank::SLEEPERS }> {
        let mut asleep = self.asleep.lock();
        asleep.count += 1;
        asleep
    }

    /// Takes the engine if it is free or was handed over to the sleepers; otherwise sets `AWAITED`. Returns whether it
    /// took the engine.
    fn take(&self, asleep: &mut Asleep, woken: bool) -> bool {
        let taken =
            std::mem::take(&mut asleep.passed) || self.state.fetch_or(HELD | AWAITED, Ordering::AcqRel) & HELD == 0;
        asleep.overtaken |= woken && !taken;
        taken
    }

    /// Called whether the engine was taken or not: `AWAITED` must not stay set when no thread sleeps.
    fn end_sleep(&self, asleep: &mut Asleep) {
        asleep.count -= 1;
        if asleep.count == 0 {
            asleep.overtaken = false;
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
    /// precedence over a requested turn: WANTED stays set, and the sleeper that takes the engine runs that turn when it
    /// leaves.
    #[inline]
    fn leave(&self) -> bool {
        let mut before = HELD;
        loop {
            if before & AWAITED != 0 && self.leave_to_sleepers() {
                return true;
            }
            // There is no sleeper, or it has just timed out.
            let after = if before & WANTED != 0 { HELD } else { 0 };
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
        if std::mem::take(&mut asleep.overtaken) {
            asleep.passed = true;
        } else {
            self.state.fetch_and(WANTED, Ordering::AcqRel);
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
    pub fn answer(&self) {
        self.0.swap(false, Ordering::AcqRel);
    }
}
