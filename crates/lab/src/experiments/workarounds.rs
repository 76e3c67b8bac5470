//! Workarounds that an application can use against both pitfalls (T 7.1, P IX-A).

use super::common::*;
use super::flood_pages::{LATE, last, many, times};
use super::pace::Pace;
use crate::adapter::Adapter;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Predicted};
use crate::data::Data;
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::{Axis, Panel, Series};
use crate::micro::{Micro, Workaround};
use crate::statistics::mean;
use anyhow::Result;
use std::time::Duration;

pub const EXPERIMENT: Experiment = Experiment {
    id: "workarounds",
    title: "Workarounds in the application",
    source: "T 7.1, P IX-A",
    not_simulated: None,
    not_live: |_| None,
    paper: "Proposed, not measured: with the smallest RNR delay there are few intervals at which READs can be \
            dammed; periodic dummy operations reveal the loss before the timeout; and operations that are caught \
            in a flood can be issued again, because the page itself is present.",
    figures: &[
        PaperFigure::none(
            "T 7.1 and P IX-A propose the workarounds against damming in words. The curves are those \
                           of T fig. 5.4a, as average times, with and without the workarounds.",
            1,
        ),
        PaperFigure::none(
            "T 7.1 and P IX-A say that issuing the operations again might help against a flood. The \
                           curves are those of T fig. 5.9b, over all pages.",
            1,
        ),
    ],
    fixed_adapters: false,
    one_seed: false,
    run,
};

const DUMMY: Option<Workaround> = Some(Workaround::Dummy { every: Duration::from_millis(5) });
/// READs of four pages are issued again after this time.
const AGAIN: Option<Duration> = Some(Duration::from_millis(5));
/// For READs of one page, which is present after a millisecond.
const SOON: Option<Duration> = Some(Duration::from_millis(2));

fn run(bench: &Bench<'_>) -> Result<Report> {
    let intervals = if bench.live { grid(500, 7000) } else { grid(100, 7000) };
    let ways =
        [("RNR 1.28 ms", RNR_1_28, None), ("RNR 0.01 ms", RNR_0_01, None), ("a dummy every 5 ms", RNR_1_28, DUMMY)];
    let keys: Vec<(usize, u32)> = (0..ways.len()).flat_map(|way| intervals.iter().map(move |i| (way, *i))).collect();
    let two = |&(way, interval): &(usize, u32)| {
        let (_, rnr_timer, workaround) = ways[way];
        Micro { num_ops: 2, interval: us(interval), odp: SERVER, rnr_timer, workaround, ..Micro::default() }
    };
    let found = bench.measure(bench.trials(10), &keys, two, |_, o| (ms(o.time), o.timeouts > 0))?;
    let mut data = Data::new(["way", "interval µs", "operations", "average ms", "share with a timeout"]);
    let mut curves: Vec<Vec<(f64, f64)>> = vec![vec![]; ways.len()];
    let mut slow = vec![vec![]; ways.len()];
    for ((way, interval), trials) in keys.iter().zip(&found) {
        let average = mean(&trials.iter().map(|(time, _)| *time).collect::<Vec<_>>());
        let share = share(trials, |(_, timeout)| *timeout);
        data.push([ways[*way].0.into(), (*interval).into(), 2u32.into(), average.into(), share.into()]);
        curves[*way].push((f64::from(*interval), share));
        slow[*way].push((f64::from(*interval), average));
    }
    // Without damming, which a READ that is issued again would cure too. With --profile, that adapter stays as it is.
    let pace = Pace::of(bench);
    let alone = pace.adapter(Adapter::named("connectx4").undammed());
    let flooded = |&(num_ops, after): &(u32, Option<Duration>)| {
        let again = |after: Duration| Workaround::Again { after: pace.stretched(after) };
        let many = Micro { workaround: after.map(again), ..many(num_ops) };
        if bench.profile.is_some() { many.into() } else { many.on_changed(alone.clone()) }
    };
    let ways_out = [(512, None), (512, AGAIN), (128, None), (128, SOON)];
    let mut floods = bench.measure(bench.trials(10), &ways_out, flooded, |_, o| times(pace, o))?;
    let one_page = floods.split_off(2);
    let late: Vec<f64> = one_page[0].iter().map(|t| last(t)).filter(|time| *time > LATE).collect();
    for (name, trials) in ["flood", "flood, issued again after 5 ms"].iter().zip(&floods) {
        data.push([(*name).into(), 0u32.into(), 512u32.into(), middle(trials, |t| last(t)).into(), f64::NAN.into()]);
    }
    let undammed = if bench.profile.is_some() { "" } else { ", without damming" };
    let at = |curve: &[(f64, f64)], x: f64| curve.iter().find(|(at, _)| *at == x).map_or(f64::NAN, |(_, y)| *y);
    let claims = vec![
        Claim::at_most(
            Predicted,
            "smallest RNR delay: range of intervals with a timeout, as a share of 1.28 ms's",
            "narrower",
            0.2,
            width(&curves[1]) / width(&curves[0]),
            "",
        ),
        Claim::at_most(
            Predicted,
            "a dummy every 5 ms: range of intervals with a timeout, as a share",
            "timeouts become fewer",
            0.2,
            width(&curves[2]) / width(&curves[0]),
            "",
        ),
        Claim::at_most(
            Predicted,
            "a dummy every 5 ms: time at an interval of 1000 µs, as a share",
            "the long delay is avoided",
            0.1,
            at(&slow[2], 1000.0) / at(&slow[0], 1000.0),
            "",
        ),
        Claim::at_most(
            Predicted,
            format!("issued again after 5 ms: time of a flood of 512 READs{undammed}, as a share"),
            "might work",
            0.8,
            middle(&floods[1], |t| last(t)) / middle(&floods[0], |t| last(t)),
            "",
        )
        .lacks(
            "With several pages their faults wait in the queue of events, too. A READ that is issued again meets the same \
             absent page.",
        ),
        Claim::at_most(
            Predicted,
            "issued again after 2 ms: longest run of 128 READs, as a share of the runs with late ones",
            "might work",
            0.8,
            most(one_page[1].iter().map(|t| last(t))) / middle(&late, |time| *time),
            "",
        ),
    ];
    let lines = ways.iter().zip(slow).map(|((name, _, _), curve)| Series::line(*name, curve)).collect();
    let counts = ["as it is", "issued again after 5 ms"].iter().zip(&floods).map(|(name, trials)| {
        let mut sorted = trials[0].clone();
        sorted.sort_by(f64::total_cmp);
        Series::steps(
            *name,
            sorted.into_iter().zip(1..).map(|(time, count)| (time, f64::from(count))).collect::<Vec<_>>(),
        )
    });
    let panels = vec![
        Panel::new("Two READs, server-side ODP, average", Axis::linear("interval (µs)"), Axis::log("time (ms)"), lines),
        Panel::new(
            format!("512 READs over 128 QPs, client-side ODP{undammed}"),
            Axis::linear("time (ms)"),
            Axis::linear("completed operations"),
            counts.collect(),
        ),
    ];
    Ok(Report { claims, inputs: pace.inputs(), panels, data, ..Report::default() })
}
