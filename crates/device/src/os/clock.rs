//! The clock of the device: CLOCK_MONOTONIC.

use weir_transport::Instant;

/// Now, in nanoseconds since boot.
pub fn now() -> Instant {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Instant(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
