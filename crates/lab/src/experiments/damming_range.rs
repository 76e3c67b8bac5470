//! The intervals at which READs are dammed, which are those within the pending period (T fig. 5.4, P fig. 6).

use super::common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Predicted, Kind::Shaped};
use crate::data::Data;
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::{Axis, Panel, Series};
use crate::micro::{Micro, Sides};
use crate::statistics::mean;
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "damming-range",
    title: "Packet damming: range of intervals",
    source: "T fig. 5.4, P fig. 6",
    not_simulated: None,
    not_live: |_| None,
    paper: "The share of trials with a timeout, over the interval between two READs. With server-side ODP timeouts \
            occur up to about 4500 µs for an RNR delay of 1.28 ms, as long as the adapter really waited in fig. \
            4.2, and the range follows the delay. With client-side ODP they occur up to about 500 µs, the time to \
            the retransmitted READ.",
    figures: &[
        PaperFigure {
            name: "T fig. 5.4a, P fig. 6a",
            axes: "Probability of a timeout over the interval, ten trials for each interval; a line for each \
                   minimal RNR NAK delay. The text does not state the scales.",
            shows: "Server-side ODP: timeouts up to about 4500 µs for a delay of 1.28 ms. The range follows the \
                    delay; the text names no other delay and no other end.",
            here: "Delays of 0.32, 0.64, 1.28 and 2.56 ms, chosen here; live, 0.64 and 1.28 ms. Both axes are linear; \
                   the interval ends at 12 ms, live at 7 ms.",
            drawings: 1,
        },
        PaperFigure {
            name: "T fig. 5.4b, P fig. 6b",
            axes: "As in 5.4a.",
            shows: "Client-side ODP: timeouts up to about 500 µs.",
            here: "Both axes are linear; the interval ends at 1500 µs.",
            drawings: 1,
        },
    ],
    fixed_adapters: false,
    one_seed: false,
    run,
};

/// RNR timer codes and their delays, ms.
const DELAYS: [(u8, f64); 4] = [(10, 0.32), (12, 0.64), (RNR_1_28, 1.28), (16, 2.56)];

fn run(bench: &Bench<'_>) -> Result<Report> {
    let delays: &[(u8, f64)] = if bench.live { &DELAYS[1..3] } else { &DELAYS };
    let mut report =
        Report { data: Data::new(["side", "RNR ms", "interval µs", "share with a timeout"]), ..Report::default() };
    let mut series = vec![];
    let mut ranges = vec![];
    let mut within = vec![];
    for &(code, delay) in delays {
        let step = if bench.live { 500 } else { 250 };
        let curve = curve(bench, &grid(step, if bench.live { 7000 } else { 12_000 }), SERVER, code)?;
        enter(&mut report.data, SERVER, delay, &curve);
        ranges.push((delay, ends(&curve).1));
        if code == RNR_1_28 {
            within.clone_from(&curve);
        }
        series.push(Series::line(format!("{delay} ms"), curve));
    }
    let client = curve(bench, &grid(if bench.live { 100 } else { 50 }, 1500), CLIENT, RNR_1_28)?;
    enter(&mut report.data, CLIENT, 1.28, &client);
    let end = |delay: f64| ranges.iter().find(|(d, _)| *d == delay).map_or(f64::NAN, |(_, end)| *end);
    let plateau =
        mean(&within.iter().filter(|(x, _)| (500.0..=3000.0).contains(x)).map(|(_, y)| *y).collect::<Vec<_>>());
    // Live, the intervals are 500 µs apart, and the real intervals differ from them because posts come late.
    let most = if bench.live { 5800.0 } else { 5000.0 };
    report.claims = vec![
        Claim::within(Shaped, "server side, RNR 1.28 ms: end of the range", 4500.0, (4000.0, most), end(1.28), "µs")
            .conflicts("T fig. 4.4: an RNR wait of 5.51 ms. READs up to 5.5 ms apart must be dammed sometimes"),
        Claim::at_least(
            Shaped,
            "server side, RNR 1.28 ms: share with a timeout, intervals of 500–3000 µs",
            "it occurs up to about 4500 µs",
            0.9,
            plateau,
            "",
        ),
        Claim::between(
            Predicted,
            "end of the range with half the RNR delay, relative to that with 1.28 ms",
            "the range follows",
            (0.4, 0.6),
            end(0.64) / end(1.28),
            "times",
        ),
        Claim::within(Shaped, "client side: end of the range", 500.0, (400.0, 700.0), ends(&client).1, "µs").lacks(
            "A page that takes longer than the first retransmission causes a second pending period here, up to 1100 \
             µs. The authors saw only one: either their pages were present in time, or a second wait causes no \
             damming.",
        ),
    ];
    if !bench.live {
        report.claims.insert(
            3,
            Claim::between(
                Predicted,
                "end of the range with twice the RNR delay, relative to that with 1.28 ms",
                "the range follows",
                (1.6, 2.4),
                end(2.56) / end(1.28),
                "times",
            ),
        );
    }
    report.not_live = "Twice the RNR delay doubles the time of a sweep.";
    let share = || Axis::linear("probability of a timeout").showing(0.0, 1.0);
    report.panels = vec![
        Panel::new("Server-side ODP, by minimal RNR NAK delay", Axis::linear("interval (µs)"), share(), series),
        Panel::new("Client-side ODP", Axis::linear("interval (µs)"), share(), vec![Series::line("", client)]),
    ];
    Ok(report)
}

/// The share of trials with a timeout at each interval.
fn curve(bench: &Bench<'_>, intervals: &[u32], odp: Sides, rnr_timer: u8) -> Result<Vec<(f64, f64)>> {
    let two = |interval: &u32| Micro {
        num_ops: 2,
        interval: us(*interval),
        odp,
        rnr_timer,
        ack_timeout: 1,
        ..Micro::default()
    };
    let found = bench.measure(bench.trials(10), intervals, two, |_, outcome| outcome.timeouts > 0)?;
    Ok(intervals.iter().zip(found).map(|(x, trials)| (f64::from(*x), share(&trials, |timeout| *timeout))).collect())
}

fn enter(data: &mut Data, odp: Sides, delay: f64, curve: &[(f64, f64)]) {
    for (x, y) in curve {
        data.push([side(odp).into(), delay.into(), (*x).into(), (*y).into()]);
    }
}
