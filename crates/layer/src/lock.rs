//! A lock that a thread may take in one call of the program and release in a later call, without a guard in between.

use std::cell::UnsafeCell;

/// A mutex without data. It must not move while it is in use.
pub struct Lock(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a pthread mutex is made to be shared.
unsafe impl Sync for Lock {}
// SAFETY: it moves before its first use only.
unsafe impl Send for Lock {}

impl Lock {
    pub const fn new() -> Lock {
        Lock(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER))
    }

    #[inline]
    pub fn lock(&self) {
        // SAFETY: initialised, and never destroyed.
        unsafe { libc::pthread_mutex_lock(self.0.get()) };
    }

    /// Locks it unless it is locked; returns whether it did.
    pub fn try_lock(&self) -> bool {
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_trylock(self.0.get()) == 0 }
    }

    /// Unlocks it; the caller has locked it.
    #[inline]
    pub fn unlock(&self) {
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }

    /// Runs `body` while it holds the lock.
    #[inline]
    pub fn with<R>(&self, body: impl FnOnce() -> R) -> R {
        struct Release<'a>(&'a Lock);
        impl Drop for Release<'_> {
            fn drop(&mut self) {
                self.0.unlock();
            }
        }
        self.lock();
        let _release = Release(self);
        body()
    }
}
