//! Two READs, one after the other: packet damming (T fig. 5.2, P fig. 4).

use super::common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Shaped};
use crate::data::Data;
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::{Axis, Panel, Point, Series};
use crate::micro::Micro;
use crate::statistics::{mean, range};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "damming",
    title: "Packet damming: two READs and the time between them",
    source: "T fig. 5.2, P fig. 4",
    not_simulated: None,
    not_live: |_| None,
    paper: "Two READs of 100 bytes on one QP, ODP memory on both sides. A page fault takes several hundred \
            microseconds; but if the second READ is posted 100 to 4500 µs after the first, both together take \
            several hundred milliseconds. With ODP on one side only, the authors saw the same.",
    figures: &[PaperFigure {
        name: "T fig. 5.2, P fig. 4",
        axes: "Average execution time over the interval between two READs, ten trials for each interval. The \
                   text states neither the scales nor the last interval.",
        shows: "Several hundred ms at intervals of 100 to 4500 µs, with a minimal RNR NAK delay of 1.28 ms and \
                    ODP on both sides.",
        here: "The average, too, with the lowest and the highest of the trials as a bar. The interval is \
                   linear up to 7000 µs; the time is logarithmic, which shows the runs of 5 ms beside those of \
                   half a second.",
        drawings: 1,
    }],
    fixed_adapters: false,
    one_seed: false,
    run,
};

/// Two observations of the thesis that contradict each other.
const CONFLICT: &str = "T fig. 4.4: an RNR wait of 5.51 ms. READs up to 5.5 ms apart must be dammed sometimes";
/// "Several hundred milliseconds", at least.
const LONG: f64 = 200.0;

fn run(bench: &Bench<'_>) -> Result<Report> {
    let live = || [100, 200].into_iter().chain(grid(500, 7000));
    let mut intervals: Vec<u32> = if bench.live { live().collect() } else { grid(100, 7000) };
    intervals.sort_unstable();
    let two =
        |interval: &u32| Micro { num_ops: 2, interval: us(*interval), odp: BOTH, ack_timeout: 1, ..Micro::default() };
    let found = bench.measure(bench.trials(10), &intervals, two, |_, outcome| took(outcome))?;
    let mut data = Data::new(["interval µs", "trial", "time ms"]);
    for (interval, times) in intervals.iter().zip(&found) {
        for (trial, time) in times.iter().enumerate() {
            data.push([(*interval).into(), trial.into(), (*time).into()]);
        }
    }
    let average: Vec<(f64, f64)> =
        intervals.iter().map(|i| f64::from(*i)).zip(found.iter().map(|times| mean(times))).collect();
    let points = average.iter().zip(&found).map(|((x, y), times)| Point { x: *x, y: *y, range: Some(range(times)) });
    // A timeout takes half a second, so an average of 200 ms means that two of five trials have one. If a run failed, its
    // average is NaN, and no interval is reported.
    let known = average.iter().all(|(_, time)| time.is_finite());
    let slow: Vec<f64> = average.iter().filter(|(_, time)| known && *time >= LONG).map(|(x, _)| *x).collect();
    let (first, last) = (slow.first().copied().unwrap_or(f64::NAN), slow.last().copied().unwrap_or(f64::NAN));
    let middle_of = |from: f64, to: f64| {
        let inside: Vec<f64> = average.iter().filter(|(x, _)| (from..=to).contains(x)).map(|(_, y)| *y).collect();
        mean(&inside)
    };
    // Live, the NAK that begins the pending period comes later, because it passes through two processes.
    let latest = if bench.live { 500.0 } else { 150.0 };
    let one_side = [(SERVER, 1000), (CLIENT, 300)];
    let of_side = |&(odp, interval): &_| Micro { odp, ..two(&interval) };
    let sides = bench.measure(bench.trials(10), &one_side, of_side, |_, outcome| took(outcome))?;
    let side_claim = |at: usize| {
        let (odp, interval) = one_side[at];
        let name = format!("{} only, {interval} µs between them: time of both", side(odp));
        Claim::between(Shaped, name, "similarly long", (400.0, 560.0), mean(&sides[at]), "ms").from("T 5.1.1")
    };
    let claims = vec![
        side_claim(0),
        side_claim(1),
        Claim::between(
            Shaped,
            "time of both, intervals of 500–3000 µs",
            "several hundred ms, one T_o of about 500",
            (400.0, 560.0),
            middle_of(500.0, 3000.0),
            "ms",
        ),
        // The authors' usleep returns late, as it does here.
        Claim::within(
            Shaped,
            "shortest interval with several hundred ms (200 at least)",
            100.0,
            (100.0, latest),
            first,
            "µs",
        ),
        Claim::within(Shaped, "longest interval with several hundred ms", 4500.0, (4000.0, 5000.0), last, "µs")
            .conflicts(CONFLICT),
        Claim::at_most(Shaped, "time of both at once (interval 0)", "outside 100–4500 µs", 20.0, average[0].1, "ms"),
        Claim::at_most(
            Shaped,
            "time of both, 7000 µs between them",
            "outside 100–4500 µs",
            20.0,
            average.last().map_or(f64::NAN, |(_, y)| *y),
            "ms",
        ),
    ];
    let name = format!("average of {} trials, lowest and highest", found[0].len());
    let panel = Panel::new(
        "Two READs, both-side ODP, RNR 1.28 ms, C_ACK 1",
        Axis::linear("interval (µs)").showing(0.0, 7000.0),
        Axis::log("time (ms)"),
        vec![Series::line(name, points)],
    );
    Ok(Report { claims, panels: vec![panel], data, ..Report::default() })
}
