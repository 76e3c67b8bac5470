//! Without copies, and with pages that are remapped (E fig. 3.4, 3.8, 3.10).

use super::edge_common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Predicted, Kind::Shaped};
use crate::edge::{Flush, Links, Receiving, Sending, Setting, Test};
use crate::experiment::{Experiment, PaperFigure, Report};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "edge-copies",
    title: "MultiEdge: without copies, and with remapped pages",
    source: "E fig. 3.4, 3.8, 3.10",
    not_simulated: None,
    not_live: |_| None,
    paper: "Copies are disabled artificially: 8x1 carries 66.5 % more one-way and 87.5 % more two-way, and \
            one-way all links are used in full. On hosts with links of 10 and 5 Gbit/s, without the sender's \
            copy (NoTx) throughput grows by 27 % one-way and in ping-pongs. With remapping of pages in place \
            of copies (PinMap) it grows by 87 % one-way, 98 % two-way and 70 % in ping-pongs, to 14.7 Gbit/s \
            one-way, which is 98 % of what there is without copies (NoCP). Remapping and the TLB are the \
            kernel's: they are simulated with the thesis' costs, and Weir has neither.",
    figures: &[
        PaperFigure {
            name: "E fig. 3.4a",
            axes: "Throughput, MByte/s, over the size of an operation, for each set of links. The text states \
                   no scale.",
            shows: "One-way and in ping-pongs, throughput is proportional to the number of links.",
            here: "8x1 and 1x10 only, with and without copies. The size is logarithmic.",
            drawings: 3,
        },
        PaperFigure {
            name: "E fig. 3.8a",
            axes: "Throughput over the size of an operation, for CP, NoTx, PinMap and NoCP. The text states no \
                   scale.",
            shows: "One-way: 7.7 Gbit/s with copies, 14.7 with remapping. Two-way: about 17 Gbit/s with \
                    remapping.",
            here: "NoRx, without the receiver's copy, is Weir's own. The size is logarithmic.",
            drawings: 3,
        },
        PaperFigure {
            name: "E fig. 3.10",
            axes: "One-way throughput over the size of an operation, for each way to invalidate the TLB. The \
                   text states no scale.",
            shows: "Without invalidation it is that of NoCP; a full flush takes 1 to 13 % of it, and a \
                    selective one 17 %.",
            here: "The size is logarithmic.",
            drawings: 1,
        },
        PaperFigure {
            name: "E fig. 3.8b",
            axes: "CPU utilization, % of two CPUs, a bar for each of CP, NoTx, PinMap and NoCP at each size.",
            shows: "One-way, PinMap: the receiver uses almost 100 % of a CPU. Interrupts and remapping take up \
                    to 74.1 %, adapters and packets up to 36.3 %.",
            here: "128 KiB only: both sides one-way, and two-way.",
            drawings: 3,
        },
    ],
    fixed_adapters: true,
    one_seed: true,
    run,
};

/// The setups of E fig. 3.8, and NoRx.
const SETUPS: [(&str, Sending, Receiving); 5] = [
    ("CP", Sending::Copied, Receiving::Copied),
    ("NoTx", Sending::Skipped, Receiving::Copied),
    ("NoRx", Sending::Copied, Receiving::Skipped),
    ("PinMap", Sending::Gathered, Receiving::Remapped(Flush::Full)),
    ("NoCP", Sending::Skipped, Receiving::Skipped),
];
/// Live, what is sent can stay where it is; what comes is copied.
const LIVE_SETUPS: [(&str, Sending, Receiving); 2] =
    [("CP", Sending::Copied, Receiving::Copied), ("NoTx", Sending::Gathered, Receiving::Copied)];
const FLUSHES: [(&str, Flush); 3] =
    [("no invalidation", Flush::None), ("full", Flush::Full), ("selective", Flush::Selective)];

/// Why both directions together are faster here.
const BUSY: &str = "A host that always has work keeps interrupts off here, as E 2.4 says, so they cost \
                    nothing. What the synchronization of paths that run at the same time costs (E 2.6.1) has \
                    no number in the text.";

fn run(bench: &Bench<'_>) -> Result<Report> {
    let mut report = Report {
        inputs: inputs(bench),
        not_live: "Live, the receiver has to copy, and pages are not remapped: these setups are simulated only.",
        ..Report::default()
    };
    let base = base_platform(bench, &mut report)?;
    let zero = zero_copy(bench, &mut report)?;
    report.data = base.data();
    report.data.rows.extend(zero.data().rows);
    report.claims =
        std::mem::take(&mut report.claims).into_iter().map(|claim| claim.lacks_live(bench.live, LIVE)).collect();
    Ok(report)
}

