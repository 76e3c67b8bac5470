//! perftest on Weir, with all guards on at both sides.

use super::perftest::{self, Bandwidth, Latency, Verb};
use anyhow::Result;
use weir_stage::Stage;

/// The options of `weir run`.
const GUARD: [&str; 2] = ["--guard", "auto"];

/// Bandwidth with guards.
pub fn bandwidth(stage: &Stage, verb: Verb, size: usize, seconds: f64) -> Result<Bandwidth> {
    perftest::bandwidth_with(stage, verb, size, &GUARD, false, seconds)
}

/// Latency with guards.
pub fn latency(stage: &Stage, verb: Verb, size: usize, iterations: u64) -> Result<Latency> {
    perftest::latency_with(stage, verb, size, &GUARD, iterations)
}
