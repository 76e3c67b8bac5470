//! Many WRITEs: each RNR NAK causes the retransmission of all of them (T fig. 5.10 to 5.12).

use super::common::*;
use super::flood::{QPS, SIDES, Sweep};
use crate::adapter::Adapter;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Predicted, Kind::Shaped};
use crate::data::Data;
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::{Axis, Panel, Series};
use crate::micro::ladder::RNR_NAK;
use crate::micro::{Micro, Operation, Outcome};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "flood-write",
    title: "Packet flood: WRITEs",
    source: "T fig. 5.10 to 5.12",
    not_simulated: None,
    not_live: |_| None,
    paper: "The same with WRITEs. Nothing limits the number of outstanding WRITEs, so with server-side ODP every \
            RNR NAK causes the retransmission of all of them, even on one QP: N operations over M pages are of the \
            order of N·M packets, and the time grows with the square of N. (The limit of outstanding READs is \
            max_rd_atomic.) With client-side ODP the time grows with the number of QPs. With ODP on both sides 200 \
            QPs are fast again; the authors explain that WRITEs of different pages then leave at different times.",
    figures: &[
        PaperFigure {
            name: "T fig. 5.10a",
            axes: "Execution time over the number of QPs, with the parameters of fig. 5.7. The text states no \
                   scale.",
            shows: "Server-side ODP is slow even with one QP, and does not become slower with more; client-side \
                    ODP does; with ODP on both sides the time is normal again at 200 QPs. The text gives no times.",
            here: "Both axes are logarithmic, with eight numbers of QPs and one trial of each.",
            drawings: 1,
        },
        PaperFigure {
            name: "T fig. 5.10b",
            axes: "Number of packets over the number of QPs. The text states no scale.",
            shows: "Server-side ODP with one QP: several tens of times as many packets as without ODP. With \
                    client-side ODP the WRITE packets increase with the number of QPs.",
            here: "Requests and responses of both hosts. Both axes are logarithmic.",
            drawings: 1,
        },
        PaperFigure {
            name: "T fig. 5.12",
            axes: "Execution time over the number of WRITEs of 32 bytes. The text states neither the scales nor \
                   the numbers of WRITEs.",
            shows: "With server-side ODP the time grows quadratically.",
            here: "128 to 8192 operations on one QP, with READs for comparison. Both axes are logarithmic: a \
                   quadratic curve is a line of slope 2.",
            drawings: 1,
        },
        PaperFigure {
            name: "T fig. 5.11",
            axes: "A diagram of packets between two hosts, without times.",
            shows: "N operations on one QP: all WRITEs are retransmitted after each RNR NAK, while at most \
                    max_rd_atomic READs, 4 there, are outstanding.",
            here: "Drawn as numbers of packets over the number of operations. Both axes are logarithmic.",
            drawings: 1,
        },
    ],
    fixed_adapters: false,
    one_seed: false,
    run,
};

const NOT_LIVE: &str = "Live runs have an eighth of the WRITEs, because the packets of all of them take minutes: claims about \
                        all 8192 are simulated.";
/// Claims about 8192 WRITEs.
const NORMAL: &str = "both sides, 200 QPs: time";
const TENS: &str = "server side, one QP: packets against no ODP";
const NUMBERS: [u32; 7] = [128, 256, 512, 1024, 2048, 4096, 8192];

