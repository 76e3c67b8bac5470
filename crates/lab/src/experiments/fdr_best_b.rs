//! The best number of outstanding messages, as equation 1 predicts it and as it is found (F fig. 8).

use super::fdr_common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Predicted};
use crate::data::Data;
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::{Axis, Series};
use crate::statistics::median;
use crate::stream::equations::BestB;
use crate::stream::fit::{Curve, Fit, fit, mean_loss};
use crate::stream::{Route, Runs};
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "fdr-best-b",
    title: "FDR: the best number of outstanding messages",
    source: "F eq. 1, fig. 8",
    not_simulated: None,
    not_live: |_| None,
    paper: "Equation 1 predicts the number of outstanding messages (B) with the highest throughput: min(⌈3 Mi / \
            size⌉, 128) up to 128 KiB, max(⌈4 Mi / size⌉, 2) above. In most cases it has the highest throughput that \
            was observed; for a few sizes it is at worst 1 % lower, and 3 % lower at 8 MiB, where 2 is predicted and \
            1 observed.",
    figures: &[
        PaperFigure {
            name: "F fig. 8a",
            axes: "Best B over the size of a message, observed and predicted.",
            shows: "Both are close; at 8 MiB, 1 is observed and 2 predicted.",
            here: "Both axes are logarithmic. Observed is the smallest B with the highest throughput, to 0.2 % (live \
                   2 %). The third line has constants that were fitted to all sizes here.",
            drawings: 1,
        },
        PaperFigure {
            name: "F fig. 8b",
            axes: "Throughput, Gbit/s, over the size, with the best B observed and predicted.",
            shows: "At worst 1 % apart, 3 % at 8 MiB.",
            here: "As F has it.",
            drawings: 1,
        },
    ],
    fixed_adapters: true,
    one_seed: true,
    run,
};

const LIMIT: &str = "F fig. 1b: the cache holds 4 messages of 1 MiB and not 5; F 3.5: two messages of 4 MiB, and one \
                     of 8 MiB, are still at their best";
const LIVE: &str = "The constants are those of F's caches: on Weir other numbers of outstanding messages are best.";

