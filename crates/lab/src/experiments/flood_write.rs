//! Many WRITEs: each RNR NAK causes the retransmission of all of them (T fig. 5.10 to 5.12).

use super::common::*;
use super::flood::{QPS, Sweep};
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Predicted, Kind::Shaped};
use crate::data::Data;
use crate::experiment::{Experiment, Report};
use crate::figure::{Axis, Panel, Series};
use crate::micro::{Micro, Operation};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "flood-write",
    title: "Packet flood: WRITEs",
    source: "T fig. 5.10 to 5.12",
    not_simulated: None,
    paper: "The same with WRITEs. Nothing limits the number of outstanding WRITEs, so with server-side ODP every RNR \
            NAK causes the retransmission of all of them: N operations over M pages are N·M packets, and the time \
            grows with the square of N, even on one QP. (The limit of outstanding READs is max_rd_atomic.) With ODP \
            on both sides, 200 QPs are fast again: the WRITEs of each page leave when that page is present.",
    live: true,
    fixed_adapters: false,
    run,
};

const NUMBERS: [u32; 7] = [128, 256, 512, 1024, 2048, 4096, 8192];

fn run(bench: &Bench<'_>) -> Result<Report> {
    let sweep = Sweep::measure(bench, Operation::Write, "connectx4", &QPS)?;
    let keys: Vec<(Operation, u32)> =
        [Operation::Write, Operation::Read].iter().flat_map(|o| NUMBERS.iter().map(move |n| (*o, *n))).collect();
    let many = |&(operation, num_ops): &_| Micro {
        operation,
        num_ops,
        size: 32,
        odp: SERVER,
        ack_timeout: 18,
        ..Micro::default()
    };
    let found = bench
        .measure(bench.trials(1), &keys, many, |_, o| (took(o), (o.packets.requests + o.packets.responses) as f64))?;
    let curve = |operation: Operation, which: fn(&(f64, f64)) -> f64| -> Vec<(f64, f64)> {
        let selected = keys.iter().zip(&found).filter(|((o, _), _)| *o == operation);
        selected.map(|((_, n), trials)| (f64::from(*n), middle(trials, which))).collect()
    };
    let claims = vec![
        Claim::between(
            Shaped,
            "server side, one QP: packets against no ODP",
            "several tens",
            (20.0, 100.0),
            sweep.packets(SERVER, 1) / sweep.packets(NONE, 1),
            "times",
        ),
        Claim::at_least(
            Predicted,
            "server side, one QP: time against no ODP",
            "performed poorly",
            10.0,
            sweep.time(SERVER, 1) / sweep.time(NONE, 1),
            "times",
        ),
        Claim::at_most(
            Predicted,
            "server side: 200 QPs against 1",
            "does not degrade with the number of QPs",
            1.5,
            sweep.time(SERVER, 200) / sweep.time(SERVER, 1),
            "times",
        ),
        Claim::at_least(
            Shaped,
            "client side: 200 QPs against 1",
            "degrades with the number of QPs",
            2.0,
            sweep.time(CLIENT, 200) / sweep.time(CLIENT, 1),
            "times",
        ),
        Claim::at_least(
            Predicted,
            "client side: packets, 200 QPs against 1",
            "increase of WRITE packets",
            1.5,
            sweep.packets(CLIENT, 200) / sweep.packets(CLIENT, 1),
            "times",
        )
        .from("T 5.2.4")
        .lacks("A WRITE that waits for its own page is sent once here; nothing makes it be sent again."),
        Claim::within(
            Shaped,
            "packets of WRITEs grow with the number of operations, to the power of",
            2.0,
            (1.6, 2.4),
            power(&curve(Operation::Write, |p| p.1)),
            "",
        ),
        Claim::within(
            Predicted,
            "time of WRITEs grows with the number of operations, to the power of",
            2.0,
            (1.6, 2.4),
            power(&curve(Operation::Write, |p| p.0)),
            "",
        )
        .lacks(
            "A retransmitted WRITE costs only its time on the link, which is short beside the RNR waits; its cost in \
             the adapter is not known.",
        ),
        Claim::within(
            Predicted,
            "packets of READs grow with the number of operations, to the power of",
            1.0,
            (0.6, 1.4),
            power(&curve(Operation::Read, |p| p.1)),
            "",
        ),
        // The profile resolves page faults one after another because of this figure and fig. 5.7.
        Claim::at_most(
            Calibrated,
            "both sides, 200 QPs: time",
            "normal (200 faults of 250–1000 µs)",
            250.0,
            sweep.time(BOTH, 200),
            "ms",
        ),
    ];
    let mut numbers = Data::new(["operation", "operations", "trial", "time ms", "packets"]);
    for ((operation, number), trials) in keys.iter().zip(&found) {
        for (trial, (time, packets)) in trials.iter().enumerate() {
            numbers.push([name(*operation).into(), (*number).into(), trial.into(), (*time).into(), (*packets).into()]);
        }
    }
    let mut panels = sweep.panels("WRITEs");
    for (title, y, which) in [
        ("By number of operations: time", "time (ms)", (|p| p.0) as fn(&(f64, f64)) -> f64),
        ("By number of operations: packets", "packets", |p| p.1),
    ] {
        let lines = [Operation::Write, Operation::Read].map(|o| Series::line(name(o), curve(o, which)));
        panels.push(Panel::new(
            format!("{title} (32 B, one QP, server-side ODP)"),
            Axis::log("operations"),
            Axis::log(y),
            lines.into(),
        ));
    }
    Ok(Report { claims, panels, data: sweep.data(), more: vec![("numbers", numbers)], ..Report::default() })
}

fn name(operation: Operation) -> &'static str {
    if operation == Operation::Write { "WRITE" } else { "READ" }
}

/// The exponent of a curve: the slope of its upper half on logarithmic axes.
fn power(curve: &[(f64, f64)]) -> f64 {
    let (Some(from), Some(to)) = (curve.get(curve.len() / 2), curve.last()) else { return f64::NAN };
    (to.1 / from.1).ln() / (to.0 / from.0).ln()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_square_has_the_exponent_two() {
        let square: Vec<(f64, f64)> = (1..8).map(|n| (f64::from(n), f64::from(3 * n * n))).collect();
        assert!((super::power(&square) - 2.0).abs() < 1e-9);
        assert!(super::power(&[]).is_nan());
    }
}