fn run(bench: &Bench<'_>) -> Result<Report> {
    let sweep = Sweep::measure(bench, Operation::Write, &Adapter::named("connectx4"), &SIDES, &QPS)?;
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
    let few = many(&(Operation::Write, 512));
    let naked = bench.measure(bench.trials(3), &[()], |()| few.clone(), |(), o| o.clone())?.remove(0);
    let curve = |operation: Operation, which: fn(&(f64, f64)) -> f64| -> Vec<(f64, f64)> {
        let selected = keys.iter().zip(&found).filter(|((o, _), _)| *o == operation);
        selected.map(|((_, n), trials)| (f64::from(*n), middle(trials, which))).collect()
    };
    let mut claims = vec![
        Claim::between(
            Shaped,
            TENS,
            "several tens",
            (20.0, 100.0),
            sweep.packets(SERVER, 1) / sweep.packets(NONE, 1),
            "times",
        ),
        Claim::between(
            Shaped,
            "512 WRITEs on one QP, server side: requests sent, relative to all open ones after each RNR NAK",
            "all packets are retransmitted",
            (0.95, 1.05),
            middle(&naked, again_after_naks),
            "",
        )
        .from("T fig. 5.11"),
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
        // A requester is deaf to ACKs after two page faults in a row because of this observation.
        // No number is given: at most as many as of READs, hundreds of times.
        Claim::between(
            Shaped,
            "client side: packets, 200 QPs against 1",
            "increase of WRITE packets",
            (1.5, 1000.0),
            sweep.packets(CLIENT, 200) / sweep.packets(CLIENT, 1),
            "times",
        )
        .from("T 5.2.4"),
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
        // Page faults are resolved one after another because of this figure and fig. 5.7.
        Claim::at_most(
            Shaped,
            NORMAL,
            "normal (200 faults of 250–1000 µs)",
            250.0,
            sweep.time(BOTH, 200),
            "ms",
        )
        .conflicts(
            "T 5.2.4: with client-side ODP the time grows with the number of QPs. With ODP on both sides it cannot be \
             shorter than with client-side ODP",
        ),
    ];
    if bench.shrink > 1 {
        claims.retain(|claim| ![NORMAL, TENS].contains(&claim.name.as_str()));
    }
    let mut numbers = Data::new(["operation", "operations", "trial", "time ms", "packets"]);
    for ((operation, number), trials) in keys.iter().zip(&found) {
        for (trial, (time, packets)) in trials.iter().enumerate() {
            numbers.push([name(*operation).into(), (*number).into(), trial.into(), (*time).into(), (*packets).into()]);
        }
    }
    let mut panels = sweep.panels("WRITEs");
    for (title, y, which) in
        [("time", "time (ms)", (|p| p.0) as fn(&(f64, f64)) -> f64), ("packets", "packets", |p| p.1)]
    {
        let lines = [Operation::Write, Operation::Read].map(|o| Series::line(name(o), curve(o, which)));
        panels.push(Panel::new(
            format!("WRITEs and READs of 32 bytes on one QP, server-side ODP: {title}"),
            Axis::log("number of operations"),
            Axis::log(y),
            lines.into(),
        ));
    }
    Ok(Report {
        claims,
        panels,
        data: sweep.data(),
        more: vec![("numbers", numbers)],
        not_live: NOT_LIVE,
        ..Report::default()
    })
}

/// The requests that were sent, relative to those that go-back-N sends: all, and after each RNR NAK all from its
/// operation on.
fn again_after_naks(outcome: &Outcome) -> f64 {
    let all = outcome.completions.len() as u32;
    let naks = outcome.steps.iter().filter(|step| !step.from_client && step.what == RNR_NAK);
    let repeated: u32 = naks.filter_map(|step| step.operation).map(|operation| all - operation).sum();
    outcome.packets.requests as f64 / f64::from(all + repeated)
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
    use super::*;
    use crate::micro::Step;

    #[test]
    fn go_back_n_repeats_all_open_operations() {
        let nak = |operation| Step {
            time: Default::default(),
            from_client: false,
            what: RNR_NAK.into(),
            operation: Some(operation),
            lost: false,
        };
        let mut outcome = Outcome { completions: vec![None; 10], steps: vec![nak(0), nak(4)], ..Outcome::default() };
        outcome.packets.requests = 10 + 10 + 6;
        assert_eq!(again_after_naks(&outcome), 1.0);
    }

    #[test]
    fn a_square_has_the_exponent_two() {
        let square: Vec<(f64, f64)> = (1..8).map(|n| (f64::from(n), f64::from(3 * n * n))).collect();
        assert!((super::power(&square) - 2.0).abs() < 1e-9);
        assert!(super::power(&[]).is_nan());
    }
}
