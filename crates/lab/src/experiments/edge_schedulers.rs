//! Schedulers over links of different rates (E fig. 3.5).

use super::edge_common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Predicted};
use crate::edge::{Links, Setting, Test};
use crate::experiment::{Experiment, PaperFigure, Report};
use anyhow::Result;
use weir_transport::edge::Scheduler;

pub const EXPERIMENT: Experiment = Experiment {
    id: "edge-schedulers",
    title: "MultiEdge: schedulers over links of different rates",
    source: "E fig. 3.5",
    not_simulated: None,
    not_live: |_| None,
    paper: "One link of 10 Gbit/s and four of 1 Gbit/s, without copies and interrupts. SRR uses all links \
            alike and does not use the fast one. WSRR and WD behave the same in ping-pongs. For long \
            operations WD carries 11 % more than WSRR one-way and 12.5 % more two-way, and spends 10 and 20 % \
            more CPU time on packets.",
    figures: &[
        PaperFigure {
            name: "E fig. 3.5a",
            axes: "Throughput, MByte/s, over the size of an operation, for each scheduler. The text states no \
                   scale.",
            shows: "SRR is far behind. WD carries 11 % (one-way) and 12.5 % (two-way) more than WSRR with long \
                    operations.",
            here: "With Weir's own scheduler, auto. The size is logarithmic.",
            drawings: 3,
        },
        PaperFigure::none(
            "The fast link carries 8 Gbit/s, and has the weight of 10. The thesis does not measure that: it \
             shows which scheduler follows a link if its rate is not what its weight says.",
            1,
        ),
        PaperFigure {
            name: "E fig. 3.5b",
            axes: "CPU utilization of the send path, % of two CPUs, a bar for each scheduler at each size.",
            shows: "WD spends about 10 % (one-way) and 20 % (two-way) more on packets than WSRR.",
            here: "128 KiB only. Time of both CPUs, with rounds of polling that find nothing.",
            drawings: 2,
        },
    ],
    fixed_adapters: true,
    one_seed: true,
    run,
};

/// Why WD and WSRR are alike here.
const ALIKE: &str = "With weights that are right, WSRR fills all links here as well: packets are alike in \
                     size, and each adapter has a queue. WD counts all bytes that a link was given, so it does \
                     not follow a link that carries less than its weight says. If E's WD counts those that \
                     have not left, it does, and a difference of 11 % means that links did not carry what \
                     their weights say.";

fn run(bench: &Bench<'_>) -> Result<Report> {
    let sizes = sizes(bench);
    let mixed = || Links::rated(vec![10.0, 1.0, 1.0, 1.0, 1.0]);
    let slower = || Links { rates: vec![8.0, 1.0, 1.0, 1.0, 1.0], ..mixed() };
    let of = |scheduler: Scheduler, links: Links, test: Test| {
        let setting = without_copies(bench, Setting { scheduler, ..Setting::base(links, test, 1).polling() });
        move |size: u32| Setting { size, ..setting.clone() }
    };
    let mut settings = vec![];
    for scheduler in Scheduler::ALL {
        settings.extend(all(&Test::ALL, &sizes, |test, size| of(scheduler, mixed(), test)(size)));
        settings.extend(sizes.iter().map(|size| of(scheduler, slower(), Test::OneWay)(*size)));
    }
    let runs = Runs::of(bench, settings)?;
    let panel = |title: String, links: &dyn Fn() -> Links, test: Test| {
        let line = |scheduler| {
            runs.line(scheduler_name(scheduler), &sizes, of(scheduler, links(), test), |found| found.megabytes())
        };
        throughput(title, Scheduler::ALL.map(line).into())
    };
    let mut panels = Test::ALL.map(|test| panel(format!("1x10+4x1, {}", test.name()), &mixed, test)).to_vec();
    panels.push(panel("1x8+4x1 with the weights of 1x10+4x1, one-way".into(), &slower, Test::OneWay));
    let stacked = [Test::OneWay, Test::TwoWay].map(|test| {
        let bar = |scheduler| (scheduler_name(scheduler).to_owned(), of(scheduler, mixed(), test)(LONG));
        stacks(format!("CPU time of the client, {}, 128 KiB", test.name()), &runs, 0, Scheduler::ALL.map(bar).into())
    });
    // Long operations.
    let long: Vec<u32> = sizes.iter().copied().filter(|size| *size >= LONG).collect();
    let peak = |scheduler: Scheduler, test: Test| runs.peak(&long, of(scheduler, mixed(), test));
    let against = |a: Scheduler, b: Scheduler, test: Test| peak(a, test) / peak(b, test);
    let (srr, wsrr, wd, auto) =
        (Scheduler::RoundRobin, Scheduler::WeightedRoundRobin, Scheduler::Dynamic, Scheduler::Auto);
    let packets = |test: Test| {
        let of = |scheduler| runs.at(&of(scheduler, mixed(), test)(LONG)).cpu[0].packet;
        of(wd) / of(wsrr)
    };
    let followed = |scheduler: Scheduler| runs.peak(&long, of(scheduler, slower(), Test::OneWay)) / (12.0 * 125.0);
    let claims = [
        Claim::at_most(
            Predicted,
            "SRR against WD, one-way",
            "far behind",
            0.5,
            against(srr, wd, Test::OneWay),
            "times",
        ),
        Claim::at_most(
            Predicted,
            "SRR against WD, two-way",
            "far behind",
            0.5,
            against(srr, wd, Test::TwoWay),
            "times",
        ),
        Claim::between(
            Predicted,
            "WD against WSRR, ping-pong",
            "almost the same",
            (0.95, 1.05),
            against(wd, wsrr, Test::PingPong),
            "times",
        ),
        Claim::within(
            Predicted,
            "WD against WSRR, one-way",
            1.11,
            (1.05, 1.17),
            against(wd, wsrr, Test::OneWay),
            "times",
        )
        .lacks(ALIKE),
        Claim::within(
            Predicted,
            "WD against WSRR, two-way",
            1.125,
            (1.06, 1.19),
            against(wd, wsrr, Test::TwoWay),
            "times",
        )
        .lacks(ALIKE),
        Claim::within(
            Predicted,
            "WD against WSRR, one-way: CPU time of packets",
            1.1,
            (1.05, 1.15),
            packets(Test::OneWay),
            "times",
        )
        .lacks(ALIKE),
        Claim::within(
            Predicted,
            "WD against WSRR, two-way: CPU time of packets",
            1.2,
            (1.1, 1.3),
            packets(Test::TwoWay),
            "times",
        )
        .lacks(ALIKE),
        Claim::between(
            Predicted,
            "auto against WD, one-way",
            "Weir's own",
            (0.98, 1.2),
            against(auto, wd, Test::OneWay),
            "times",
        ),
        Claim::at_least(
            Predicted,
            "a link of 8 Gbit/s with the weight of 10: share of nominal, auto",
            "Weir's own",
            0.95,
            followed(auto),
            "",
        ),
        Claim::at_most(
            Predicted,
            "a link of 8 Gbit/s with the weight of 10: share of nominal, WSRR",
            "Weir's own",
            0.95,
            followed(wsrr),
            "",
        ),
    ];
    Ok(Report {
        claims: claims.map(|claim| claim.lacks_live(bench.live, LIVE)).into(),
        inputs: inputs(bench),
        panels,
        stacks: stacked.into(),
        data: runs.data(),
        ..Report::default()
    })
}
