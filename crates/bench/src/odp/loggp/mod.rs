//! `weir bench odp --loggp`: the LogGP model as "Designing MPI Library with On-Demand Paging (ODP) of InfiniBand:
//! Challenges and Benefits" extends it (sections IV to VI): its parameters on this adapter, and what its equations predict
//! for messages, beside the times of the same messages between two processes.
//!
//! `weir-odp` in its mode `loggp` measures and sends. Parameters and messages of a size are measured in turns, because
//! the machine changes over time.

mod lines;
mod model;
mod observations;
mod results;
mod shown;

use super::program;
use crate::busy;
use crate::mtu::MTU;
use crate::request::Request;
use anyhow::{Context, Result};
use lines::Line;
use results::Results;
use std::process::ExitCode;
use weir_stage::{Side, Stage};

/// Measures, prints the results, and draws the figures.
pub fn run(request: &Request<'_>) -> Result<ExitCode> {
    let stage = Stage::new(MTU)?;
    let rounds = request.rounds.unwrap_or(if request.quick { 3 } else { 9 });
    let factor = if request.quick { 0.25 } else { 1.0 };
    eprintln!("weir bench odp --loggp: {}; {rounds} rounds", stage.describe());
    let busy = busy::note([stage.core(Side::A), stage.core(Side::B)]);
    let lines: Vec<Line> = program::run(&stage, "loggp", rounds, factor)?;
    let results = Results::of(&lines);
    if request.json {
        let mut all = results.json();
        all["observations"] = serde_json::to_value(results.observations())?;
        all["stage"] = stage.describe().into();
        all["rounds"] = rounds.into();
        all["note"] = busy.into();
        println!("{all:#}");
    } else {
        println!("{}; {rounds} rounds", stage.describe());
        busy.iter().for_each(|busy| println!("{busy}"));
        print!("\n{}", results.text());
    }
    if let Some(path) = request.svg {
        std::fs::write(path, results.svg()).with_context(|| format!("--svg {}", path.display()))?;
        eprintln!("weir bench odp --loggp: figures in {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}
