//! The command.

mod device;
mod open;
mod peer;
mod progress;

use crate::findings::{Findings, Subject};
use crate::places::{Here, Machine};
use crate::plan::Plan;
use crate::report::{self, Report};
use crate::search::{Search, Turn};
use crate::state::{self, State};
use crate::units;
use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use open::Opened;
use progress::Progress;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Arguments of `weir tune`.
#[derive(Args, Debug, Default)]
#[command(after_help = HELP)]
pub struct TuneArgs {
    /// Measure this device; `weir` is any of Weir's [default: the first one of the system, or Weir's if there is none]
    #[arg(long, short, value_name = "NAME")]
    pub device: Option<String>,
    /// The receiver runs on this host, started through ssh, or by you with `weir tune --serve`; without it both sides run here
    #[arg(long, value_name = "[USER@]HOST")]
    pub peer: Option<String>,
    /// The peer's device [default: as on this side]
    #[arg(long, value_name = "NAME", requires = "peer")]
    pub peer_device: Option<String>,
    /// The peer's weir command, if it is not in its PATH
    #[arg(long, value_name = "PATH", requires = "peer")]
    pub peer_weir: Option<String>,
    /// Both sides run here, each in a network namespace of its own, so that Weir's packets go through the kernel (root)
    #[arg(long, conflicts_with_all = ["peer", "device", "serve"])]
    pub namespaces: bool,
    /// Be the receiver for `weir tune --peer` on another host, until Ctrl-C
    #[arg(long, conflicts_with_all = ["peer", "quick", "budget", "sizes", "json", "html", "state", "fresh"])]
    pub serve: bool,
    /// Serve one sender only
    #[arg(long, requires = "serve")]
    pub once: bool,
    /// TCP port of the receiver, with --peer or --serve [default: 18516]
    #[arg(long, value_name = "N")]
    pub port: Option<u16>,
    /// Measure four sizes of messages with short runs, in less than two minutes
    #[arg(long)]
    pub quick: bool,
    /// Measure for this time at most, such as 90s or 10m [default: 10m, or 100s with --quick]
    #[arg(long, value_name = "TIME", value_parser = units::parse_time)]
    pub budget: Option<Duration>,
    /// Sizes of messages, such as 4K,64K,1M [default: powers of two from 32K to 64M]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = units::parse_size)]
    pub sizes: Vec<u64>,
    /// Print JSON instead of tables
    #[arg(long)]
    pub json: bool,
    /// Also write a page with tables and charts to this file
    #[arg(long, value_name = "OUT.html")]
    pub html: Option<PathBuf>,
    /// Keep results in this file; a run that was interrupted continues from it [default: below $XDG_STATE_HOME/weir/tune]
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Measure everything anew, whatever the file with results contains
    #[arg(long)]
    pub fresh: bool,
}

const HELP: &str = "\
A sender writes messages into a receiver's memory (RDMA WRITE with immediate data). weir tune varies how many messages are
outstanding, which work requests are signalled, how messages are aligned, whether the sides poll or sleep, and on which CPUs
they run. It prints the best settings for each size of messages, how much each setting matters, and what to set in perftest,
UCX, libfabric, MPI, NCCL and verbs programs. Nothing else should run on the machine meanwhile.";

/// After so many failures in a row nothing works any more.
const FAILURES: u32 = 20;

