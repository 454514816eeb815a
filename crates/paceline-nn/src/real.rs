//! The number types a network can be run in: `f32` for training, `f64` as the reference.

use std::fmt::{Debug, Display};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub, SubAssign};

use crate::accel::{Level, Plain, Product, Vector};
use crate::functions;
use crate::layers::Kernels;

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

    /// The register that AVX-512 code computes in.
    type Avx512: Vector<Self>;
    /// The register that AVX2 code computes in.
    type Avx2: Vector<Self>;

    /// Whether layers may take algorithms that trade a little rounding for speed: not in the reference.
    const FAST: bool;

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
    /// Everything that a network computes with.
    fn kernels() -> &'static Kernels<Self>;
}

/// `$compiled`: kernels are compiled once, in this crate (`inline(never)`), or where they are used (`inline`).
macro_rules! real {
    ($compiled:meta, $t:ty, $avx512:ty, $avx2:ty, $fast:literal, $exp:path, $tanh:path, $erf:path, $product:path) => {
        impl Real for $t {
            type Avx512 = $avx512;
            type Avx2 = $avx2;
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const FAST: bool = $fast;

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
                $exp(self)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                <$t>::sqrt(self)
            }
            #[inline(always)]
            fn tanh(self) -> Self {
                $tanh(self)
            }
            #[inline(always)]
            fn erf(self) -> Self {
                $erf(self)
            }
            #[$compiled]
            fn product(level: Level, task: Product<'_, Self>) {
                $product(level, task)
            }
            #[$compiled]
            fn kernels() -> &'static Kernels<Self> {
                &Kernels::ALL
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256 as F32x8, __m512 as F32x16};
#[cfg(not(target_arch = "x86_64"))]
type F32x16 = Plain<f32, 16>;
#[cfg(not(target_arch = "x86_64"))]
type F32x8 = Plain<f32, 8>;

#[rustfmt::skip]
real!(
    inline(never), f32, F32x16, F32x8, true,
    functions::exp, functions::tanh, functions::erf, crate::accel::product_f32
);
#[rustfmt::skip]
real!(
    inline, f64, Plain<f64, 8>, Plain<f64, 4>, false, f64::exp, f64::tanh, libm::erf, crate::accel::product_portable
);
