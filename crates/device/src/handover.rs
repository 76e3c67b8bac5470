//! Who is at the engine: one at a time. Who only wants a turn never waits: the one who is at it takes another for him.
//!
//! All of it is one word, so that whoever leaves sees every wish that came before, on any processor. A turn that nobody
//! disputes costs two changes of that word. Model-checked in `tests/handover.rs`.

use crate::sync::{AtomicBool, AtomicU8, Condvar, Mutex, Ordering, UnsafeCell};
use std::time::{Duration, Instant};

/// Something that one thread at a time is at.
pub struct Handover<T> {
    state: AtomicU8,
    /// How many control paths sleep; locked from before one says so (`AWAITED`) until it sleeps.
    asleep: Mutex<u32>,
    free: Condvar,
    inner: UnsafeCell<T>,
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
    pub fn new(inner: T) -> Self {
        let (asleep, free) = (Mutex::new(0), Condvar::new());
        Handover { state: AtomicU8::new(0), asleep, free, inner: UnsafeCell::new(inner) }
    }

    /// `first` unless somebody else is at it (`None` then), and `another` for whoever wants a turn meanwhile.
    #[inline]
    pub fn attempt<R>(&self, first: impl FnOnce(&mut T) -> R, another: impl Fn(&mut T)) -> Option<R> {
        let free = self.state.fetch_or(HELD, Ordering::AcqRel) & HELD == 0;
        free.then(|| self.work(first, another))
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
            let mut asleep = self.asleep.lock().expect("no panic under this lock");
            *asleep += 1;
            while self.state.fetch_or(HELD | AWAITED, Ordering::AcqRel) & HELD != 0 {
                asleep = self.free.wait(asleep).expect("no panic under this lock");
            }
            *asleep -= 1;
            if *asleep == 0 {
                // Otherwise we would leave a wish to somebody who sleeps, and nobody does.
                self.state.fetch_and(!AWAITED, Ordering::AcqRel);
            }
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

    /// Whether it was free in time, and is held now.
    #[cold]
    fn sleep_within(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut asleep = self.asleep.lock().expect("no panic under this lock");
        *asleep += 1;
        while self.state.fetch_or(HELD | AWAITED, Ordering::AcqRel) & HELD != 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                *asleep -= 1;
                return self.give_up(*asleep == 0);
            }
            asleep = self.free.wait_timeout(asleep, left).expect("no panic under this lock").0;
        }
        *asleep -= 1;
        if *asleep == 0 {
            self.state.fetch_and(!AWAITED, Ordering::AcqRel);
        }
        true
    }

    /// Stops waiting, and says so if nobody else waits: a wish that is left to a sleeper must find one. True if it is
    /// free after all, and held now.
    fn give_up(&self, nobody_else: bool) -> bool {
        let mut before = self.state.load(Ordering::Acquire);
        loop {
            let free = before & HELD == 0;
            let waits = if nobody_else { before & !AWAITED } else { before };
            match self.state.compare_exchange(before, waits | HELD, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return free,
                Err(now) => before = now,
            }
        }
    }

    /// The holder's work, until nobody wants more of it.
    #[inline]
    fn work<R>(&self, first: impl FnOnce(&mut T) -> R, another: impl Fn(&mut T)) -> R {
        let held = Held(self);
        // SAFETY: we hold it, and lend it for this call only.
        let result = self.inner.with_mut(|inner| first(unsafe { &mut *inner }));
        while !self.leave() {
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
            let after = match before {
                _ if before & AWAITED != 0 => before & WANTED,
                _ if before & WANTED != 0 => HELD,
                _ => 0,
            };
            match self.state.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if before & AWAITED != 0 => {
                    self.wake();
                    return true;
                }
                Ok(_) => return after == 0,
                Err(now) => before = now,
            }
        }
    }

    #[cold]
    fn wake(&self) {
        let _asleep = self.asleep.lock();
        self.free.notify_all();
    }
}

/// Lets go when the holder panics.
struct Held<'a, T>(&'a Handover<T>);

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.0.state.store(0, Ordering::Release);
        self.0.wake();
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
        self.rung.lock().expect("no panic under this lock")
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
