//! The cores of the machine, and the distance of two of them: the time that a cache line takes from one pinned thread to
//! another.

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Round trips of one sample. A sample takes a few milliseconds.
const ROUND_TRIPS: u64 = 10_000;
/// Samples; the result is their median.
const SAMPLES: usize = 5;

/// Aligned to two cache lines, because processors prefetch lines in pairs.
#[repr(align(128))]
struct Line(AtomicU64);

/// One-way time in nanoseconds; `None` if both cores are the same, or a thread cannot be pinned to one of them.
pub fn distance([a, b]: [usize; 2]) -> Option<f64> {
    if a == b {
        return None;
    }
    let line = Line(AtomicU64::new(0));
    let ready = Barrier::new(2);
    let turns = 2 * ROUND_TRIPS * SAMPLES as u64;
    std::thread::scope(|scope| {
        // Each thread waits for the other's turns, so both play even if one of them could not be pinned.
        let other = scope.spawn(|| {
            let pinned = pin(b);
            ready.wait();
            play(&line, 1, turns);
            pinned
        });
        let this = scope.spawn(|| {
            let pinned = pin(a);
            ready.wait();
            let mut samples = [0.0; SAMPLES];
            for (i, sample) in samples.iter_mut().enumerate() {
                let start = Instant::now();
                let first = 2 * ROUND_TRIPS * i as u64;
                play(&line, first, first + 2 * ROUND_TRIPS);
                *sample = start.elapsed().as_nanos() as f64 / (2 * ROUND_TRIPS) as f64;
            }
            samples.sort_by(f64::total_cmp);
            pinned.then_some(samples[SAMPLES / 2])
        });
        let pinned = other.join().unwrap_or(false);
        this.join().ok().flatten().filter(|_| pinned)
    })
}

/// The cores that this process may use.
pub fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0)).context("reading the affinity mask")?;
    Ok((0..CpuSet::count()).filter(|&core| set.is_set(core).unwrap_or(false)).collect())
}

/// Takes every second turn from `first` up to `end`.
fn play(line: &Line, first: u64, end: u64) {
    for turn in (first..end).step_by(2) {
        while line.0.load(Ordering::Acquire) != turn {
            std::hint::spin_loop();
        }
        line.0.store(turn + 1, Ordering::Release);
    }
}

/// Pins the calling thread to a core. Returns whether the kernel did so.
pub fn pin(core: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_be_pinned_to_each_allowed_core_and_to_no_other() {
        let cores = allowed().unwrap();
        std::thread::spawn(move || {
            for core in cores {
                assert!(pin(core));
                assert_eq!(allowed().unwrap(), [core]);
            }
            assert!(!pin(CpuSet::count()));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn two_cores_are_some_nanoseconds_apart() {
        assert_eq!(distance([0, 0]), None);
        if std::thread::available_parallelism().is_ok_and(|n| n.get() > 1) {
            let ns = distance([0, 1]).unwrap();
            assert!((1.0..100_000.0).contains(&ns), "{ns}");
        }
    }
}
