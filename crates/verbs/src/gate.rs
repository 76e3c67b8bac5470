//! A lock that one call of the application takes and another one releases: `ibv_start_poll` and `ibv_end_poll`,
//! `ibv_wr_start` and `ibv_wr_complete`.

use std::cell::UnsafeCell;

/// Guards what is reached between the two calls. It must not be moved while it is taken.
pub struct Gate<T> {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    inner: UnsafeCell<T>,
}

// SAFETY: what is inside is reached by the holder of the mutex only.
unsafe impl<T: Send> Sync for Gate<T> {}
// SAFETY: a mutex that nobody holds may be moved.
unsafe impl<T: Send> Send for Gate<T> {}

impl<T: Default> Default for Gate<T> {
    fn default() -> Self {
        Gate::new(T::default())
    }
}

impl<T> Gate<T> {
    pub const fn new(inner: T) -> Gate<T> {
        Gate { mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER), inner: UnsafeCell::new(inner) }
    }

    /// Waits for whoever holds it.
    pub fn enter(&self) {
        // SAFETY: a mutex that is initialised and stays where it is.
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
    }

    /// Lets the next one in.
    ///
    /// # Safety
    /// The caller has entered.
    pub unsafe fn leave(&self) {
        // SAFETY: held, as the caller says.
        unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
    }

    /// What is guarded.
    ///
    /// # Safety
    /// The caller has entered, or nobody else uses it, and it lets go of the reference before it reaches for another.
    #[allow(clippy::mut_from_ref)] // That is what a lock is for.
    pub unsafe fn inner(&self) -> &mut T {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.inner.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn one_at_a_time() {
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
        // SAFETY: nobody else is left.
        assert_eq!(unsafe { *gate.inner() }, 40_000);
    }
}
