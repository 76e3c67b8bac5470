//! The command.

mod args;
mod device;
mod open;
mod peer;
mod progress;

pub use args::TuneArgs;

use crate::findings::{Findings, Subject};
use crate::places::{Here, Machine};
use crate::plan::Plan;
use crate::report::{self, Report};
use crate::search::{Search, Turn};
use crate::state::{self, State};
use crate::units;
use anyhow::{Context, Result, anyhow, ensure};
use open::Opened;
use progress::Progress;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use weir_lab::stream::Found;
use weir_lab::stream::session::Refused;

/// After so many failures in a row, refused jobs aside, nothing works any more.
const FAILURES: usize = 5;

/// Runs `weir tune`. It fails if nothing can be measured.
pub fn run(args: TuneArgs) -> Result<ExitCode> {
    if args.serve {
        return open::serve(&args);
    }
    ensure!(args.port.is_none() || args.peer.is_some(), "--port: without --peer or --serve, a port is chosen");
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
    let subject = Subject {
        device: args.device.clone(),
        peer: args.peer.clone(),
        peer_device: args.peer_device.clone(),
        namespaces: args.namespaces,
        quick: args.quick,
        ..Subject::default()
    };
    let path = args.state.clone().or_else(|| state::default_path(&subject));
    let mut new = State::new(subject, Search::new(plan(args)));
    let load = |path: Option<&Path>| match path {
        Some(path) if !args.fresh => State::load(path),
        _ => Ok(None),
    };
    // Results of a run that is not complete have a file of their own, so that those of the last complete run stay.
    let part = path.as_deref().map(state::part);
    let of_these = |before: &State| before.is_of(&new.subject, &new.search);
    let complete = load(path.as_deref())?.filter(of_these).filter(|complete| complete.search.finished());
    let begun = load(part.as_deref())?.filter(of_these);
    let shown = path.as_deref().unwrap_or(Path::new("")).display();
    if args.show {
        let state = complete.with_context(|| format!("there is no complete run with these options in {shown}"))?;
        return Ok(Findings::of(&state.search, state.subject));
    }
    if let Some(path) = path.as_deref().filter(|path| !args.fresh && complete.is_none() && path.exists()) {
        let path = path.display();
        ensure!(args.state.is_none(), "--state {path}: it has no results of these options; add --fresh to replace it");
        eprintln!("weir: the results in {path} are of other options; they are replaced");
    }
    let mut opened = open(args)?;
    (new.subject.adapter, new.subject.weir) = (opened.adapter.clone(), opened.weir);
    // Without --device, the first device may be another one now.
    let mut state = begun.filter(|begun| begun.subject == new.subject).unwrap_or(new);
    if state.search.runs > 0 {
        eprintln!("weir: continuing after {} runs; --fresh begins anew", state.search.runs);
    }
    measure(&mut state, &mut opened, part.as_deref())?;
    if let Some((part, path)) = part.zip(path) {
        fs::rename(&part, &path).with_context(|| path.display().to_string())?;
    }
    Ok(Findings::of(&state.search, state.subject))
}

/// Runs the search to its end. Each result is in the file before the next job begins.
fn measure(state: &mut State, opened: &mut Opened, path: Option<&Path>) -> Result<()> {
    let mut progress = Progress::new(&state.search);
    let mut failed: Vec<String> = vec![];
    while let Some(turn) = state.search.next() {
        progress.begin(&turn, state.search.left());
        let began = Instant::now();
        let result = opened.measure.measure(&turn.job);
        let took = began.elapsed().as_secs_f64();
        // The pair works: it has refused one job.
        let refused = result.as_ref().is_err_and(|error| error.is::<Refused>());
        let result = result.map_err(|error| format!("{error:#}")).and_then(intact);
        match &result {
            Ok(_) => failed.clear(),
            Err(why) => {
                progress.print(&failure(&turn, why));
                if refused {
                    failed.clear();
                } else {
                    failed.push(why.clone());
                }
            }
        }
        state.search.record(&turn, result, took);
        progress.done(&state.search);
        ensure!(failed.len() < FAILURES, "{FAILURES} runs in a row failed, the first because: {}", failed[0]);
        // Failures are kept only if a run succeeds after them: a peer that is gone is back in the next run.
        if failed.is_empty() {
            save(state, path)?;
        }
    }
    progress.end();
    if let Some(why) = state.search.failure() {
        return Err(anyhow!("nothing could be measured: {why}"));
    }
    save(state, path)
}

/// A result without wrong bytes.
fn intact(found: Found) -> Result<Found, String> {
    if found.wrong > 0 { Err(format!("{} of {} bytes are wrong", found.wrong, found.checked)) } else { Ok(found) }
}

fn save(state: &State, path: Option<&Path>) -> Result<()> {
    path.map_or(Ok(()), |path| state.save(path))
}

fn failure(turn: &Turn, why: &str) -> String {
    format!("weir: {} with messages of {}: {why}", turn.name, units::size(turn.job.size))
}

fn plan(args: &TuneArgs) -> Plan {
    let here = if args.peer.is_some() { Here::Sender } else { Here::Both };
    let device = args.device.clone().filter(|name| name != device::SYSTEM).or_else(device::first_of_system);
    let places = Machine::here(device.as_deref()).placements(here);
    let mut plan = if args.quick { Plan::quick(places) } else { Plan::full(places) };
    if !args.sizes.is_empty() {
        plan = plan.with_sizes(args.sizes.clone(), args.quick);
    }
    args.budget.map_or(plan.clone(), |budget| plan.with_budget(budget))
}

#[cfg(test)]
mod tests;
