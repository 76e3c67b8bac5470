//! Clocks: CLOCK_MONOTONIC, and the CPU time of a thread.

use weir_transport::Instant;

/// Now, in nanoseconds since boot.
pub fn now() -> Instant {
    Instant(read(libc::CLOCK_MONOTONIC))
}

/// CPU time of this thread, ns.
pub fn thread_cpu() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills one timespec.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
