//! How long adapters wait for an ACK that does not come (T fig. 4.5, P fig. 2).

use super::common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated};
use crate::data::Data;
use crate::experiment::{Experiment, Input, PaperFigure, Report};
use crate::figure::{Axis, Panel, Series};
use crate::micro::Micro;
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "timeout",
    title: "What a timeout costs",
    source: "T fig. 4.5, P fig. 2",
    not_simulated: None,
    not_live: |_| None,
    paper: "A QP has a wrong destination LID, so that every request is lost; with a retry count of 7 it fails \
            after eight timeouts, and an eighth of the time is T_o. With small values of C_ACK, T_o does not go \
            below about 30 ms on ConnectX-5 (C_ACK 12), and below about 500 ms on all other adapters, ConnectX-3, \
            -4 and -6 (C_ACK 16). The network's latency is several µs.",
    figures: &[PaperFigure {
        name: "T fig. 4.5, P fig. 2",
        axes: "T_o over C_ACK. The text states neither the unit of T_o nor the scales nor the values of C_ACK.",
        shows: "A line for each InfiniBand system, nine in T and eight in P. The ConnectX-5 has its floor at \
                    about 30 ms; the lines of all other systems nearly coincide, with a floor at about 500 ms.",
        here: "A line for each generation of adapters, not for each system. C_ACK is linear, T_o is \
                   logarithmic in ms. The grey guides T_tr and 4 T_tr are the bounds of the specification (IBTA \
                   9.7.6.1.3).",
        drawings: 1,
    }],
    fixed_adapters: true,
    one_seed: false,
    run,
};

const ADAPTERS: [&str; 4] = ["connectx3", "connectx4", "connectx5", "connectx6"];
/// Floor of T_o of each adapter from the figures, and the range of T_o in the thesis' traces, both in ms.
const FLOORS: [(f64, (f64, f64)); 4] =
    [(500.0, (430.0, 545.0)), (500.0, (430.0, 545.0)), (30.0, (24.0, 36.0)), (500.0, (430.0, 545.0))];

/// T_tr of an exponent, ms (IBTA 9.7.6.1.3).
fn t_tr(exponent: u8) -> f64 {
    4.096e-3 * 2f64.powi(exponent.into())
}

fn run(bench: &Bench<'_>) -> Result<Report> {
    // Live, a point takes eight timeouts, between a second and minutes.
    let exponents: Vec<u8> = if bench.live { vec![1, 12, 16] } else { (1..=20).collect() };
    let keys: Vec<(usize, u8)> = (0..ADAPTERS.len()).flat_map(|at| exponents.iter().map(move |n| (at, *n))).collect();
    let setting = |&(at, n): &(usize, u8)| {
        Micro { wrong_peer: true, ack_timeout: n, retry_cnt: 7, ..Micro::default() }.on(ADAPTERS[at])
    };
    let found =
        bench.measure(bench.trials(10), &keys, setting, |_, outcome| (unanswered(outcome), outcome.status.clone()))?;
    let mut data = Data::new(["adapter", "C_ACK", "trial", "T_o ms", "status"]);
    let mut claims = vec![];
    let mut series = vec![];
    for (at, adapter) in ADAPTERS.into_iter().enumerate() {
        let selected = || keys.iter().zip(&found).filter(move |((key, _), _)| *key == at);
        for ((_, n), trials) in selected() {
            for (trial, (time, status)) in trials.iter().enumerate() {
                let status = status.as_deref().unwrap_or("");
                data.push([adapter.into(), u32::from(*n).into(), trial.into(), (*time).into(), status.into()]);
            }
        }
        let times = |trials: &[(f64, Option<String>)]| trials.iter().map(|(time, _)| *time).collect::<Vec<f64>>();
        let points = selected().map(|((_, n), trials)| point(f64::from(*n), &times(trials)));
        series.push(Series::line(adapter, points));
        let (floor, bounds) = FLOORS[at];
        let least = selected().next().map_or(f64::NAN, |(_, trials)| middle(trials, |(time, _)| *time));
        claims.push(Claim::within(Calibrated, format!("{adapter}: T_o with C_ACK 1"), floor, bounds, least, "ms"));
    }
    let at = |adapter, exponent| middle(found_for(&keys, &found, &(adapter, exponent)), |(time, _)| *time);
    claims.push(Claim::between(
        Calibrated,
        "connectx4: T_o with C_ACK 16, relative to C_ACK 1",
        "a lower limit",
        (0.9, 1.1),
        at(1, 16) / at(1, 1),
        "times",
    ));
    if !bench.live {
        claims.push(Claim::between(
            Calibrated,
            "connectx4: T_o with C_ACK 20, relative to C_ACK 16",
            "proportional to T_tr above it",
            (14.0, 18.0),
            at(1, 20) / at(1, 16),
            "times",
        ));
    }
    // All but ConnectX-5.
    let apart = exponents.iter().map(|n| {
        let times = [0, 1, 3].map(|adapter| at(adapter, *n));
        times.into_iter().fold(f64::NAN, f64::max) / times.into_iter().fold(f64::NAN, f64::min)
    });
    claims.push(Claim::at_most(
        Calibrated,
        "connectx3, -4 and -6: the longest T_o relative to the shortest, at any C_ACK",
        "almost the same line",
        1.15,
        most(apart),
        "times",
    ));
    let errors = share(&found.concat(), |(_, status)| status.is_some());
    claims.push(Claim::at_least(Calibrated, "runs that end in an error", "all", 1.0, errors, ""));
    let guide = |name, factor: f64| {
        Series::guide(
            name,
            exponents.iter().map(|n| (f64::from(*n), factor * t_tr(*n))).filter(|(_, y)| *y > 1.0).collect::<Vec<_>>(),
        )
    };
    series.push(guide("T_tr", 1.0));
    series.push(guide("4 T_tr", 4.0));
    let panel = Panel::new("Time until a timeout is noticed", Axis::linear("C_ACK"), Axis::log("T_o (ms)"), series);
    let inputs = vec![Input {
        name: "T_o, above the floor",
        paper: "T_tr … 4 T_tr",
        profile: "ack_timeout.factor is 1.5 to 2.0",
        source: "IBTA 9.7.6.1.3, T fig. 4.5",
    }];
    Ok(Report {
        claims,
        inputs,
        panels: vec![panel],
        data,
        not_live: "With a C_ACK of 20 a run takes a minute.",
        ..Report::default()
    })
}
