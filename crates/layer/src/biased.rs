//! A lock that one thread takes nearly always, as a QP's: most programs post to a QP from one thread, and poll its CQ
//! from one thread.
//!
//! The first thread that takes it owns it: it locks and unlocks by stores to a word that only it writes. An atomic
//! read-modify-write in each call of the program would be a fifth of what the layer costs. The first other thread that
//! comes takes this away for good: it sets `shared`, and makes all threads of the process pass a barrier
//! (membarrier(2)), after which it sees the owner's word, or the owner sees `shared`. From then on, and where the kernel
//! has no such call, it is a [`Lock`].

use crate::lock::{Lock, sleep_while};
use crate::locked::{Held, Raw};
use crate::quiet::keeping_errno;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*, compiler_fence};

/// Values of `inside`.
const OUT: u32 = 0;
const TRIES: u32 = 1;
const HOLDS: u32 = 2;

const BARRIER: libc::c_int = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED;
/// Should membarrier(2) fail, another thread's store is visible after so long, ns.
const DRAINED: i64 = 10_000_000;
/// How often a thread looks without a pause whether the owner has left.
const LOOKS: u32 = 1000;
/// The time between two later looks, ns.
const PAUSE: i64 = 50_000;

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

    /// Whether no thread holds it at this moment.
    pub fn is_free(&self) -> bool {
        self.inside.load(Acquire) == OUT && self.lock.is_free()
    }

    /// Holds it as long as the result lives, unless it is locked.
    pub fn try_hold(&self) -> Option<Held<'_, Biased>> {
        if self.lock_as_owner() || self.claim() && self.lock_as_owner() {
            return Some(Held(self));
        }
        // The owner has locked it before.
        if self.owner.load(Relaxed) == this_thread() && self.inside.load(Relaxed) != OUT || !self.lock.try_lock() {
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
        // What another thread did that has unlocked it, or an earlier thread with this thread's pointer.
        let is_inside = self.inside.load(Acquire) != OUT;
        if is_inside || self.shared.load(Relaxed) || self.owner.load(Relaxed) != this_thread() {
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
    fn lock_first_time(&self) {
        if self.claim() && self.lock_as_owner() {
            return;
        }
        self.lock.lock();
        self.share();
        self.wait_for_owner();
    }

    /// The owner may have locked it before it became shared, or may just find out. The caller holds `lock`.
    #[inline]
    fn wait_for_owner(&self) {
        let mut looks = 0;
        while self.inside.load(Acquire) != OUT {
            looks += 1;
            match looks {
                ..LOOKS => std::hint::spin_loop(),
                _ => sleep_while(&self.inside, HOLDS, PAUSE),
            }
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
            sleep_while(&AtomicU32::new(0), 0, DRAINED);
        }
    }
}

// SAFETY: the owner holds it, or the thread that holds `lock` and has seen the owner outside.
unsafe impl Raw for Biased {
    #[inline]
    fn lock(&self) {
        if self.shared.load(Relaxed) {
            self.lock.lock();
            self.wait_for_owner();
        } else if !self.lock_as_owner() {
            self.lock_first_time();
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

/// membarrier(2); whether it succeeded.
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: numbers.
    keeping_errno(|| unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 })
}

/// What tells this thread from others: its thread pointer. A later thread may have that of one that has ended, which no
/// longer takes the lock.
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
        let at = counter.1.get();
        for _ in 0..times {
            // Read and written apart, so that a lost turn shows.
            // SAFETY: the lock is held.
            counter.0.with(|| unsafe { at.write_volatile(at.read_volatile() + 1) });
        }
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
        if !PREPARED.load(Relaxed) {
            return eprintln!("skipped: this kernel has no membarrier(2)");
        }
        assert_eq!(counter.0.owner.load(Relaxed), this_thread());
        assert!(!counter.0.shared.load(Relaxed));
        let other = counter.clone();
        std::thread::spawn(move || add(&other, 1)).join().unwrap();
        assert!(counter.0.shared.load(Relaxed));
        add(&counter, 1);
        // SAFETY: this thread alone has it.
        assert_eq!(unsafe { *counter.1.get() }, 12);
    }

    /// A cancel would unwind through the frames of the layer.
    #[test]
    fn waiting_for_it_is_no_cancellation_point() {
        use std::os::unix::thread::JoinHandleExt;
        unsafe extern "C" {
            fn pthread_cancel(thread: libc::pthread_t) -> libc::c_int;
        }
        let counter = counter();
        add(&counter, 1);
        counter.0.lock();
        let other = counter.clone();
        let waiter = std::thread::spawn(move || {
            other.0.lock();
            // The thread ends without the cancel.
            std::mem::forget(crate::quiet::Uncancelled::new());
            other.0.unlock();
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        // SAFETY: a thread that has not been joined.
        unsafe { pthread_cancel(waiter.as_pthread_t()) };
        std::thread::sleep(std::time::Duration::from_millis(20));
        counter.0.unlock();
        waiter.join().unwrap();
        assert!(counter.0.is_free());
    }

    #[test]
    fn without_owners_it_is_a_plain_lock() {
        let counter = Arc::new(Counter(Biased::new(), UnsafeCell::new(0)));
        // As if the kernel had no barrier.
        counter.0.owner.store(usize::MAX, Relaxed);
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let counter = counter.clone();
                std::thread::spawn(move || add(&counter, 10_000))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // SAFETY: all threads have ended.
        assert_eq!(unsafe { *counter.1.get() }, 30_000);
    }

    #[test]
    fn it_is_held_until_it_is_unlocked_in_whichever_thread() {
        let counter = counter();
        counter.0.lock();
        assert!(!counter.0.is_free());
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
