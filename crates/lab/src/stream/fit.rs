//! Constants of equation 1 that fit an adapter, judged at sizes that were not used for them.

use super::equations::BestB;
use crate::data::Data;
use serde::{Deserialize, Serialize};

/// A measured throughput.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Bytes of a message, and the messages that were outstanding.
    pub size: u64,
    pub b: u32,
    pub gbits: f64,
}

/// Constants, and what they lose against the highest throughput of each size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fitted {
    pub constants: BestB,
    /// At the sizes that they were fitted to: every other one.
    pub fitted: Loss,
    /// At the sizes in between.
    pub held_out: Loss,
    /// What the paper's constants lose at the same sizes.
    pub paper_fitted: Loss,
    pub paper_held_out: Loss,
}

/// Shares of the highest throughput, 0 ..= 1, over some sizes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    pub mean: f64,
    pub worst: f64,
}

/// Fits constants to every other size. `None` with fewer than four sizes: none would be held out on both sides of the limit.
pub fn fit(samples: &[Sample]) -> Option<Fitted> {
    let curves = Curve::all(samples);
    if curves.len() < 4 {
        return None;
    }
    let (used, held): (Vec<_>, Vec<_>) = curves.iter().enumerate().partition(|(at, _)| at % 2 == 0);
    let [used, held] = [used, held].map(|part| part.into_iter().map(|(_, curve)| curve).collect::<Vec<_>>());
    let constants = constants(&used);
    Some(Fitted {
        constants,
        fitted: loss(&used, &constants),
        held_out: loss(&held, &constants),
        paper_fitted: loss(&used, &BestB::PAPER),
        paper_held_out: loss(&held, &BestB::PAPER),
    })
}

impl Fitted {
    /// All values as a table.
    pub fn table(&self) -> Data {
        let mut data = Data::new([
            "constants",
            "small bytes",
            "large bytes",
            "limit bytes",
            "most",
            "least",
            "loss % at fitted sizes, mean",
            "worst",
            "loss % at held-out sizes, mean",
            "worst held-out",
        ]);
        let percent = |share: f64| (share * 1e4).round() / 1e2;
        for (name, of, used, held) in [
            ("paper", BestB::PAPER, self.paper_fitted, self.paper_held_out),
            ("fitted", self.constants, self.fitted, self.held_out),
        ] {
            data.push([
                name.into(),
                of.small.into(),
                of.large.into(),
                of.limit.into(),
                of.most.into(),
                of.least.into(),
                percent(used.mean).into(),
                percent(used.worst).into(),
                percent(held.mean).into(),
                percent(held.worst).into(),
            ]);
        }
        data
    }
}

/// The throughputs of a size, by the number of outstanding messages.
struct Curve {
    size: u64,
    points: Vec<(u32, f64)>,
}

impl Curve {
    fn all(samples: &[Sample]) -> Vec<Curve> {
        let mut curves: Vec<Curve> = vec![];
        for Sample { size, b, gbits } in samples.iter().filter(|sample| sample.gbits.is_finite()) {
            match curves.iter_mut().find(|curve| curve.size == *size) {
                Some(curve) => curve.points.push((*b, *gbits)),
                None => curves.push(Curve { size: *size, points: vec![(*b, *gbits)] }),
            }
        }
        curves.iter_mut().for_each(|curve| curve.points.sort_by_key(|(b, _)| *b));
        curves.sort_by_key(|curve| curve.size);
        curves
    }

    /// The throughput with `b` messages: between two that were measured, along a line over the logarithm of b.
    fn at(&self, b: u32) -> f64 {
        let after = self.points.iter().position(|(each, _)| *each >= b);
        match after {
            None => self.points.last().map_or(f64::NAN, |(_, gbits)| *gbits),
            Some(0) => self.points[0].1,
            Some(at) => {
                let ((low, from), (high, to)) = (self.points[at - 1], self.points[at]);
                let place = |b: u32| f64::from(b).ln();
                from + (to - from) * (place(b) - place(low)) / (place(high) - place(low))
            }
        }
    }

    fn loss(&self, b: u32) -> f64 {
        let most = self.points.iter().map(|(_, gbits)| *gbits).fold(0.0, f64::max);
        1.0 - self.at(b) / most
    }
}

