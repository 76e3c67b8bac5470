//! `weir bench sweep`: every operation at every message size, pinned and unpinned, against UCX over TCP. It finds the
//! sizes between two fast ones that are slow.
//!
//! A run of all sizes takes long, and machines are slow for seconds now and then. So points that fall short of a bar are
//! measured again one by one, in turns with UCX. The median of all measurements counts: a point falls short if it does so
//! in most of them.

mod plan;
mod points;
mod report;

use super::mtu::MTU;
use super::peers::{self, Over};
use super::perftest::{self, Icrc, words};
use super::request::Request;
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use plan::{Plan, UcxRun, WeirRun};
use points::{Bar, Figures, Measured, Point};
use std::process::ExitCode;
use std::time::Duration;
use weir_stage::Stage;
use weir_stage::perftest::rows;

/// Time limit of a run of perftest with all sizes, which moves 34 GB.
const BOUND: Duration = Duration::from_secs(300);

/// Further rounds of a point that falls short. All rounds count.
const AGAIN: u32 = 2;

/// Measures and prints the results. With `--check`, it fails if a bar does not hold.
pub fn run(request: &Request<'_>) -> Result<ExitCode> {
    let pinned = Stage::new(MTU)?;
    let unpinned = pinned.unpinned();
    let plan = Plan::new(request.quick);
    let rounds = request.rounds.unwrap_or(if request.quick { 1 } else { 3 });
    eprintln!("weir bench sweep: {}; {rounds} rounds", pinned.describe());
    let stage = |is_pinned: bool| if is_pinned { &pinned } else { &unpinned };
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs {msg} (about {eta} left)");
    let bar = ProgressBar::new(u64::from(rounds) * plan.runs() as u64).with_style(style.context("progress bar")?);
    let mut figures = Figures::default();
    for _ in 0..rounds {
        for run in &plan.ucx {
            bar.set_message(run.to_string());
            figures.add_ucx(*run, measure_ucx(stage(run.pinned), run)?);
            bar.inc(1);
        }
        for run in &plan.weir {
            bar.set_message(run.to_string());
            for (size, measured) in measure_weir(stage(run.pinned), run)? {
                figures.add_weir(*run, size, measured)?;
            }
            bar.inc(1);
        }
    }
    let short: Vec<_> = figures.points(&plan).into_iter().filter(|point| !point.short.is_empty()).collect();
    bar.inc_length(u64::from(AGAIN) * short.len() as u64);
    for point in (0..AGAIN).flat_map(|_| &short) {
        bar.set_message(format!("{}, {} bytes, again", point.run, point.size));
        measure_again(&mut figures, stage(point.pinned), point)?;
        bar.inc(1);
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

/// Measures a point that falls short again: it alone, after UCX, or after the next smaller size.
fn measure_again(figures: &mut Figures, stage: &Stage, point: &Point) -> Result<()> {
    let Point { run, size, .. } = *point;
    if point.short.iter().any(|bar| *bar != Bar::Step) {
        for ucx in run.compared_with(size) {
            figures.add_ucx(ucx, measure_ucx(stage, &ucx)?);
        }
        for (_, measured) in measure_weir(stage, &run.with_size(size))? {
            figures.add_again(run, size, measured)?;
        }
    }
    if point.short.contains(&Bar::Step) {
        let smaller = measure_weir(stage, &run.with_size(size / 2))?;
        let larger = measure_weir(stage, &run.with_size(size))?;
        for ((_, smaller), (_, larger)) in smaller.into_iter().zip(larger) {
            figures.add_step(run, size, 2.0 * larger.figure / smaller.figure);
        }
    }
    Ok(())
}

/// Runs perftest once. Returns the figures of each size.
fn measure_weir(stage: &Stage, run: &WeirRun) -> Result<Vec<(usize, Measured)>> {
    let arguments = words(&format!("{} -n {}{}", run.sizes(), run.iterations, run.program.arguments()));
    let pair = perftest::run(stage, run.program.name(), Icrc::Auto, &arguments, BOUND)
        .with_context(|| format!("{run} failed"))?;
    rows(&pair.client.stdout).iter().map(|row| Ok((row.bytes as usize, Measured::of(row, run.program)?))).collect()
}

/// Runs `ucx_perftest` once. Returns messages per second, or for a latency seconds.
fn measure_ucx(stage: &Stage, run: &UcxRun) -> Result<f64> {
    let result =
        peers::ucx(stage, Over::Tcp, run.test, run.size, run.iterations).with_context(|| format!("{run} failed"))?;
    Ok(if run.is_latency() { result.median } else { result.messages })
}
