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

/// The middle of the values (Hodges and Lehmann's), and the upper bound that holds with 95%. The middle is the median of the means of all
/// pairs of values, the bound belongs to Wilcoxon's signed ranks: a run that somebody else on the machine disturbs
/// moves them little.
pub fn hodges_lehmann(values: &[f64]) -> (f64, f64) {
    let n = values.len();
    let pairs = (0..n).flat_map(|i| (0..=i).map(move |j| (values[i] + values[j]) / 2.0));
    let means = sorted(&pairs.collect::<Vec<_>>());
    let (all, middle) = (means.len(), quantile(&means, 0.5));
    let count = n as f64;
    let (mean, variance) = (count * (count + 1.0) / 4.0, count * (count + 1.0) * (2.0 * count + 1.0) / 24.0);
    // Below about five values there is no such bound: the greatest stands for it.
    let beyond = (mean - 1.644_854 * variance.sqrt() - 0.5).floor().max(0.0) as usize;
    (middle, means[all - 1 - beyond.min(all - 1)])
}

#[cfg(test)]
mod tests {
    use paceline_random::{Purpose, Stream};

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

    #[test]
    fn the_bound_holds_as_often_as_it_says_and_one_disturbed_run_moves_it_little() {
        let stream = Stream::new(1, Purpose::Bench);
        let draw = |trial| (0..24).map(|i| stream.fork(trial).normal(i)).collect::<Vec<f64>>();
        let trials = 2000;
        let held = (0..trials).filter(|trial| hodges_lehmann(&draw(*trial)).1 >= 0.0).count();
        let share = held as f64 / trials as f64;
        assert!((0.935..0.965).contains(&share), "{share}");
        let mut values = draw(0);
        let (middle, bound) = hodges_lehmann(&values);
        values[7] += 100.0;
        let moved = hodges_lehmann(&values);
        assert!((moved.0 - middle).abs() < 0.2 && (moved.1 - bound).abs() < 0.2, "{moved:?}");
        assert_eq!(hodges_lehmann(&[1.0, 3.0]), (2.0, 3.0));
    }
}
