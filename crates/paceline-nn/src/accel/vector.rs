//! A register's worth of numbers, so that one kernel can be written for several instruction sets.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use crate::real::Real;

/// A few numbers that are loaded, computed with and stored together.
///
/// The methods of the x86 registers must only be called (inlined) inside functions that are compiled
/// for their instruction set; `per_vector!` and the product's entry points see to that.
pub trait Vector<T>: Copy {
    /// How many numbers.
    const LANES: usize;
    /// All the same.
    fn splat(x: T) -> Self;
    /// `from[at..at + LANES]`.
    fn load(from: &[T], at: usize) -> Self;
    /// Writes `to[at..at + LANES]`.
    fn store(self, to: &mut [T], at: usize);
    /// `self + x`.
    fn plus(self, x: Self) -> Self;
    /// `self − x`.
    fn minus(self, x: Self) -> Self;
    /// `self + a · x`.
    fn plus_times(self, a: Self, x: Self) -> Self;
    /// The larger of the two.
    fn max(self, x: Self) -> Self;
}

/// `N` numbers in plain Rust.
#[derive(Clone, Copy)]
pub struct Plain<T, const N: usize>([T; N]);

impl<T: Real, const N: usize> Vector<T> for Plain<T, N> {
    const LANES: usize = N;

    #[inline(always)]
    fn splat(x: T) -> Self {
        Self([x; N])
    }
    #[inline(always)]
    fn load(from: &[T], at: usize) -> Self {
        Self(from[at..at + N].try_into().expect("N numbers"))
    }
    #[inline(always)]
    fn store(self, to: &mut [T], at: usize) {
        to[at..at + N].copy_from_slice(&self.0);
    }
    #[inline(always)]
    fn plus(mut self, x: Self) -> Self {
        for k in 0..N {
            self.0[k] += x.0[k];
        }
        self
    }
    #[inline(always)]
    fn minus(mut self, x: Self) -> Self {
        for k in 0..N {
            self.0[k] -= x.0[k];
        }
        self
    }
    #[inline(always)]
    fn plus_times(mut self, a: Self, x: Self) -> Self {
        for k in 0..N {
            self.0[k] += a.0[k] * x.0[k];
        }
        self
    }
    #[inline(always)]
    fn max(mut self, x: Self) -> Self {
        for k in 0..N {
            self.0[k] = self.0[k].max(x.0[k]);
        }
        self
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! register {
    ($t:ty, $lanes:literal, $set:ident, $load:ident, $store:ident, $add:ident, $sub:ident, $fma:ident, $max:ident) => {
        impl Vector<f32> for $t {
            const LANES: usize = $lanes;

            #[inline(always)]
            fn splat(x: f32) -> Self {
                // SAFETY: the caller is compiled for this instruction set (see the trait).
                unsafe { $set(x) }
            }
            #[inline(always)]
            fn load(from: &[f32], at: usize) -> Self {
                let from = &from[at..at + $lanes];
                // SAFETY: as above; the slice has that many numbers.
                unsafe { $load(from.as_ptr()) }
            }
            #[inline(always)]
            fn store(self, to: &mut [f32], at: usize) {
                let to = &mut to[at..at + $lanes];
                // SAFETY: as above; the slice has that many numbers.
                unsafe { $store(to.as_mut_ptr(), self) }
            }
            #[inline(always)]
            fn plus(self, x: Self) -> Self {
                // SAFETY: as above.
                unsafe { $add(self, x) }
            }
            #[inline(always)]
            fn minus(self, x: Self) -> Self {
                // SAFETY: as above.
                unsafe { $sub(self, x) }
            }
            #[inline(always)]
            fn plus_times(self, a: Self, x: Self) -> Self {
                // SAFETY: as above.
                unsafe { $fma(a, x, self) }
            }
            #[inline(always)]
            fn max(self, x: Self) -> Self {
                // SAFETY: as above.
                unsafe { $max(self, x) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
register!(
    __m512,
    16,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_add_ps,
    _mm512_sub_ps,
    _mm512_fmadd_ps,
    _mm512_max_ps
);
#[cfg(target_arch = "x86_64")]
register!(
    __m256,
    8,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_add_ps,
    _mm256_sub_ps,
    _mm256_fmadd_ps,
    _mm256_max_ps
);
