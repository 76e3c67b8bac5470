//! Polling in place of interrupts (E fig. 3.3).

use super::edge_common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Predicted};
use crate::edge::{Links, Mechanism, Setting, Test};
use crate::experiment::{Experiment, Input, PaperFigure, Report};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "edge-polling",
    title: "MultiEdge: polling in place of interrupts",
    source: "E fig. 3.3",
    not_simulated: None,
    not_live: |_| None,
    paper: "The measurements of E fig. 3.1 with polling. Throughput grows by up to 38 % one-way and 25 % \
            two-way, and stays the same in ping-pongs, because there are no interrupts, and because the \
            receive path can run on the other CPU. Over 8x1 and 1x10 it is about the same, 800 MByte/s \
            one-way, which the authors ascribe to memory.",
    figures: &[
        PaperFigure {
            name: "E fig. 3.3a",
            axes: "Throughput, MByte/s, over the size of an operation, for each set of links. The text states \
                   no scale.",
            shows: "One-way up to 38 % and two-way up to 25 % more than with interrupts; 8x1 and 1x10 about \
                    the same.",
            here: "8x1 and 1x10 only, each with and without polling. The size is logarithmic.",
            drawings: 3,
        },
        PaperFigure {
            name: "E fig. 3.3b",
            axes: "CPU utilization, % of two CPUs, a bar for each set of links at each size.",
            shows: "Two-way, 8x1 uses both CPUs in full, 1x10 is limited by the send path on one of them.",
            here: "128 KiB only, each with and without polling. Rounds of polling that find nothing count.",
            drawings: 2,
        },
    ],
    fixed_adapters: true,
    one_seed: true,
    run,
};

fn run(bench: &Bench<'_>) -> Result<Report> {
    let sizes = sizes(bench);
    let sets = [Links::of(8, 1.0), Links::of(1, 10.0)];
    let of = |links: &Links, mechanism: Mechanism, test: Test| {
        let base = Setting { mechanism, ..Setting::base(links.clone(), test, 1) };
        move |size: u32| Setting { size, ..base.clone() }
    };
    let both = [Mechanism::Events, Mechanism::Polling];
    let keys = || sets.iter().flat_map(|links| both.map(|mechanism| (links, mechanism)));
    let name = |links: &Links, mechanism: Mechanism| {
        format!("{}, {}", links.name(), if mechanism == Mechanism::Polling { "polling" } else { "interrupts" })
    };
    let settings =
        keys().flat_map(|(links, mechanism)| all(&Test::ALL, &sizes, |test, size| of(links, mechanism, test)(size)));
    let runs = Runs::of(bench, settings.collect())?;
    let panels = Test::ALL.map(|test| {
        let line = |(links, mechanism)| {
            runs.line(name(links, mechanism), &sizes, of(links, mechanism, test), |f| f.megabytes())
        };
        throughput(format!("Throughput, {}", test.name()), keys().map(line).collect())
    });
    let stacked = [Test::OneWay, Test::TwoWay].map(|test| {
        let bars = keys().map(|(links, mechanism)| (name(links, mechanism), of(links, mechanism, test)(LONG)));
        stacks(format!("CPU time of the client, {}, 128 KiB", test.name()), &runs, 0, bars.collect())
    });
    let peak = |links: &Links, mechanism: Mechanism, test: Test| runs.peak(&sizes, of(links, mechanism, test));
    let [eight, ten] = &sets;
    let more = |links: &Links, test: Test| peak(links, Mechanism::Polling, test) / peak(links, Mechanism::Events, test);
    let polled = |links: &Links, test: Test| peak(links, Mechanism::Polling, test);
    // What polling itself takes says nothing: it takes all time that is left.
    let busy = |links: &Links| {
        let cpu = runs.at(&of(links, Mechanism::Polling, Test::TwoWay)(LONG)).cpu[0];
        cpu.total() - cpu.notice
    };
    let claims = [
        Claim::near(Predicted, "8x1, one-way: throughput", 800.0, 0.1, polled(eight, Test::OneWay), "MByte/s")
            .from("E 1.1"),
        Claim::near(Predicted, "1x10, one-way: throughput", 800.0, 0.1, polled(ten, Test::OneWay), "MByte/s")
            .from("E 1.1"),
        Claim::between(
            Predicted,
            "two-way: 8x1 against 1x10",
            "almost the same",
            (0.9, 1.1),
            polled(eight, Test::TwoWay) / polled(ten, Test::TwoWay),
            "times",
        ),
        Claim::near(Predicted, "8x1, one-way: against interrupts", 1.38, 0.1, more(eight, Test::OneWay), "times")
            .conflicts("550 MByte/s of E fig. 3.1 and 38 % more are 760, and E 1.1 has 800")
            .lacks(
                "Without interrupts the send path copies 1 GByte/s all the time here, which memory allows \
                 it beside the adapters.",
            ),
        Claim::near(Predicted, "8x1, two-way: against interrupts", 1.25, 0.1, more(eight, Test::TwoWay), "times")
            .lacks(
                "Memory, which two CPUs and the adapters share, limits the throughput to more here than in \
                 E. What synchronization of both CPUs costs (E 2.6.1) has no number in the text.",
            ),
        Claim::between(
            Predicted,
            "8x1, ping-pong: against interrupts",
            "the same level",
            (0.9, 1.1),
            more(eight, Test::PingPong),
            "times",
        )
        .lacks(
            "In a ping-pong of 1 MiB the sender of a direction is as busy here as in the one-way test, \
             and gains as much.",
        ),
        Claim::between(
            Predicted,
            "1x10, ping-pong: against interrupts",
            "the same level",
            (0.9, 1.1),
            more(ten, Test::PingPong),
            "times",
        ),
        Claim::between(
            Predicted,
            "8x1, two-way, 128 KiB: CPUs in use besides polling",
            "both",
            (1.8, 2.05),
            busy(eight),
            "CPUs",
        ),
        Claim::at_most(
            Predicted,
            "1x10, two-way, 128 KiB: CPUs in use besides polling",
            "the second CPU has free cycles",
            1.8,
            busy(ten),
            "CPUs",
        )
        .lacks("Memory is what limits both CPUs here, whatever the links."),
    ];
    let mut inputs = inputs(bench);
    if !bench.live {
        inputs.push(Input {
            name: "time between two polls of an adapter",
            paper: "1 ms",
            profile: "1 µs: with 1 ms a ping-pong would not take 23 µs, and the text has the same level as \
                      with interrupts",
            source: "E 2.4.1, 3.2.3",
        });
    }
    Ok(Report {
        claims: claims.map(|claim| claim.lacks_live(bench.live, LIVE)).into(),
        inputs,
        panels: panels.into(),
        stacks: stacked.into(),
        data: runs.data(),
        ..Report::default()
    })
}