fn run(bench: &Bench<'_>) -> Result<Report> {
    let sizes = sizes(bench);
    let tried = |size: u64| numbers(bench, size, &[BestB::PAPER.of(size)]);
    let keys = sizes.iter().flat_map(|size| tried(*size).into_iter().map(|b| job(*size, b)));
    let runs = Runs::of(bench, keys.map(|job| (Route::Switch, job)))?;
    let gbits = |size: u64, b: u32| runs.gbits(Route::Switch, &job(size, b));
    let observed = |size: u64| best(bench, &runs, tried(size).into_iter().map(|b| job(size, b)));
    let curve = |size: &u64| {
        let points = tried(*size).into_iter().map(|b| (b, gbits(*size, b)));
        Curve { size: *size, points: points.collect() }
    };
    let curves: Vec<Curve> = sizes.iter().map(curve).collect();
    let fitted = fit(&curves);
    let loss = |size: u64, b: u32| observed(size).map_or(f64::NAN, |(_, most)| (1.0 - gbits(size, b) / most) * 100.0);
    let worst = |sizes: &mut dyn Iterator<Item = u64>| most(sizes.map(|size| loss(size, BestB::PAPER.of(size))));
    let eight = 8 << 20;
    let best_of = |size: u64| observed(size).map_or(f64::NAN, |(job, _)| job.outstanding.into());
    let mut claims = vec![
        Claim::at_most(
            Calibrated,
            "throughput with the predicted B against the highest, all sizes but 8 MiB, worst",
            "at worst 1 % lower",
            1.5,
            worst(&mut sizes.iter().copied().filter(|size| *size != eight)),
            "%",
        )
        .conflicts(LIMIT)
        .lacks("Two messages of 4 MiB do not fit into a cache that five of 1 MiB do not fit into."),
        Claim::within(
            Calibrated,
            "8 MiB: throughput with the predicted B against the highest",
            3.0,
            (1.5, 4.5),
            loss(eight, BestB::PAPER.of(eight)),
            "%",
        )
        .conflicts(LIMIT)
        .lacks("One message of 8 MiB is beyond the cache, too."),
        Claim::within(
            Predicted,
            "observed best B against the predicted one, median over the sizes",
            1.0,
            (0.5, 2.0),
            median(&sizes.iter().map(|size| best_of(*size) / f64::from(BestB::PAPER.of(*size))).collect::<Vec<_>>()),
            "times",
        )
        .from("F fig. 8a"),
        Claim::between(
            Predicted,
            "32 KiB: observed best B against the predicted one",
            "close",
            (0.5, 2.0),
            best_of(32 << 10) / f64::from(BestB::PAPER.of(32 << 10)),
            "times",
        )
        .from("F fig. 8a")
        .lacks("A few small messages fill the gap between two wake-ups, and more of them gain less than 0.2 % here."),
        Claim::between(Calibrated, "1 MiB: best B", "4", (3.0, 4.0), best_of(1 << 20), ""),
        Claim::between(Predicted, "8 MiB: best B", "1", (1.0, 1.0), best_of(eight), "").conflicts(LIMIT).lacks(
            "A second message fills the gap between two messages here, and costs nothing: beyond the cache, both are \
             as slow.",
        ),
    ];
    if let Some(fitted) = &fitted {
        claims.push(Claim::at_most(
            Predicted,
            "constants fitted to every other size: loss at the sizes in between, mean",
            "nearly optimal",
            1.0,
            fitted.held_out_loss * 100.0,
            "%",
        ));
    }
    let constants = fitted.as_ref().map_or(BestB::PAPER, |fitted| fitted.constants);
    let numbers_of = |name: &str, of: &dyn Fn(u64) -> f64| {
        Series::line(name, sizes.iter().map(|size| (*size as f64, of(*size))).collect::<Vec<_>>())
    };
    let panels = vec![
        over_sizes(
            "Best B",
            Axis::log("outstanding messages (B)"),
            vec![
                numbers_of("observed", &best_of),
                numbers_of("predicted (equation 1)", &|size| BestB::PAPER.of(size).into()),
                numbers_of("equation 1 with fitted constants", &|size| constants.of(size).into()),
            ],
        ),
        over_sizes(
            "Throughput",
            super::fdr_common::gbits(),
            vec![
                numbers_of("with the best B observed", &|size| observed(size).map_or(f64::NAN, |(_, most)| most)),
                numbers_of("with B predicted", &|size| gbits(size, BestB::PAPER.of(size))),
            ],
        ),
    ];
    let mut table =
        Data::new(["bytes", "best B observed", "B predicted", "Gbit/s observed", "Gbit/s predicted", "loss %"]);
    for size in &sizes {
        let predicted = BestB::PAPER.of(*size);
        table.push([
            (*size).into(),
            best_of(*size).into(),
            predicted.into(),
            rounded(observed(*size).map_or(f64::NAN, |(_, most)| most)).into(),
            rounded(gbits(*size, predicted)).into(),
            rounded(loss(*size, predicted)).into(),
        ]);
    }
    let mut more = vec![("sizes", table)];
    if let Some(fitted) = &fitted {
        more.push(("constants", constants_table(fitted, mean_loss(&BestB::PAPER, &curves))));
    }
    Ok(Report { more, ..report(bench, claims, LIVE, panels, &runs) })
}

/// The paper's constants and the fitted ones, with their mean losses.
fn constants_table(fitted: &Fit, paper_loss: f64) -> Data {
    let mut data = Data::new([
        "constants",
        "small bytes",
        "large bytes",
        "limit bytes",
        "most",
        "least",
        "mean loss % of all sizes",
        "of held-out sizes, fitted to the others",
    ]);
    let percent = |share: f64| (share * 1e4).round() / 1e2;
    let both = [
        ("paper", BestB::PAPER, paper_loss, fitted.paper_held_out_loss),
        ("fitted", fitted.constants, fitted.loss, fitted.held_out_loss),
    ];
    for (name, of, all, held_out) in both {
        data.push([
            name.into(),
            of.small.into(),
            of.large.into(),
            of.limit.into(),
            of.most.into(),
            of.least.into(),
            percent(all).into(),
            percent(held_out).into(),
        ]);
    }
    data
}
