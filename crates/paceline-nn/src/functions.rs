//! Exponentials in single precision without branches, so that loops over them become vector code.
//!
//! Each is within a few units in the last place of the exact value where that is at least 1, and within
//! 2·10⁻⁷ elsewhere (the error function: 6·10⁻⁷); NaN stays NaN.

use std::f32::consts::LOG2_E;

/// ln 2 in two parts, the first short enough that its product with a small integer is exact.
const LN_2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);

/// 2ⁿ and e^r − 1 with x = n·ln 2 + r. `x` is within ±87.
#[inline(always)]
fn parts(x: f32) -> (f32, f32) {
    // Adding 1.5·2²³ leaves the nearest integer in the low bits.
    let shifted = x * LOG2_E + 12_582_912.0;
    let n = shifted - 12_582_912.0;
    let r = x - n * LN_2.0 - n * LN_2.1;
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    // Taylor's series: |r| is below 0.35, what is left out below 10⁻⁸.
    let p = 1.0 / 5040.0;
    let p = p * r + 1.0 / 720.0;
    let p = p * r + 1.0 / 120.0;
    let p = p * r + 1.0 / 24.0;
    let p = p * r + 1.0 / 6.0;
    let p = p * r + 0.5;
    (power, p * r * r + r)
}

/// `x` within `±limit`. Written so that NaN passes.
#[inline(always)]
fn within(x: f32, limit: f32) -> f32 {
    let x = if x < -limit { -limit } else { x };
    if x > limit { limit } else { x }
}

/// e to the power of `x`, which counts as at least −87 and at most 87.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let (power, less_one) = parts(within(x, 87.0));
    power * less_one + power
}

/// Hyperbolic tangent, exact to the last digits near 0 too.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    // Beyond ±9 it is ±1 to the last bit.
    let (power, less_one) = parts(within(2.0 * x, 20.0));
    let less_one = power * less_one + (power - 1.0);
    less_one / (less_one + 2.0)
}

/// The error function (Abramowitz and Stegun 7.1.26).
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let p = 1.061_405_4 * t - 1.453_152_1;
    let p = p * t + 1.421_413_8;
    let p = p * t - 0.284_496_72;
    let p = p * t + 0.254_829_6;
    (1.0 - p * t * exp(-(x * x))).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest error over a range, absolute below 1 and relative above.
    fn error(range: f64, ours: fn(f32) -> f32, exact: fn(f64) -> f64) -> f64 {
        (-100_000..=100_000)
            .map(|i| {
                let x = (f64::from(i) * range / 1e5) as f32;
                let want = exact(f64::from(x));
                (f64::from(ours(x)) - want).abs() / want.abs().max(1.0)
            })
            .fold(0.0, f64::max)
    }

    #[test]
    fn errors_are_near_single_precision() {
        assert!(error(80.0, exp, f64::exp) < 2e-7);
        assert!(error(12.0, tanh, f64::tanh) < 2e-7);
        assert!(error(6.0, erf, libm::erf) < 6e-7);
    }

    #[test]
    fn small_arguments_keep_their_digits() {
        for x in [1e-8f32, -1e-5, 1e-3, -0.02, 0.3] {
            let want = f64::from(x).tanh();
            assert!((f64::from(tanh(x)) - want).abs() < 3e-7 * want.abs(), "{x}");
        }
        assert!((f64::from(exp(-60.0)) / (-60f64).exp() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn the_ends_of_the_number_line() {
        for f in [exp, tanh, erf] {
            assert!(f(f32::NAN).is_nan());
        }
        assert!(exp(f32::NEG_INFINITY) < 2e-38);
        assert_eq!(tanh(f32::INFINITY), 1.0);
        assert_eq!(tanh(f32::NEG_INFINITY), -1.0);
        assert_eq!((erf(9.0), erf(-9.0)), (1.0, -1.0));
    }
}
