//! `weir bench out-of-core`: communication and computation that need more memory than there is (section VII-E of
//! "Designing MPI Library with On-Demand Paging (ODP) of InfiniBand: Challenges and Benefits").
//!
//! A process exchanges a buffer with its peer, and then computes over other memory. What both need is 100, 120 and
//! 140 % of what a cgroup lets it have; the computation needs 70 %. Registered on demand, the buffer leaves for the swap
//! file once it is not used; pinned, it stays, and the computation has too little.

mod interrupt;
mod limit;
mod report;
mod swap;

use super::MTU;
use super::odp::program::{self, Line, Memory, OutOfCore};
use crate::stage::{Child, Side, Stage};
use anyhow::{Context, Result, bail, ensure};
use interrupt::Interrupt;
use limit::Limit;
use report::{Ended, Report, Run};
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use swap::Swap;

const MIB: u64 = 1 << 20;
/// Memory for the buffers of both.
const MEMORY: u64 = 128 * MIB;
/// What the process needs beside them.
const BESIDE: u64 = 24 * MIB;
/// Share of the computation, percent.
const COMPUTATION: u64 = 70;
/// What is needed in all, percent.
const NEEDS: [u64; 3] = [100, 120, 140];
/// Work, for about eight seconds where nothing disturbs it: long enough for what leaves memory once not to count.
const PASSES: u32 = 24;
const WORK: u32 = 15;
/// A run that takes longer is ended.
const PATIENCE: Duration = Duration::from_secs(40);
/// The whole bench.
const BOUND: Duration = Duration::from_secs(115);
const TICK: Duration = Duration::from_millis(20);

/// Measures and prints.
pub fn run(json: bool, check: bool) -> Result<ExitCode> {
    ensure!(nix::unistd::geteuid().is_root(), "out-of-core needs root: it limits memory and adds a swap file");
    program::program()?;
    Interrupt::keep_on_closed_pipes()?;
    let measured = measure();
    // The swap file is gone: the process may end at its next write.
    Interrupt::let_pipes_end()?;
    let report = measured?;
    if json {
        println!("{:#}", serde_json::to_value(&report)?);
    } else {
        print!("{}", report.text());
    }
    Ok(if check && !report.holds() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// All runs. What is made outside of this process is gone when it returns.
fn measure() -> Result<Report> {
    let begun = Instant::now();
    // From here on Ctrl-C ends the loop below, and all that is made is taken back.
    let interrupt = Interrupt::watch()?;
    let stage = Stage::new(MTU)?;
    let limit = Limit::new(MEMORY + BESIDE).context("limiting memory")?;
    let swap = Swap::new(MEMORY + 64 * MIB).context("adding a swap file")?;
    tell(format_args!("{} MiB for buffers ({}), swap in {}", MEMORY / MIB, limit.describe(), swap.path()));
    let mut runs = vec![];
    for need in NEEDS {
        for memory in [Memory::Odp, Memory::Pinned] {
            let patience = PATIENCE.min(BOUND.saturating_sub(begun.elapsed()));
            let run = one(&stage, &limit, &interrupt, need, memory, patience)?;
            tell(format_args!("{need} %, {}: {}", report::name(memory), run.describe()));
            runs.push(run);
        }
    }
    Ok(Report { runs })
}

/// Says how far it is. `eprintln` would panic where standard error is closed.
fn tell(what: std::fmt::Arguments) {
    let _ = writeln!(std::io::stderr(), "weir bench out-of-core: {what}");
}

fn one(
    stage: &Stage,
    limit: &Limit,
    interrupt: &Interrupt,
    need: u64,
    memory: Memory,
    patience: Duration,
) -> Result<Run> {
    let (exchanged, computed) = (MEMORY * (need - COMPUTATION) / 100, MEMORY * COMPUTATION / 100);
    let how = if memory == Memory::Odp { "odp" } else { "pinned" };
    // The patience is the bench's, so that the program's own must not be shorter.
    let arguments = format!("-t 60 -m {how} -x {exchanged} -w {computed} -n {PASSES} -k {WORK} core");
    let (server, client) = program::start(stage, &arguments, |side, command| {
        if side == Side::B {
            limit.join(command);
        }
    })?;
    let (begun, killed) = (Instant::now(), limit.killed());
    let mut client = client;
    let mut swapped = 0;
    while client.poll()?.is_none() {
        swapped = swapped.max(swapped_out(&client).unwrap_or(0));
        if interrupt.came() {
            bail!("interrupted");
        }
        if begun.elapsed() > patience {
            drop((client, server));
            return Ok(Run { need, memory, swapped, ended: Ended::TooLong { seconds: patience.as_secs_f64() } });
        }
        std::thread::sleep(TICK);
    }
    let ended = client.wait(TICK)?;
    drop(server);
    let ended = if ended.status.success() {
        match program::parse(&ended.stdout)?.first() {
            Some(Line::OutOfCore(OutOfCore { wrong: true, .. })) => bail!("what was exchanged was damaged"),
            Some(Line::OutOfCore(times)) => Ended::Well {
                exchange: times.exchange,
                compute: times.compute - times.others,
                others: times.others,
                cpu: times.cpu,
                from_swap: times.from_swap,
            },
            _ => bail!("weir-odp printed no times"),
        }
    } else if limit.killed() > killed {
        Ended::Failed { why: "out of memory: the kernel killed it".into() }
    } else {
        Ended::Failed { why: format!("{}: {}", ended.status, ended.complaint()) }
    };
    Ok(Run { need, memory, swapped, ended })
}

/// Bytes of the program that are in swap now.
fn swapped_out(client: &Child) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", client.pid())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmSwap:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}
