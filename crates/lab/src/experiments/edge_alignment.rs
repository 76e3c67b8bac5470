//! Destinations that do not begin at a page (E fig. 3.11).

use super::edge_common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Predicted};
use crate::edge::{Flush, Receiving, Sending, Setting, Test};
use crate::experiment::{Experiment, PaperFigure, Report};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "edge-alignment",
    title: "MultiEdge: destinations that do not begin at a page",
    source: "E fig. 3.11",
    not_simulated: None,
    not_live: |_| None,
    paper: "With remapping of pages, the destination begins at a page, in its middle, or one byte after its \
            beginning, which is the worst. Then the first and the last part of an operation have packets of \
            their own, and are copied. Above a page, middle and worst are alike, and both approach the aligned \
            case as operations grow. Weir does not remap pages: this is simulated with the thesis' costs.",
    figures: &[PaperFigure {
        name: "E fig. 3.11",
        axes: "Throughput over the size of an operation, one-way and two-way, for each alignment. The text \
               states no scale.",
        shows: "Middle and worst are alike above a page, and approach the aligned case as operations grow.",
        here: "The size is logarithmic. The source begins at the same place of a page as the destination.",
        drawings: 2,
    }],
    fixed_adapters: true,
    one_seed: true,
    run,
};

const OFFSETS: [(&str, u32); 3] = [("best: at a page", 0), ("middle", 2048), ("worst: one byte after", 1)];

fn run(bench: &Bench<'_>) -> Result<Report> {
    let sizes: Vec<u32> = sizes(bench).into_iter().filter(|size| *size >= 512 || bench.shrink > 1).collect();
    let tests = [Test::OneWay, Test::TwoWay];
    let receiving = if bench.live { Receiving::Copied } else { Receiving::Remapped(Flush::Full) };
    let of = |offset: u32, test: Test| {
        move |size: u32| Setting { offset, ..Setting::zero_copy(test, size).moving(Sending::Gathered, receiving) }
    };
    let settings = OFFSETS.iter().flat_map(|(_, offset)| all(&tests, &sizes, |test, size| of(*offset, test)(size)));
    let runs = Runs::of(bench, settings.collect())?;
    let panels = tests.map(|test| {
        let line = |(name, offset): &(&'static str, u32)| {
            runs.line(*name, &sizes, of(*offset, test), |found| found.megabytes())
        };
        throughput(format!("PinMap, {}", test.name()), OFFSETS.iter().map(line).collect())
    });
    let rate = |offset: u32, test: Test, size: u32| runs.at(&of(offset, test)(size)).gbits;
    // The size above a page at which middle and worst differ most.
    let apart = |test: Test| {
        let ratio = |size: &u32| rate(2048, test, *size) / rate(1, test, *size);
        let above = sizes.iter().filter(|size| **size > SHORT).map(ratio);
        above.fold(1.0, |most: f64, ratio| if (ratio - 1.0).abs() > (most - 1.0).abs() { ratio } else { most })
    };
    let mut claims = vec![];
    for test in tests {
        let name = test.name();
        let share = |size: u32| rate(1, test, size) / rate(0, test, size);
        claims.extend([
            Claim::between(
                Predicted,
                format!("{name}, above 4 KiB: middle against worst, where they differ most"),
                "similar",
                (0.9, 1.1),
                apart(test),
                "times",
            ),
            Claim::at_most(
                Predicted,
                format!("{name}, 4 KiB: worst against best"),
                "copies, and more packets",
                0.9,
                share(SHORT),
                "times",
            ),
            Claim::at_least(
                Predicted,
                format!("{name}, 128 KiB: worst against best, as a multiple of that at 4 KiB"),
                "grows with the size",
                1.2,
                share(LONG) / share(SHORT),
                "times",
            ),
            Claim::at_least(
                Predicted,
                format!("{name}, 1 MiB: worst against best"),
                "it approaches the aligned case",
                0.95,
                share(LONGEST),
                "times",
            ),
        ]);
    }
    Ok(Report {
        claims: claims.into_iter().map(|claim| claim.lacks_live(bench.live, LIVE)).collect(),
        inputs: inputs(bench),
        panels: panels.into(),
        data: runs.data(),
        not_live: "Live, pages are not remapped, and the offset changes nothing but the alignment of copies.",
        ..Report::default()
    })
}
