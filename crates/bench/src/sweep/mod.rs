//! `weir bench sweep`: every operation at every message size, pinned and unpinned, against UCX over TCP. It finds the
//! sizes between two fast ones that are slow.

mod plan;
mod points;
mod report;

use super::peers;
use super::perftest::{self, Icrc, words};
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use plan::{Ours, Plan, Theirs};
use points::Figures;
use std::process::ExitCode;
use std::time::Duration;
use weir_stage::Stage;
use weir_stage::perftest::rows;

/// Options of a run.
pub struct Request {
    pub quick: bool,
    pub rounds: Option<u32>,
    pub json: bool,
    pub check: bool,
}

/// Time limit of a run of perftest with all sizes, which moves 34 GB.
const BOUND: Duration = Duration::from_secs(300);

/// Measures and prints the results. With `--check`, it fails if a bar does not hold.
pub fn run(stage: &Stage, request: &Request) -> Result<ExitCode> {
    let plan = Plan::new(request.quick);
    let rounds = request.rounds.unwrap_or(if request.quick { 1 } else { 3 });
    eprintln!("weir bench sweep: {}; {rounds} rounds", stage.describe());
    let unpinned = stage.unpinned();
    let stage = |pinned: bool| if pinned { stage } else { &unpinned };
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs {msg} (about {eta} left)");
    let bar = ProgressBar::new(u64::from(rounds) * plan.runs() as u64).with_style(style.context("progress bar")?);
    let mut figures = Figures::default();
    for _ in 0..rounds {
        for theirs in &plan.theirs {
            bar.set_message(theirs.to_string());
            figures.add_theirs(*theirs, measure_theirs(stage(theirs.pinned), theirs)?);
            bar.inc(1);
        }
        for ours in &plan.ours {
            bar.set_message(ours.to_string());
            for (size, figure) in measure_ours(stage(ours.pinned), ours)? {
                figures.add_ours(*ours, size, figure);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let report = report::Report::new(&plan, &figures);
    if request.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.text());
    }
    Ok(if request.check && !report.holds() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Runs perftest once. Returns the figure of each size.
fn measure_ours(stage: &Stage, ours: &Ours) -> Result<Vec<(usize, points::Ours)>> {
    let sizes = ours.size.map_or("-a".to_owned(), |size| format!("-s {size}"));
    let arguments = words(&format!("{sizes} -n {}{}", ours.iterations, ours.program.arguments()));
    let pair = perftest::run(stage, ours.program.name(), Icrc::Auto, &arguments, BOUND)
        .with_context(|| format!("{ours} failed"))?;
    let figure = |row: &weir_stage::perftest::Row| Ok((row.bytes as usize, points::Ours::of(row, ours.program)?));
    rows(&pair.client.stdout).iter().map(figure).collect()
}

/// Runs `ucx_perftest` once. Returns messages per second, or for a latency seconds.
fn measure_theirs(stage: &Stage, theirs: &Theirs) -> Result<f64> {
    let result =
        peers::ucx(stage, theirs.test, theirs.size, theirs.iterations).with_context(|| format!("{theirs} failed"))?;
    Ok(if theirs.is_latency() { result.median } else { result.messages })
}
