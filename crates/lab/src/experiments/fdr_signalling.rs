//! How often a send work request is signalled (F eq. 2, fig. 11).

use super::fdr_common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Predicted};
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::Series;
use crate::stream::equations::BestB;
use crate::stream::{Job, Route, Runs, Signal};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "fdr-signalling",
    title: "FDR: how often a send work request is signalled",
    source: "F eq. 2, fig. 11",
    not_simulated: None,
    not_live: |_| None,
    paper: "Wait-wakeup with the predicted best B: every work request signalled, every B/2-th, or every S-th by \
            equation 2, which is min(B/2, 1) for 16 Ki < size < 128 Ki and min(SQ/2, SQ − B) for other sizes. The \
            first is 1 for every B but 1, and is read so: every work request is signalled. Throughput is highest \
            with equation 2, for most sizes by 5 to 10 %; above 128 KiB it is more than 50 Gbit/s, that of polling; \
            from 8 MiB on there is almost no difference.",
    figures: &[PaperFigure {
        name: "F fig. 11",
        axes: "Throughput, Gbit/s, over the size of a message, for three ways to signal.",
        shows: "Equation 2 is highest at all sizes, by 5 to 10 % at most; no difference from 8 MiB on.",
        here: "A send queue of 256 work requests, as the adapter makes it of 2 B or less; F does not state its depth.",
        drawings: 1,
    }],
    fixed_adapters: true,
    one_seed: true,
    run,
};

/// The depth of the send queue.
const DEPTH: u32 = 256;
const WAYS: [(&str, Signal); 3] =
    [("every one", Signal::Every(1)), ("every B/2", Signal::Half), ("equation 2", Signal::Equation)];
const LACKS: &str = "A completion and its event occupy the adapter for a fixed time here. What else a wake-up of the \
                     sender disturbs in F's hosts has no number in the text.";
const LIVE: &str =
    "On Weir a completion is a store into shared memory, and a wake-up hardly delays the thread that copies.";

fn run(bench: &Bench<'_>) -> Result<Report> {
    let sizes = sizes(bench);
    let of = |size: u64, signal: Signal| {
        let b = BestB::PAPER.of(size);
        let b = if bench.live { b.min((64 << 20) / size as u32).max(1) } else { b };
        Job { signal, depth: DEPTH, ..job(size, b) }
    };
    let jobs = sizes.iter().flat_map(|size| WAYS.map(|(_, signal)| (Route::Switch, of(*size, signal))));
    let runs = Runs::of(bench, jobs)?;
    let gbits = |size: u64, way: usize| runs.gbits(Route::Switch, &of(size, WAYS[way].1));
    let one = |way: usize| {
        let points = sizes.iter().map(|size| (*size as f64, gbits(*size, way)));
        Series::line(WAYS[way].0, points.collect::<Vec<_>>())
    };
    let panel = over_sizes("Throughput", super::fdr_common::gbits(), [0, 1, 2].map(one).into());
    let lead = |size: u64| (gbits(size, 2) / gbits(size, 0).max(gbits(size, 1)) - 1.0) * 100.0;
    let gain = |size: u64| (gbits(size, 2) / gbits(size, 0).min(gbits(size, 1)) - 1.0) * 100.0;
    let medium = || sizes.iter().copied().filter(|size| *size > 128 << 10 && *size < 8 << 20);
    let middle = crate::statistics::median(&sizes.iter().map(|size| gain(*size)).collect::<Vec<_>>());
    let claims = [
        Claim::at_least(
            Predicted,
            "equation 2 against the better of the others, worst size",
            "throughput can be maximized over all message sizes",
            -1.0,
            least(sizes.iter().map(|size| lead(*size))),
            "%",
        ),
        Claim::within(
            Calibrated,
            "equation 2 against the worse of the others, median over the sizes",
            7.5,
            (5.0, 10.0),
            middle,
            "%",
        )
        .conflicts(
            "F 3.6: wait-wakeup has slightly less than 50 Gbit/s; F 3.7: with equation 2 slightly more. \
                        That is 1 to 3 %",
        )
        .lacks(LACKS),
        Claim::at_least(
            Calibrated,
            "equation 2, above 128 KiB and below 8 MiB, lowest",
            "greater than 50",
            50.0,
            least(medium().map(|size| gbits(size, 2))),
            "Gbit/s",
        )
        .conflicts(
            "F fig. 1b: more than 4 MiB outstanding have less; equation 1 has 8 MiB outstanding with messages \
                    of 4 MiB",
        )
        .lacks(
            "The predicted two messages of 4 MiB do not fit into the cache; all other sizes have 50 Gbit/s or are \
                close to it.",
        ),
        Claim::at_most(
            Predicted,
            "from 8 MiB on: equation 2 against the worse of the others",
            "almost no difference",
            1.0,
            most(sizes.iter().copied().filter(|size| *size >= 8 << 20).map(gain)),
            "%",
        ),
    ];
    Ok(report(bench, claims, LIVE, vec![panel], &runs))
}
