//! The NUMA node of each side's program and memory (F fig. 12, 13).

use super::fdr_common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Predicted};
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::Series;
use crate::software::Software;
use crate::statistics::mean;
use crate::stream::equations::BestB;
use crate::stream::{Job, Place, Route, Runs};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "fdr-numa",
    title: "FDR: the NUMA node of programs and memory",
    source: "F fig. 12, 13",
    not_simulated: None,
    not_live,
    paper: "Two nodes, of which one has the adapter. With affinity, a side's program and memory are on the adapter's \
            node. On the first pair of machines only the receiver's affinity helps, at 7 of the sizes; the sender's \
            alone makes throughput lower in most cases; both together change nothing. On a second, nearly identical \
            pair, both together have up to 20 % more.",
    figures: &[
        PaperFigure {
            name: "F fig. 12",
            axes: "Throughput, Gbit/s, over the size of a message, with four combinations of affinity.",
            shows: "The receiver's alone helps at 32 KiB and from 256 KiB to 8 MiB; the sender's alone and both do \
                    not.",
            here: "Without affinity, a side is on either node equally often: the average of all combinations is \
                   shown. The model has one kind of machine, calibrated on fig. 13.",
            drawings: 1,
        },
        PaperFigure {
            name: "F fig. 13",
            axes: "The same on the second pair: without affinity, and with that of both sides.",
            shows: "Up to 20 % more with both.",
            here: "In the same drawing.",
            drawings: 0,
        },
    ],
    fixed_adapters: true,
    one_seed: true,
    run,
};

/// Sides with affinity.
const WAYS: [(&str, bool, bool); 4] =
    [("no affinity", false, false), ("receiver", false, true), ("sender", true, false), ("both", true, true)];
const CONFLICT: &str =
    "F fig. 12 and 13 contradict each other: the same test on two nearly identical pairs of machines";
const LACKS: &str = "The model knows where memory is. Why affinity harms a sender on one pair of machines and not on \
                     the other is open in F.";
const LIVE: &str = "On Weir the adapter runs where its program runs.";

fn run(bench: &Bench<'_>) -> Result<Report> {
    let sizes = sizes(bench);
    let on = |node: u32| Place { cpus: None, node: Some(node) };
    let of = |size: u64, sender: u32, receiver: u32| {
        let b = BestB::PAPER.of(size);
        let b = if bench.live { b.min((64 << 20) / size as u32).max(1) } else { b };
        Job { sender: on(sender), receiver: on(receiver), ..job(size, b) }
    };
    let all =
        sizes.iter().flat_map(|size| [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(s, r)| (Route::Switch, of(*size, s, r))));
    let runs = Runs::of(bench, all)?;
    // Without affinity, either node.
    let gbits = |size: u64, (_, sender, receiver): (&str, bool, bool)| {
        let either = |bound: bool| if bound { vec![0] } else { vec![0, 1] };
        let each = either(sender).into_iter().flat_map(|s| either(receiver).into_iter().map(move |r| (s, r)));
        mean(&each.map(|(s, r)| runs.gbits(Route::Switch, &of(size, s, r))).collect::<Vec<_>>())
    };
    let one = |way: (&str, bool, bool)| {
        Series::line(way.0, sizes.iter().map(|size| (*size as f64, gbits(*size, way))).collect::<Vec<_>>())
    };
    let panel = over_sizes("Throughput", super::fdr_common::gbits(), WAYS.map(one).into());
    let gain = |size: u64, way: usize| (gbits(size, WAYS[way]) / gbits(size, WAYS[0]) - 1.0) * 100.0;
    let most_gain = |way: usize| most(sizes.iter().map(|size| gain(*size, way)));
    let share = |way: usize, holds: fn(f64) -> bool| {
        sizes.iter().filter(|size| holds(gain(**size, way))).count() as f64 / sizes.len() as f64 * 100.0
    };
    // F's sizes at which the receiver's affinity alone helps.
    let helps = |size: u64| size == 32 << 10 || ((256 << 10)..=(8 << 20)).contains(&size);
    let as_in_f = sizes.iter().filter(|size| helps(**size) == (gain(**size, 1) > 0.5)).count();
    let claims = [
        Claim::within(Calibrated, "both: more than without affinity, most", 20.0, (15.0, 22.0), most_gain(3), "%")
            .from("F fig. 13"),
        Claim::at_least(
            Predicted,
            "receiver alone: sizes that gain and that do not, as in F",
            "7 sizes gain: 32 KiB, and 256 KiB to 8 MiB",
            100.0,
            as_in_f as f64 / sizes.len() as f64 * 100.0,
            "%",
        )
        .from("F fig. 12")
        .conflicts(CONFLICT)
        .lacks(LACKS),
        Claim::at_least(
            Predicted,
            "sender alone: sizes with less than without",
            "in most cases",
            50.0,
            share(2, |gain| gain < 0.0),
            "%",
        )
        .from("F fig. 12")
        .conflicts(CONFLICT)
        .lacks(LACKS),
        Claim::at_most(
            Predicted,
            "both: more than without affinity, most, on the first pair",
            "does not improve",
            2.0,
            most_gain(3),
            "%",
        )
        .from("F fig. 12")
        .conflicts(CONFLICT)
        .lacks(LACKS),
    ];
    Ok(report(bench, claims, LIVE, vec![panel], &runs))
}

/// Why this machine cannot run it live.
fn not_live(_: &Software) -> Option<String> {
    (nodes() < 2).then(|| "it needs two NUMA nodes, and this machine has one; the simulator has two".into())
}

/// NUMA nodes of this machine.
fn nodes() -> usize {
    let all = std::fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    all.filter(|entry| {
        let name = entry.file_name();
        name.to_str().and_then(|name| name.strip_prefix("node")).is_some_and(|number| number.parse::<u32>().is_ok())
    })
    .count()
    .max(1)
}
