//! The times at which many READs of the same page complete (T fig. 5.9, P fig. 11).

use super::common::*;
use super::pace::Pace;
use crate::adapter::Adapter;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Shaped};
use crate::data::Data;
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::{Axis, Panel, Series};
use crate::micro::{Micro, Outcome};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "flood-pages",
    title: "Packet flood: when QPs are notified of a page",
    source: "T fig. 5.8 and 5.9, P fig. 10 and 11",
    not_simulated: None,
    not_live: |_| None,
    paper: "READs of 32 bytes over 128 QPs, client-side ODP. 128 of them need the same page. Completions begin \
            after about 1 ms, when the page is present, but the first 30 operations stay open until about 6 ms. \
            The authors conclude that the page's status was not updated for these operations. With 512 operations \
            on four pages that time becomes unacceptably long.",
    figures: &[
        PaperFigure {
            name: "T fig. 5.9a, P fig. 11a",
            axes: "Number of completed operations of each page over time. The text states no scale.",
            shows: "128 READs, one page: completions begin at about 1 ms; 30 operations, the first, stay open \
                    until 6 ms.",
            here: "Both axes are linear, the time in ms. The first of the trials.",
            drawings: 1,
        },
        PaperFigure {
            name: "T fig. 5.9b, P fig. 11b",
            axes: "As in 5.9a, a line for each page.",
            shows: "512 READs, four pages: the time becomes longer than acceptable; the text gives no number.",
            here: "Both axes are linear, the time in ms. The first of the trials: with damming, and with damming switched \
                   off, so that the flood shows alone.",
            drawings: 2,
        },
        PaperFigure {
            name: "T fig. 5.8, P fig. 10",
            axes: "A diagram without axes.",
            shows: "The layout of the buffer: each page of 4096 bytes holds 128 messages of 32 bytes, and the \
                    operations take the 128 QPs in turn, so that each QP has one message on each page.",
            here: "Not drawn; the runs have the same layout.",
            drawings: 0,
        },
    ],
    fixed_adapters: false,
    one_seed: false,
    run,
};

/// A READ that completes after this time, ms, is late: the page is present after a third of it.
pub const LATE: f64 = 2.0;

/// Why a live run may have no late READs.
const LIVE_RARE: &str = "Live, 128 READs leave over 1 to 2 ms. The page comes after the first repetition in fewer runs than in the \
                         simulation, and ten trials may have no late READ.";

