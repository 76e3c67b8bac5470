//! Latency, throughput and CPU time of one to eight links (E fig. 3.1, 3.2).

use super::edge_common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Predicted, Kind::Shaped};
use crate::edge::{Links, Setting, Test};
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::{Axis, Panel};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "edge-links",
    title: "MultiEdge: one to eight links",
    source: "E fig. 3.1, 3.2",
    not_simulated: None,
    not_live: |_| None,
    paper: "WRITEs of one size between two hosts, one-way, two-way and as a ping-pong, over one to eight links \
            of 1 Gbit/s, and over one of 10 Gbit/s, with interrupts and with a copy on each side. One and two \
            links are used in full. Throughput grows up to six links, and is limited by the send path on one \
            CPU, in which copies are the largest part. Latency does not depend on the number of links.",
    figures: &[
        PaperFigure {
            name: "E fig. 3.1a",
            axes: "Latency over the size of an operation, for each set of links; one-way and two-way show the \
                   time to start an operation. The text states no scale.",
            shows: "Ping-pong: about 23 µs at least, with any links. One-way, two-way: about 2 µs at least.",
            here: "Both axes are logarithmic.",
            drawings: 2,
        },
        PaperFigure {
            name: "E fig. 3.1b",
            axes: "Throughput, MByte/s, over the size of an operation, for each set of links. The text states \
                   no scale.",
            shows: "One-way: 99.2 % of nominal for 1x1 and 2x1, about 550 MByte/s for 8x1, 825 for 1x10. \
                    Two-way: it scales up to 4x1, then it fluctuates around 800 to 900 MByte/s.",
            here: "The size is logarithmic.",
            drawings: 3,
        },
        PaperFigure {
            name: "E fig. 3.2",
            axes: "CPU utilization, % of two CPUs, a bar for each set of links at each size.",
            shows: "At 128 KiB over 8x1, copies are 75 % of the sender and 65 % of the receiver one-way, and \
                    about 70 % two-way and in ping-pongs. At 4 KiB over 8x1, interrupts take more than \
                    elsewhere.",
            here: "4 KiB and 128 KiB only.",
            drawings: 4,
        },
    ],
    fixed_adapters: true,
    one_seed: true,
    run,
};

/// E attributes an interrupt to what it interrupts.
const INTERRUPTED: &str = "An interrupt that comes while a CPU copies is not part of the copy here. E measures \
                           how long copies last, so interrupts that delay them may count as copies.";

/// The sets of links.
fn sets() -> Vec<Links> {
    let mut sets: Vec<Links> = [1, 2, 4, 6, 8].map(|count| Links::of(count, 1.0)).into();
    sets.push(Links::of(1, 10.0));
    sets
}

fn run(bench: &Bench<'_>) -> Result<Report> {
    let sizes = sizes(bench);
    let sets = sets();
    let settings =
        sets.iter().flat_map(|links| all(&Test::ALL, &sizes, |test, size| Setting::base(links.clone(), test, size)));
    let runs = Runs::of(bench, settings.collect())?;
    let base = |links: &Links, test: Test| {
        let links = links.clone();
        move |size: u32| Setting::base(links.clone(), test, size)
    };
    Ok(Report {
        claims: claims(bench, &runs, &sizes),
        inputs: inputs(bench),
        panels: panels(&runs, &sets, &sizes, base),
        stacks: [(Test::OneWay, 0), (Test::OneWay, 1), (Test::TwoWay, 0), (Test::PingPong, 0)]
            .map(|(test, side)| {
                let bar = |links: &Links, size: u32| {
                    (format!("{}, {}", links.name(), size_name(size.into())), Setting::base(links.clone(), test, size))
                };
                let bars = [SHORT, LONG]
                    .iter()
                    .flat_map(|size| sets.iter().map(|links| bar(links, *size)).collect::<Vec<_>>());
                let side_name = ["client", "server"][side];
                stacks(format!("CPU time, {}, {side_name}", test.name()), &runs, side, bars.collect())
            })
            .into(),
        data: runs.data(),
        ..Report::default()
    })
}

fn panels<F: Fn(u32) -> Setting>(
    runs: &Runs,
    sets: &[Links],
    sizes: &[u32],
    base: impl Fn(&Links, Test) -> F,
) -> Vec<Panel> {
    let lines = |test: Test, y: &dyn Fn(&crate::edge::Found) -> f64| {
        sets.iter().map(|links| runs.line(links.name(), sizes, base(links, test), y)).collect::<Vec<_>>()
    };
    let x = || Axis::sizes("bytes of an operation");
    let mut panels = vec![
        Panel::new("Ping-pong: latency", x(), Axis::log("one way (µs)"), lines(Test::PingPong, &|found| found.latency)),
        Panel::new(
            "One-way: start of an operation",
            x(),
            Axis::log("CPU time (µs)"),
            lines(Test::OneWay, &|found| found.initiate),
        ),
    ];
    for test in Test::ALL {
        panels.push(throughput(format!("Throughput, {}", test.name()), lines(test, &|found| found.megabytes())));
    }
    panels
}