/// E fig. 3.4.
fn base_platform(bench: &Bench<'_>, report: &mut Report) -> Result<Runs> {
    let sizes = sizes(bench);
    let [eight, ten] = &[Links::of(8, 1.0), Links::of(1, 10.0)];
    let copied = |links: &Links, test: Test| {
        let links = links.clone();
        move |size: u32| Setting::base(links.clone(), test, size)
    };
    let free = |links: &Links, test: Test| {
        let with = copied(links, test);
        move |size: u32| without_copies(bench, with(size))
    };
    let settings = [eight, ten].into_iter().flat_map(|links| {
        let with = all(&Test::ALL, &sizes, |test, size| copied(links, test)(size));
        with.into_iter().chain(all(&Test::ALL, &sizes, |test, size| free(links, test)(size)))
    });
    let runs = Runs::of(bench, settings.collect())?;
    for test in Test::ALL {
        let lines = [eight, ten].into_iter().flat_map(|links| {
            let name = |what: &str| format!("{}, {what}", links.name());
            let with = runs.line(name("copies"), &sizes, copied(links, test), |found| found.megabytes());
            let without = runs.line(name("no copies"), &sizes, free(links, test), |found| found.megabytes());
            [with, without]
        });
        report.panels.push(throughput(format!("Base, {}", test.name()), lines.collect()));
    }
    let peak = |links: &Links, test: Test| runs.peak(&sizes, free(links, test));
    let more = |test: Test| peak(eight, test) / runs.peak(&sizes, copied(eight, test));
    report.claims.extend([
        Claim::at_least(
            Predicted,
            "8x1, one-way, no copies: share of nominal",
            "the maximum possible",
            0.97,
            peak(eight, Test::OneWay) / 1000.0,
            "",
        ),
        Claim::at_least(
            Predicted,
            "1x10, one-way, no copies: share of nominal",
            "the maximum possible",
            0.97,
            peak(ten, Test::OneWay) / 1250.0,
            "",
        ),
        Claim::at_least(
            Predicted,
            "8x1, ping-pong, no copies: share of nominal",
            "the maximum possible",
            0.9,
            peak(eight, Test::PingPong) / 1000.0,
            "",
        ),
        Claim::near(Predicted, "8x1, one-way: no copies against copies", 1.665, 0.1, more(Test::OneWay), "times")
            .conflicts(
                "550 MByte/s of E fig. 3.1 and 66.5 % more are 916, but E 3.2.4 has the links in full, which \
                 are 990",
            ),
        Claim::near(Predicted, "8x1, two-way: no copies against copies", 1.875, 0.1, more(Test::TwoWay), "times")
            .lacks(BUSY),
    ]);
    Ok(runs)
}

