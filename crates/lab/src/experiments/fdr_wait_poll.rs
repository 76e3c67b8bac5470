//! Wait-wakeup against busy polling (F fig. 9, 10).

use super::fdr_common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Predicted};
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::{Axis, Series};
use crate::stream::{Found, Job, Route, Runs};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "fdr-wait-poll",
    title: "FDR: wait-wakeup or busy polling",
    source: "F fig. 9, 10",
    not_simulated: None,
    not_live: |_| None,
    paper: "The highest throughput of each size with both ways to notice completions. Polling has slightly more than \
            50 Gbit/s in most cases, and 47 above 8 MiB, because of the cache. Wait-wakeup has slightly less than \
            50, never as much as polling. Polling takes 100 % of the CPU; wait-wakeup takes less with larger \
            messages, and close to none for large enough ones.",
    figures: &[
        PaperFigure {
            name: "F fig. 9",
            axes: "The highest throughput, Gbit/s, over the size of a message.",
            shows: "Polling slightly above 50 Gbit/s, 47 above 8 MiB; wait-wakeup slightly below 50.",
            here: "The highest over all numbers of outstanding messages that were tried.",
            drawings: 1,
        },
        PaperFigure {
            name: "F fig. 10",
            axes: "CPU usage, %, at the points of fig. 9.",
            shows: "Polling always 100 %; wait-wakeup falls with the size to about 0.",
            here: "Of a core, on average over both sides.",
            drawings: 1,
        },
    ],
    fixed_adapters: true,
    one_seed: true,
    run,
};

const LIVE: &str = "On Weir the program that polls also drives the adapter, and one that sleeps leaves this to a \
                    thread of Weir's; both copy, which takes CPU time in proportion to the bytes.";

fn run(bench: &Bench<'_>) -> Result<Report> {
    let sizes = sizes(bench);
    let tried = |size: u64| {
        let all = numbers(bench, size, &[]);
        if bench.live { all.into_iter().filter(|b| [1, 4, 16, 64].contains(b)).collect() } else { all }
    };
    type Make = fn(u64, u32) -> Job;
    let ways: [(&str, Make); 2] = [("wait-wakeup", job), ("busy polling", polling)];
    let keys = sizes.iter().flat_map(|size| tried(*size).into_iter().map(move |b| (*size, b)));
    let jobs: Vec<Job> = keys.flat_map(|(size, b)| ways.map(|(_, make)| make(size, b))).collect();
    let runs = Runs::of(bench, jobs.into_iter().map(|job| (Route::Switch, job)))?;
    let highest = |make: Make, size: u64| best(bench, &runs, tried(size).into_iter().map(|b| make(size, b)));
    let gbits = |make: Make, size: u64| highest(make, size).map_or(f64::NAN, |(_, gbits)| gbits);
    let cpu = |make: Make, size: u64| {
        let found: Option<&Found> = highest(make, size).and_then(|(job, _)| runs.get(Route::Switch, &job));
        found.map_or(f64::NAN, cpu_share)
    };
    let [(_, wait), (_, poll)] = ways;
    let lines = |value: &dyn Fn(Make, u64) -> f64| {
        let one = |(name, make): (&str, Make)| {
            Series::line(name, sizes.iter().map(|size| (*size as f64, value(make, *size))).collect::<Vec<_>>())
        };
        ways.map(one).to_vec()
    };
    let small = || sizes.iter().copied().filter(|size| *size <= 8 << 20);
    let large = || sizes.iter().copied().filter(|size| *size > 8 << 20);
    let share = |all: Vec<bool>| all.iter().filter(|each| **each).count() as f64 / all.len() as f64 * 100.0;
    let least_gain = least(sizes.iter().map(|size| gbits(poll, *size) / gbits(wait, *size)));
    let falls = sizes.windows(2).all(|pair| cpu(wait, pair[1]) <= cpu(wait, pair[0]) * 1.05);
    let last = *sizes.last().unwrap_or(&1);
    let mut claims = vec![
        Claim::at_least(
            Calibrated,
            "polling, up to 8 MiB: sizes with 50 Gbit/s or more",
            "in most cases",
            51.0,
            share(small().map(|size| gbits(poll, size) >= 50.0).collect()),
            "%",
        ),
        Claim::near(
            Calibrated,
            "polling above 8 MiB, lowest",
            47.0,
            0.03,
            least(large().map(|size| gbits(poll, size))),
            "Gbit/s",
        ),
        Claim::between(
            Calibrated,
            "wait-wakeup, up to 8 MiB, highest",
            "slightly less than 50",
            (48.0, 50.0),
            most(small().map(|size| gbits(wait, size))),
            "Gbit/s",
        ),
        Claim::at_least(
            Predicted,
            "polling against wait-wakeup, worst size",
            "never as high as polling",
            1.001,
            least_gain,
            "times",
        )
        .lacks("An event takes less than a thousandth of the time of the largest messages here."),
        Claim::at_least(
            Predicted,
            "wait-wakeup: CPU usage falls with the size (1: at each step)",
            "fewer CPU cycles as the message size increases",
            1.0,
            f64::from(u8::from(falls)),
            "",
        )
        .from("F fig. 10"),
        Claim::at_most(Predicted, "wait-wakeup: CPU usage of the largest", "close to 0 %", 2.0, cpu(wait, last), "%")
            .from("F fig. 10"),
    ];
    if bench.live {
        // Simulated, a program that polls takes all that is left.
        let lowest = least(sizes.iter().map(|size| cpu(poll, *size)));
        let claim = Claim::at_least(Predicted, "polling: CPU usage, lowest", "always 100 %", 95.0, lowest, "%");
        claims.push(claim.from("F fig. 10"));
    }
    Ok(report(
        bench,
        claims,
        LIVE,
        vec![
            over_sizes("Highest throughput", super::fdr_common::gbits(), lines(&gbits)),
            over_sizes("CPU usage", Axis::linear("% of a core").showing(0.0, 100.0), lines(&cpu)),
        ],
        &runs,
    ))
}
