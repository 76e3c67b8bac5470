//! `weir bench scale`: many processes on one machine. Pairs that all move bytes at once, against as many pairs of UCX
//! over TCP; and many processes that each open a device, connect a QP and exchange one message.

mod crowd;
mod pairs;
mod report;
mod wire;

use super::mtu::MTU;
use super::request::Request;
use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use pairs::{Pairs, Program};
use report::Figures;
use std::process::ExitCode;
use weir_stage::Stage;

/// Numbers of pairs.
const PAIRS: [usize; 4] = [1, 4, 16, 64];

/// Measures and prints the results. An error status if a run fails; there are no bars.
pub fn run(request: &Request<'_>) -> Result<ExitCode> {
    // Pairs run on whichever cores the kernel chooses: pinning to two would leave the other cores of a machine idle.
    let (apart, together) = (Stage::new(MTU)?.unpinned(), Stage::same_host()?.unpinned());
    for stage in [&apart, &together] {
        ensure!(stage.loopback_reason().is_none(), "weir bench scale needs network namespaces: {}", stage.describe());
    }
    let rounds = request.rounds.unwrap_or(if request.quick { 1 } else { 3 });
    eprintln!("weir bench scale: {}; {rounds} rounds", apart.describe());
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs {msg} (about {eta} left)");
    let runs = u64::from(rounds) * (2 * PAIRS.len() as u64 + 1);
    let bar = ProgressBar::new(runs).with_style(style.context("progress bar")?);
    let mut pairs = Pairs::new(&apart, if request.quick { 1.0 } else { 2.0 });
    let mut figures = Figures::default();
    for _ in 0..rounds {
        for count in PAIRS {
            for program in [Program::Weir, Program::Ucx] {
                bar.set_message(format!("{count} × {}", program.name()));
                figures.add_pairs(count, program, pairs.run(program, count));
                bar.inc(1);
            }
        }
        bar.set_message(format!("{} processes", crowd::PROCESSES));
        figures.add_crowd(crowd::run(&together));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let report = figures.report();
    if request.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.text());
    }
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
