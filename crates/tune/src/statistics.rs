//! Means, ratios, and their confidence intervals.
//!
//! A throughput is the geometric mean of its runs, and its interval is Student's t of their logarithms. A ratio of
//! two settings is formed in each round, of two runs that follow each other closely: what slows a whole round has no
//! effect on it. The bootstrap of a median would need more rounds than the time allows: of three values it has only
//! three results.

use serde::{Deserialize, Serialize};

/// How the intervals are formed, for reports.
pub const METHOD: &str = "Throughputs are geometric means of runs. Intervals have 95 % confidence: Student's t of the \
                          logarithms. Ratios are formed in each round.";

/// A mean with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    pub mean: f64,
    /// `None` for a single run.
    pub interval: Option<[f64; 2]>,
    pub median: f64,
    pub runs: usize,
}

/// How a setting compares with another: quotients of throughputs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    pub mean: f64,
    /// `None` for a single round.
    pub interval: Option<[f64; 2]>,
    pub rounds: usize,
}

/// How sure a two-sided interval is: the probability that it contains the true value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Confidence(f64);

impl Confidence {
    /// For reports.
    pub const P95: Confidence = Confidence(0.95);
    /// To leave out a candidate: one of ten candidates must not be left out by chance.
    pub const P99: Confidence = Confidence(0.99);

    /// Of each of so many comparisons, for all of them together to have 95 % (Bonferroni's correction).
    pub fn of_each(comparisons: usize) -> Confidence {
        Confidence(1.0 - 0.05 / comparisons.max(1) as f64)
    }
}

/// The geometric mean of positive values; `None` if there are none.
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    let logs: Vec<f64> = values.iter().filter(|v| **v > 0.0).map(|v| v.ln()).collect();
    let (mean, half) = mean_and_half(&logs, Confidence::P95)?;
    let interval = half.map(|half| [(mean - half).exp(), (mean + half).exp()]);
    let median = weir_lab::statistics::median(&logs).exp();
    Some(Estimate { mean: mean.exp(), interval, median, runs: logs.len() })
}

/// The ratio of one to the other over the rounds in which both have a value; `None` if there are none.
pub fn ratio(of: &[Option<f64>], to: &[Option<f64>], confidence: Confidence) -> Option<Ratio> {
    let logs = log_ratios(of, to);
    let (mean, half) = mean_and_half(&logs, confidence)?;
    let interval = half.map(|half| [(mean - half).exp(), (mean + half).exp()]);
    Some(Ratio { mean: mean.exp(), interval, rounds: logs.len() })
}

/// The logarithm of the ratio in each round in which both have a positive value.
pub fn log_ratios(of: &[Option<f64>], to: &[Option<f64>]) -> Vec<f64> {
    let both = of.iter().zip(to).filter_map(|(a, b)| a.zip(*b));
    both.filter(|(a, b)| *a > 0.0 && *b > 0.0).map(|(a, b)| (a / b).ln()).collect()
}

impl Ratio {
    /// Whether the interval excludes equality.
    pub fn differs(&self) -> bool {
        self.interval.is_some_and(|[low, high]| low > 1.0 || high < 1.0)
    }

    /// Half the interval's width, as a share.
    pub fn half_width(&self) -> f64 {
        self.interval.map_or(f64::INFINITY, |[low, high]| (high / low).ln() / 2.0)
    }

    /// "+5.1 %".
    pub fn percent(&self) -> String {
        percent(self.mean)
    }

    /// "+3.0 to +7.2 %"; empty for a single round.
    pub fn range(&self) -> String {
        self.interval.map_or_else(String::new, |[low, high]| {
            format!("{} to {}", percent(low).trim_end_matches(" %"), percent(high))
        })
    }
}

fn percent(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    match percent.abs() {
        p if p >= 100.0 => format!("{percent:+.0} %"),
        _ => format!("{percent:+.1} %"),
    }
}

/// The mean, and half the width of its interval if there are two values.
fn mean_and_half(values: &[f64], confidence: Confidence) -> Option<(f64, Option<f64>)> {
    let n = values.len() as f64;
    let mean = (!values.is_empty()).then(|| values.iter().sum::<f64>() / n)?;
    let half = (values.len() > 1).then(|| {
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
        quantile(values.len() - 1, confidence) * (variance / n).sqrt()
    });
    Some((mean, half))
}

