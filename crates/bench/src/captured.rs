//! perftest on Weir under a capture. Both sides capture, each into a file of its own.

use super::perftest::{self, Bandwidth, Latency, Verb};
use anyhow::{Context, Result};
use weir_stage::Stage;

/// What is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Captured {
    /// Nothing; payload goes in RoCE packets.
    Nothing,
    /// The headers of all packets.
    Headers,
    /// The headers of the last packets, in memory.
    Ring,
    /// All packets.
    Whole,
}

/// What is measured of a program under capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Figure {
    Bandwidth,
    MessageRate,
    Latency,
}

impl Captured {
    /// For a description.
    pub fn name(self) -> &'static str {
        match self {
            Captured::Nothing => "without capture",
            Captured::Headers => "with headers captured",
            Captured::Ring => "with headers kept",
            Captured::Whole => "captured",
        }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Captured::Nothing => &["--framing", "roce"],
            Captured::Headers => &["--capture-snap", "headers"],
            Captured::Ring => &["--capture-snap", "headers", "--capture-ring", "64M"],
            Captured::Whole => &[],
        }
    }
}

/// Runs a bandwidth program for `seconds`.
pub fn bandwidth(stage: &Stage, verb: Verb, size: usize, captured: Captured, seconds: f64) -> Result<Bandwidth> {
    with_options(captured, |options| perftest::bandwidth_with(stage, verb, size, options, false, seconds))
}

/// Runs a latency program.
pub fn latency(stage: &Stage, verb: Verb, size: usize, captured: Captured, iterations: u64) -> Result<Latency> {
    with_options(captured, |options| perftest::latency_with(stage, verb, size, options, iterations))
}

/// Runs `job` with the options of `weir run`. The files are gone after it.
fn with_options<T>(captured: Captured, job: impl FnOnce(&[&str]) -> Result<T>) -> Result<T> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("weir-%p.pcapng");
    let mut options = captured.options().to_vec();
    if captured != Captured::Nothing {
        options.extend(["--capture", file.to_str().context("the path of the temporary folder is not UTF-8")?]);
    }
    job(&options)
}
