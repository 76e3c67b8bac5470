//! The constants of F's equation 1 that suit an adapter.

use super::equations::BestB;
use serde::{Deserialize, Serialize};

/// What was measured with messages of one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    pub size: u64,
    /// Number of outstanding messages and throughput, ascending.
    pub points: Vec<(u32, f64)>,
}

/// Constants with their losses: mean shares of the best throughput that the predicted numbers do not reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    pub constants: BestB,
    /// Over all sizes. These constants are the fitted ones.
    pub loss: f64,
    /// Of constants fitted to every other size: over these sizes, and over the others.
    pub fitted_loss: f64,
    pub held_out_loss: f64,
    /// Of the paper's constants, over the same other sizes.
    pub paper_held_out_loss: f64,
}

/// A prediction of twice as many messages must reduce the loss by this much.
const TWICE: f64 = 0.0005;
/// A number that was not measured counts as if its loss were higher by this.
const NOT_MEASURED: f64 = 0.005;
/// With fewer sizes there is nothing to hold out.
const LEAST_SIZES: usize = 4;

/// Constants, powers of two, with the least loss; `None` if there are too few sizes.
pub fn fit(curves: &[Curve]) -> Option<Fit> {
    (curves.len() >= LEAST_SIZES).then(|| {
        let half = |odd: usize| curves.iter().skip(odd).step_by(2).collect::<Vec<_>>();
        let (known, held_out) = (half(0), half(1));
        let (all, partly) = (search(&curves.iter().collect::<Vec<_>>()), search(&known));
        Fit {
            constants: all,
            loss: mean_loss(&all, curves),
            fitted_loss: mean_loss(&partly, known.iter().copied()),
            held_out_loss: mean_loss(&partly, held_out.iter().copied()),
            paper_held_out_loss: mean_loss(&BestB::PAPER, held_out.iter().copied()),
        }
    })
}

/// The mean loss of the numbers that these constants predict; zero without sizes.
pub fn mean_loss<'a>(constants: &BestB, curves: impl IntoIterator<Item = &'a Curve>) -> f64 {
    let losses: Vec<f64> = curves.into_iter().map(|curve| curve.loss(constants.of(curve.size))).collect();
    if losses.is_empty() { 0.0 } else { losses.iter().sum::<f64>() / losses.len() as f64 }
}

impl Curve {
    /// The share of the best throughput that this number of outstanding messages does not reach.
    pub fn loss(&self, outstanding: u32) -> f64 {
        let best = self.points.iter().map(|(_, gbits)| *gbits).fold(0.0, f64::max);
        if best > 0.0 { 1.0 - self.at(outstanding) / best } else { 0.0 }
    }

    /// The throughput: measured, or on a line between the logarithms of the neighbours. That of the last point beyond
    /// it.
    fn at(&self, outstanding: u32) -> f64 {
        let above = self.points.partition_point(|(b, _)| *b < outstanding);
        match (above.checked_sub(1).map(|at| self.points[at]), self.points.get(above)) {
            (_, Some((b, gbits))) if *b == outstanding => *gbits,
            (Some(low), Some(high)) => {
                let log = |b: u32| f64::from(b).ln();
                let share = (log(outstanding) - log(low.0)) / (log(high.0) - log(low.0));
                low.1 + share * (high.1 - low.1)
            }
            (Some((_, gbits)), None) | (None, Some(&(_, gbits))) => gbits,
            (None, None) => 0.0,
        }
    }
}

/// Tries powers of two, and three times as much. Of constants that are equally good: those that predict the fewest
/// outstanding messages, and of these the nearest to the paper's.
fn search(curves: &[&Curve]) -> BestB {
    let bytes = || (12..=28).flat_map(|bits| [1u64 << bits, 3u64 << bits]);
    let mut limits: Vec<u64> = curves.iter().map(|curve| curve.size).collect();
    limits.insert(0, limits.first().map_or(0, |size| size - 1));
    let small = bytes().flat_map(|small| (0..=8).map(move |bits| (small, 1u32 << bits)));
    let large = bytes().flat_map(|large| (0..=6).map(move |bits| (large, 1u32 << bits)));
    let least = |part: &[&Curve], all: &mut dyn Iterator<Item = BestB>| {
        let ranked = all.map(|constants| (rank(&constants, part), constants));
        ranked.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(BestB::PAPER, |(_, constants)| constants)
    };
    // For each limit the constants of both parts are independent of each other.
    let of_limit = |limit: u64| {
        let (low, high): (Vec<&Curve>, Vec<&Curve>) = curves.iter().partition(|curve| curve.size <= limit);
        let first = least(&low, &mut small.clone().map(|(small, most)| BestB { small, most, limit, ..BestB::PAPER }));
        least(&high, &mut large.clone().map(|(large, least)| BestB { large, least, ..first }))
    };
    least(curves, &mut limits.into_iter().map(of_limit))
}

