//! The time, in ticks of the processor's counter where the kernel uses that counter itself, else in nanoseconds.
//!
//! A read of the counter costs a third of a call of clock_gettime(3), and each post reads the time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Whether ticks are those of the processor's counter.
static COUNTER: AtomicBool = AtomicBool::new(false);
/// Nanoseconds per tick, times 2^32.
static SCALE: AtomicU64 = AtomicU64::new(1 << 32);

/// A program that polls some times within this time does not pause between polls, ns.
const PAUSE: u64 = 8_000;
/// The same in ticks.
static PAUSE_TICKS: AtomicU64 = AtomicU64::new(0);

/// A moment on both clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment {
    pub ticks: u64,
    /// CLOCK_MONOTONIC.
    pub ns: u64,
}

/// The time of a call of the program, read when it is needed first.
#[derive(Default)]
pub struct Now(Option<u64>);

impl Now {
    /// It is known already, or is not.
    pub fn known(ticks: Option<u64>) -> Now {
        Now(ticks)
    }

    #[inline]
    pub fn is_known(&self) -> bool {
        self.0.is_some()
    }

    #[inline]
    pub fn ticks(&mut self) -> u64 {
        *self.0.get_or_insert_with(ticks)
    }

    /// As [`steady_ns`].
    #[inline]
    pub fn steady_ns(&mut self) -> u64 {
        steady(self.ticks())
    }
}

/// The scale of [`steady_ns`], which later measurements do not change.
static FIRST: AtomicU64 = AtomicU64::new(1 << 32);

/// Chooses the clock and measures it, once, before any other function of this file. It takes two milliseconds.
pub fn start() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        choose();
        FIRST.store(SCALE.load(Relaxed), Relaxed);
    });
}

fn choose() {
    COUNTER.store(is_steady(), Relaxed);
    if !COUNTER.load(Relaxed) {
        return;
    }
    let first = moment();
    std::thread::sleep(std::time::Duration::from_millis(2));
    calibrate(first);
}

/// Measures the counter again, since a moment long ago.
pub fn calibrate(since: Moment) {
    let now = moment();
    let (ticks, ns) = (now.ticks.wrapping_sub(since.ticks), now.ns.saturating_sub(since.ns));
    if ns >= 1_000_000 && ticks != 0 {
        SCALE.store((u128::from(ns) * (1 << 32) / u128::from(ticks)) as u64, Relaxed);
        PAUSE_TICKS.store(to_ticks(PAUSE), Relaxed);
    }
}

/// The time in ticks.
#[inline]
pub fn ticks() -> u64 {
    if COUNTER.load(Relaxed) { counter() } else { clock(libc::CLOCK_MONOTONIC) }
}

/// This moment.
pub fn moment() -> Moment {
    Moment { ticks: ticks(), ns: clock(libc::CLOCK_MONOTONIC) }
}

/// Nanoseconds since 1970.
pub fn unix_ns() -> u64 {
    clock(libc::CLOCK_REALTIME)
}

/// A time in nanoseconds, since any moment. It never jumps.
#[inline]
pub fn steady_ns() -> u64 {
    steady(ticks())
}

#[inline]
fn steady(ticks: u64) -> u64 {
    ((u128::from(ticks) * u128::from(FIRST.load(Relaxed))) >> 32) as u64
}

/// A duration in nanoseconds.
#[inline]
pub fn to_ns(ticks: u64) -> u64 {
    ((u128::from(ticks) * u128::from(SCALE.load(Relaxed))) >> 32) as u64
}

/// Nanoseconds as ticks.
pub fn to_ticks(ns: u64) -> u64 {
    ((u128::from(ns) << 32) / u128::from(SCALE.load(Relaxed).max(1))) as u64
}

/// The time within which some polls show that the program does not pause between them, ticks.
#[inline]
pub fn pause() -> u64 {
    PAUSE_TICKS.load(Relaxed)
}

/// Whether all processors count alike and steadily: the kernel tells by using the counter as its own clock.
fn is_steady() -> bool {
    let counter = if cfg!(target_arch = "x86_64") { "tsc" } else { "arch_sys_counter" };
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    std::fs::read_to_string(path).is_ok_and(|name| name.trim() == counter)
}

fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes a local variable.
    unsafe { libc::clock_gettime(id, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: reads a counter; every x86_64 processor has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn counter() -> u64 {
    let ticks: u64;
    // SAFETY: reads a counter; the kernel lets programs read it.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_nanoseconds() {
        start();
        let first = moment();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let last = moment();
        let (by_ticks, ns) = (to_ns(last.ticks - first.ticks), last.ns - first.ns);
        assert!(by_ticks.abs_diff(ns) < ns / 20, "{by_ticks} {ns}");
        assert!(to_ns(to_ticks(ns)).abs_diff(ns) < 10);
    }
}
