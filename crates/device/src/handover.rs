//! Who is at the engine: one at a time. Who only wants a turn never waits: the one who is at it takes another for him.
//!
//! All of it is one word, so that whoever leaves sees every wish that came before, on any processor. A turn that nobody
//! disputes costs two changes of that word. Model-checked in `tests/handover.rs`.

use crate::sync::{AtomicBool, AtomicU8, AtomicU32, Condvar, Mutex, MutexGuard, Ordering, UnsafeCell};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Something that one thread at a time is at.
pub struct Handover<T> {
    state: AtomicU8,
    /// Attempts in vain since the holder took it, or took another turn. Roughly: threads may overwrite each other's.
    missed: AtomicU32,
    /// So many of them, and a thread that tries again and again sleeps.
    patient: u32,
    /// Locked from before a control path says that it sleeps (`AWAITED`) until it does, and by who leaves it to sleepers.
    asleep: Mutex<Asleep>,
    free: Condvar,
    inner: UnsafeCell<T>,
}

/// The control paths that sleep until it is free.
struct Asleep {
    count: u32,
    /// One of them was woken, and others were faster. Busy pollers always are: so it is passed on next time.
    overtaken: bool,
    /// It is held for whichever of them looks first.
    passed: bool,
}

/// Somebody is at it.
const HELD: u8 = 1;
/// Somebody wants a turn: the holder takes another before he leaves.
const WANTED: u8 = 2;
/// Somebody sleeps until it is free.
const AWAITED: u8 = 4;

// SAFETY: only the holder touches `inner`, and there is one at a time.
unsafe impl<T: Send> Sync for Handover<T> {}

impl<T> Handover<T> {
    /// Free. Threads that try again and again do so `patient` times within one turn of the holder before they sleep.
    pub fn new(inner: T, patient: u32) -> Self {
        let asleep = Mutex::new(Asleep { count: 0, overtaken: false, passed: false });
        Handover {
            state: AtomicU8::new(0),
            missed: AtomicU32::new(0),
            patient,
            asleep,
            free: Condvar::new(),
            inner: UnsafeCell::new(inner),
        }
    }

    /// `first` unless somebody else is at it (`None` then), and `another` for whoever wants a turn meanwhile.
    #[inline]
    pub fn attempt<R>(&self, first: impl FnOnce(&mut T) -> R, another: impl Fn(&mut T)) -> Option<R> {
        let free = self.state.fetch_or(HELD, Ordering::AcqRel) & HELD == 0;
        free.then(|| self.work(first, another))
    }

    /// As [`attempt`](Self::attempt), for threads that try again and again: the holder may need the core that such a
    /// thread is on, and gets it by no other means where that thread has a real-time priority. So after many attempts in
    /// vain within one turn of the holder, one sleeps until it is free, at most for `patience`.
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

    /// A turn that begins after this call did: ours, or another of the one who is at it.
    #[inline]
    pub fn want(&self, turn: impl Fn(&mut T)) {
        if self.attempt(&turn, &turn).is_none() && self.state.fetch_or(HELD | WANTED, Ordering::AcqRel) & HELD == 0 {
            // He left in between. Our own wish stands there too, and costs a turn more.
            self.work(&turn, &turn);
        }
    }

    /// `first` as soon as nobody else is at it, and `another` for whoever wants a turn meanwhile. Not from within.
    pub fn wait<R>(&self, first: impl FnOnce(&mut T) -> R, another: impl Fn(&mut T)) -> R {
        if self.state.fetch_or(HELD, Ordering::AcqRel) & HELD != 0 {
            self.sleep();
        }
        self.work(first, another)
    }

    /// As [`wait`](Self::wait), but only so long; `None` then.
    pub fn wait_within<R>(
        &self,
        patience: Duration,
        first: impl FnOnce(&mut T) -> R,
        another: impl Fn(&mut T),
    ) -> Option<R> {
        let held = self.state.fetch_or(HELD, Ordering::AcqRel) & HELD == 0 || self.sleep_within(patience);
        held.then(|| self.work(first, another))
    }

    /// Returns when it is ours.
    #[cold]
    fn sleep(&self) {
        let mut asleep = self.lie_down();
        let mut woken = false;
        while !self.take(&mut asleep, woken) {
            asleep = self.free.wait(asleep).unwrap_or_else(PoisonError::into_inner);
            woken = true;
        }
        self.get_up(&mut asleep);
    }

    /// Whether it came free in time, and is ours.
    #[cold]
    fn sleep_within(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut asleep = self.lie_down();
        let mut woken = false;
        let taken = loop {
            if self.take(&mut asleep, woken) {
                break true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break false;
            }
            asleep = self.free.wait_timeout(asleep, left).unwrap_or_else(PoisonError::into_inner).0;
            woken = true;
        };
        self.get_up(&mut asleep);
        taken
    }

