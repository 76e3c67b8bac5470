//! What a lower floor of the ACK timeout would bring (T 7.2: "a short timeout" against packet damming).

use super::common::*;
use crate::adapter::Adapter;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Predicted};
use crate::data::Data;
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::{Axis, Panel, Series};
use crate::micro::Micro;
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "timeout-floor",
    title: "What a lower floor of the ACK timeout would bring",
    source: "T 7.2",
    not_simulated: None,
    not_live: |_| None,
    paper: "Proposed, not measured: a short timeout would solve packet damming, if the adapter's lower limit can be \
            changed and causes no other problem. For packet flood the text proposes an investigation, and no timeout.",
    figures: &[PaperFigure::none("T 7.2 proposes a short timeout against damming. It was not tried.", 2)],
    fixed_adapters: true,
    one_seed: false,
    run,
};

/// Least exponents: the timeout is 1.5 to 2 times 4.096 µs · 2^n. ConnectX-4 has 16, ConnectX-5 has 12.
const FLOORS: [u8; 9] = [1, 2, 4, 6, 8, 10, 12, 14, 16];
/// Two READs, 1 ms apart; many READs on many QPs; 512 READs with client-side ODP, without damming.
const WAYS: [&str; 3] =
    ["two READs, both-side ODP", "8192 READs, 200 QPs, server-side ODP", "512 READs, client-side ODP, no damming"];

fn run(bench: &Bench<'_>) -> Result<Report> {
    // Live, a floor below the scheduler's own delays would measure these.
    let floors = if bench.live { &FLOORS[5..] } else { &FLOORS[..] };
    let keys: Vec<(usize, u8)> =
        (0..WAYS.len()).flat_map(|way| floors.iter().map(move |floor| (way, *floor))).collect();
    let setting = |&(way, floor): &(usize, u8)| {
        let adapter = Adapter::named("connectx4").with("ack_timeout", "least_exponent", floor);
        let base = Micro { ack_timeout: 1, ..Micro::default() };
        match way {
            0 => Micro { num_ops: 2, interval: us(1000), odp: BOTH, ..base }.on_changed(adapter),
            1 => Micro {
                num_ops: if bench.live { 8192 } else { 8192 / bench.shrink },
                num_qps: 200,
                odp: SERVER,
                ..base
            }
            .on_changed(adapter),
            _ => Micro { num_ops: 512, num_qps: 128, size: 32, odp: CLIENT, ..base }.on_changed(adapter.undammed()),
        }
    };
    let take = |_: &_, o: &crate::micro::Outcome| (ms(o.time), o.timeouts as f64, o.status.is_some());
    let found = bench.measure(bench.trials(3), &keys, setting, take)?;
    let mut data = Data::new(["runs", "least exponent", "trial", "time ms", "timeouts", "failed"]);
    for ((way, floor), trials) in keys.iter().zip(&found) {
        for (trial, (time, timeouts, failed)) in trials.iter().enumerate() {
            data.push([
                WAYS[*way].into(),
                u32::from(*floor).into(),
                trial.into(),
                (*time).into(),
                (*timeouts).into(),
                u32::from(*failed).into(),
            ]);
        }
    }
    let trials = |way: usize, floor: u8| found_for(&keys, &found, &(way, floor));
    let time =
        |way: usize, floor: u8| middle(trials(way, floor), |(time, _, failed)| if *failed { f64::NAN } else { *time });
    let mut claims = vec![
        Claim::at_most(
            Predicted,
            "two READs 1 ms apart, floor of exponent 10 (8 ms): time, as a share of that with 16",
            "a short timeout solves damming",
            0.05,
            time(0, 10) / time(0, 16),
            "",
        ),
        Claim::at_most(
            Predicted,
            "8192 READs over 200 QPs, server side, floor of 10: time, as a share",
            "a short timeout solves damming",
            0.5,
            time(1, 10) / time(1, 16),
            "",
        ),
        Claim::between(
            Predicted,
            "a flood of 512 READs without damming, floor of 10: time, as a share",
            "no timeout is proposed against flood",
            (0.5, 1.5),
            time(2, 10) / time(2, 16),
            "",
        ),
    ];
    if !bench.live {
        claims.push(Claim::at_least(
            Predicted,
            "two READs, floor of 1 (16 µs): runs in which the retries are used up before the RNR NAK",
            "or it encounters other big problems",
            0.5,
            share(trials(0, 1), |(_, _, failed)| *failed),
            "",
        ));
    }
    let lines = |which: fn(&(f64, f64, bool)) -> f64| {
        (0..WAYS.len())
            .map(|way| {
                let points = floors.iter().map(|floor| {
                    point(f64::from(*floor), &trials(way, *floor).iter().map(which).collect::<Vec<f64>>())
                });
                Series::line(WAYS[way], points.collect::<Vec<_>>())
            })
            .collect::<Vec<_>>()
    };
    let panels = vec![
        Panel::new("Time", Axis::linear("least exponent of the ACK timeout"), Axis::log("time (ms)"), lines(|t| t.0)),
        Panel::new(
            "ACK timeouts",
            Axis::linear("least exponent of the ACK timeout"),
            Axis::linear("timeouts"),
            lines(|t| t.1),
        ),
    ];
    let not_live = "A floor below a scheduler's delays would measure these.";
    Ok(Report { claims, panels, data, not_live, ..Report::default() })
}
