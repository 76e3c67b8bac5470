//! A lock that one thread takes nearly always, as a QP's: most programs post to a QP from one thread, and poll its CQ
//! from one thread.
//!
//! The first thread that takes it owns it: it locks and unlocks by stores to a word that only it writes. An atomic
//! read-modify-write in each call of the program would be a fifth of what the layer costs. The first other thread that
//! comes takes this away for good: it sets `shared`, and makes all threads of the process pass a barrier
//! (membarrier(2)), after which it sees the owner's word, or the owner sees `shared`. From then on, and where the kernel
//! has no such call, it is a [`Lock`].

use crate::lock::Lock;
use crate::locked::Raw;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*, compiler_fence};
use std::time::Duration;

/// Values of `inside`.
const OUT: u32 = 0;
const TRIES: u32 = 1;
const HOLDS: u32 = 2;

const BARRIER: libc::c_int = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED;
/// Without membarrier(2) another thread's store is visible after so long.
const DRAINED: Duration = Duration::from_millis(10);
/// How often a thread looks without a pause whether the owner has left.
const LOOKS: u32 = 1000;
const PAUSE: Duration = Duration::from_micros(50);

/// Whether the kernel has the barrier, and this process has registered for it.
static PREPARED: AtomicBool = AtomicBool::new(false);

/// Registers the process for the barrier; until then locks have no owners. Quick in a process with one thread.
pub fn prepare() {
    PREPARED.store(membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED), Relaxed);
}

/// The lock.
#[derive(Default)]
pub struct Biased {
    /// The thread that took it first; 0: none has.
    owner: AtomicUsize,
    /// Whether the owner holds it; only the owner writes it, and the thread that unlocks.
    inside: AtomicU32,
    /// Threads take `lock`, the owner too. It stays so.
    shared: AtomicBool,
    lock: Lock,
}

impl Biased {
    pub const fn new() -> Biased {
        let (owner, inside) = (AtomicUsize::new(0), AtomicU32::new(OUT));
        Biased { owner, inside, shared: AtomicBool::new(false), lock: Lock::new() }
    }

    /// Runs `body` while it holds the lock.
    #[inline]
    pub fn with<R>(&self, body: impl FnOnce() -> R) -> R {
        self.lock();
        let _held = Held(self);
        body()
    }

    /// Holds it as long as the result lives, unless it is locked.
    pub fn try_hold(&self) -> Option<Held<'_>> {
        if self.lock_as_owner() || self.claim() && self.lock_as_owner() {
            return Some(Held(self));
        }
        if !self.lock.try_lock() {
            return None;
        }
        self.share();
        if self.inside.load(Acquire) != OUT {
            self.lock.unlock();
            return None;
        }
        Some(Held(self))
    }

    #[inline]
    fn lock_as_owner(&self) -> bool {
        let free = self.inside.load(Relaxed) == OUT && !self.shared.load(Relaxed);
        if self.owner.load(Relaxed) != this_thread() || !free {
            return false;
        }
        self.inside.store(TRIES, Relaxed);
        // The thread that sets `shared` makes this one pass a barrier.
        compiler_fence(SeqCst);
        let owns = !self.shared.load(Acquire);
        self.inside.store(if owns { HOLDS } else { OUT }, Release);
        owns
    }

    #[cold]
    fn lock_as_other(&self) {
        if self.claim() && self.lock_as_owner() {
            return;
        }
        self.lock.lock();
        self.share();
        let mut looks = 0;
        while self.inside.load(Acquire) != OUT {
            looks += 1;
            if looks < LOOKS { std::hint::spin_loop() } else { std::thread::sleep(PAUSE) }
        }
    }

    /// Becomes the owner, if there is none.
    fn claim(&self) -> bool {
        PREPARED.load(Relaxed) && self.owner.compare_exchange(0, this_thread(), AcqRel, Relaxed).is_ok()
    }

    /// Ends the ownership. The caller holds `lock`.
    fn share(&self) {
        if self.shared.load(Relaxed) {
            return;
        }
        self.shared.store(true, SeqCst);
        // No thread becomes the owner from now on.
        let owner = self.owner.compare_exchange(0, usize::MAX, AcqRel, Acquire);
        if owner.is_err() && !membarrier(BARRIER) {
            std::thread::sleep(DRAINED);
        }
    }
}