fn run(bench: &Bench<'_>) -> Result<Report> {
    let numbers = [128, 512];
    let pace = Pace::of(bench);
    let found = completions(bench, Adapter::named("connectx4"), &numbers)?;
    let (one, four) = (&found[0], &found[1]);
    // The figure is one run in which some READs are late.
    let seen: Vec<&Vec<f64>> = one.iter().filter(|trial| last(trial) > LATE).collect();
    let late = |trial: &[f64]| trial.iter().copied().filter(|time| *time > LATE).collect::<Vec<f64>>();
    let others = |trial: &[f64]| most(trial.iter().copied().filter(|time| *time <= LATE));
    let mut claims = vec![
        Claim::within(Calibrated, "128 READs: completions begin at", 1.0, (0.5, 1.5), middle(one, |t| first(t)), "ms"),
        Claim::at_least(
            Calibrated,
            "128 READs: runs in which some are late",
            "the run of the figure",
            0.5,
            seen.len() as f64 / one.len() as f64,
            "",
        )
        .lacks(
            "A READ is late here only if the page comes after the READ's first repetition, and the page takes as long in two \
             of five runs. The page faults of the traces were shorter than the figure's.",
        )
        .lacks_live(bench.live, LIVE_RARE),
        Claim::within(
            Calibrated,
            "128 READs, in such runs: late ones",
            30.0,
            (10.0, 60.0),
            middle(&seen, |t| late(t).len() as f64),
            "",
        )
        .lacks("How many are late follows from how long the page takes, which is drawn anew for each run.")
        .lacks_live(bench.live, LIVE_RARE),
        Claim::within(
            Calibrated,
            "128 READs, in such runs: the late ones complete from",
            6.0,
            (4.5, 7.5),
            middle(&seen, |t| first(&late(t))),
            "ms",
        )
        .lacks_live(bench.live, LIVE_RARE),
        Claim::within(
            Calibrated,
            "128 READs, in such runs: all are complete at",
            6.0,
            (4.5, 9.0),
            middle(&seen, |t| last(t)),
            "ms",
        )
        .lacks_live(bench.live, LIVE_RARE),
        Claim::within(
            Shaped,
            "128 READs, in such runs: the other 98 are complete at",
            1.0,
            (0.5, 1.5),
            middle(&seen, |t| others(t)),
            "ms",
        )
        .lacks_live(bench.live, LIVE_RARE),
        Claim::at_least(
            Shaped,
            "128 READs, in such runs: share of the late ones among the first 30",
            "the first 30",
            0.9,
            middle(&seen, |t| late(&t[..30]).len() as f64 / late(t).len() as f64),
            "",
        )
        .lacks(
            "Which READs drop a second response is random here; in T fig. 5.9a they are the first 30. A timer that repeats the \
             READs of several QPs at the same moment would explain that.",
        ),
    ];
    let mut panels = panels(&numbers, &found);
    if bench.profile.is_none() {
        let alone = Adapter::named("connectx4").undammed();
        let flooded = completions(bench, alone.clone(), &[512])?;
        let alone = pace.adapter(alone);
        let requests = bench.measure(
            bench.trials(10),
            &[()],
            |()| many(128).on_changed(alone.clone()),
            |(), o| (last(&times(pace, o)) > LATE, o.packets.requests as f64),
        )?;
        let stuck: Vec<f64> =
            requests[0].iter().filter(|(late, _)| *late).map(|(_, requests)| *requests / 128.0).collect();
        claims.extend([
            Claim::at_least(
                Shaped,
                "512 READs, without damming: all are complete, against 128 at most",
                "longer and unacceptable",
                5.0,
                middle(&flooded[0], |t| last(t)) / most(one.iter().map(|t| last(t))),
                "times",
            ),
            Claim::at_least(
                Shaped,
                "512 READs, without damming: pages of which an operation is open after 10 ms",
                "more pages are involved",
                2.0,
                middle(&flooded[0], |t| t.chunks(128).filter(|page| last(page) > 10.0).count() as f64),
                "",
            ),
            Claim::at_least(
                Shaped,
                "128 READs, in runs with late ones: requests for each READ",
                "the client kept repeating the retransmission",
                2.5,
                middle(&stuck, |requests| *requests),
                "",
            )
            .lacks(
                "This is the average of all 128 READs, of which most are sent twice: it is small where few are late.",
            )
            .lacks_live(bench.live, LIVE_RARE),
        ]);
        let title = "512 READs over 128 QPs, without damming";
        panels.extend(self::panels(&[512], &flooded).into_iter().map(|panel| Panel { title: title.into(), ..panel }));
    }
    claims.push(Claim::at_least(
        Shaped,
        "512 READs, with damming: all are complete, against 128 at most",
        "longer and unacceptable",
        5.0,
        middle(four, |t| last(t)) / most(one.iter().map(|t| last(t))),
        "times",
    ));
    Ok(Report { claims, inputs: pace.inputs(), panels, data: data(&numbers, &found), ..Report::default() })
}

/// READs of 32 bytes over 128 QPs, with client-side ODP.
pub fn many(num_ops: u32) -> Micro {
    Micro { num_ops, num_qps: 128, size: 32, odp: CLIENT, ack_timeout: 18, ..Micro::default() }
}

/// The completion time of each READ, ms; infinite if it did not complete.
pub fn times(pace: Pace, outcome: &Outcome) -> Vec<f64> {
    outcome.completions.iter().map(|time| time.map_or(f64::INFINITY, |time| pace.ms(time))).collect()
}

/// For each number of READs and each trial: the completion time of each READ, ms; live, of a slowed adapter.
pub fn completions(bench: &Bench<'_>, adapter: Adapter, numbers: &[u32]) -> Result<Vec<Vec<Vec<f64>>>> {
    let pace = Pace::of(bench);
    let adapter = pace.adapter(adapter);
    let setting = |num_ops: &u32| many(*num_ops).on_changed(adapter.clone());
    bench.measure(bench.trials(10), numbers, setting, |_, outcome| times(pace, outcome))
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
