//! Means, medians and quantiles of samples: one definition for protocols, the simulator and the analysis.
//!
//! Deliberately absent: tests, models and distributions (`paceline-analyze`), dependencies.

#![forbid(unsafe_code)]

/// The arithmetic mean; NaN without values.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The middle value; the mean of the two middle ones where their number is even.
///
/// # Panics
/// Without values.
pub fn median(values: &[f64]) -> f64 {
    quantile(&sorted(values), 0.5)
}

/// The values in ascending order.
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The quantile `q` (0 to 1) of sorted values, interpolated between the two nearest ones.
///
/// # Panics
/// Without values.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = q * (sorted.len() - 1) as f64;
    let (below, part) = (at.floor() as usize, at.fract());
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + part * (sorted[above] - sorted[below])
}

/// The percentile of sorted values by nearest rank: the least value that `percent` of 100 do not exceed. `None` without
/// values.
pub fn percentile<T: Copy>(sorted: &[T], percent: usize) -> Option<T> {
    sorted.get((percent * sorted.len()).div_ceil(100).max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_lie_in_the_middle_and_quantiles_between_the_nearest_values() {
        let values: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!([0.0, 0.05, 0.5, 1.0].map(|q| quantile(&values, q)), [0.0, 5.0, 50.0, 100.0]);
        assert_eq!(quantile(&[1.0, 2.0], 0.25), 1.25);
        assert_eq!([median(&[4.0, 1.0]), median(&[9.0, 1.0, 2.0]), median(&[3.0])], [2.5, 2.0, 3.0]);
        assert_eq!(mean(&[1.0, 2.0, 6.0]), 3.0);
        assert!(mean(&[]).is_nan());
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<u32> = (1..=100).collect();
        assert_eq!([0, 50, 95, 99, 100].map(|p| percentile(&values, p)), [1, 50, 95, 99, 100].map(Some));
        assert_eq!(percentile(&[3], 99), Some(3));
        assert_eq!(percentile(&[] as &[u32], 50), None);
    }
}
