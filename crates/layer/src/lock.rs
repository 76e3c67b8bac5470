//! A lock that a thread may take in one call of the program and release in a later call, without a guard in between.
//!
//! Each call with a guarded QP takes one. A pthread mutex has an atomic read-modify-write to lock and another to
//! unlock; this lock has one to lock, and unlocks by a store and a load.

use crate::locked::Raw;
use crate::quiet::keeping_errno;
use std::sync::atomic::{AtomicU32, Ordering::*};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// A holder inside the layer takes less time than this many looks.
const LOOKS: u32 = 100;
/// The most time that a thread sleeps before it looks again, ns. The processor may move the load of `waiting` in
/// `unlock` before the store of `state`; then a thread that begins to wait at this moment is not woken.
const AGAIN: i64 = 1_000_000;

/// A mutex without data.
#[derive(Default)]
pub struct Lock {
    state: AtomicU32,
    /// Threads that sleep, or are about to. A forked child may inherit some that it does not have: then it wakes none.
    waiting: AtomicU32,
}

impl Lock {
    pub const fn new() -> Lock {
        Lock { state: AtomicU32::new(FREE), waiting: AtomicU32::new(0) }
    }

    /// Whether no thread holds it at this moment.
    pub fn is_free(&self) -> bool {
        self.state.load(Acquire) == FREE
    }

    /// Locks it unless it is locked; returns whether it did.
    #[inline]
    pub fn try_lock(&self) -> bool {
        self.state.compare_exchange(FREE, TAKEN, Acquire, Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..LOOKS {
            std::hint::spin_loop();
            if self.state.load(Relaxed) == FREE && self.try_lock() {
                return;
            }
        }
        self.waiting.fetch_add(1, AcqRel);
        while !self.try_lock() {
            sleep_while(&self.state, TAKEN, AGAIN);
        }
        self.waiting.fetch_sub(1, AcqRel);
    }

    #[cold]
    fn wake(&self) {
        futex(&self.state, libc::FUTEX_WAKE, 1, AGAIN);
    }
}

/// Sleeps while a word has this value, at most so many ns. It is no cancellation point, as sleep(3) is.
pub fn sleep_while(word: &AtomicU32, value: u32, most: i64) {
    futex(word, libc::FUTEX_WAIT, value, most);
}

/// Waits while a word has a value, or wakes a number of threads.
fn futex(word: &AtomicU32, operation: libc::c_int, value: u32, most: i64) {
    let most = libc::timespec { tv_sec: 0, tv_nsec: most };
    // SAFETY: a word and a time that live as long as the call.
    keeping_errno(|| unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation | libc::FUTEX_PRIVATE_FLAG, value, &most)
    });
}

// SAFETY: `state` has one holder.
unsafe impl Raw for Lock {
    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.wait();
        }
    }

    #[inline]
    fn unlock(&self) {
        self.state.store(FREE, Release);
        if self.waiting.load(Relaxed) != 0 {
            self.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    struct Counter(Lock, UnsafeCell<u64>);

    // SAFETY: the counter is changed under the lock only.
    unsafe impl Sync for Counter {}

    #[test]
    fn one_thread_at_a_time_holds_it() {
        let counter = Arc::new(Counter(Lock::new(), UnsafeCell::new(0)));
        let add = |counter: Arc<Counter>| {
            move || {
                for n in 0..100_000 {
                    // SAFETY: the lock is held.
                    counter.0.with(|| unsafe { *counter.1.get() += 1 });
                    // Some threads come while the lock is held for long, and sleep.
                    if n % 10_000 == 0 {
                        counter.0.with(|| std::thread::sleep(Duration::from_micros(300)));
                    }
                }
            }
        };
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(add(counter.clone()))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // SAFETY: all threads have ended.
        assert_eq!(unsafe { *counter.1.get() }, 400_000);
        assert_eq!(counter.0.waiting.load(Relaxed), 0);
    }

    #[test]
    fn a_sleeping_thread_gets_it_and_its_errno_stays() {
        let lock = Arc::new(Lock::new());
        lock.lock();
        assert!(!lock.try_lock());
        let other = lock.clone();
        let waiter = std::thread::spawn(move || {
            // SAFETY: this thread's own variable.
            unsafe { *libc::__errno_location() = libc::EPERM };
            let from = Instant::now();
            other.with(|| ());
            // SAFETY: as above.
            (from.elapsed(), unsafe { *libc::__errno_location() })
        });
        std::thread::sleep(Duration::from_millis(50));
        lock.unlock();
        let (waited, errno) = waiter.join().unwrap();
        assert!(waited >= Duration::from_millis(40) && errno == libc::EPERM, "{waited:?} {errno}");
        assert!(lock.try_lock());
    }
}
