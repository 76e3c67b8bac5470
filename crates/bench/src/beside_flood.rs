//! A transfer of perftest while a third host sends packets.

use super::perftest::{self, Icrc, Verb};
use anyhow::{Result, ensure};
use weir_stage::Stage;
use weir_stage::flood::{self, Aim};

/// The seed of the packets: each run has the same.
const SEED: u64 = 1;
/// Packets per second of the transfer below which there was no flood.
const LEAST: f64 = 10_000.0;

/// A flood beside a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flood {
    pub aim: Aim,
    /// Packets per second at most.
    pub rate: Option<u64>,
}

impl Flood {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self.aim {
            Aim::Transfer { .. } => "flooded",
            Aim::ClosedPort => "beside packets to a closed port",
        }
    }
}

/// Bytes per second of a transfer beside a flood.
pub fn bandwidth(stage: &Stage, verb: Verb, size: usize, icrc: Icrc, flood: Flood, seconds: f64) -> Result<f64> {
    let job = |_: &_| perftest::bandwidth(stage, verb, size, icrc, false, seconds);
    let (figure, sent) = flood::during(stage, flood.aim, SEED, flood.rate, job)?;
    ensure!(sent as f64 > LEAST * seconds, "only {sent} packets were sent");
    Ok(figure.bytes)
}
