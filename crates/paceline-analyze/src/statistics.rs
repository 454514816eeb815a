//! Summaries of repeats, as documents hold them.

use paceline_statistics::{quantile, sorted};
use serde::{Deserialize, Serialize};

/// How values are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// One value in twenty is lower.
    pub p5: f64,
    /// The middle.
    pub median: f64,
    /// One value in twenty is greater.
    pub p95: f64,
}

impl Quantiles {
    /// Those of values, at least one.
    pub fn of(values: &[f64]) -> Self {
        let sorted = sorted(values);
        let [p5, median, p95] = [0.05, 0.5, 0.95].map(|q| quantile(&sorted, q));
        Self { p5, median, p95 }
    }

    /// The medians of repeats' quantiles, of at least one.
    pub fn medians(repeats: impl Iterator<Item = Self> + Clone) -> Self {
        let over = |figure: fn(Self) -> f64| Spread::of(repeats.clone().map(figure)).median;
        Self { p5: over(|q| q.p5), median: over(|q| q.median), p95: over(|q| q.p95) }
    }
}

/// What several repeats of one measurement gave.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle one.
    pub median: f64,
    /// The least one.
    pub least: f64,
    /// The greatest one.
    pub greatest: f64,
}

impl Spread {
    /// That of values, at least one.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let sorted = sorted(&values.into_iter().collect::<Vec<_>>());
        Self { median: quantile(&sorted, 0.5), least: sorted[0], greatest: sorted[sorted.len() - 1] }
    }

    /// Half of the distance between the least and the greatest repeat, in percent of the median.
    pub fn percent(&self) -> String {
        format!("±{:.0}%", 50.0 * (self.greatest - self.least) / self.median)
    }

    /// Whether some repeat of each lies within the range of the other: then the two cannot be told apart.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.least <= other.greatest && other.least <= self.greatest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_the_nearest_values() {
        let values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        assert_eq!(Quantiles::of(&values), Quantiles { p5: 5.0, median: 50.0, p95: 95.0 });
        assert_eq!(Quantiles::of(&[3.0]), Quantiles { p5: 3.0, median: 3.0, p95: 3.0 });
    }

    #[test]
    fn spreads_overlap_if_neither_lies_beside_the_other() {
        let a = Spread::of([3.0, 1.0, 2.0]);
        assert_eq!(a, Spread { median: 2.0, least: 1.0, greatest: 3.0 });
        assert_eq!(a.percent(), "±50%");
        assert!(a.overlaps(&Spread::of([2.9, 9.0])) && !a.overlaps(&Spread::of([3.1, 9.0])));
    }
}
