//! The normal distribution, with logarithms that stay finite far out in its tails.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

pub fn density(z: f64) -> f64 {
    (-0.5 * z * z).exp() / (2.0 * PI).sqrt()
}

/// Probability of at most `z`.
pub fn below(z: f64) -> f64 {
    0.5 * libm::erfc(-z * FRAC_1_SQRT_2)
}

pub fn ln_below(z: f64) -> f64 {
    if z > -8.0 { below(z).ln() } else { tail(z) - (-z).ln() + (-1.0 / (z * z)).ln_1p() }
}

fn tail(z: f64) -> f64 {
    -0.5 * z * z - 0.5 * (2.0 * PI).ln()
}

/// Logarithm of the expected amount by which a standard normal variable is below `z`.
pub fn ln_expected_improvement(z: f64) -> f64 {
    if z > -6.0 {
        (density(z) + z * below(z)).max(f64::MIN_POSITIVE).ln()
    } else {
        // φ(z)/z² · (1 - 3/z² + 15/z⁴ - …), where the difference above loses its digits.
        tail(z) - 2.0 * (-z).ln() + (-3.0 / (z * z) + 15.0 / z.powi(4)).ln_1p()
    }
}

/// The mean of a normal variable of which it is known that it is above a bound.
pub fn mean_above(mean: f64, sigma: f64, bound: f64) -> f64 {
    let z = (bound - mean) / sigma;
    // Density over the tail's probability; far out the mean is just above the bound.
    let above = (tail(z) - ln_below(-z)).exp();
    (mean + sigma * above).max(bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_join_the_middle() {
        for (f, join) in [(ln_below as fn(f64) -> f64, -8.0), (ln_expected_improvement, -6.0)] {
            let (left, right) = (f(join - 1e-9), f(join + 1e-9));
            assert!((left - right).abs() < 0.01, "{left} {right}");
            assert!(f(-100.0).is_finite() && f(-100.0) < f(-50.0));
        }
        assert!((below(1.959964) - 0.975).abs() < 1e-6);
        // Of a half-normal variable: the square root of 2/π.
        assert!((mean_above(0.0, 1.0, 0.0) - (2.0 / PI).sqrt()).abs() < 1e-12);
        assert!(
            (mean_above(3.0, 1.0, -9.0) - 3.0).abs() < 1e-9
                && (50.0..50.1).contains(&mean_above(0.0, 1.0, 50.0))
        );
        assert!((ln_expected_improvement(0.0).exp() - density(0.0)).abs() < 1e-12);
    }
}
