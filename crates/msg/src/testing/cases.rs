//! Random cases by their seeds.

use std::thread;

/// Says which case it was, if it fails.
struct Case(u64);

/// Runs a case for each of `least` seeds, or more: `PROPTEST_CASES=N`, as `make soak` has it. `PROPTEST_RNG_SEED=N` is the first
/// seed, so that it repeats a case that has failed.
pub fn each_seed(least: u64, case: impl Fn(u64)) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("PROPTEST_RNG_SEED").unwrap_or(1);
    for seed in first..first + number("PROPTEST_CASES").map_or(least, |cases| cases.max(least)) {
        let named = Case(seed);
        case(seed);
        drop(named);
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the case that failed: PROPTEST_RNG_SEED={}", self.0);
        }
    }
}