/// Student's t for two-sided intervals, by degrees of freedom from 1. With the angle atan(t / √freedom) the
/// probability is a finite sum and rises, so that bisection finds the angle.
fn quantile(freedom: usize, confidence: Confidence) -> f64 {
    let (mut low, mut high) = (0.0, std::f64::consts::FRAC_PI_2);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if within(middle, freedom) < confidence.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    (freedom as f64).sqrt() * low.tan()
}

/// The probability that the angle of Student's t is smaller, whatever its sign.
fn within(angle: f64, freedom: usize) -> f64 {
    let (sin, cos) = angle.sin_cos();
    let odd = freedom % 2;
    // Even: sin (1 + 1/2 cos² + 1·3/(2·4) cos⁴ ...). Odd: sin (cos + 2/3 cos³ + 2·4/(3·5) cos⁵ ...). The highest power
    // is freedom - 2.
    let (mut term, mut sum, mut power) = (if odd == 1 { cos } else { 1.0 }, 0.0, odd);
    while power + 2 <= freedom {
        sum += term;
        power += 2;
        term *= cos * cos * (power - 1) as f64 / power as f64;
    }
    if odd == 1 { (angle + sin * sum) * std::f64::consts::FRAC_2_PI } else { sin * sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_known_values_is_students() {
        let e = estimate(&[1.0f64, 2.0, 3.0].map(f64::exp)).unwrap();
        let [low, high] = e.interval.unwrap();
        assert!((e.mean.ln() - 2.0).abs() < 1e-12 && (e.median.ln() - 2.0).abs() < 1e-12);
        assert!((high.ln() - 2.0 - 4.302_653 / 3f64.sqrt()).abs() < 1e-6 && (low.ln() + high.ln() - 4.0).abs() < 1e-9);
        assert_eq!(estimate(&[2.0]).unwrap().interval, None);
        assert!(estimate(&[]).is_none() && estimate(&[0.0]).is_none());
    }

    #[test]
    fn quantiles_are_those_of_tables() {
        let known = [
            (1, 0.95, 12.706),
            (2, 0.95, 4.303),
            (3, 0.99, 5.841),
            (4, 0.95, 2.776),
            (9, 0.999, 4.781),
            (10, 0.99, 3.169),
            (29, 0.99, 2.756),
            (30, 0.95, 2.042),
            (1000, 0.95, 1.962),
        ];
        for (freedom, confidence, t) in known {
            let found = quantile(freedom, Confidence(confidence));
            assert!((found - t).abs() < 6e-4, "{freedom} {confidence}: {found}, {t}");
        }
        assert!(quantile(9, Confidence::of_each(100)) > quantile(9, Confidence::P99));
        assert_eq!(Confidence::of_each(1), Confidence::P95);
    }

    #[test]
    fn ratios_are_those_of_rounds_with_both() {
        let a = [Some(2.0), None, Some(4.0), Some(8.0)];
        let b = [Some(1.0), Some(9.0), Some(2.0), Some(4.0)];
        let r = ratio(&a, &b, Confidence::P95).unwrap();
        assert!((r.mean - 2.0).abs() < 1e-12 && r.rounds == 3 && r.differs(), "{r:?}");
        assert!(!ratio(&a[..1], &b, Confidence::P95).unwrap().differs());
        assert_eq!(r.percent(), "+100 %");
    }

    #[test]
    fn the_true_ratio_is_mostly_within_the_interval() {
        let seed = 20_140_604;
        let mut noise = crate::fake::Noise(seed);
        let mut within = 0;
        for _ in 0..1000 {
            let mut draw = |mean: f64| (0..5).map(|_| Some(mean * noise.normal(0.05).exp())).collect::<Vec<_>>();
            let (a, b) = (draw(1.1), draw(1.0));
            let [low, high] = ratio(&a, &b, Confidence::P95).unwrap().interval.unwrap();
            within += u32::from(low < 1.1 && 1.1 < high);
        }
        assert!((925..=975).contains(&within), "seed {seed}: {within} of 1000");
    }
}