impl Raw for Biased {
    #[inline]
    fn lock(&self) {
        if !self.lock_as_owner() {
            self.lock_as_other();
        }
    }

    /// In the thread that has locked it, or in another.
    #[inline]
    fn unlock(&self) {
        if self.inside.load(Relaxed) == HOLDS {
            self.inside.store(OUT, Release);
        } else {
            self.lock.unlock();
        }
    }
}

/// A lock that is held, as long as it lives.
pub struct Held<'a>(&'a Biased);

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.unlock();
    }
}

/// membarrier(2); whether it succeeded. The program's errno stays as it is.
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: numbers; the variable is this thread's own.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let done = libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0;
        *errno = before;
        done
    }
}

/// What tells this thread from others: its thread pointer. A later thread may have that of one that has ended.
#[inline]
fn this_thread() -> usize {
    let pointer: usize;
    // SAFETY: reads the thread pointer. On x86_64 its first word is its own address (System V ABI, ELF TLS).
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags, pure));
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags, pure));
    }
    pointer
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;
    use std::sync::Arc;

    struct Counter(Biased, UnsafeCell<u64>);

    // SAFETY: the counter is changed under the lock only.
    unsafe impl Sync for Counter {}

    fn counter() -> Arc<Counter> {
        prepare();
        Arc::new(Counter(Biased::new(), UnsafeCell::new(0)))
    }

    fn add(counter: &Counter, times: u64) {
        // SAFETY: the lock is held. The counter is read and written apart, so that a lost turn shows.
        (0..times).for_each(|_| {
            counter.0.with(|| unsafe { counter.1.get().write_volatile(counter.1.get().read_volatile() + 1) })
        });
    }

    #[test]
    fn the_owner_and_others_take_turns() {
        // The others come at another moment of the owner's work each time.
        for round in 0..500u64 {
            let counter = counter();
            let owner = {
                let counter = counter.clone();
                std::thread::spawn(move || add(&counter, 20_000))
            };
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let counter = counter.clone();
                    std::thread::spawn(move || {
                        (0..round * 100).for_each(|_| std::hint::spin_loop());
                        for _ in 0..1000 {
                            if let Some(_held) = counter.0.try_hold() {
                                // SAFETY: the lock is held.
                                unsafe { *counter.1.get() += 1 };
                            } else {
                                add(&counter, 1);
                            }
                        }
                    })
                })
                .collect();
            owner.join().unwrap();
            others.into_iter().for_each(|thread| thread.join().unwrap());
            // SAFETY: all threads have ended.
            assert_eq!(unsafe { *counter.1.get() }, 22_000, "round {round}");
        }
    }

    #[test]
    fn a_lock_of_one_thread_stays_its_own() {
        let counter = counter();
        add(&counter, 10);
        assert_eq!(counter.0.owner.load(Relaxed), this_thread());
        assert!(!counter.0.shared.load(Relaxed));
        let other = counter.clone();
        std::thread::spawn(move || add(&other, 1)).join().unwrap();
        assert!(counter.0.shared.load(Relaxed));
        add(&counter, 1);
        // SAFETY: this thread alone has it.
        assert_eq!(unsafe { *counter.1.get() }, 12);
    }

    #[test]
    fn it_is_held_until_it_is_unlocked_in_whichever_thread() {
        let counter = counter();
        counter.0.lock();
        let other = counter.clone();
        std::thread::spawn(move || {
            assert!(other.0.try_hold().is_none(), "the owner holds it");
            other.0.unlock();
            assert!(other.0.try_hold().is_some());
        })
        .join()
        .unwrap();
        let held = counter.0.try_hold();
        assert!(held.is_some() && counter.0.try_hold().is_none());
    }
}
