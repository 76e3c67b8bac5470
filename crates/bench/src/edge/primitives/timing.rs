//! Times of short jobs: medians of several runs.

use std::time::{Duration, Instant};

/// Runs of a job, of which the median counts.
const RUNS: usize = 7;
/// The shortest run, so that the clock's own time does not count.
const LEAST: Duration = Duration::from_micros(500);

/// Seconds that a call of `job` takes.
pub fn seconds(mut job: impl FnMut()) -> f64 {
    job();
    // So many calls take long enough.
    let (mut calls, mut begin) = (1u32, Instant::now());
    loop {
        (0..calls).for_each(|_| job());
        if begin.elapsed() >= LEAST || calls >= 1 << 24 {
            break;
        }
        calls *= 2;
        begin = Instant::now();
    }
    let run = |_| {
        let begin = Instant::now();
        (0..calls).for_each(|_| job());
        begin.elapsed().as_secs_f64() / f64::from(calls)
    };
    median((0..RUNS).map(run).collect())
}

/// The middle of some values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_sleeps_takes_its_time() {
        let taken = seconds(|| std::thread::sleep(Duration::from_millis(1)));
        assert!((0.001..0.1).contains(&taken), "{taken}");
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