    fn lie_down(&self) -> MutexGuard<'_, Asleep> {
        let mut asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
        asleep.count += 1;
        asleep
    }

    /// Takes it if it is free or was passed on; otherwise asks to be woken.
    fn take(&self, asleep: &mut Asleep, woken: bool) -> bool {
        let taken =
            std::mem::take(&mut asleep.passed) || self.state.fetch_or(HELD | AWAITED, Ordering::AcqRel) & HELD == 0;
        asleep.overtaken |= woken && !taken;
        taken
    }

    /// Whether it was taken or not: a wish must not be left to somebody who sleeps when nobody does.
    fn get_up(&self, asleep: &mut Asleep) {
        asleep.count -= 1;
        if asleep.count == 0 {
            asleep.overtaken = false;
            self.state.fetch_and(!AWAITED, Ordering::AcqRel);
        }
    }

    /// The holder's work, until nobody wants more of it.
    #[inline]
    fn work<R>(&self, first: impl FnOnce(&mut T) -> R, another: impl Fn(&mut T)) -> R {
        let held = Held(self);
        self.missed.store(0, Ordering::Relaxed);
        // SAFETY: we hold it, and lend it for this call only.
        let result = self.inner.with_mut(|inner| first(unsafe { &mut *inner }));
        while !self.leave() {
            self.missed.store(0, Ordering::Relaxed);
            // SAFETY: as above.
            self.inner.with_mut(|inner| another(unsafe { &mut *inner }));
        }
        std::mem::forget(held);
        result
    }

    /// False if another turn is wanted: then it is still held. Who sleeps comes before who wants, and finds the wish
    /// when he leaves.
    #[inline]
    fn leave(&self) -> bool {
        let mut before = HELD;
        loop {
            if before & AWAITED != 0 && self.leave_to_sleepers() {
                return true;
            }
            // No sleeper is there, or he has given up just now.
            let after = if before & WANTED != 0 { HELD } else { 0 };
            match self.state.compare_exchange(before & !AWAITED, after, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return after == 0,
                Err(now) => before = now,
            }
        }
    }

    /// False if nobody sleeps any more.
    #[cold]
    fn leave_to_sleepers(&self) -> bool {
        let mut asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Lets go when the holder panics.
struct Held<'a, T>(&'a Handover<T>);

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.0.state.store(0, Ordering::Release);
        let _asleep = self.0.asleep.lock();
        self.0.free.notify_all();
    }
}

/// Numbers of those who have rung, each once.
pub struct Doorbells {
    /// There may be some: who takes them looks here first, for as a rule nobody has rung.
    any: AtomicBool,
    rung: Mutex<Vec<u32>>,
}

/// One's own doorbell.
pub struct Bell(AtomicBool);

impl Doorbells {
    pub fn new() -> Self {
        Doorbells { any: AtomicBool::new(false), rung: Mutex::new(Vec::with_capacity(64)) }
    }

    /// Rings. Whatever was done before is seen by whoever answers.
    #[inline]
    pub fn ring(&self, bell: &Bell, number: u32) {
        if !bell.0.swap(true, Ordering::AcqRel) {
            let mut rung = self.lock();
            rung.push(number);
            self.any.store(true, Ordering::Release);
        }
    }

    /// Takes all that have rung, and leaves `into` in their place, with its room. Each has to be answered *before* one looks at what it rang for.
    #[inline]
    pub fn take(&self, into: &mut Vec<u32>) {
        if self.any.load(Ordering::Acquire) {
            let mut rung = self.lock();
            self.any.store(false, Ordering::Relaxed);
            std::mem::swap(&mut *rung, into);
        }
    }

    /// Makes room for so many, so that ringing does not allocate. Nor does this under the lock, for memory hooks of the
    /// program may want the engine, and who is at it the lock.
    pub fn reserve(&self, count: usize) {
        if self.lock().capacity() < count {
            let mut larger = Vec::with_capacity(2 * count);
            let mut rung = self.lock();
            larger.append(&mut rung);
            std::mem::swap(&mut *rung, &mut larger);
            drop(rung);
        }
    }

    #[inline]
    fn lock(&self) -> impl std::ops::DerefMut<Target = Vec<u32>> + '_ {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bell {
    pub fn new() -> Self {
        Bell(AtomicBool::new(false))
    }

    /// It was heard, and may ring again. A swap, for it must see what was done before the ring that it swallows.
    #[inline]
    pub fn answer(&self) {
        self.0.swap(false, Ordering::AcqRel);
    }
}
