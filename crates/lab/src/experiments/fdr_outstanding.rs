//! The number of outstanding messages of each size (F fig. 4, 5, 6).

use super::fdr_common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Predicted};
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::Axis;
use crate::stream::{Found, Route, Runs};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "fdr-outstanding",
    title: "FDR: message sizes and outstanding messages",
    source: "F fig. 4, 5, 6",
    not_simulated: None,
    not_live: |_| None,
    paper: "Messages of 32 KiB and more, wait-wakeup. One message of 32 KiB at a time has 10 Gbit/s, 16 or 32 of \
            them have more than 45. Above 8 MiB the number makes almost no difference. 64 GiB in messages of 32 KiB \
            take close to 60 s one at a time, with close to 20 s of CPU time, and around 12 s with 32 outstanding. \
            CPU time falls with the size.",
    figures: &[
        PaperFigure {
            name: "F fig. 4",
            axes: "Throughput, Gbit/s, over the size of a message, a line for each number of outstanding messages.",
            shows: "32 KiB: 10 Gbit/s with 1, more than 45 with 16 and 32; above 8 MiB almost identical.",
            here: "The size is logarithmic. Live, up to 8 MiB.",
            drawings: 1,
        },
        PaperFigure {
            name: "F fig. 5",
            axes: "CPU time for 64 GiB, seconds, over the size.",
            shows: "Close to 20 s with one message of 32 KiB at a time; less with larger ones.",
            here: "User and system time of both sides.",
            drawings: 1,
        },
        PaperFigure {
            name: "F fig. 6",
            axes: "Elapsed time for 64 GiB, seconds, over the size.",
            shows: "Close to 60 s with one message of 32 KiB at a time, around 12 s with 32.",
            here: "Computed from the throughput.",
            drawings: 1,
        },
    ],
    fixed_adapters: true,
    one_seed: true,
    run,
};

const NUMBERS: [u32; 6] = [1, 2, 4, 8, 16, 32];
const LEAST: u64 = 32 << 10;
const LIVE: &str = "Absolute figures are those of F's machine. On Weir a message's bytes take CPU time on both \
                    sides, so that CPU time hardly falls with the size.";

fn run(bench: &Bench<'_>) -> Result<Report> {
    let sizes = sizes(bench);
    let fits = |size: u64, b: u32| numbers(bench, size, &[]).contains(&b);
    let keys: Vec<(u64, u32)> =
        sizes.iter().flat_map(|size| NUMBERS.map(|b| (*size, b))).filter(|(size, b)| fits(*size, *b)).collect();
    let runs = Runs::of(bench, keys.iter().map(|(size, b)| (Route::Switch, job(*size, *b))))?;
    let panel = |title: &str, y: Axis, value: fn(&Found) -> f64| {
        let one = |b: u32| {
            let jobs = keys.iter().filter(|(_, of)| *of == b).map(|(size, b)| (*size as f64, job(*size, *b)));
            line(format!("B = {b}"), &runs, jobs, value)
        };
        over_sizes(title, y, NUMBERS.map(one).into())
    };
    let at =
        |size: u64, b: u32, value: fn(&Found) -> f64| runs.get(Route::Switch, &job(size, b)).map_or(f64::NAN, value);
    let throughput = |found: &Found| found.gbits;
    let of_size = |size: u64| -> Vec<f64> {
        keys.iter().filter(|(of, _)| *of == size).map(|(size, b)| at(*size, *b, throughput)).collect()
    };
    let large = sizes.iter().filter(|size| **size > 8 << 20 || (few(bench) && **size == 8 << 20));
    let spread = most(large.map(|size| spread(&of_size(*size))));
    let largest = *sizes.last().unwrap_or(&LEAST);
    let claims = [
        Claim::near(Calibrated, "32 KiB, 1 outstanding", 10.0, 0.1, at(LEAST, 1, throughput), "Gbit/s").from("F 3.3"),
        Claim::at_least(
            Calibrated,
            "32 KiB, 16 outstanding",
            "more than 45",
            45.0,
            at(LEAST, 16, throughput),
            "Gbit/s",
        )
        .from("F 3.3"),
        Claim::at_least(
            Calibrated,
            "32 KiB, 32 outstanding",
            "more than 45",
            45.0,
            at(LEAST, 32, throughput),
            "Gbit/s",
        )
        .from("F 3.3"),
        Claim::at_most(
            Predicted,
            "above 8 MiB: most against least over B, worst size",
            "almost identical",
            5.0,
            spread,
            "%",
        )
        .from("F 3.3"),
        Claim::near(Calibrated, "64 GiB, 32 KiB, 1 outstanding: CPU time", 20.0, 0.1, at(LEAST, 1, cpu_of_all), "s")
            .from("F fig. 5"),
        Claim::at_most(
            Predicted,
            "64 GiB, largest against 32 KiB, 1 outstanding: CPU time",
            "less time in user and kernel space",
            0.1,
            at(largest, 1, cpu_of_all) / at(LEAST, 1, cpu_of_all),
            "times",
        )
        .from("F fig. 5"),
        Claim::near(Calibrated, "64 GiB, 32 KiB, 1 outstanding: elapsed", 60.0, 0.1, at(LEAST, 1, time_of_all), "s")
            .from("F fig. 6"),
        Claim::near(Calibrated, "64 GiB, 32 KiB, 32 outstanding: elapsed", 12.0, 0.1, at(LEAST, 32, time_of_all), "s")
            .from("F fig. 6"),
    ];
    let seconds = |what: &str| Axis::linear(what).showing(0.0, 0.0);
    Ok(report(
        bench,
        claims,
        LIVE,
        vec![
            panel("Throughput", gbits(), throughput),
            panel("CPU time", seconds("CPU seconds for 64 GiB"), cpu_of_all),
            panel("Elapsed time", seconds("seconds for 64 GiB"), time_of_all),
        ],
        &runs,
    ))
}