/// Runs `weir tune`. It fails if nothing can be measured.
pub fn run(args: TuneArgs) -> Result<ExitCode> {
    if args.serve {
        return open::serve(&args);
    }
    if let Some(path) = &args.html {
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        ensure!(!path.is_dir() && folder.is_dir(), "--html {}: name a file in a folder that exists", path.display());
    }
    let report = Report::of(tune(&args, open::open)?);
    if args.json {
        println!("{}", report.json()?);
    } else {
        print!("{}", report::text(&report));
    }
    if let Some(path) = &args.html {
        fs::write(path, report::page(&report)).with_context(|| format!("--html {}", path.display()))?;
        eprintln!("weir: the report is in {}: open it in a browser", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures what the file with results lacks.
fn tune(args: &TuneArgs, open: impl FnOnce(&TuneArgs) -> Result<Opened>) -> Result<Findings> {
    let (device, peer) = (args.device.clone(), args.peer.clone());
    let subject = Subject { device, peer, quick: args.quick, ..Subject::default() };
    let path = args.state.clone().or_else(|| state::default_path(&subject));
    let mut new = State::new(subject, Search::new(plan(args)));
    let before = match &path {
        Some(path) if !args.fresh => State::load(path)?,
        _ => None,
    };
    let same = before.filter(|before| before.is_of(&new.subject, &new.search));
    if args.state.is_some() && !args.fresh && same.is_none() {
        let other = path.as_deref().filter(|path| path.exists());
        if let Some(other) = other {
            return Err(anyhow!(
                "--state {}: the file is of other options; add --fresh to replace it",
                other.display()
            ));
        }
    }
    if let Some(State { subject, search, .. }) = same.as_ref().filter(|same| same.search.finished()) {
        let path = path.as_deref().unwrap_or(Path::new("")).display();
        eprintln!("weir: these results were measured before, and kept in {path}; --fresh measures again");
        return Ok(Findings::of(search, subject.clone()));
    }
    let mut opened = open(args)?;
    (new.subject.adapter, new.subject.weir) = (opened.adapter.clone(), opened.weir);
    // Without --device, the first device may be another one now.
    let mut state = same.filter(|same| same.subject == new.subject).unwrap_or(new);
    if state.search.runs > 0 {
        eprintln!("weir: continuing after {} runs; --fresh begins anew", state.search.runs);
    }
    measure(&mut state, &mut opened, path.as_deref())?;
    Ok(Findings::of(&state.search, state.subject))
}

/// Runs the search to its end. Each result is in the file before the next job begins.
fn measure(state: &mut State, opened: &mut Opened, path: Option<&Path>) -> Result<()> {
    let mut progress = Progress::new(&state.search);
    let mut failed: Vec<String> = vec![];
    while let Some(turn) = state.search.next() {
        progress.begin(&turn, state.search.left());
        let began = Instant::now();
        let result = opened.measure.measure(&turn.job).map_err(|error| format!("{error:#}"));
        let took = began.elapsed().as_secs_f64();
        match &result {
            Ok(_) => failed.clear(),
            Err(why) => {
                progress.print(&failure(&turn, why));
                failed.push(why.clone());
            }
        }
        state.search.record(&turn, result, took);
        progress.done(&state.search);
        ensure!(failed.len() < FAILURES as usize, "{FAILURES} runs in a row failed, the first because: {}", failed[0]);
        // Failures are kept only if a run succeeds after them: a peer that is gone is back in the next run.
        if failed.is_empty() || state.search.finished() {
            save(state, path)?;
        }
    }
    progress.end();
    if let Some(why) = state.search.failure() {
        return Err(anyhow!("nothing could be measured: {why}"));
    }
    save(state, path)
}

fn save(state: &State, path: Option<&Path>) -> Result<()> {
    path.map_or(Ok(()), |path| state.save(path))
}

fn failure(turn: &Turn, why: &str) -> String {
    format!("weir: {} with messages of {}: {why}", turn.name, units::size(turn.job.size))
}

fn plan(args: &TuneArgs) -> Plan {
    let here = if args.peer.is_some() { Here::Sender } else { Here::Both };
    let places = Machine::here(args.device.as_deref()).placements(here);
    let mut plan = if args.quick { Plan::quick(places) } else { Plan::full(places) };
    if !args.sizes.is_empty() {
        plan = plan.with_sizes(args.sizes.clone(), args.quick);
    }
    args.budget.map_or(plan.clone(), |budget| plan.with_budget(budget))
}

#[cfg(test)]
mod tests;
