//! The workarounds of T 7.1 below the application: `weir run --guard`.

use super::common::*;
use crate::adapter::Adapter;
use crate::bench::{Bench, Setting};
use crate::claim::{Claim, Kind::Predicted};
use crate::data::Data;
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::{Axis, Panel, Series};
use crate::micro::{Guards, Micro, Operation, Outcome, Sides};
use crate::statistics::mean;
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "guards",
    title: "Workarounds below the application: guards",
    source: "T 7.1, P IX-A",
    not_simulated: None,
    not_live: |_| None,
    paper: "Proposed, not measured: the smallest RNR delay, dummy operations that reveal a loss before the timeout, and \
            READs that are issued again. The authors leave them to the application. Here `weir run --guard` does them for \
            any program, and besides makes pages present before an operation is posted. The bounds of the claims are \
            Weir's own.",
    figures: &[
        PaperFigure::none(
            "T 7.1 and P IX-A propose the workarounds against damming in words. The curves are those of T fig. 5.4, as \
             average times, with and without guards.",
            2,
        ),
        PaperFigure::none(
            "T 7.1 and P IX-A say that issuing the operations again might help against a flood. The curves are those of T \
             fig. 5.9b, over all pages.",
            1,
        ),
    ],
    fixed_adapters: false,
    one_seed: false,
    run,
};

/// Lists of guards, the first without one.
const AGAINST_DAMMING: [&str; 4] = ["none", "dummy", "rnr,dummy", "auto"];
const AGAINST_FLOOD: [&str; 4] = ["none", "reissue", "prefetch", "auto"];
/// "Several hundred ms" become less than this, ms.
const SHORT: f64 = 10.0;
/// A flood becomes shorter by this factor.
const FASTER: f64 = 10.0;
/// Where there is no pitfall, a guard costs at most this factor.
const COST: f64 = 1.02;

fn guards(list: &str) -> Guards {
    list.parse().unwrap_or_default()
}

fn run(bench: &Bench<'_>) -> Result<Report> {
    let mut report = Report {
        data: Data::new([
            "setting",
            "guards",
            "interval µs",
            "average ms",
            "longest ms",
            "average packets of the client",
        ]),
        not_live: "Without a pitfall a live run of these lengths measures this machine, not the guards.",
        ..Report::default()
    };
    damming(bench, &mut report)?;
    flood(bench, &mut report)?;
    if !bench.live {
        costs(bench, &mut report)?;
    }
    Ok(report)
}

/// Time, ms, and packets of the client. A responder sends fewer ACKs for WRITEs that wait for a page and arrive together, so
/// their number tells nothing of the guards.
fn measured(outcome: &Outcome) -> (f64, f64) {
    (took(outcome), outcome.packets.requests as f64)
}

fn enter(data: &mut Data, setting: &str, list: &str, interval: u32, trials: &[(f64, f64)]) {
    let times: Vec<f64> = trials.iter().map(|(time, _)| *time).collect();
    let packets: Vec<f64> = trials.iter().map(|(_, packets)| *packets).collect();
    data.push([
        setting.into(),
        list.into(),
        interval.into(),
        mean(&times).into(),
        most(times.iter().copied()).into(),
        mean(&packets).into(),
    ]);
}

