//! A cache that holds the outstanding messages, or does not (F fig. 7).

use super::fdr_common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Predicted, Kind::Shaped};
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::stream::{Areas, Job, Route, Runs};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "fdr-cache",
    title: "FDR: outstanding messages and the cache",
    source: "F fig. 7",
    not_simulated: None,
    not_live: |_| None,
    paper: "Messages of 1 MiB, each with a memory area of its own, or all with the same. With areas of their own, \
            throughput is highest with 4 outstanding messages, drops with 5 and levels off from 6 on. With the same \
            area, it remains at its highest level. (The caption has \"1Mebit messages\"; the text speaks of the 1 \
            MiB of fig. 1b.)",
    figures: &[PaperFigure {
        name: "F fig. 7",
        axes: "Throughput, Gbit/s, over the number of outstanding messages, with separate areas and with one.",
        shows: "Separate: highest with 4, a drop of about 6 % with 5, level from 6 on. One: no drop.",
        here: "Live also with 8 and 16, because a CPU's caches are larger.",
        drawings: 1,
    }],
    fixed_adapters: true,
    one_seed: true,
    run,
};

const SIZE: u64 = 1 << 20;
const LIVE: &str =
    "On Weir the copies go through the CPU's caches, and their size and sharing decide where the drop is.";

fn run(bench: &Bench<'_>) -> Result<Report> {
    let numbers: Vec<u32> = if few(bench) { vec![1, 2, 4, 5, 6, 8, 16] } else { (1..=10).collect() };
    let of = |b: u32, areas: Areas| Job { areas, ..job(SIZE, b) };
    let both = [Areas::Separate, Areas::One];
    let runs = Runs::of(bench, numbers.iter().flat_map(|b| both.map(|areas| (Route::Switch, of(*b, areas)))))?;
    let gbits = |b: u32, areas: Areas| runs.gbits(Route::Switch, &of(b, areas));
    let one = |(name, areas): (&str, Areas)| {
        line(name, &runs, numbers.iter().map(|b| (f64::from(*b), of(*b, areas))), |found| found.gbits)
    };
    let panel = over_numbers("1 MiB", [("separate areas", both[0]), ("one area", both[1])].map(one).into());
    let highest = best(bench, &runs, numbers.iter().map(|b| of(*b, Areas::Separate)));
    let drop = |areas: Areas| (1.0 - gbits(5, areas) / gbits(4, areas)) * 100.0;
    let level = (gbits(8, Areas::Separate) / gbits(6, Areas::Separate) - 1.0).abs() * 100.0;
    let mut claims = vec![
        Claim::within(
            Calibrated,
            "separate areas: messages with the highest throughput",
            4.0,
            (3.0, 4.0),
            highest.map_or(f64::NAN, |(job, _)| job.outstanding.into()),
            "",
        ),
        Claim::within(Calibrated, "separate areas: the drop from 4 to 5", 6.0, (4.0, 8.0), drop(Areas::Separate), "%"),
        Claim::at_most(Shaped, "separate areas: 8 against 6", "levels off", 1.0, level, "%"),
    ];
    if bench.live {
        // Simulated, the same area always hits.
        claims.extend([
            Claim::at_most(Predicted, "one area: the drop from 4 to 5", "does not drop", 1.0, drop(Areas::One), "%"),
            Claim::between(
                Predicted,
                "one area: 8 against 4",
                "remains at its highest level",
                (0.99, 1.01),
                gbits(8, Areas::One) / gbits(4, Areas::One),
                "times",
            ),
        ]);
    }
    Ok(report(bench, claims, LIVE, vec![panel], &runs))
}
