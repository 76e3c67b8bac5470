//! Whether packets wake the engine's thread while a program polls: a flag that polls read at no cost, and the kernel's
//! set, which follows the flag. Model-checked in `tests/standby.rs`.
//!
//! Two threads that change the flag at once may change the set in the other order. So a thread looks at the flag again
//! after it has changed the set. The kernel changes the set under a lock of its own: the thread that changes it last
//! sees the flag that the other one left.

use crate::sync::{AtomicBool, Ordering};

/// The flag. `set` stands for the change of the kernel's set: true if packets wake the thread, once.
pub struct Armed {
    flag: AtomicBool,
}

impl Armed {
    /// Packets do not wake the thread.
    pub fn new() -> Armed {
        Armed { flag: AtomicBool::new(false) }
    }

    /// Whether packets wake the thread, or it is awake.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Packets wake the thread from now on, those too that have come before. Returns whether they did not before.
    pub fn arm(&self, set: impl Fn(bool)) -> bool {
        self.change(true, set)
    }

    /// Packets do not wake the thread any more. Returns whether they did before.
    pub fn disarm(&self, set: impl Fn(bool)) -> bool {
        self.change(false, set)
    }

    /// The thread has handled the packets that woke it. Further ones wake it again, unless it was disarmed meanwhile.
    pub fn rearm(&self, set: impl Fn(bool)) {
        if self.is_armed() {
            self.follow(set);
        }
    }

    fn change(&self, to: bool, set: impl Fn(bool)) -> bool {
        let changed = self.flag.swap(to, Ordering::Relaxed) != to;
        if changed {
            self.follow(set);
        }
        changed
    }

    /// The set follows the flag.
    fn follow(&self, set: impl Fn(bool)) {
        loop {
            let armed = self.flag.load(Ordering::Relaxed);
            set(armed);
            if self.flag.load(Ordering::Relaxed) == armed {
                return;
            }
        }
    }
}
