//! Claims as text for the terminal.

use super::words::{counts, simulated_text};
use crate::claim::Claim;
use crate::experiment::Done;
use std::fmt::Write;

/// An experiment: its title, then a line for each claim.
pub fn table(done: &Done) -> String {
    let experiment = done.experiment;
    let (holding, all) = done.report.score();
    let mut text = format!(
        "{}: {} ({})\n{} of {} claims hold ({}); {} of {}, {}, {:.1} s\n",
        experiment.id,
        experiment.title,
        experiment.source,
        holding,
        all,
        counts(done.report.claims.iter()),
        done.runner(),
        done.adapters_text(),
        done.trials_text(),
        done.took.as_secs_f64()
    );
    if let Some(wakeup) = done.wakeup {
        let (median, most) = (wakeup.median.as_micros(), wakeup.most.as_micros());
        let _ = writeln!(text, "the machine woke {median} µs late between posts (median), {most} µs at most");
    }
    let beside = if done.simulated.is_empty() { "spread" } else { "simulated" };
    let head = ["claim", "paper", "Weir", beside, "unit", "same if", "", "seeds", ""].map(str::to_owned);
    let rows: Vec<[String; 9]> = done.report.claims.iter().map(|claim| row(done, claim)).collect();
    let width = |at: usize| rows.iter().chain([&head]).map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    for (at, row) in [&head].into_iter().chain(&rows).enumerate() {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if (1..=3).contains(&column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        let _ = writeln!(text, "  {}", cells.collect::<Vec<_>>().join("  ").trim_end());
        if let Some(claim) = at.checked_sub(1).map(|at| &done.report.claims[at]).filter(|c| !c.conflict.is_empty()) {
            let _ = writeln!(text, "      against: {}", claim.conflict);
        }
        if let Some(mechanism) = at.checked_sub(1).and_then(|at| done.report.claims[at].missing_mechanism()) {
            let _ = writeln!(text, "      {mechanism}");
        }
    }
    if done.live && done.only_simulated().next().is_some() {
        let _ = writeln!(text, "  simulated only: {}", done.report.not_live);
        for claim in done.only_simulated() {
            let _ = writeln!(
                text,
                "      {}: {} {}",
                claim.name,
                simulated_text(claim),
                if claim.holds() { "holds" } else { "FAILS" }
            );
        }
    }
    for input in &done.report.inputs {
        let _ = writeln!(text, "  input: {}: {} ({}); {}", input.name, input.paper, input.source, input.profile);
    }
    text
}

fn row(done: &Done, claim: &Claim) -> [String; 9] {
    let verdict = if claim.holds() { "holds" } else { "FAILS" };
    [
        claim.name.clone(),
        claim.paper_text(),
        claim.weir_text(),
        done.simulated(claim).map_or_else(|| claim.spread_text(), simulated_text),
        claim.unit.to_owned(),
        claim.tolerance(),
        claim.kind.word().to_owned(),
        claim.seeds_text(),
        verdict.to_owned(),
    ]
}
