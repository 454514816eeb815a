//! The number types a network can be run in: `f32` for training, `f64` as the reference.

use std::fmt::{Debug, Display};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub, SubAssign};

use crate::accel::{Level, Product};

/// A floating-point type that every layer can compute in.
///
/// `f32` takes the vector kernels of [`crate::accel`]; `f64` takes the portable ones and serves as
/// the reference that finite differences and tolerances come from.
pub trait Real:
    Copy
    + Default
    + Debug
    + Display
    + PartialOrd
    + Send
    + Sync
    + Sum
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + 'static
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;

    /// Rounds to the nearest representable value.
    fn of(value: f64) -> Self;
    /// Exact for `f32` and `f64`.
    fn to_f64(self) -> f64;
    /// The larger of the two (the other one where one is NaN).
    fn max(self, other: Self) -> Self;
    /// e to the power of `self`.
    fn exp(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// The error function.
    fn erf(self) -> Self;
    /// The tile product with the best kernel that `level` has for this type.
    fn product(level: Level, task: Product<'_, Self>);
}

macro_rules! real {
    ($t:ty, $erf:path, $product:path) => {
        impl Real for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;

            #[inline(always)]
            fn of(value: f64) -> Self {
                value as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                // Not `<$t>::max`: the plain comparison is a single vector instruction.
                if self > other { self } else { other }
            }
            #[inline(always)]
            fn exp(self) -> Self {
                <$t>::exp(self)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                <$t>::sqrt(self)
            }
            #[inline(always)]
            fn tanh(self) -> Self {
                <$t>::tanh(self)
            }
            #[inline(always)]
            fn erf(self) -> Self {
                $erf(self)
            }
            fn product(level: Level, task: Product<'_, Self>) {
                $product(level, task)
            }
        }
    };
}

real!(f32, libm::erff, crate::accel::product_f32);
real!(f64, libm::erf, crate::accel::product_f64);
