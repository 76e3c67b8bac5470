//! The times at which many READs of the same page complete (T fig. 5.9, P fig. 11).

use super::common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Shaped};
use crate::data::Data;
use crate::experiment::{Experiment, Report};
use crate::figure::{Axis, Panel, Series};
use crate::micro::{Micro, Outcome};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "flood-pages",
    title: "Packet flood: when QPs are notified of a page",
    source: "T fig. 5.8 and 5.9, P fig. 10 and 11",
    not_simulated: None,
    paper: "READs of 32 bytes over 128 QPs, client-side ODP. 128 of them need the same page. The page is present \
            after about 1 ms and completions begin, but the first 30 operations stay open until about 6 ms, because \
            their QPs have not been notified. With 512 operations on four pages the run takes unacceptably long.",
    live: true,
    fixed_adapters: false,
    run,
};

fn run(bench: &Bench<'_>) -> Result<Report> {
    let numbers = [128, 512];
    let found = completions(bench, "connectx4", &numbers)?;
    let (one, four) = (&found[0], &found[1]);
    let early = |trial: &Vec<f64>| trial[..30].iter().copied().fold(f64::INFINITY, f64::min);
    let claims = vec![
        Claim::within(Calibrated, "128 READs: completions begin at", 1.0, (0.5, 1.5), middle(one, |t| first(t)), "ms"),
        Claim::within(
            Shaped,
            "128 READs: the earliest of the first 30 completes at",
            6.0,
            (4.0, 7.0),
            middle(one, early),
            "ms",
        )
        .lacks(
            "Which READs drop a second response is random here; the authors saw the first 30. A timer that repeats the \
             READs of several QPs at the same moment would explain that.",
        ),
        Claim::within(Shaped, "128 READs: all are complete at", 6.0, (4.5, 9.0), middle(one, |t| last(t)), "ms"),
        Claim::at_least(
            Shaped,
            "512 READs: all are complete, against 128",
            "longer and unacceptable",
            5.0,
            middle(four, |t| last(t)) / middle(one, |t| last(t)),
            "times",
        ),
        Claim::between(
            Shaped,
            "512 READs: pages of which an operation is open after 10 ms",
            "more pages are involved",
            (2.0, 4.0),
            middle(four, |t| t.chunks(128).filter(|page| last(page) > 10.0).count() as f64),
            "",
        ),
    ];
    Ok(Report { claims, panels: panels(&numbers, &found), data: data(&numbers, &found), ..Report::default() })
}

/// For each number of READs and each trial: the completion time of each READ, ms.
pub fn completions(bench: &Bench<'_>, profile: &'static str, numbers: &[u32]) -> Result<Vec<Vec<Vec<f64>>>> {
    let many = |num_ops: &u32| {
        Micro { num_ops: *num_ops, num_qps: 128, size: 32, odp: CLIENT, ack_timeout: 18, ..Micro::default() }
            .on(profile)
    };
    let times =
        |_: &u32, o: &Outcome| o.completions.iter().map(|time| time.map_or(f64::INFINITY, ms)).collect::<Vec<f64>>();
    bench.measure(bench.trials(10), numbers, many, times)
}

/// The earliest completion of a trial, ms.
pub fn first(trial: &[f64]) -> f64 {
    trial.iter().copied().fold(f64::INFINITY, f64::min)
}

/// The latest completion of a trial, ms; infinite if an operation did not complete.
pub fn last(trial: &[f64]) -> f64 {
    trial.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// Completed operations of each page over time, from the first trial.
pub fn panels(numbers: &[u32], found: &[Vec<Vec<f64>>]) -> Vec<Panel> {
    let panel = |(number, trials): (&u32, &Vec<Vec<f64>>)| {
        let lines = trials[0].chunks(128).enumerate().map(|(page, times)| {
            let mut sorted = times.to_vec();
            sorted.sort_by(f64::total_cmp);
            let counted = sorted.into_iter().zip(1..).map(|(time, count)| (time, f64::from(count)));
            Series::steps(format!("page {page}"), std::iter::once((0.0, 0.0)).chain(counted).collect::<Vec<_>>())
        });
        let (x, y) = (Axis::linear("time (ms)"), Axis::linear("completed operations").showing(0.0, 128.0));
        Panel::new(format!("{number} READs over 128 QPs"), x, y, lines.collect())
    };
    numbers.iter().zip(found).map(panel).collect()
}

/// A row for each READ of each trial.
pub fn data(numbers: &[u32], found: &[Vec<Vec<f64>>]) -> Data {
    let mut data = Data::new(["READs", "trial", "operation", "page", "completed ms"]);
    for (number, trials) in numbers.iter().zip(found) {
        for (trial, times) in trials.iter().enumerate() {
            for (operation, time) in times.iter().enumerate() {
                data.push([(*number).into(), trial.into(), operation.into(), (operation / 128).into(), (*time).into()]);
            }
        }
    }
    data
}