fn loss(curves: &[&Curve], constants: &BestB) -> Loss {
    let each: Vec<f64> = curves.iter().map(|curve| curve.loss(constants.of(curve.size))).collect();
    Loss { mean: each.iter().sum::<f64>() / each.len() as f64, worst: each.iter().copied().fold(0.0, f64::max) }
}

/// The constants that lose least on average; of equally good ones, those with fewer messages outstanding. Both halves of the
/// equation are independent once the limit is chosen.
fn constants(curves: &[&Curve]) -> BestB {
    let bytes = || (14..=27).flat_map(|power| [1u64 << power, 3 << (power - 1)]);
    let mut best: Option<(f64, f64, BestB)> = None;
    for limit in curves.iter().map(|curve| curve.size) {
        let (low, high): (Vec<&Curve>, Vec<&Curve>) = curves.iter().partition(|curve| curve.size <= limit);
        let half = |curves: &[&Curve], all: &mut dyn Iterator<Item = BestB>| {
            let judged = all.map(|each| {
                let lost: f64 = curves.iter().map(|curve| (curve.loss(each.of(curve.size)) - NOTHING).max(0.0)).sum();
                let messages: f64 = curves.iter().map(|curve| f64::from(each.of(curve.size)).ln()).sum();
                (lost, messages, each)
            });
            judged.min_by(better).unwrap_or((0.0, 0.0, BestB { limit, ..BestB::PAPER }))
        };
        let base = BestB { limit, ..BestB::PAPER };
        let small = half(
            &low,
            &mut bytes().flat_map(|small| (0..=7).map(move |power| BestB { small, most: 1 << power, ..base })),
        );
        let large =
            half(&high, &mut bytes().flat_map(|large| (1..=4).map(move |least| BestB { large, least, ..base })));
        let both = BestB { large: large.2.large, least: large.2.least, ..small.2 };
        let judged = (small.0 + large.0, small.1 + large.1, both);
        if best.as_ref().is_none_or(|best| better(&judged, best).is_lt()) {
            best = Some(judged);
        }
    }
    best.map_or(BestB::PAPER, |(_, _, constants)| constants)
}

/// The share of a loss that counts as none.
const NOTHING: f64 = 0.005;

/// Losses that differ by less than a thousandth are equal.
fn better(a: &(f64, f64, BestB), b: &(f64, f64, BestB)) -> std::cmp::Ordering {
    let coarse = |lost: f64| (lost * 1e3).round();
    coarse(a.0).total_cmp(&coarse(b.0)).then(a.1.total_cmp(&b.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Throughputs that are highest where `truth` says.
    fn samples(truth: &BestB) -> Vec<Sample> {
        let of = |power: u32| {
            let (size, best) = (1u64 << power, f64::from(truth.of(1 << power)).ln());
            (0..=7).map(move |b| {
                let away = (f64::from(1u32 << b).ln() - best).abs();
                Sample { size, b: 1 << b, gbits: 50.0 - 5.0 * away }
            })
        };
        (15..=26).flat_map(of).collect()
    }

    #[test]
    fn constants_are_found_again_and_hold_at_other_sizes() {
        let truth = BestB { small: 1 << 20, large: 8 << 20, limit: 128 << 10, most: 16, least: 1 };
        let fitted = fit(&samples(&truth)).unwrap();
        assert!(fitted.fitted.worst < 0.01, "{fitted:?}");
        assert!(fitted.held_out.mean < 0.03 && fitted.held_out.mean < fitted.paper_held_out.mean, "{fitted:?}");
    }

    #[test]
    fn the_paper_s_constants_lose_nothing_where_they_are_true() {
        let fitted = fit(&samples(&BestB::PAPER)).unwrap();
        assert!(fitted.paper_fitted.worst < 0.05 && fitted.held_out.worst < 0.1, "{fitted:?}");
    }

    #[test]
    fn few_sizes_are_not_enough() {
        let few: Vec<Sample> = (0..3).map(|n| Sample { size: 1 << (15 + n), b: 1, gbits: 1.0 }).collect();
        assert_eq!(fit(&few), None);
        assert_eq!(fit(&[Sample { gbits: f64::NAN, ..few[0] }; 9]), None);
    }
}
