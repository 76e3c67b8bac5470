//! Damming under other conditions (T 5.1.3). The profile of ConnectX-6 has no damming because of this observation, so
//! that claim is calibrated.

use super::common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Shaped};
use crate::data::Data;
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::{Axis, Bars};
use crate::micro::{Micro, Operation};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "damming-else",
    title: "Packet damming: under other conditions",
    source: "T 5.1.3, P V-C",
    not_simulated: None,
    not_live: |_| None,
    paper: "Damming does not depend on the traffic of other QPs, on whether the buffers share a page, on whether \
            later buffers were touched before, on their size, or on the kind of the second operation. The authors \
            saw it on several systems with ConnectX-4, and with this micro-benchmark not on ConnectX-6.",
    figures: &[PaperFigure::none(
        "T 5.1.3 and P V-C list these observations in words, without numbers. The bars show the \
                           share of ten trials with a timeout for each condition, on a linear axis from 0 to 1.",
        1,
    )],
    fixed_adapters: false,
    one_seed: false,
    run,
};

fn run(bench: &Bench<'_>) -> Result<Report> {
    let two = || Micro { num_ops: 2, interval: us(1000), odp: BOTH, ack_timeout: 1, ..Micro::default() };
    let second = |operation| Micro { size: 4096, touched: true, second: Some(operation), ..two() };
    let led_by = |operation| Micro { operation, ..second(Operation::Read) };
    let conditions = [
        ("two READs of 100 bytes on one page", two(), true),
        ("on two pages", Micro { size: 4096, ..two() }, true),
        ("of 64 KiB", Micro { size: 65_536, ..two() }, true),
        ("on two pages, the second there already", Micro { size: 4096, touched: true, ..two() }, true),
        ("the second a WRITE", second(Operation::Write), true),
        ("the second a SEND", second(Operation::Send), true),
        ("and READs on three other QPs meanwhile", Micro { num_ops: 5, num_qps: 4, interval: us(500), ..two() }, true),
        ("two WRITEs instead", Micro { operation: Operation::Write, ..two() }, false),
        ("two SENDs instead", Micro { operation: Operation::Send, ..two() }, false),
        ("a WRITE, then a READ instead", led_by(Operation::Write), false),
        ("a SEND, then a READ instead", led_by(Operation::Send), false),
        ("on ConnectX-6", two(), false),
    ];
    // With --profile, the claim about ConnectX-6 does not apply.
    let applicable = if bench.profile.is_some() { conditions.len() - 1 } else { conditions.len() };
    let conditions = &conditions[..applicable];
    let settings: Vec<_> = conditions
        .iter()
        .map(|(name, micro, _)| micro.clone().on(if *name == "on ConnectX-6" { "connectx6" } else { "connectx4" }))
        .collect();
    let found = bench.measure(bench.trials(10), &settings, Clone::clone, |_, outcome| outcome.timeouts > 0)?;
    let mut data = Data::new(["condition", "share with a timeout"]);
    let mut claims = vec![];
    let mut bars = vec![];
    for ((name, _, dammed), trials) in conditions.iter().zip(&found) {
        let share = share(trials, |timeout| *timeout);
        data.push([(*name).into(), share.into()]);
        bars.push(((*name).to_owned(), share));
        claims.push(match dammed {
            true => Claim::at_least(Shaped, format!("share with a timeout: {name}"), "it occurs", 0.5, share, ""),
            false if name.ends_with("instead") => {
                // "This is caused by READ operations" (T 5.1).
                Claim::at_most(Shaped, format!("share with a timeout: {name}"), "caused by READs", 0.0, share, "")
            }
            false => {
                Claim::at_most(Calibrated, format!("share with a timeout: {name}"), "not observed", 0.0, share, "")
            }
        });
    }
    let x = Axis::linear("share of trials with a timeout").showing(0.0, 1.0);
    let bars = Bars {
        title: "Both-side ODP, second operation 1000 µs after the QP's first (with other QPs, 2000 µs)".into(),
        x,
        bars,
    };
    Ok(Report { claims, bars: vec![bars], data, ..Report::default() })
}
