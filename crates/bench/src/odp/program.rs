//! Runs `weir-odp`, Weir's C program that measures paging, and parses its output.

use crate::under_weir;
use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use weir_stage::{Child, Protocol, Side, Stage, pair};

const START: Duration = Duration::from_secs(10);
const BOUND: Duration = Duration::from_secs(180);

/// How memory was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Memory {
    Pinned,
    Odp,
}

/// The sides that prefetched their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Prefetch {
    None,
    Sender,
    Receiver,
    Both,
}

/// A line of its output. Times are in microseconds, rates in bytes per second.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "what")]
pub enum Line {
    #[serde(rename = "warm latency")]
    WarmLatency { bytes: u64, memory: Memory, value: f64 },
    #[serde(rename = "warm throughput")]
    WarmThroughput { bytes: u64, memory: Memory, value: f64 },
    #[serde(rename = "cold")]
    Cold(Cold),
    #[serde(rename = "latency")]
    Latency { memory: Memory, bytes: u64, average: f64, first: f64, median: f64, faults: i64 },
    #[serde(rename = "bandwidth")]
    Bandwidth { memory: Memory, bytes: u64, value: f64 },
    #[serde(rename = "iteration")]
    Iteration { memory: Memory, number: u64, value: f64 },
    #[serde(rename = "prefetch")]
    PrefetchCost { bytes: u64, waits: bool, average: f64, first: f64 },
    #[serde(rename = "sides")]
    Sides { prefetch: Prefetch, bytes: u64, value: f64 },
    #[serde(rename = "out of core")]
    OutOfCore(OutOfCore),
}

/// Accesses to single pages, medians in microseconds.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Cold {
    pub raw_write: f64,
    pub raw_read: f64,
    pub receiver: f64,
    pub warm_receiver: f64,
    pub sender: f64,
    pub warm_sender: f64,
    pub prefetched: f64,
}

/// A run in less memory than it needs, seconds.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct OutOfCore {
    /// Time of the exchange.
    pub exchange: f64,
    /// Time of the computation, `others` included.
    pub compute: f64,
    /// Part of `compute` in which the process waited for a core that other processes used.
    pub others: f64,
    /// Part of `compute` that is user and system time.
    pub cpu: f64,
    /// Pages that the computation read from swap.
    pub from_swap: u64,
    /// Whether received bytes differ from the sent ones.
    pub wrong: bool,
}

/// The path of `weir-odp`; an error if it is not built.
pub fn program() -> Result<PathBuf> {
    let program = weir_stage::library_folder()?.join("weir-odp");
    ensure!(program.is_file(), "{} is not built: run `make build`", program.display());
    Ok(program)
}

/// Runs server and client in a mode to their end, and returns the client's lines.
pub fn run<L: DeserializeOwned>(stage: &Stage, mode: &str, rounds: u32, factor: f64) -> Result<Vec<L>> {
    let arguments = format!("-r {rounds} -f {factor} {mode}");
    let (server, client) = start(stage, &arguments, |_, _| ())?;
    let ended = pair::finish(server, client, BOUND)?.success()?;
    parse(&ended.client.stdout)
}

/// Parses the output of `weir-odp`: lines of a kind ([`Line`], or that of the model).
pub fn parse<L: DeserializeOwned>(stdout: &str) -> Result<Vec<L>> {
    stdout
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("weir-odp printed `{line}`")))
        .collect()
}

/// Starts a server on A and a client on B under `weir run`, each changed by `prepare` before it starts.
pub fn start(stage: &Stage, arguments: &str, mut prepare: impl FnMut(Side, &mut Command)) -> Result<(Child, Child)> {
    let program = program()?;
    let port = stage.free_port(Side::A)?;
    let mut command = |side: Side| -> Result<Command> {
        let mut command = under_weir::command(stage, side, &program)?;
        command.args(["-d", &stage.device(), "-p", &port.to_string()]);
        command.args(arguments.split_whitespace());
        prepare(side, &mut command);
        Ok(command)
    };
    let mut server = Child::spawn(&mut command(Side::A)?, "weir-odp (server)")?;
    server.wait_listening(Protocol::Tcp, port, START)?;
    let client = Child::spawn(command(Side::B)?.arg(stage.address(Side::A).to_string()), "weir-odp (client)")?;
    Ok((server, client))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_line_is_read() {
        let text = r#"{"what":"warm latency","bytes":8,"memory":"odp","round":0,"value":5.63}
{"what":"cold","round":0,"raw_write":2.0,"raw_read":0.8,"receiver":10.9,"warm_receiver":10.3,"sender":10.5,"warm_sender":10.3,"prefetched":10.7}
{"what":"latency","memory":"pinned","bytes":1,"average":2.1,"first":9.0,"median":2.0,"faults":-1}
{"what":"prefetch","bytes":2,"waits":true,"average":1.5,"first":3.0}
{"what":"sides","prefetch":"both","bytes":2,"value":9.1}
{"what":"out of core","memory":"odp","exchange":0.1,"compute":7.3,"others":0.2,"cpu":7.0,"from_swap":12,"wrong":false}"#;
        let lines: Vec<Line> = parse(text).unwrap();
        assert!(matches!(lines[0], Line::WarmLatency { bytes: 8, memory: Memory::Odp, .. }));
        assert!(matches!(lines[2], Line::Latency { faults: -1, .. }));
        assert!(matches!(lines[4], Line::Sides { prefetch: Prefetch::Both, .. }));
        assert!(parse::<Line>("verify: no\n").is_err());
    }
}
