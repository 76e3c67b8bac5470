//! `weir bench out-of-core`: communication and computation that need more memory than there is (section VII-E of
//! "Designing MPI Library with On-Demand Paging (ODP) of InfiniBand: Challenges and Benefits").
//!
//! A process exchanges a buffer with its peer, and then computes over other memory. Both together need 100, 120 and
//! 140 % of the memory that a cgroup allows; the computation alone needs 70 %. Registered on demand, the unused buffer
//! is swapped out; pinned, it stays in memory, and the computation has too little. The process exchanges it by verbs, and then
//! by MPI over `weir-odp`, where the pin-down cache keeps it pinned.

mod interrupt;
mod limit;
mod program;
mod report;
mod swap;

use super::mtu::MTU;
use super::odp::program::{self as odp, Line, Memory, OutOfCore};
use super::request::Request;
use anyhow::{Context, Result, bail, ensure};
use interrupt::Interrupt;
use limit::Limit;
use program::{Need, Way};
use report::{Ended, Report, Run};
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use swap::Swap;
use weir_stage::{Stage, missing};

const MIB: u64 = 1 << 20;
/// Memory for the buffers of the exchange and of the computation.
const MEMORY: u64 = 128 * MIB;
/// Memory that the computation needs, percent of `MEMORY`.
const COMPUTATION: u64 = 70;
/// Memory that both need, percent of `MEMORY`.
const NEEDS: [u64; 3] = [100, 120, 140];
/// Time limit of a run.
const PATIENCE: Duration = Duration::from_secs(40);
/// Time limit of the runs by verbs, and of those by MPI.
const BOUND: Duration = Duration::from_secs(115);
const TICK: Duration = Duration::from_millis(20);
/// What the user can name, and what it is.
const WAYS: [(&str, &str); 2] = [("verbs", "READs of weir-odp"), ("mpi", "messages of Open MPI over weir-odp")];

/// The names of the ways to exchange the buffer, for `--list`.
pub fn ways() -> Vec<(&'static str, &'static str)> {
    WAYS.to_vec()
}

/// Measures and prints the report.
pub fn run(request: &Request<'_>) -> Result<ExitCode> {
    ensure!(nix::unistd::geteuid().is_root(), "out-of-core needs root: it limits memory and adds a swap file");
    if let Some(unknown) = request.names.iter().find(|name| !WAYS.iter().any(|(way, _)| way == name)) {
        bail!("out-of-core runs by verbs or by mpi, not by {unknown}");
    }
    odp::program()?;
    let ways = chosen(request.names)?;
    Interrupt::block_sigpipe()?;
    let measured = measure(&ways);
    // The swap file is removed, so SIGPIPE may end the process.
    Interrupt::unblock_sigpipe()?;
    let reports = measured?;
    if request.json {
        println!("{:#}", serde_json::to_value(&reports)?);
    } else {
        print!("{}", reports.iter().map(Report::text).collect::<Vec<_>>().join("\n"));
    }
    let holds = reports.iter().all(Report::holds);
    Ok(if request.check && !holds { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What the user wants to run, and what can run here.
fn chosen(names: &[String]) -> Result<Vec<Way>> {
    let named = |way: &str| names.iter().any(|name| name == way);
    let mut ways = vec![];
    if names.is_empty() || named("verbs") {
        ways.push(Way::Verbs);
    }
    let packages = missing(["mpirun.openmpi", "mpicc.openmpi", "unshare", "nsenter", "taskset"]);
    if packages.is_empty() && (names.is_empty() || named("mpi")) {
        ways.push(Way::mpi()?);
    } else if !packages.is_empty() {
        ensure!(!named("mpi"), "Open MPI is not installed: apt install {}", packages.join(" "));
        print_progress(format_args!("without MPI: apt install {}", packages.join(" ")));
    }
    Ok(ways)
}

/// All runs. The cgroups and the swap file are removed when it returns.
fn measure(ways: &[Way]) -> Result<Vec<Report>> {
    // With this, Ctrl-C ends the loop below, and the cgroup and the swap file are removed.
    let interrupt = Interrupt::watch()?;
    let stage = Stage::new(MTU)?;
    let swap = Swap::new(MEMORY + 64 * MIB).context("adding a swap file")?;
    print_progress(format_args!("{} MiB for buffers, swap in {}", MEMORY / MIB, swap.path()));
    let mut reports = vec![];
    for way in ways {
        let (begun, limit) = (Instant::now(), Limit::new(MEMORY + way.overhead()).context("limiting memory")?);
        let mut runs = vec![];
        for need in NEEDS {
            for memory in [Memory::Odp, Memory::Pinned] {
                let patience = PATIENCE.min(BOUND.saturating_sub(begun.elapsed()));
                let run = run_once(&stage, &limit, &interrupt, way, need, memory, patience)?;
                let (name, ended) = (report::name(memory), run.describe());
                print_progress(format_args!("{}, {}: {need} %, {name}: {ended}", way.name(), limit.describe()));
                runs.push(run);
            }
        }
        reports.push(Report { way: way.name(), runs });
    }
    Ok(reports)
}

/// Prints progress. `eprintln` would panic if standard error is closed.
fn print_progress(what: std::fmt::Arguments) {
    let _ = writeln!(std::io::stderr(), "weir bench out-of-core: {what}");
}

fn run_once(
    stage: &Stage,
    limit: &Limit,
    interrupt: &Interrupt,
    way: &Way,
    need: u64,
    memory: Memory,
    patience: Duration,
) -> Result<Run> {
    let bytes = Need { exchanged: MEMORY * (need - COMPUTATION) / 100, computed: MEMORY * COMPUTATION / 100 };
    let mut running = way.start(stage, limit, bytes, memory)?;
    let (begun, killed) = (Instant::now(), limit.killed());
    let mut swapped = 0;
    while running.child.poll()?.is_none() {
        swapped = swapped.max(limit.swapped());
        if interrupt.is_set() {
            bail!("interrupted");
        }
        if begun.elapsed() > patience {
            drop(running);
            return Ok(Run { need, memory, swapped, ended: Ended::TooLong { seconds: patience.as_secs_f64() } });
        }
        std::thread::sleep(TICK);
    }
    let ended = running.child.wait(TICK)?;
    drop(running.peer);
    let ended = if ended.status.success() {
        match odp::parse::<Line>(&ended.stdout)?.first() {
            Some(Line::OutOfCore(OutOfCore { wrong: true, .. })) => bail!("exchanged bytes are wrong"),
            Some(Line::OutOfCore(times)) => Ended::Well {
                exchange: times.exchange,
                compute: times.compute - times.others,
                others: times.others,
                cpu: times.cpu,
                from_swap: times.from_swap,
            },
            _ => bail!("the program printed no times; run `make build`, so that it has the version of this command"),
        }
    } else if limit.killed() > killed {
        Ended::Failed { why: "out of memory: the kernel killed the program".into() }
    } else {
        Ended::Failed { why: format!("{}: {}", ended.status, ended.last_lines()) }
    };
    Ok(Run { need, memory, swapped, ended })
}
