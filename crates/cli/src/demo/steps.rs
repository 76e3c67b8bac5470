//! The programs that a round of the demonstration runs, and how it runs them.

use anyhow::{Context, Result};
use serde::Serialize;
use std::time::Duration;
use weir_stage::{Side, Stage, iperf, locate, pair, perftest};

/// A pair of programs.
pub(super) struct Step {
    pub title: &'static str,
    pub program: &'static str,
    /// Message size, bytes.
    size: u64,
    /// Number of messages; 0 if the program runs for a time.
    iterations: u32,
    pub unit: Unit,
}

/// The unit of a step's figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) enum Unit {
    /// Throughput, 10^9 bytes per second.
    #[serde(rename = "GB/s")]
    Gigabytes,
    /// Half a round trip, the typical value of a run.
    #[serde(rename = "us")]
    Microseconds,
}

/// The steps of a round. iperf3 and the others run in turns, because the machine's speed drifts.
pub(super) const ROUND: &[Step] = &[
    Step { title: "iperf3, TCP, 1 MiB", program: "iperf3", size: 1 << 20, iterations: 0, unit: Unit::Gigabytes },
    Step {
        title: "ib_write_bw, 1 MiB",
        program: "ib_write_bw",
        size: 1 << 20,
        iterations: 4000,
        unit: Unit::Gigabytes,
    },
    Step { title: "ib_read_bw, 1 MiB", program: "ib_read_bw", size: 1 << 20, iterations: 4000, unit: Unit::Gigabytes },
    Step {
        title: "ib_send_lat, 8 bytes",
        program: "ib_send_lat",
        size: 8,
        iterations: 40000,
        unit: Unit::Microseconds,
    },
];

/// Duration of an iperf3 run, seconds.
const SECONDS: u32 = 2;
/// Time limit of one pair, which takes a second or two on a fast machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Two hosts, and the environment variables that make a program use Weir.
pub(super) struct Bench {
    pub variables: Vec<(&'static str, String)>,
    pub stage: Stage,
}

impl Bench {
    /// Runs a step and returns its figure, in its unit.
    pub fn measure(&self, step: &Step) -> Result<f64> {
        if step.program == "iperf3" {
            return Ok(iperf::run(&self.stage, SECONDS, step.size)?.gigabytes);
        }
        let outcome = self.perftest(step)?;
        let row = perftest::row_of(&outcome.client.stdout)?;
        match step.unit {
            Unit::Gigabytes => row.gigabytes(),
            Unit::Microseconds => row.get("t_typical").context("no typical latency in the result"),
        }
    }

    fn perftest(&self, step: &Step) -> Result<pair::Outcome> {
        let (program, port) = (locate(step.program)?, self.stage.free_port(Side::A)?);
        let command = |side: Side| {
            let mut command = self.stage.command(side, &program);
            command.envs(self.variables.iter().map(|(name, value)| (name, value)));
            // -F: no warning about changing CPU frequencies.
            command.args(["-F", "-d", &self.stage.device(), "-p", &port.to_string()]);
            command.args(["-s", &step.size.to_string(), "-n", &step.iterations.to_string()]);
            command
        };
        let mut client = command(Side::B);
        client.arg(self.stage.address(Side::A).to_string());
        pair::run(&mut command(Side::A), &mut client, port, TIMEOUT)?.success()
    }
}

impl Unit {
    /// A figure with its unit.
    pub fn shown(self, figure: f64) -> String {
        match self {
            Unit::Gigabytes => format!("{figure:.2} GB/s"),
            Unit::Microseconds => format!("{figure:.2} µs"),
        }
    }
}
