//! Medians, averages and ranges of measured values.

/// The median of some values without NaN; NaN if there are none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| !v.is_nan()).collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The average; NaN if there are no values.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Lowest and highest.
pub fn range(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(*v), high.max(*v)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_means_of_no_values_are_nan() {
        assert!(median(&[]).is_nan() && median(&[f64::NAN]).is_nan() && mean(&[]).is_nan());
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[1.0, 2.0]), mean(&[1.0, 2.0])), (2.0, 1.5, 1.5));
    }
}
