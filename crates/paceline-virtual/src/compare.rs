//! How good predictions are: beside what was measured, and beside what measuring again would give.

use paceline_analyze::ranks::spearman;
use paceline_statistics::{mean, median, percentile, sorted};
use serde::Serialize;

/// A point: what was predicted, and what its repeats gave.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct PredictedPoint {
    pub what: String,
    pub predicted: f64,
    pub between: [f64; 2],
    /// The repeats' figures, at least one.
    pub measured: Vec<f64>,
}

impl PredictedPoint {
    /// The middle one of the repeats.
    pub fn median(&self) -> f64 {
        median(&self.measured)
    }

    /// How far the prediction is off, as a fraction of what was measured.
    pub fn error(&self) -> f64 {
        (self.predicted / self.median() - 1.0).abs()
    }
}

/// Predictions beside measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictionQuality {
    /// Points compared.
    pub points: usize,
    /// Mean error, as a fraction of what was measured.
    pub mean_error: f64,
    /// One point in ten is off by more.
    pub p90_error: f64,
    /// Spearman's rank correlation, 0 where one side does not vary; absent with fewer than three points.
    pub rank_correlation: Option<f64>,
    /// How much worse than the best measured point the one is that was predicted to be the best.
    pub regret: f64,
    /// Mean error of predicting a run by the middle one of its point's other repeats; absent without repeats.
    pub noise_floor: Option<f64>,
    /// Fraction of the points whose median lies where it was predicted to lie.
    pub covered: f64,
}

/// Compares; `None` without points. Figures must be above 0; `less` says whether less is better.
pub fn compare(pairs: &[PredictedPoint], less: bool) -> Option<PredictionQuality> {
    let errors = sorted(&pairs.iter().map(PredictedPoint::error).collect::<Vec<_>>());
    let count = errors.len();
    let measured: Vec<f64> = pairs.iter().map(PredictedPoint::median).collect();
    let predicted: Vec<f64> = pairs.iter().map(|pair| pair.predicted).collect();
    let best = |values: &[f64]| {
        let sign = if less { 1.0 } else { -1.0 };
        (0..count).min_by(|a, b| (sign * values[*a]).total_cmp(&(sign * values[*b])))
    };
    let (chosen, truly) = (measured[best(&predicted)?], measured[best(&measured)?]);
    let noise: Vec<f64> = pairs.iter().flat_map(noise).collect();
    let lies_there = |pair: &&PredictedPoint| (pair.between[0]..=pair.between[1]).contains(&pair.median());
    Some(PredictionQuality {
        points: count,
        mean_error: mean(&errors),
        p90_error: percentile(&errors, 90)?,
        rank_correlation: (count > 2)
            .then(|| spearman(&measured, &predicted).map_or(0.0, |found| found.value)),
        regret: if less { chosen / truly } else { truly / chosen } - 1.0,
        noise_floor: (!noise.is_empty()).then(|| mean(&noise)),
        covered: pairs.iter().filter(lies_there).count() as f64 / count as f64,
    })
}

/// Errors of predicting each repeat by the others.
fn noise(pair: &PredictedPoint) -> Vec<f64> {
    let all = &pair.measured;
    if all.len() < 2 {
        return Vec::new();
    }
    let others = |i: usize| -> Vec<f64> {
        all.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, value)| *value).collect()
    };
    all.iter().enumerate().map(|(i, value)| (median(&others(i)) / value - 1.0).abs()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(predicted: f64, measured: &[f64]) -> PredictedPoint {
        let between = [0.9 * predicted, 1.1 * predicted];
        PredictedPoint { what: String::new(), predicted, between, measured: measured.to_vec() }
    }

    #[test]
    fn errors_are_fractions_of_what_was_measured() {
        let pairs = [pair(1.1, &[1.0]), pair(1.0, &[2.0]), pair(4.0, &[4.0])];
        let found = compare(&pairs, true).unwrap();
        assert!((found.mean_error - 0.2).abs() < 1e-12, "{found:?}");
        assert_eq!((found.p90_error, found.points, found.noise_floor), (0.5, 3, None));
        // 1.1 is beyond 1.0 and 1.0 is not near 2.0; the last one is right.
        assert!((found.covered - 2.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn nine_of_ten_points_are_off_by_no_more_than_the_p90() {
        let pairs: Vec<PredictedPoint> = (0..20).map(|i| pair(1.0 + f64::from(i) / 100.0, &[1.0])).collect();
        assert!((compare(&pairs, true).unwrap().p90_error - 0.17).abs() < 1e-12);
    }

    #[test]
    fn regret_is_what_choosing_by_prediction_costs() {
        let pairs = [pair(1.0, &[3.0]), pair(2.0, &[2.0]), pair(3.0, &[4.0])];
        assert_eq!(compare(&pairs, true).unwrap().regret, 0.5);
        assert_eq!(compare(&pairs, false).unwrap().regret, 0.0);
    }

    #[test]
    fn correlation_is_of_ranks_and_knows_ties() {
        let rising: Vec<PredictedPoint> = [1.0, 2.0, 30.0].map(|v| pair(v * v, &[v])).into();
        assert_eq!(compare(&rising, true).unwrap().rank_correlation, Some(1.0));
        let falling: Vec<PredictedPoint> = [1.0, 2.0, 3.0].map(|v| pair(1.0 / v, &[v])).into();
        assert_eq!(compare(&falling, true).unwrap().rank_correlation, Some(-1.0));
        assert_eq!(paceline_analyze::ranks::ranks(&[5.0, 1.0, 5.0, 7.0]), [2.5, 1.0, 2.5, 4.0]);
        assert_eq!(compare(&falling[..2], true).unwrap().rank_correlation, None);
    }

    #[test]
    fn the_noise_floor_is_what_another_run_would_be_off_by() {
        let found = compare(&[pair(1.0, &[1.0, 1.25])], true).unwrap();
        // 1.25 instead of 1 is 25% off, 1 instead of 1.25 is 20% off.
        assert!((found.noise_floor.unwrap() - 0.225).abs() < 1e-12);
        assert_eq!(compare(&[], true), None);
    }
}
