//! `weir bench odp`: on-demand paging against pinned memory, cold pages against the processor's own first touch, and
//! the verbs-level figures of "Designing MPI Library with On-Demand Paging (ODP) of InfiniBand: Challenges and
//! Benefits", section III. With `--loggp`, the model of the same paper.

mod figures;
mod loggp;
mod observation;
pub mod program;
mod rows;

use super::busy;
use super::mtu::MTU;
use super::request::Request;
use super::table::{self, Outcome};
use anyhow::{Context, Result};
use figures::Figures;
use program::Line;
use std::process::ExitCode;
use weir_stage::{Side, Stage};

/// Measures, prints the results, and draws the figures.
pub fn run(request: &Request<'_>) -> Result<ExitCode> {
    if request.loggp {
        return loggp::run(request);
    }
    let stage = Stage::new(MTU)?;
    let rounds = request.rounds.unwrap_or(if request.quick { 3 } else { 9 });
    let factor = if request.quick { 0.1 } else { 1.0 };
    eprintln!("weir bench odp: {}; {rounds} rounds", stage.describe());
    let cores = [stage.core(Side::A), stage.core(Side::B)];
    let busy = busy::note(cores);
    let mut lines: Vec<Line> = vec![];
    for mode in ["warm", "cold", "figures"] {
        eprintln!("weir bench odp: {mode}");
        lines.extend(program::run(&stage, mode, rounds, factor)?);
    }
    let mut outcomes = rows::outcomes(&lines);
    let loopback = stage.loopback_reason().map(|reason| format!("on loopback: {reason}"));
    let note = loopback.into_iter().chain(busy).reduce(|a, b| format!("{a}; {b}"));
    outcomes.iter_mut().for_each(|outcome| outcome.note = note.clone());
    let figures = Figures::of(&lines);
    show(request, &outcomes, &figures)?;
    let short = outcomes.iter().any(|outcome| outcome.holds == Some(false));
    Ok(if request.check && short { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn show(request: &Request<'_>, outcomes: &[Outcome], figures: &Figures) -> Result<()> {
    if request.json {
        let all = serde_json::json!({
            "rows": outcomes, "figures": figures, "observations": figures.observations(),
        });
        println!("{all:#}");
    } else {
        print!("{}\n{}", table::render(outcomes), figures.text());
    }
    if let Some(path) = request.svg {
        std::fs::write(path, figures.svg()).with_context(|| format!("--svg {}", path.display()))?;
        eprintln!("weir bench odp: figures in {}", path.display());
    }
    Ok(())
}