/// Two READs, the second of which may be dammed.
fn damming(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let wide = grid(if bench.live { 1000 } else { 250 }, 7000);
    let sides = [(SERVER, wide.clone()), (CLIENT, grid(if bench.live { 250 } else { 50 }, 1500)), (BOTH, wide)];
    let mut longest = [f64::NEG_INFINITY; AGAINST_DAMMING.len()];
    let mut average = [f64::NEG_INFINITY; AGAINST_DAMMING.len()];
    for (odp, intervals) in sides {
        let each = |list: usize| intervals.iter().map(move |interval| (list, *interval));
        let keys: Vec<(usize, u32)> = (0..AGAINST_DAMMING.len()).flat_map(each).collect();
        let two = |&(list, interval): &(usize, u32)| Micro {
            num_ops: 2,
            interval: us(interval),
            odp,
            guards: guards(AGAINST_DAMMING[list]),
            ..Micro::default()
        };
        let found = bench.measure(bench.trials(10), &keys, two, |_, outcome| measured(outcome))?;
        let mut curves: Vec<Vec<(f64, f64)>> = vec![vec![]; AGAINST_DAMMING.len()];
        for (&(list, interval), trials) in keys.iter().zip(&found) {
            enter(&mut report.data, &format!("two READs, {}", side(odp)), AGAINST_DAMMING[list], interval, trials);
            let times: Vec<f64> = trials.iter().map(|(time, _)| *time).collect();
            longest[list] = most([longest[list], most(times.iter().copied())]);
            average[list] = most([average[list], mean(&times)]);
            curves[list].push((f64::from(interval), mean(&times)));
        }
        if odp != BOTH {
            let lines = AGAINST_DAMMING.iter().zip(curves).map(|(list, curve)| Series::line(named(list), curve));
            report.panels.push(Panel::new(
                format!("Two READs, {}, average", side(odp)),
                Axis::linear("interval (µs)"),
                Axis::log("time (ms)"),
                lines.collect(),
            ));
        }
    }
    let what = "two READs, all sides and intervals";
    report.claims.push(Claim::at_least(
        Predicted,
        format!("without guards, {what}: longest time"),
        "several hundred ms",
        200.0,
        longest[0],
        "ms",
    ));
    for (list, (longest, average)) in AGAINST_DAMMING.iter().zip(longest.into_iter().zip(average)).skip(1) {
        let claim = |of: &str, value| {
            let name = format!("{}, {what}: {of}", named(list));
            Claim::at_most(Predicted, name, "the long delay is avoided", SHORT, value, "ms")
        };
        report.claims.extend([claim("longest time", longest), claim("longest average of an interval", average)]);
    }
    Ok(())
}

