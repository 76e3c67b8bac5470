//! `weir bench out-of-core`: communication and computation that need more memory than there is (section VII-E of
//! "Designing MPI Library with On-Demand Paging (ODP) of InfiniBand: Challenges and Benefits").
//!
//! A process exchanges a buffer with its peer, and then computes over other memory. Both together need 100, 120 and
//! 140 % of the memory that a cgroup allows; the computation alone needs 70 %. Registered on demand, the unused buffer
//! is swapped out; pinned, it stays in memory, and the computation has too little.

mod interrupt;
mod limit;
mod report;
mod swap;

use super::mtu::MTU;
use super::odp::program::{self, Line, Memory, OutOfCore};
use super::request::Request;
use anyhow::{Context, Result, bail, ensure};
use interrupt::Interrupt;
use limit::Limit;
use report::{Ended, Report, Run};
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use swap::Swap;
use weir_stage::{Child, Side, Stage};

const MIB: u64 = 1 << 20;
/// Memory for the buffers of the exchange and of the computation.
const MEMORY: u64 = 128 * MIB;
/// Memory that the process needs beside them.
const OVERHEAD: u64 = 24 * MIB;
/// Memory that the computation needs, percent of `MEMORY`.
const COMPUTATION: u64 = 70;
/// Memory that both need, percent of `MEMORY`.
const NEEDS: [u64; 3] = [100, 120, 140];
/// Work for about eight seconds on an idle machine: long enough that swapping the buffer out once does not matter.
const PASSES: u32 = 24;
const WORK: u32 = 15;
/// Time limit of a run.
const PATIENCE: Duration = Duration::from_secs(40);
/// Time limit of the bench.
const BOUND: Duration = Duration::from_secs(115);
const TICK: Duration = Duration::from_millis(20);

/// Measures and prints the report.
pub fn run(request: &Request<'_>) -> Result<ExitCode> {
    ensure!(nix::unistd::geteuid().is_root(), "out-of-core needs root: it limits memory and adds a swap file");
    program::program()?;
    Interrupt::block_sigpipe()?;
    let measured = measure();
    // The swap file is removed, so SIGPIPE may end the process.
    Interrupt::unblock_sigpipe()?;
    let report = measured?;
    if request.json {
        println!("{:#}", serde_json::to_value(&report)?);
    } else {
        print!("{}", report.text());
    }
    Ok(if request.check && !report.holds() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// All runs. The cgroup and the swap file are removed when it returns.
fn measure() -> Result<Report> {
    let begun = Instant::now();
    // With this, Ctrl-C ends the loop below, and the cgroup and the swap file are removed.
    let interrupt = Interrupt::watch()?;
    let stage = Stage::new(MTU)?;
    let limit = Limit::new(MEMORY + OVERHEAD).context("limiting memory")?;
    let swap = Swap::new(MEMORY + 64 * MIB).context("adding a swap file")?;
    print_progress(format_args!("{} MiB for buffers ({}), swap in {}", MEMORY / MIB, limit.describe(), swap.path()));
    let mut runs = vec![];
    for need in NEEDS {
        for memory in [Memory::Odp, Memory::Pinned] {
            let patience = PATIENCE.min(BOUND.saturating_sub(begun.elapsed()));
            let run = run_once(&stage, &limit, &interrupt, need, memory, patience)?;
            print_progress(format_args!("{need} %, {}: {}", report::name(memory), run.describe()));
            runs.push(run);
        }
    }
    Ok(Report { runs })
}

/// Prints progress. `eprintln` would panic if standard error is closed.
fn print_progress(what: std::fmt::Arguments) {
    let _ = writeln!(std::io::stderr(), "weir bench out-of-core: {what}");
}

fn run_once(
    stage: &Stage,
    limit: &Limit,
    interrupt: &Interrupt,
    need: u64,
    memory: Memory,
    patience: Duration,
) -> Result<Run> {
    let (exchanged, computed) = (MEMORY * (need - COMPUTATION) / 100, MEMORY * COMPUTATION / 100);
    let how = if memory == Memory::Odp { "odp" } else { "pinned" };
    // The bench ends the run after `patience`, so the program's own time limit (-t) is longer.
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
        if interrupt.is_set() {
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
        match program::parse::<Line>(&ended.stdout)?.first() {
            Some(Line::OutOfCore(OutOfCore { wrong: true, .. })) => bail!("exchanged bytes are wrong"),
            Some(Line::OutOfCore(times)) => Ended::Well {
                exchange: times.exchange,
                compute: times.compute - times.others,
                others: times.others,
                cpu: times.cpu,
                from_swap: times.from_swap,
            },
            _ => bail!("weir-odp printed no times; run `make build`, so that it has the version of this command"),
        }
    } else if limit.killed() > killed {
        Ended::Failed { why: "out of memory: the kernel killed the program".into() }
    } else {
        Ended::Failed { why: format!("{}: {}", ended.status, ended.last_lines()) }
    };
    Ok(Run { need, memory, swapped, ended })
}

/// Bytes of the client that are in swap now.
fn swapped_out(client: &Child) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", client.pid())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmSwap:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}
