//! Rows measured in turns: all measurements of a row in each round, then their ratios.

use super::measure::{Measurement, Runner};
use super::mtu::MTU;
use super::request::Request;
use super::rows::{Baseline, Comparison, Row};
use super::table::{self, Outcome, Rounds, Spread};
use super::{busy, cores};
use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::process::ExitCode;
use weir_stage::{Side, Stage, missing};

/// Names of rows that are measured on one host begin with it.
pub const ONE_HOST: &str = "host-";

/// Measures and prints the results: between two network namespaces first, then in one of them.
pub fn run_apart_and_together(bench: &str, rows: Vec<Row>, request: &Request<'_>) -> Result<ExitCode> {
    let apart = Stage::new(MTU)?;
    // Not `Stage::same_host`: libfabric's verbs provider leaves out loopback.
    let together = apart.one_side();
    announce(bench, &apart, request);
    warn_of_missing(&rows);
    let (host, network) = rows.into_iter().partition::<Vec<Row>, _>(|row| row.name.starts_with(ONE_HOST));
    let mut outcomes = Vec::new();
    for (stage, rows) in [(&apart, network), (&together, host)] {
        outcomes.extend(measure(&rows, Runner::new(stage, request.seconds()), request.rounds_of_rows()));
    }
    report(&outcomes, request)
}

/// Prints where a bench runs, and the number of rounds.
pub fn announce(name: &str, stage: &Stage, request: &Request) {
    eprintln!("{name}: {}; {} rounds", stage.describe(), request.rounds_of_rows());
}

/// Prints the packages of programs that the rows need and that are not installed.
pub fn warn_of_missing(rows: &[Row]) {
    let packages = missing(rows.iter().flat_map(measurements).flat_map(Measurement::programs));
    if !packages.is_empty() {
        eprintln!("weir bench: programs are missing, what needs them is skipped: apt install {}", packages.join(" "));
    }
}

/// Prints the results. An error status if a run failed or nothing was measured, and with `--check` also if a bar does
/// not hold or was skipped.
pub fn report(outcomes: &[Outcome], request: &Request) -> Result<ExitCode> {
    if request.json {
        println!("{}", serde_json::to_string_pretty(outcomes)?);
    } else {
        print!("{}", table::render(outcomes));
    }
    let nothing = outcomes.iter().all(|o| o.skipped);
    if nothing {
        eprintln!("weir bench: nothing was measured, because every row was skipped");
    }
    let failed = nothing || outcomes.iter().any(|o| o.failed);
    let short = outcomes.iter().any(|o| o.holds == Some(false) || (o.skipped && o.bar.is_some()));
    Ok(if failed || (request.check && short) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Measures all rows, one after the other.
pub fn measure(rows: &[Row], mut runner: Runner, rounds: u32) -> Vec<Outcome> {
    let runs = |row: &Row| measurements(row).len() as u64 * u64::from(rounds.min(row.at_most_rounds) * row.runs);
    let progress = ProgressBar::new(rows.iter().map(runs).sum()).with_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} (about {eta} left)").expect("a valid template"),
    );
    let outcomes =
        rows.iter().flat_map(|row| measure_row(row, &mut runner, rounds.min(row.at_most_rounds), &progress)).collect();
    progress.finish_and_clear();
    outcomes
}

/// The measurements of a round of a row, in order.
fn measurements(row: &Row) -> Vec<Measurement> {
    let mut all = vec![row.subject];
    for comparison in &row.comparisons {
        match comparison.baseline {
            Baseline::Measured(m) if !all.contains(&m) => all.push(m),
            _ => {}
        }
    }
    all
}

fn measure_row(row: &Row, runner: &mut Runner, rounds: u32, progress: &ProgressBar) -> Vec<Outcome> {
    let wanted = measurements(row);
    let mut figures: HashMap<Measurement, Vec<f64>> = HashMap::new();
    let mut failures: HashMap<Measurement, String> = HashMap::new();
    let refusals: HashMap<Measurement, String> =
        wanted.iter().filter_map(|m| Some((*m, m.refusal(runner.stage)?))).collect();
    let subject_runs = !refusals.contains_key(&row.subject);
    let runs = |m: &Measurement| subject_runs && !refusals.contains_key(m);
    let mut cores_ns = Vec::new();
    let stage = runner.stage;
    let pair = [stage.core(Side::A), stage.core(Side::B)];
    let busy = busy::note(pair);
    let mut look = || cores_ns.extend(cores::distance(pair));
    look();
    let seconds = runner.seconds;
    runner.seconds = seconds / f64::from(row.runs);
    for round in 1..=rounds {
        let mut runs_of: HashMap<Measurement, Vec<f64>> = HashMap::new();
        for turn in 0..row.runs {
            let mut order: Vec<Measurement> = wanted.iter().filter(|m| runs(m)).copied().collect();
            if turn % 2 == 1 {
                order.reverse();
            }
            for measurement in order {
                progress.set_message(format!("{} {round}/{rounds}", row.name));
                if let Entry::Vacant(failure) = failures.entry(measurement) {
                    match runner.run(measurement) {
                        Ok(figure) => runs_of.entry(measurement).or_default().push(figure),
                        Err(e) => drop(failure.insert(format!("{e:#}"))),
                    }
                    look();
                }
                progress.inc(1);
            }
        }
        for (measurement, runs) in runs_of {
            figures.entry(measurement).or_default().extend(Spread::of(&runs).map(|runs| runs.median));
        }
    }
    runner.seconds = seconds;
    let of = |m: &Measurement| figures.get(m).cloned().unwrap_or_default();
    let outcome = |comparison: &Comparison| {
        let weir = of(&row.subject);
        let why_not = |reasons: &HashMap<Measurement, String>| {
            let of_baseline = match comparison.baseline {
                Baseline::Measured(m) => reasons.get(&m),
                Baseline::Fixed(_) => None,
            };
            reasons.get(&row.subject).or(of_baseline).cloned()
        };
        let baseline = match comparison.baseline {
            Baseline::Measured(m) => of(&m),
            Baseline::Fixed(figure) => vec![figure; weir.len()],
        };
        let unit = row.subject.unit();
        let figures = Rounds { weir, baseline, cores_ns: cores_ns.clone() };
        let baseline_text = comparison.baseline.describe(unit);
        let mut outcome = Outcome::measured(row.name, row.what, baseline_text, unit, comparison.bar, &figures);
        let loopback = stage.loopback_reason().map(|reason| format!("on loopback: {reason}"));
        outcome.note = loopback.into_iter().chain(busy.clone()).reduce(|a, b| format!("{a}; {b}"));
        match (why_not(&refusals), why_not(&failures)) {
            (Some(why), _) => outcome.skipped(why),
            (None, Some(why)) => outcome.failed(why),
            (None, None) => outcome,
        }
    };
    row.comparisons.iter().map(outcome).collect()
}
