//! What ThreadSanitizer is told of locks (`scripts/sanitize.sh`). It does not see those of the standard library, which is
//! compiled without it. Other builds do nothing here.

/// This thread has a lock, until this is dropped.
pub struct Seen {
    #[cfg(weir_tsan)]
    lock: *const (),
}

/// A lock that a thread waits for, with a condition variable.
pub struct Unlocked(#[cfg(weir_tsan)] *const ());

#[cfg(not(weir_tsan))]
impl Seen {
    /// This thread has taken a lock.
    #[inline]
    pub fn locked<T>(_: &T) -> Seen {
        Seen {}
    }

    /// The thread will release it.
    #[inline]
    pub fn unlocked(self) -> Unlocked {
        Unlocked()
    }
}

#[cfg(not(weir_tsan))]
impl Unlocked {
    /// The thread has it again.
    #[inline]
    pub fn locked(self) -> Seen {
        Seen {}
    }
}

#[cfg(weir_tsan)]
mod told {
    use super::{Seen, Unlocked};
    use std::ffi::c_void;

    // Of the sanitizer's runtime (tsan_interface.h).
    unsafe extern "C" {
        /// What other threads did before they released this address has happened before.
        fn __tsan_acquire(address: *mut c_void);
        /// What this thread did until now has happened before others acquire this address.
        fn __tsan_release(address: *mut c_void);
    }

    impl Seen {
        pub fn locked<T>(lock: &T) -> Seen {
            Unlocked((&raw const *lock).cast()).locked()
        }

        pub fn unlocked(self) -> Unlocked {
            Unlocked(self.lock)
        }
    }

    impl Unlocked {
        pub fn locked(self) -> Seen {
            // SAFETY: the runtime takes any address, and does not access it.
            unsafe { __tsan_acquire(self.0.cast_mut().cast()) };
            Seen { lock: self.0 }
        }
    }

    impl Drop for Seen {
        fn drop(&mut self) {
            // SAFETY: as above.
            unsafe { __tsan_release(self.lock.cast_mut().cast()) };
        }
    }
}
