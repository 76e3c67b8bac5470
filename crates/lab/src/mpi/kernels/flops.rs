//! How long a process computes.

use std::time::Duration;

/// Operations of a core per second. Assumed; AWP-ODC reached 220 Tflop/s on 223,074 cores, as far as remembered.
const FLOPS: f64 = 1e9;

/// The time of so many operations.
pub fn computes(flop: f64) -> Duration {
    Duration::from_secs_f64(flop / FLOPS)
}
