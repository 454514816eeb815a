//! Tails and quantiles of the distributions that tests need.

use std::cell::Cell;

use statrs::distribution::{ChiSquared, ContinuousCDF, FisherSnedecor, Normal, StudentsT};

/// Chance that Fisher's F is greater.
pub fn f_tail(f: f64, between: f64, within: f64) -> f64 {
    if f <= 0.0 {
        return 1.0;
    }
    FisherSnedecor::new(between, within).map_or(f64::NAN, |d| d.sf(f))
}

/// Chance that Student's t is further from zero.
pub fn t_two_sided(t: f64, df: f64) -> f64 {
    // No difference without any noise says nothing; a difference without any noise is certain.
    if t.is_nan() {
        return 1.0;
    }
    if t.is_infinite() {
        return 0.0;
    }
    StudentsT::new(0.0, 1.0, df).map_or(f64::NAN, |d| 2.0 * d.sf(t.abs()))
}

/// Where Student's t leaves `outside` on both sides together.
pub fn t_quantile(outside: f64, df: f64) -> f64 {
    thread_local! {
        /// The last question and its answer: the intervals of a model ask the same one after another.
        static LAST: Cell<(f64, f64, f64)> = const { Cell::new((f64::NAN, f64::NAN, f64::NAN)) };
    }
    let (last_outside, last_df, answer) = LAST.get();
    if (outside, df) == (last_outside, last_df) {
        return answer;
    }
    let answer = StudentsT::new(0.0, 1.0, df).map_or(f64::NAN, |d| d.inverse_cdf(1.0 - outside / 2.0));
    LAST.set((outside, df, answer));
    answer
}

/// Chance that a standard normal number is further from zero.
pub fn normal_two_sided(z: f64) -> f64 {
    Normal::new(0.0, 1.0).map_or(f64::NAN, |d| 2.0 * d.sf(z.abs()))
}

/// The quantile of a standard normal number.
pub fn normal_quantile(p: f64) -> f64 {
    Normal::new(0.0, 1.0).map_or(f64::NAN, |d| d.inverse_cdf(p))
}

/// Chance that chi-squared is greater.
pub fn chi_squared_tail(x: f64, df: f64) -> f64 {
    if x <= 0.0 {
        return 1.0;
    }
    ChiSquared::new(df).map_or(f64::NAN, |d| d.sf(x))
}

/// Holm's correction: chances such that all below a level together err with at most that level.
pub fn holm(chances: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..chances.len()).filter(|i| !chances[*i].is_nan()).collect();
    order.sort_by(|a, b| chances[*a].total_cmp(&chances[*b]));
    let mut corrected = vec![f64::NAN; chances.len()];
    let mut least: f64 = 0.0;
    for (rank, i) in order.iter().enumerate() {
        least = least.max((chances[*i] * (order.len() - rank) as f64).min(1.0));
        corrected[*i] = least;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holm_never_reverses_an_order_and_skips_what_is_not_a_number() {
        let corrected = holm(&[0.01, 0.04, 0.03, f64::NAN, 0.005]);
        let wanted = [0.03, 0.06, 0.06, f64::NAN, 0.02];
        for (c, w) in corrected.iter().zip(wanted) {
            assert!((c - w).abs() < 1e-12 || (c.is_nan() && w.is_nan()), "{corrected:?}");
        }
    }
}
