//! Means, medians and quantiles of samples: one definition for protocols, the simulator and the analysis.
//!
//! Deliberately absent: tests, models and distributions (`paceline-analyze`), dependencies.

#![forbid(unsafe_code)]

/// The arithmetic mean; NaN without values.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Values without repetition, in the order of their appearance.
pub fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
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