fn claims(bench: &Bench<'_>, runs: &Runs, sizes: &[u32]) -> Vec<Claim> {
    let of = |count: usize, test: Test| move |size: u32| Setting::base(Links::of(count, 1.0), test, size);
    let ten = |test: Test| move |size: u32| Setting::base(Links::of(1, 10.0), test, size);
    let peak = |count: usize, test: Test| runs.peak(sizes, of(count, test));
    let (one_way, two_way, ping_pong) = (Test::OneWay, Test::TwoWay, Test::PingPong);
    let latency = |setting: Setting| runs.at(&setting).latency;
    let latencies: Vec<f64> = sets().into_iter().map(|links| latency(Setting::base(links, ping_pong, 4))).collect();
    let spread = latencies.iter().fold(0.0, |most: f64, each| most.max(*each))
        / latencies.iter().fold(f64::INFINITY, |least: f64, each| least.min(*each));
    let cpu = |setting: Setting, side: usize| runs.at(&setting).cpu[side];
    let copies = |test: Test, side: usize| cpu(of(8, test)(LONG), side).copies();
    let notice = |setting: Setting| cpu(setting, 0).notice;
    vec![
        Claim::near(Predicted, "1x1, one-way: share of nominal", 0.992, 0.01, peak(1, one_way) / 125.0, "")
            .from("E 3.2.2"),
        Claim::near(Predicted, "2x1, one-way: share of nominal", 0.992, 0.01, peak(2, one_way) / 250.0, "")
            .from("E 3.2.2"),
        Claim::at_least(
            Predicted,
            "4x1, one-way: against 1x1",
            "proportional up to six links",
            3.7,
            peak(4, one_way) / peak(1, one_way),
            "times",
        ),
        Claim::at_least(
            Predicted,
            "6x1, one-way: against 4x1",
            "it continues to increase",
            1.05,
            peak(6, one_way) / peak(4, one_way),
            "times",
        ),
        Claim::between(
            Predicted,
            "8x1, one-way: against 6x1",
            "almost the same level",
            (0.9, 1.1),
            peak(8, one_way) / peak(6, one_way),
            "times",
        ),
        Claim::near(Calibrated, "8x1, one-way: throughput", 550.0, 0.1, peak(8, one_way), "MByte/s").conflicts(
            "E's abstract has 65 % of nominal for eight links, and E 3.2.4 has 66.5 % more without \
             copies, which is 596",
        ),
        Claim::near(Calibrated, "1x10, one-way: throughput", 825.0, 0.1, runs.peak(sizes, ten(one_way)), "MByte/s"),
        Claim::at_least(
            Predicted,
            "4x1, two-way: against 2x1",
            "it scales well up to four links",
            1.6,
            peak(4, two_way) / peak(2, two_way),
            "times",
        )
        .lacks(
            "With four links the thread that receives sleeps between packets, so most packets interrupt \
             the only CPU that works here. In E the second CPU takes a part of the interrupts.",
        ),
        Claim::between(
            Shaped,
            "8x1, two-way: throughput",
            "around 800 to 900",
            (760.0, 940.0),
            peak(8, two_way),
            "MByte/s",
        ),
        Claim::at_least(
            Predicted,
            "4x1, ping-pong: against 1x1",
            "proportional",
            3.4,
            peak(4, ping_pong) / peak(1, ping_pong),
            "times",
        ),
        Claim::at_least(
            Predicted,
            "1x10, one-way: against 8x1",
            "higher",
            1.05,
            runs.peak(sizes, ten(one_way)) / peak(8, one_way),
            "times",
        ),
        Claim::at_least(
            Predicted,
            "1x10, ping-pong: against 8x1",
            "higher",
            1.05,
            runs.peak(sizes, ten(ping_pong)) / peak(8, ping_pong),
            "times",
        ),
        Claim::near(Calibrated, "1x1, ping-pong of 4 bytes: one way", 23.0, 0.1, latency(of(1, ping_pong)(4)), "µs"),
        Claim::at_most(
            Shaped,
            "ping-pong of 4 bytes: longest against shortest, over all links",
            "it does not depend on the links",
            1.1,
            spread,
            "times",
        ),
        Claim::near(
            Predicted,
            "8x1, one-way, 128 KiB: copies of the sender's CPU time",
            0.75,
            0.1,
            copies(one_way, 0),
            "",
        )
        .lacks(INTERRUPTED),
        Claim::near(
            Predicted,
            "8x1, one-way, 128 KiB: copies of the receiver's CPU time",
            0.65,
            0.1,
            copies(one_way, 1),
            "",
        )
        .lacks(INTERRUPTED),
        Claim::near(Predicted, "8x1, two-way, 128 KiB: copies of the CPU time", 0.7, 0.1, copies(two_way, 0), "")
            .lacks(
                "Where one CPU does all, the thread that receives is never without work and interrupts stay \
                 off, so they take no time here.",
            ),
        Claim::near(Predicted, "8x1, ping-pong, 128 KiB: copies of the CPU time", 0.7, 0.1, copies(ping_pong, 0), "")
            .lacks(INTERRUPTED),
        Claim::at_least(
            Predicted,
            "one-way, 128 KiB: interrupts of 8x1 against 1x10, CPU time",
            "their cost grows with the number of links, not with the speed",
            1.5,
            notice(of(8, one_way)(LONG)) / notice(ten(one_way)(LONG)),
            "times",
        ),
        Claim::at_least(
            Predicted,
            "8x1, one-way: interrupts at 4 KiB against 128 KiB, CPU time",
            "higher",
            1.1,
            notice(of(8, one_way)(SHORT)) / notice(of(8, one_way)(LONG)),
            "times",
        ),
    ]
    .into_iter()
    .map(|claim| claim.lacks_live(bench.live, LIVE))
    .collect()
}