/// The lower the better.
fn rank(constants: &BestB, curves: &[&Curve]) -> f64 {
    let of_curve = |curve: &&Curve| {
        let b = constants.of(curve.size);
        let measured = curve.points.iter().any(|(number, _)| *number == b);
        curve.loss(b) + if measured { 0.0 } else { NOT_MEASURED } + f64::from(b).log2() * TWICE
    };
    curves.iter().map(of_curve).sum::<f64>() / curves.len().max(1) as f64 + distance(constants) * 1e-8
}

/// How far the constants are from the paper's, in powers of two.
fn distance(constants: &BestB) -> f64 {
    let paper = BestB::PAPER;
    let far = |a: u64, b: u64| (a.max(1) as f64 / b as f64).log2().abs();
    far(constants.small, paper.small)
        + far(constants.large, paper.large)
        + far(constants.limit, paper.limit)
        + far(constants.most.into(), paper.most.into())
        + far(constants.least.into(), paper.least.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What an adapter with these constants does: throughput rises up to the best number, and falls behind it.
    fn curves(best: BestB, sizes: impl Iterator<Item = u64>) -> Vec<Curve> {
        let gbits = |size: u64, b: u32| {
            let most = best.of(size);
            if b > most { 47.0 } else { 15.0 + 35.0 * f64::from(b) / f64::from(most) }
        };
        let points = |size: u64| (0..=7).map(|bits| (1 << bits, gbits(size, 1 << bits))).collect();
        sizes.map(|size| Curve { size, points: points(size) }).collect()
    }

    fn powers(from: u32, to: u32) -> impl Iterator<Item = u64> {
        (from..=to).map(|bits| 1 << bits)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn constants_that_generated_the_data_are_found(
            small in 18u32..=22, large in 20u32..=24, limit in 16u32..=20, most in 4u32..=7, least in 0u32..=2
        ) {
            let (small, large, limit) = (1 << small, 1 << large, 1 << limit);
            let truth = BestB { small, large, limit, most: 1 << most, least: 1 << least };
            let curves = curves(truth, powers(13, 26));
            let fit = fit(&curves).unwrap();
            for curve in &curves {
                let (predicted, right) = (fit.constants.of(curve.size), truth.of(curve.size).min(128));
                prop_assert!(curve.loss(predicted) < 0.005, "{} bytes: {predicted}, not {right}: {fit:?}", curve.size);
            }
            prop_assert!(fit.loss < 0.002);
        }
    }

    #[test]
    fn other_sizes_are_predicted_from_every_other_one() {
        let truth = BestB { small: 1 << 20, large: 8 << 20, limit: 256 << 10, most: 64, least: 1 };
        let fit = fit(&curves(truth, powers(13, 26))).unwrap();
        assert!(fit.held_out_loss < 0.06 && fit.fitted_loss < 0.002, "{fit:?}");
        assert!(fit.paper_held_out_loss > 2.0 * fit.held_out_loss, "{fit:?}");
        assert_eq!(super::fit(&curves(truth, powers(13, 15))), None);
    }

    #[test]
    fn a_number_between_those_measured_is_interpolated() {
        let curve = Curve { size: 1, points: vec![(1, 10.0), (4, 30.0)] };
        assert!((curve.at(2) - 20.0).abs() < 1e-9);
        assert_eq!((curve.at(4), curve.at(8), curve.loss(4)), (30.0, 30.0, 0.0));
        assert_eq!(Curve { size: 1, points: vec![] }.loss(1), 0.0);
    }
}
