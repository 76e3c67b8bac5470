//! A lock that one call of the application takes and another call releases: `ibv_start_poll` and `ibv_end_poll`,
//! `ibv_wr_start` and `ibv_wr_complete`.

use std::cell::UnsafeCell;

/// Guards data that is accessed between the two calls. It must not be moved while it is held.
pub struct Gate<T> {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    inner: UnsafeCell<T>,
}

// SAFETY: only the holder of the mutex accesses the data inside.
unsafe impl<T: Send> Sync for Gate<T> {}
// SAFETY: a mutex that no thread holds may be moved.
unsafe impl<T: Send> Send for Gate<T> {}

impl<T: Default> Default for Gate<T> {
    fn default() -> Self {
        Gate::new(T::default())
    }
}

impl<T> Gate<T> {
    /// A free mutex.
    pub const fn new(inner: T) -> Gate<T> {
        Gate { mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER), inner: UnsafeCell::new(inner) }
    }

    /// Waits until the mutex is free, and takes it.
    pub fn enter(&self) {
        // SAFETY: an initialised mutex that is not moved.
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
    }

    /// Releases the mutex.
    ///
    /// # Safety
    /// The caller has entered.
    pub unsafe fn leave(&self) {
        // SAFETY: the caller holds it.
        unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
    }

    /// The guarded data.
    ///
    /// # Safety
    /// The caller has entered, or no other thread uses the data; it drops the reference before it calls this again.
    #[allow(clippy::mut_from_ref)] // The mutex makes it exclusive.
    pub unsafe fn inner(&self) -> &mut T {
        // SAFETY: guaranteed by the caller.
        unsafe { &mut *self.inner.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn only_one_thread_is_inside() {
        let gate = Arc::new(Gate::new(0u64));
        let count = |gate: Arc<Gate<u64>>| {
            for _ in 0..10_000 {
                gate.enter();
                // SAFETY: entered.
                unsafe {
                    let before = *gate.inner();
                    std::hint::black_box(&gate);
                    *gate.inner() = before + 1;
                    gate.leave();
                }
            }
        };
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn({
                    let gate = gate.clone();
                    move || count(gate)
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        // SAFETY: all other threads have ended.
        assert_eq!(unsafe { *gate.inner() }, 40_000);
    }
}
