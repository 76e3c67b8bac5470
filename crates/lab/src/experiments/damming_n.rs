//! More than two READs: a later READ reveals the loss (T fig. 5.5 and 5.6, P fig. 7 and 8).

use super::common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Predicted, Kind::Shaped};
use crate::data::Data;
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::{Axis, Ladder, Panel, Series};
use crate::micro::{Micro, Outcome};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "damming-n",
    title: "Packet damming: two, three and four READs",
    source: "T fig. 5.5 and 5.6, P fig. 7 and 8",
    not_simulated: None,
    not_live: |_| None,
    paper: "With more READs the range of intervals with a timeout becomes narrower. A READ that is posted after \
            the loss arrives, so the server detects the missing READ before it and sends a sequence NAK, and the \
            client retransmits all READs that are not complete, at once. If all READs are posted within the \
            pending period, the timeout still occurs.",
    figures: &[
        PaperFigure {
            name: "T fig. 5.5, P fig. 7",
            axes: "Probability of a timeout over the interval between the READs, ten trials for each interval; a \
                   line each for two, three and four READs. The text does not state the scales.",
            shows: "The range of intervals becomes narrower with each further READ; the text gives no ends. ODP on \
                    both sides, minimal RNR NAK delay 1.28 ms.",
            here: "Both axes are linear; the interval ends at 7000 µs.",
            drawings: 1,
        },
        PaperFigure {
            name: "T fig. 5.6, P fig. 8",
            axes: "Two hosts, time from top to bottom. The text gives no times.",
            shows: "Three READs: the second is lost, the third causes a NAK (PSN sequence error), and the second \
                    and third are retransmitted without a timeout.",
            here: "One run with an interval of 3000 µs, chosen here so that only the second READ falls into the \
                   pending period. Times are in ms.",
            drawings: 1,
        },
    ],
    fixed_adapters: false,
    one_seed: false,
    run,
};

fn run(bench: &Bench<'_>) -> Result<Report> {
    let numbers = [2, 3, 4];
    let intervals = if bench.live { grid(500, 7000) } else { grid(100, 7000) };
    let keys: Vec<(u32, u32)> = numbers.iter().flat_map(|n| intervals.iter().map(move |i| (*n, *i))).collect();
    let some = |&(num_ops, interval): &_| Micro {
        num_ops,
        interval: us(interval),
        odp: BOTH,
        ack_timeout: 1,
        ..Micro::default()
    };
    let found = bench.measure(bench.trials(10), &keys, some, |_, outcome| outcome.timeouts > 0)?;
    let mut data = Data::new(["READs", "interval µs", "share with a timeout"]);
    let mut curves: Vec<Vec<(f64, f64)>> = vec![vec![]; numbers.len()];
    for ((number, interval), trials) in keys.iter().zip(found) {
        let share = share(&trials, |timeout| *timeout);
        data.push([(*number).into(), (*interval).into(), share.into()]);
        curves[*number as usize - 2].push((f64::from(*interval), share));
    }
    // The second of three READs is posted within the pending period of 3.4–5.5 ms, the third after it.
    let three = some(&(3, 3000));
    let traces = bench.measure(bench.trials(10), &[()], |()| three.clone(), |(), outcome| outcome.clone())?.remove(0);
    let nak_time = |o: &Outcome| nak(o, "equence", 0);
    let after = |o: &Outcome, operation: u32| {
        let sent = o.steps.iter().filter(|step| step.from_client && step.operation == Some(operation));
        sent.map(|step| ms(step.time)).find(|at| *at > nak_time(o)).unwrap_or(f64::NAN) - nak_time(o)
    };
    let narrower = |more: usize, fewer: usize| width(&curves[more]) / width(&curves[fewer]);
    let claims = vec![
        Claim::between(
            Predicted,
            "range of three READs, as a share of two's",
            "narrower",
            (0.45, 0.55),
            narrower(1, 0),
            "",
        )
        .lacks_live(bench.live, "Live, the intervals are 500 µs apart: the ends of a range are known to 500 µs."),
        Claim::between(
            Predicted,
            "range of four READs, as a share of three's",
            "narrower",
            (0.6, 0.73),
            narrower(2, 1),
            "",
        )
        .lacks(
            "Ten trials for each interval, as in the figure, spread more than these bounds; the median is within them.",
        ),
        Claim::at_least(
            Predicted,
            "three READs at small intervals: highest share with a timeout",
            "still occurs",
            0.5,
            curves[1].iter().filter(|(x, _)| *x <= 1500.0).map(|(_, y)| *y).fold(f64::NAN, f64::max),
            "",
        ),
        Claim::at_least(
            Shaped,
            "three READs, 3000 µs between them: runs with a NAK (sequence error)",
            "seen",
            0.9,
            share(&traces, |o| o.packets.sequence_naks > 0 || nak_time(o).is_finite()),
            "",
        ),
        Claim::at_most(
            Shaped,
            "three READs, 3000 µs between them: runs with a timeout",
            "it never happened",
            0.0,
            share(&traces, |o| o.timeouts > 0),
            "",
        )
        .lacks_live(bench.live, "Live, one of ten runs can have a timeout, when this machine wakes late."),
        Claim::at_most(
            Shaped,
            "second and third READ retransmitted, after the NAK",
            "immediately",
            0.05,
            middle(&traces, |o| after(o, 1).max(after(o, 2))),
            "ms",
        ),
    ];
    let series =
        numbers.iter().zip(curves).map(|(number, curve)| Series::line(format!("{number} READs"), curve)).collect();
    let share = Axis::linear("probability of a timeout").showing(0.0, 1.0);
    Ok(Report {
        claims: bench.add_live_slack(claims),
        panels: vec![Panel::new(
            "Both-side ODP, RNR 1.28 ms",
            Axis::linear("interval (µs)").showing(0.0, 7000.0),
            share,
            series,
        )],
        ladders: vec![Ladder::of("three READs, both-side ODP, 3000 µs between the posts", &traces[0].steps)],
        data,
        ..Report::default()
    })
}