/// E fig. 3.8 and 3.10.
fn zero_copy(bench: &Bench<'_>, report: &mut Report) -> Result<Runs> {
    let sizes = sizes(bench);
    let setups: &[(&str, Sending, Receiving)] = if bench.live { &LIVE_SETUPS } else { &SETUPS };
    let of = |(_, sending, receiving): (&str, Sending, Receiving), test: Test| {
        move |size: u32| Setting::zero_copy(test, size).moving(sending, receiving)
    };
    let flushed = |flush: Flush| of(("", Sending::Gathered, Receiving::Remapped(flush)), Test::OneWay);
    let mut settings: Vec<Setting> =
        setups.iter().flat_map(|setup| all(&Test::ALL, &sizes, |test, size| of(*setup, test)(size))).collect();
    if !bench.live {
        settings.extend(
            [Flush::None, Flush::Selective].iter().flat_map(|flush| sizes.iter().map(|size| flushed(*flush)(*size))),
        );
    }
    let runs = Runs::of(bench, settings)?;
    for test in Test::ALL {
        let line = |setup: &(&'static str, Sending, Receiving)| {
            runs.line(setup.0, &sizes, of(*setup, test), |found| found.megabytes())
        };
        report.panels.push(throughput(format!("10 + 5 Gbit/s, {}", test.name()), setups.iter().map(line).collect()));
    }
    let line =
        |(name, flush): &(&'static str, Flush)| runs.line(*name, &sizes, flushed(*flush), |found| found.megabytes());
    // Live it is empty, as the drawings belong to the thesis' figures by their order.
    let lines = FLUSHES.iter().filter(|_| !bench.live).map(line).collect();
    report.panels.push(throughput("PinMap, one-way: invalidation of the TLB", lines));
    for (test, side, name) in
        [(Test::OneWay, 0, "one-way, client"), (Test::OneWay, 1, "one-way, server"), (Test::TwoWay, 0, "two-way")]
    {
        let bars = setups.iter().map(|setup| (setup.0.to_owned(), of(*setup, test)(LONG))).collect();
        report.stacks.push(stacks(format!("CPU time at 128 KiB, {name}"), &runs, side, bars));
    }
    let peak = |name: &str, test: Test| {
        let setup = setups.iter().find(|setup| setup.0 == name);
        setup.map_or(f64::NAN, |setup| runs.peak(&sizes, of(*setup, test)) / 125.0)
    };
    let against = |name: &str, test: Test| peak(name, test) / peak("CP", test);
    report.claims.extend([
        Claim::near(Calibrated, "CP, one-way: throughput", 7.7, 0.1, peak("CP", Test::OneWay), "Gbit/s").from("E 1.1"),
        Claim::near(Shaped, "CP, two-way: throughput", 8.8, 0.1, peak("CP", Test::TwoWay), "Gbit/s").from("E abstract"),
        Claim::near(Calibrated, "NoTx, one-way: against CP", 1.27, 0.05, against("NoTx", Test::OneWay), "times"),
        Claim::near(Predicted, "NoTx, ping-pong: against CP", 1.27, 0.05, against("NoTx", Test::PingPong), "times"),
    ]);
    if bench.live {
        return Ok(runs);
    }
    let receiver = |name: &str| {
        let setup = setups.iter().find(|setup| setup.0 == name).expect("it is one of them");
        runs.at(&of(*setup, Test::OneWay)(LONG)).cpu[1]
    };
    let flush = |flush: Flush, size: u32| runs.at(&flushed(flush)(size)).gbits;
    let less = |kind: Flush, size: u32| 1.0 - flush(kind, size) / flush(Flush::None, size);
    let pin = receiver("PinMap");
    report.claims.extend([
        Claim::near(Predicted, "PinMap, one-way: against CP", 1.87, 0.1, against("PinMap", Test::OneWay), "times"),
        Claim::near(Shaped, "PinMap, two-way: against CP", 1.98, 0.1, against("PinMap", Test::TwoWay), "times")
            .lacks(BUSY),
        Claim::near(Predicted, "PinMap, ping-pong: against CP", 1.7, 0.1, against("PinMap", Test::PingPong), "times")
            .lacks("In a ping-pong of 1 MiB here, work at both ends and the links overlap almost in full."),
        Claim::near(Predicted, "PinMap, one-way: throughput", 14.7, 0.03, peak("PinMap", Test::OneWay), "Gbit/s"),
        Claim::near(Shaped, "PinMap, two-way: throughput", 17.0, 0.1, peak("PinMap", Test::TwoWay), "Gbit/s")
            .from("E 1.1")
            .lacks(BUSY),
        Claim::near(
            Predicted,
            "PinMap, one-way: share of NoCP",
            0.98,
            0.03,
            peak("PinMap", Test::OneWay) / peak("NoCP", Test::OneWay),
            "",
        ),
        Claim::near(
            Shaped,
            "PinMap, two-way: share of NoCP",
            0.57,
            0.1,
            peak("PinMap", Test::TwoWay) / peak("NoCP", Test::TwoWay),
            "",
        )
        .lacks(BUSY),
        Claim::between(
            Predicted,
            "PinMap, one-way, 128 KiB: CPU time of the receiver",
            "almost 100 %",
            (0.9, 1.01),
            pin.total(),
            "CPUs",
        ),
        Claim::near(
            Predicted,
            "PinMap, one-way, 128 KiB: interrupts and remapping at the receiver",
            0.741,
            0.1,
            pin.notice + pin.remap,
            "CPUs",
        ),
        Claim::near(
            Calibrated,
            "PinMap, one-way, 128 KiB: adapters and packets at the receiver",
            0.363,
            0.15,
            pin.device + pin.packet,
            "CPUs",
        ),
        Claim::at_least(
            Predicted,
            "no invalidation, 128 KiB: share of NoCP",
            "close to NoCP",
            0.97,
            flush(Flush::None, LONG) / peak("NoCP", Test::OneWay),
            "",
        )
        .from("E fig. 3.10"),
        Claim::near(Calibrated, "full flush, 4 KiB: less throughput by", 0.13, 0.15, less(Flush::Full, SHORT), "")
            .from("E fig. 3.10"),
        Claim::at_most(Predicted, "full flush, 128 KiB: less throughput by", "0.01", 0.02, less(Flush::Full, LONG), "")
            .from("E fig. 3.10"),
        Claim::near(
            Calibrated,
            "selective flush, 128 KiB: less throughput by",
            0.17,
            0.15,
            less(Flush::Selective, LONG),
            "",
        )
        .from("E fig. 3.10"),
        Claim::near(
            Predicted,
            "selective flush, 4 KiB: less throughput by",
            0.17,
            0.15,
            less(Flush::Selective, SHORT),
            "",
        )
        .from("E fig. 3.10")
        .lacks(
            "With packets of one page the sender is the slowest part without invalidation, so the \
             receiver's costs are seen in part.",
        ),
    ]);
    Ok(runs)
}
