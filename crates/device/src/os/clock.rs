//! The clock of the device: CLOCK_MONOTONIC.

use weir_transport::Instant;

/// Now, in nanoseconds since boot.
pub fn now() -> Instant {
    #[cfg(any(test, feature = "testing"))]
    if let Some(time) = fixed::TIME.get() {
        return time;
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Instant(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Time that passes only when a test says so.
#[cfg(any(test, feature = "testing"))]
pub mod fixed {
    use std::cell::Cell;
    use weir_transport::Instant;

    thread_local! {
        pub(super) static TIME: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    /// From now on it is this time for the calling thread; `None`: it is what the kernel says.
    pub fn set(time: Option<Instant>) {
        TIME.set(time);
    }
}
