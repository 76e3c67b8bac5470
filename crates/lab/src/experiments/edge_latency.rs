//! Latency of short messages with and without copies (E fig. 3.9).

use super::edge_common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Predicted};
use crate::edge::{Flush, Found, Receiving, Sending, Setting, Test};
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::{Axis, Panel};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "edge-latency",
    title: "MultiEdge: latency of short messages",
    source: "E fig. 3.9",
    not_simulated: None,
    not_live: |_| None,
    paper: "On the hosts of the zero-copy results, a ping-pong of 4 bytes takes 23 µs one way, and 24 to 26 µs \
            at 2 KiB. The time to post a WRITE is never longer without the sender's copy than with it, and up \
            to 2 KiB it is shorter. At most 12 bytes are always copied, because the adapter wants short \
            packets in one piece.",
    figures: &[PaperFigure {
        name: "E fig. 3.9",
        axes: "Latency over the size of a message, for each setup. The text states no scale.",
        shows: "Ping-pong: 23 µs at 4 bytes, 24 to 26 µs at 2 KiB. One-way: PinMap equals CP or takes less.",
        here: "Sizes are logarithmic, times are linear.",
        drawings: 2,
    }],
    fixed_adapters: true,
    one_seed: true,
    run,
};

const SIZES: [u32; 10] = [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048];

/// Copies of short messages.
const CACHED: &str = "Copies of short messages are as slow as sustained ones here. E fig. 3.6 shows that \
                      copies within the caches are faster, but the text has no numbers for these.";

fn run(bench: &Bench<'_>) -> Result<Report> {
    let mut setups = vec![("CP", Sending::Copied, Receiving::Copied)];
    setups.push(match bench.live {
        true => ("NoTx", Sending::Gathered, Receiving::Copied),
        false => ("PinMap", Sending::Gathered, Receiving::Remapped(Flush::Full)),
    });
    let tests = [Test::PingPong, Test::OneWay];
    let of = |(_, sending, receiving): (&str, Sending, Receiving), test: Test| {
        move |size: u32| Setting::zero_copy(test, size).moving(sending, receiving)
    };
    let settings = setups.iter().flat_map(|setup| all(&tests, &SIZES, |test, size| of(*setup, test)(size)));
    let runs = Runs::of(bench, settings.collect())?;
    let panel = |title: &str, y: &str, test: Test, value: fn(&Found) -> f64| {
        let line = |setup: &(&'static str, Sending, Receiving)| runs.line(setup.0, &SIZES, of(*setup, test), value);
        let lines = setups.iter().map(line).collect();
        Panel::new(title, Axis::sizes("bytes of a message"), Axis::linear(y).showing(0.0, 0.0), lines)
    };
    let panels = vec![
        panel("Ping-pong", "one way (µs)", Test::PingPong, |found| found.latency),
        panel("One-way: start of an operation", "CPU time (µs)", Test::OneWay, |found| found.initiate),
    ];
    let found = |setup: usize, test: Test, size: u32| runs.at(&of(setups[setup], test)(size));
    let latency = |setup: usize, size: u32| found(setup, Test::PingPong, size).latency;
    let started = |size: u32| found(1, Test::OneWay, size).initiate / found(0, Test::OneWay, size).initiate;
    let worst = SIZES.iter().map(|size| started(*size)).fold(f64::NAN, f64::max);
    let second = setups[1].0;
    let claims = [
        Claim::near(Calibrated, "CP, ping-pong of 4 bytes: one way", 23.0, 0.1, latency(0, 4), "µs"),
        Claim::near(Calibrated, format!("{second}, ping-pong of 4 bytes: one way"), 23.0, 0.1, latency(1, 4), "µs"),
        Claim::between(Predicted, "CP, ping-pong of 2 KiB: one way", "24 – 26", (23.0, 27.0), latency(0, 2048), "µs")
            .lacks(CACHED),
        Claim::between(
            Predicted,
            format!("{second}, ping-pong of 2 KiB: one way"),
            "24 – 26",
            (23.0, 27.0),
            latency(1, 2048),
            "µs",
        )
        .lacks(CACHED),
        Claim::at_most(
            Predicted,
            format!("time to post up to 2 KiB: {second} against CP, worst"),
            "always equal or better",
            1.02,
            worst,
            "times",
        ),
        Claim::at_most(
            Predicted,
            format!("time to post 2 KiB: {second} against CP"),
            "better",
            0.95,
            started(2048),
            "times",
        ),
    ];
    Ok(Report {
        claims: claims.map(|claim| claim.lacks_live(bench.live, LIVE)).into(),
        inputs: inputs(bench),
        panels,
        data: runs.data(),
        not_live: "Live, pages are not remapped: PinMap is simulated only, and NoTx takes its place.",
        ..Report::default()
    })
}