/// A flood: name, sides, READs, QPs, whether the adapter also has damming, and the guards that are to make it short.
type Flood = (&'static str, Sides, u32, u32, bool, &'static [&'static str]);

fn floods(bench: &Bench<'_>) -> Vec<Flood> {
    let many = 8192 / bench.shrink;
    let (all, auto) = (&AGAINST_FLOOD[1..], &AGAINST_FLOOD[3..]);
    vec![
        ("T fig. 5.7, 50 QPs", CLIENT, many, 50, true, all),
        ("T fig. 5.7, 200 QPs", CLIENT, many, 200, true, all),
        ("T fig. 5.7, 200 QPs", BOTH, many, 200, true, auto),
        ("T fig. 5.9b", CLIENT, 512, 128, true, all),
        ("T fig. 5.9b", BOTH, 512, 128, true, auto),
        ("T fig. 5.9b without damming", CLIENT, 512, 128, false, all),
        ("T fig. 5.9b without damming", BOTH, 512, 128, false, auto),
        // Too short to be ten times as fast by a guard that waits until a READ is late.
        ("T fig. 5.9a", CLIENT, 128, 128, true, &[]),
    ]
}

fn flood(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let floods = floods(bench);
    let keys: Vec<(usize, &str)> = (0..floods.len()).flat_map(|at| AGAINST_FLOOD.map(|list| (at, list))).collect();
    let setting = |&(at, list): &(usize, &str)| -> Setting {
        let (_, odp, num_ops, num_qps, dammed, _) = floods[at];
        let size = if num_ops <= 512 { 32 } else { 100 };
        let guards = guards(list);
        let micro = Micro { num_ops, num_qps, size, odp, ack_timeout: 18, guards, ..Micro::default() };
        // With --profile, that adapter stays as it is.
        let as_it_is = dammed || bench.profile.is_some();
        if as_it_is { micro.into() } else { micro.on_changed(Adapter::named("connectx4").undammed()) }
    };
    let take = |_: &_, outcome: &Outcome| (measured(outcome), outcome.completions.clone());
    let found = bench.measure(bench.trials(1), &keys, setting, take)?;
    let mut slowest = [f64::INFINITY; AGAINST_FLOOD.len()];
    let mut curves = vec![];
    for (&(at, list), trials) in keys.iter().zip(&found) {
        let (name, odp, num_ops, num_qps, _, claimed) = floods[at];
        let times: Vec<(f64, f64)> = trials.iter().map(|(measured, _)| *measured).collect();
        enter(&mut report.data, &format!("{num_ops} READs, {num_qps} QPs, {}: {name}", side(odp)), list, 0, &times);
        let which = AGAINST_FLOOD.iter().position(|each| *each == list).unwrap_or_default();
        if claimed.contains(&list) {
            let plain = &found[at * AGAINST_FLOOD.len()];
            let faster = middle(plain, |(plain, _)| plain.0) / middle(trials, |(guarded, _)| guarded.0);
            slowest[which] = if faster.is_nan() { f64::NAN } else { slowest[which].min(faster) };
        }
        if (name, odp) == ("T fig. 5.9b without damming", CLIENT) {
            let mut sorted: Vec<f64> = trials[0].1.iter().flatten().map(|end| ms(*end)).collect();
            sorted.sort_by(f64::total_cmp);
            let steps: Vec<(f64, f64)> = sorted.into_iter().zip(1..).map(|(time, n)| (time, f64::from(n))).collect();
            curves.push(Series::steps(named(list), steps));
        }
    }
    for (list, faster) in AGAINST_FLOOD.iter().zip(slowest).skip(1) {
        let sides = if *list == "auto" { "all sides" } else { "client-side ODP" };
        let name = format!("{}, floods of at least 512 READs, {sides}: least gain in time", named(list));
        report.claims.push(Claim::at_least(Predicted, name, "might work", FASTER, faster, "times"));
    }
    let undammed = if bench.profile.is_some() { "" } else { ", without damming" };
    report.panels.push(Panel::new(
        format!("512 READs over 128 QPs, client-side ODP{undammed}"),
        Axis::log("time (ms)"),
        Axis::linear("completed operations"),
        curves,
    ));
    Ok(())
}

/// Runs without a pitfall: a guard has nothing to do.
fn costs(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let many = 8192 / bench.shrink;
    let kinds = [
        ("pinned memory", NONE, "connectx4"),
        ("ODP memory with all pages present", BOTH, "connectx4"),
        ("an adapter without flaws, both-side ODP", BOTH, "ideal"),
    ];
    let shapes =
        [(Operation::Read, 1, 100), (Operation::Read, 50, 100), (Operation::Read, 4, 4096), (Operation::Write, 4, 100)];
    let guarded = ["none", "auto"];
    for (what, odp, profile) in kinds {
        let each = |shape: usize| guarded.map(|list| (shape, list));
        let keys: Vec<(usize, &str)> = (0..shapes.len()).flat_map(each).collect();
        let setting = |&(shape, list): &(usize, &str)| {
            let (operation, num_qps, size) = shapes[shape];
            let (num_ops, ack_timeout, present) = (many, 18, profile != "ideal" && odp == BOTH);
            let guards = guards(list);
            Micro { operation, num_ops, num_qps, size, odp, ack_timeout, present, guards, ..Micro::default() }
                .on(profile)
        };
        let found = bench.measure(bench.trials(1), &keys, setting, |_, outcome| measured(outcome))?;
        let mut cost = [f64::NEG_INFINITY; 2];
        for (pair, key) in found.chunks(2).zip(keys.chunks(2)) {
            let (operation, num_qps, size) = shapes[key[0].0];
            for (trials, (_, list)) in pair.iter().zip(key) {
                let name = format!("{what}: {many} {operation:?}s of {size} bytes, {num_qps} QPs");
                enter(&mut report.data, &name, list, 0, trials);
            }
            let ratio = |of: fn(&(f64, f64)) -> f64| middle(&pair[1], of) / middle(&pair[0], of);
            cost[0] = most([cost[0], ratio(|(time, _)| *time)]);
            cost[1] = most([cost[1], ratio(|(_, requests)| *requests)]);
        }
        for (of, cost) in ["time", "packets of the client"].into_iter().zip(cost) {
            let name = format!("auto, {what}: {of} against no guards, at most");
            report.claims.push(Claim::at_most(Predicted, name, "not stated", COST, cost, "times"));
        }
    }
    Ok(())
}

/// A list of guards in a legend or a claim.
fn named(list: &str) -> String {
    if list == "none" { "no guards".to_owned() } else { list.replace(',', " and ") }
}
