//! Messages that do not begin with a cache line (F fig. 2, 3).

use super::fdr_common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Predicted, Kind::Shaped};
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::stream::{Job, Route, Runs};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "fdr-alignment",
    title: "FDR: messages that do not begin with a cache line",
    source: "F fig. 2, 3",
    not_simulated: None,
    not_live: |_| None,
    paper: "Each message has a page-aligned area of its own, and begins at an offset in it. Throughput is better if \
            the offset is a multiple of 64 bytes, the length of a cache line: by 5 to 23 % with 512 KiB, where it \
            makes little difference with one outstanding message and up to 20 % less from 4 on; by 40 % with 8 MiB, \
            whatever the number is. CPU time is essentially the same for all offsets.",
    figures: &[
        PaperFigure {
            name: "F fig. 2",
            axes: "Throughput, Gbit/s, over the number of outstanding messages, a line for each offset.",
            shows: "512 KiB: 5 to 23 % more if aligned; 8 MiB: 47.75 in place of 34 Gbit/s.",
            here: "Offsets of 0, 64, 1 and 32 bytes, on both sides.",
            drawings: 2,
        },
        PaperFigure {
            name: "F fig. 3",
            axes: "CPU time of the program for 64 GiB, seconds, over the number of outstanding messages.",
            shows: "Essentially the same for all offsets.",
            here: "Of both sides together.",
            drawings: 2,
        },
    ],
    fixed_adapters: true,
    one_seed: true,
    run,
};

const SIZES: [u64; 2] = [512 << 10, 8 << 20];
const OFFSETS: [u32; 4] = [0, 64, 1, 32];
const LIVE: &str = "On Weir bytes are copied by the CPU, which loads across cache lines at almost the same rate.";

fn run(bench: &Bench<'_>) -> Result<Report> {
    let numbers: Vec<u32> = if few(bench) { vec![1, 2, 4, 8] } else { vec![1, 2, 3, 4, 5, 6, 8, 10] };
    let of = |size: u64, b: u32, offset: u32| Job { offset, ..job(size, b) };
    let all = SIZES.iter().flat_map(|size| numbers.iter().flat_map(|b| OFFSETS.map(|offset| of(*size, *b, offset))));
    let runs = Runs::of(bench, all.map(|job| (Route::Switch, job)))?;
    let lines = |size: u64, value: fn(&crate::stream::Found) -> f64| {
        let one = |offset: u32| {
            let jobs = numbers.iter().map(|b| (f64::from(*b), of(size, *b, offset)));
            line(format!("offset {offset}"), &runs, jobs, value)
        };
        OFFSETS.map(one).to_vec()
    };
    let throughput = |size: u64| over_numbers(size_name(size), lines(size, |found| found.gbits));
    let cpu = |size: u64| {
        let axis = crate::figure::Axis::linear("CPU seconds for 64 GiB").showing(0.0, 0.0);
        let x = crate::figure::Axis::linear("outstanding messages (B)");
        crate::figure::Panel::new(format!("CPU time, {}", size_name(size)), x, axis, lines(size, cpu_of_all))
    };
    let gbits = |size: u64, b: u32, offset: u32| runs.gbits(Route::Switch, &of(size, b, offset));
    let more = |size: u64, b: u32| (gbits(size, b, 0) / gbits(size, b, 1) - 1.0) * 100.0;
    let multiple =
        |size: u64| most(numbers.iter().map(|b| (gbits(size, *b, 64) / gbits(size, *b, 0) - 1.0).abs() * 100.0));
    let several: Vec<f64> = numbers.iter().filter(|b| **b >= 2).map(|b| gbits(SIZES[1], *b, 0)).collect();
    let cpu_differs = |size: u64| {
        let of = |b: u32, offset: u32| runs.get(Route::Switch, &of(size, b, offset)).map_or(f64::NAN, cpu_of_all);
        let ratio = |b: &u32| of(*b, 1) / of(*b, 0);
        let all: Vec<f64> = numbers.iter().map(ratio).collect();
        crate::statistics::median(&all)
    };
    let [half, eight] = SIZES;
    let mut claims = vec![
        Claim::near(Calibrated, "8 MiB, 4 outstanding, aligned", 47.75, 0.03, gbits(eight, 4, 0), "Gbit/s"),
        Claim::near(Calibrated, "8 MiB, 4 outstanding, offset 1", 34.0, 0.03, gbits(eight, 4, 1), "Gbit/s"),
        Claim::near(Shaped, "512 KiB, 4 outstanding: aligned against offset 1", 23.0, 0.2, more(half, 4), "%"),
        Claim::near(Calibrated, "512 KiB, 8 outstanding: aligned against offset 1", 23.0, 0.2, more(half, 8), "%"),
        Claim::at_most(
            Predicted,
            "512 KiB: aligned against offset 1, highest over B",
            "5 % to 23 %",
            25.0,
            most(numbers.iter().map(|b| more(half, *b))),
            "%",
        )
        .lacks("From 9 messages on, 512 KiB are beyond the cache here, and suffer as 8 MiB do."),
        Claim::within(
            Predicted,
            "512 KiB, 1 outstanding: aligned against offset 1",
            5.0,
            (0.0, 10.0),
            more(half, 1),
            "%",
        )
        .conflicts("a message of 512 KiB takes 84 µs on the bus, and 10 Gbit/s of 32 KiB leave 21 µs between two")
        .lacks(
            "One message at a time takes the bus for most of its time here: what slows the bus down shows in it, if \
             less. F's adapter is idle for longer.",
        ),
        Claim::at_most(
            Predicted,
            "8 MiB, aligned: most against least over B, from 2 on",
            "overlapped",
            3.0,
            spread(&several),
            "%",
        ),
    ];
    if bench.live {
        // Simulated, they follow from what the model is made of.
        let same = "a multiple of 64 bytes";
        claims.extend([
            Claim::at_most(Predicted, "512 KiB: offset 64 against offset 0, worst", same, 2.0, multiple(half), "%"),
            Claim::at_most(Predicted, "8 MiB: offset 64 against offset 0, worst", same, 2.0, multiple(eight), "%"),
        ]);
        claims.extend(SIZES.map(|size| {
            let name = format!("{}: CPU time, offset 1 against 0", size_name(size));
            Claim::within(Predicted, name, 1.0, (0.85, 1.15), cpu_differs(size), "times").from("F fig. 3")
        }));
    }
    Ok(report(bench, claims, LIVE, [SIZES.map(throughput), SIZES.map(cpu)].concat(), &runs))
}
