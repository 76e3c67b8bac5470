//! Precision and recall of the detectors of `weir analyze`, on a corpus with ground truth.

use crate::bench::Bench;
use crate::claim::{Claim, Kind::Predicted};
use crate::data::Data;
use crate::detectors::{Outcome, Tally, score};
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::{Axis, Bars};
use anyhow::Result;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_analyze::FindingKind;

pub const EXPERIMENT: Experiment = Experiment {
    id: "detectors",
    title: "Precision and recall of weir analyze",
    source: "no publication",
    not_simulated: None,
    not_live: |_| None,
    paper: "No paper has it: T 4.1 says that the pitfalls are hard to detect without the raw packets. Here the simulator \
            draws scenarios from seeds: all adapters, mixes of operations, on-demand paging at either side, losses, \
            bursts, late, repeated and damaged packets, congestion, slow receivers, and peers that stop. Its own log, and \
            not the packets, says what is true of each connection. The captures of client, of server and of both go \
            through weir analyze, and one of them once more with a flaw: it begins in the middle, lacks packets, has late time \
            stamps or cut packets. Of a scenario at most 8 connections count. The claims are about seeds that were not \
            used when the detectors were tuned.",
    figures: &[PaperFigure::none("T 4.1: no tool explains what the packets show.", 2)],
    fixed_adapters: true,
    one_seed: true,
    run,
};

/// First seeds: of the scenarios with which the detectors were tuned, and of others.
pub const TUNED: u64 = 0;
pub const HELD_OUT: u64 = 8_000_000;
/// Scenarios for each of `--seeds`.
const SCENARIOS: u64 = 100;
/// Precision and recall of each kind.
const ENOUGH: f64 = 0.98;

fn run(bench: &Bench<'_>) -> Result<Report> {
    let scenarios = SCENARIOS * u64::from(bench.seeds.max(1));
    let tuned = measure(bench, TUNED..TUNED + scenarios)?;
    let first = HELD_OUT + bench.seed.wrapping_sub(1).wrapping_mul(SCENARIOS) % HELD_OUT;
    let new = measure(bench, first..first + scenarios)?;
    let mut claims = vec![];
    let mut bars = [("precision, new seeds", vec![]), ("recall, new seeds", vec![])];
    for (kind, tally) in &new.tallies {
        let Tally { right, wrong, missed, .. } = *tally;
        for (at, what, all, share) in
            [(0, "precision", right + wrong, tally.precision()), (1, "recall", right + missed, tally.recall())]
        {
            if all == 0 {
                continue; // a few scenarios do not have all kinds
            }
            let name = format!("{}: {what} ({right} of {all})", kind.id());
            claims.push(Claim::at_least(Predicted, name, "to be 0.98 or more", ENOUGH, share, ""));
            bars[at].1.push((kind.id().to_owned(), share));
        }
    }
    let bars = bars.map(|(title, bars)| Bars { title: title.to_owned(), x: Axis::linear("share"), bars });
    let data = table([
        ("tuned", &tuned.tallies),
        ("new", &new.tallies),
        ("tuned, flawed captures", &tuned.flawed),
        ("new, flawed captures", &new.flawed),
    ]);
    let more = vec![("errors", errors([("tuned", &tuned), ("new", &new)]))];
    Ok(Report { claims, bars: bars.into(), data, more, ..Report::default() })
}

/// The comparison of these scenarios, on all threads.
fn measure(bench: &Bench<'_>, seeds: std::ops::Range<u64>) -> Result<Outcome> {
    (bench.progress)((seeds.end - seeds.start) as usize, 0);
    let next = AtomicU64::new(seeds.start);
    let all: Mutex<Vec<(u64, Result<Outcome>)>> = Mutex::default();
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let outcome = score(seed);
            all.lock().expect("no thread panics with it").push((seed, outcome));
            (bench.progress)(0, 1);
        }
    };
    std::thread::scope(|scope| (0..bench.threads.max(1)).for_each(|_| drop(scope.spawn(work))));
    let mut all = all.into_inner().expect("no thread panics with it");
    all.sort_by_key(|(seed, _)| *seed);
    let mut sum = Outcome::default();
    for (_, outcome) in all {
        sum.add(outcome?);
    }
    Ok(sum)
}

fn table(ranges: [(&str, &BTreeMap<FindingKind, Tally>); 4]) -> Data {
    let mut data = Data::new([
        "seeds",
        "kind",
        "cases",
        "right",
        "wrong",
        "missed",
        "absent",
        "borderline",
        "hidden",
        "precision",
        "recall",
    ]);
    for (name, tallies) in ranges {
        for (kind, tally) in tallies {
            let Tally { right, wrong, missed, absent, either, hidden } = *tally;
            data.push([
                name.into(),
                kind.id().into(),
                (right + wrong + missed + absent).into(),
                right.into(),
                wrong.into(),
                missed.into(),
                absent.into(),
                either.into(),
                hidden.into(),
                tally.precision().into(),
                tally.recall().into(),
            ]);
        }
    }
    data
}

/// Each wrong or missing finding, to be looked at with `weir lab scenario`.
fn errors(ranges: [(&str, &Outcome); 2]) -> Data {
    let mut data = Data::new(["seeds", "kind", "error", "seed", "captures", "about"]);
    for (name, outcome) in ranges {
        for wrong in outcome.errors.iter().chain(&outcome.flawed_errors) {
            data.push([
                name.into(),
                wrong.kind.id().into(),
                if wrong.found { "wrong" } else { "missed" }.into(),
                wrong.seed.into(),
                wrong.view.into(),
                wrong.about.as_str().into(),
            ]);
        }
    }
    data
}
