//! Other programs that move bytes between two hosts: iperf3 over TCP, and UCX over TCP, shared memory or Weir.

use super::under_weir;
use anyhow::{Context, Result};
use std::process::Command;
use std::time::Duration;
use weir_stage::{Child, Protocol, Side, Stage, iperf, locate, pair};

/// Time limit of a run of UCX.
const BOUND: Duration = Duration::from_secs(120);
/// Time limit for its server to listen.
const START: Duration = Duration::from_secs(15);

/// The result of iperf3 with writes of 1 MiB.
pub struct Iperf3 {
    /// Received bytes per second.
    pub rate: f64,
    /// User and system time of both processes, seconds per received byte.
    pub cpu_per_byte: f64,
}

/// What carries the messages of UCX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Over {
    /// RC on Weir's device, and nothing else.
    Weir,
    /// TCP, for UCX with a lane on each link of the stage.
    Tcp,
    /// Memory that two processes of one host share, and copies by the kernel from one process to the other.
    SharedMemory,
}

impl Over {
    /// Its short name.
    pub fn name(self) -> &'static str {
        match self {
            Over::Weir => "weir",
            Over::Tcp => "tcp",
            Over::SharedMemory => "shm",
        }
    }

    /// Environment variables of UCX that choose it.
    pub fn variables(self, stage: &Stage) -> Vec<(&'static str, String)> {
        match self {
            Over::Weir => vec![("UCX_TLS", "rc,self".into()), ("UCX_NET_DEVICES", format!("{}:1", stage.device()))],
            Over::Tcp => {
                let mut variables = vec![("UCX_TLS", "tcp".into())];
                if let Some(names) = stage.link_names() {
                    let lanes = names.split(',').count().to_string();
                    variables.push(("UCX_MAX_EAGER_RAILS", lanes.clone()));
                    variables.push(("UCX_MAX_RNDV_RAILS", lanes));
                    variables.push(("UCX_NET_DEVICES", names));
                } else {
                    variables.push(("UCX_NET_DEVICES", stage.interface().into()));
                }
                variables
            }
            Over::SharedMemory => vec![("UCX_TLS", "posix,sysv,cma,self".into())],
        }
    }
}

/// A server of `ucx_perftest` that listens, and the command of its client.
pub struct Prepared {
    pub server: Child,
    pub client: Command,
}

/// The result of `ucx_perftest`.
pub struct Ucx {
    /// Median one-way time of a message, seconds (a latency only in latency tests).
    pub median: f64,
    /// Mean one-way time of a message, seconds.
    pub mean: f64,
    /// Messages per second.
    pub messages: f64,
}

/// One TCP stream for `seconds`, rounded up: iperf3 takes whole seconds, and 0 means without end.
pub fn iperf3(stage: &Stage, seconds: f64) -> Result<Iperf3> {
    let run = iperf::run(stage, seconds.ceil().max(1.0) as u32, 1 << 20)?;
    let cpu_per_byte = run.outcome.cpu().as_secs_f64() / run.bytes as f64;
    Ok(Iperf3 { rate: run.gigabytes * 1e9, cpu_per_byte })
}

/// Runs a test of `ucx_perftest`, for example `tag_bw` or `tag_lat`.
pub fn ucx(stage: &Stage, over: Over, test: &str, size: usize, iterations: u64) -> Result<Ucx> {
    let pair = prepare_ucx(stage, over, test, size, iterations)?;
    let (server, mut client) = (pair.server, pair.client);
    let client = Child::spawn(&mut client, "ucx_perftest (client)")?;
    parse_ucx(&pair::finish(server, client, BOUND)?.success()?.client.stdout)
}

/// Iterations of `ucx_perftest` before those that count.
pub fn warm_up(iterations: u64) -> u64 {
    (iterations / 20).max(10)
}

/// Starts the server of a test on side A, and makes the client's command for side B.
pub fn prepare_ucx(stage: &Stage, over: Over, test: &str, size: usize, iterations: u64) -> Result<Prepared> {
    let (program, port) = (locate("ucx_perftest")?, stage.free_port(Side::A)?);
    let command = |side| -> Result<Command> {
        let mut command = match over {
            Over::Weir => under_weir::command(stage, side, &program)?,
            Over::Tcp | Over::SharedMemory => stage.command(side, &program),
        };
        command.envs(over.variables(stage)).env("UCX_LOG_LEVEL", "error");
        command.args(["-p", &port.to_string()]);
        Ok(command)
    };
    let mut client = command(Side::B)?;
    client.arg(stage.address(Side::A).to_string());
    let arguments = format!("-t {test} -s {size} -n {iterations} -w {} -f -v", warm_up(iterations));
    client.args(arguments.split_whitespace());
    let mut server = Child::spawn(&mut command(Side::A)?, "ucx_perftest (server)")?;
    server.wait_listening(Protocol::Tcp, port, START)?;
    Ok(Prepared { server, client })
}

fn parse_ucx(output: &str) -> Result<Ucx> {
    // iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
    let numbers = |line: &str| line.split(',').map(|f| f.trim().parse()).collect::<Result<Vec<f64>, _>>().ok();
    let row = output.lines().rev().filter_map(numbers).find(|row| row.len() == 8);
    let row = row.with_context(|| format!("ucx_perftest printed no figures: {output}"))?;
    Ok(Ucx { median: row[1] / 1e6, mean: row[3] / 1e6, messages: row[7] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ucx_figures_are_read() {
        let got = parse_ucx(
            "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
             200000,4.417,4.405,4.411,886.85,886.85,227033,227033\n",
        )
        .unwrap();
        assert!((got.median - 4.417e-6).abs() < 1e-12 && got.messages == 227033.0);
        assert!((got.mean - 4.411e-6).abs() < 1e-12);
        assert!(parse_ucx("[error] no such device\n").is_err());
    }
}
