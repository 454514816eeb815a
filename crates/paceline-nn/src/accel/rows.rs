//! Loops over rows that need sums along each row: layer norm and softmax, compiled once per instruction
//! set.

use super::level::{Isa, Level};
use crate::real::Real;

/// Running sums of a row: enough for the widest vector.
const LANES: usize = 16;

/// Σ f(a, b) over two rows of equal length, in an order that depends on the length alone.
#[inline(always)]
fn total<T: Real>(a: &[T], b: &[T], f: impl Fn(T, T) -> T) -> T {
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (rest_a, rest_b) = (a.remainder(), b.remainder());
    let mut acc = [T::ZERO; LANES];
    for (a, b) in a.zip(b) {
        let (a, b): (&[T; LANES], &[T; LANES]) =
            (a.try_into().expect("whole chunks"), b.try_into().expect("whole chunks"));
        for k in 0..LANES {
            acc[k] += f(a[k], b[k]);
        }
    }
    for (acc, (&a, &b)) in acc.iter_mut().zip(rest_a.iter().zip(rest_b)) {
        *acc += f(a, b);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for k in 0..width {
            acc[k] += acc[k + width];
        }
        width /= 2;
    }
    acc[0]
}

/// The largest number of a row that is not empty.
#[inline(always)]
fn largest<T: Real>(row: &[T]) -> T {
    let chunks = row.chunks_exact(LANES);
    let rest = chunks.remainder();
    let mut acc = [row[0]; LANES];
    for chunk in chunks {
        let chunk: &[T; LANES] = chunk.try_into().expect("whole chunks");
        for k in 0..LANES {
            acc[k] = acc[k].max(chunk[k]);
        }
    }
    acc.iter().chain(rest).fold(row[0], |a, &b| a.max(b))
}

per_level! {
    /// Rows of `weight.len()` numbers to mean 0 and variance 1, then `· weight + bias`. Keeps each row's
    /// mean and 1 / standard deviation in `stats`.
    pub fn layer_norm<T: Real>(x: &[T], weight: &[T], bias: &[T], epsilon: T, y: &mut [T], stats: &mut [T]) {
        let c = weight.len();
        let per = T::ONE / T::of(c as f64);
        for ((x, y), stats) in x.chunks_exact(c).zip(y.chunks_exact_mut(c)).zip(stats.chunks_exact_mut(2)) {
            let mean = total(x, x, |v, _| v) * per;
            let variance = total(x, x, |v, _| (v - mean) * (v - mean)) * per;
            let inverse = T::ONE / (variance + epsilon).sqrt();
            for (((y, &x), &w), &b) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                *y = (x - mean) * inverse * w + b;
            }
            (stats[0], stats[1]) = (mean, inverse);
        }
    }

    /// Back through [`layer_norm`], in place; adds to the gradients of weight and bias.
    pub fn layer_norm_backward<T: Real>(
        x: &[T], stats: &[T], weight: &[T], dy: &mut [T], d_weight: &mut [T], d_bias: &mut [T],
    ) {
        let c = weight.len();
        let per = T::ONE / T::of(c as f64);
        for ((x, dy), stats) in x.chunks_exact(c).zip(dy.chunks_exact_mut(c)).zip(stats.chunks_exact(2)) {
            let (mean, inverse) = (stats[0], stats[1]);
            let gradients = d_weight.iter_mut().zip(d_bias.iter_mut());
            for (((&x, d), &w), (dw, db)) in x.iter().zip(dy.iter_mut()).zip(weight).zip(gradients) {
                *dw += *d * ((x - mean) * inverse);
                *db += *d;
                *d = *d * w;
            }
            let sum = total(dy, x, |d, _| d) * per;
            let dot = total(dy, x, |d, x| d * (x - mean)) * per * inverse * inverse;
            for (d, &x) in dy.iter_mut().zip(x) {
                *d = (*d - sum - (x - mean) * dot) * inverse;
            }
        }
    }

    /// Softmax of `scale` × each row of `width` numbers. Of row `i` the first `first + i · step` numbers
    /// count; those behind them become zero.
    pub fn softmax<T: Real>(rows: &mut [T], stride: usize, width: usize, first: usize, step: usize, scale: T) {
        for (i, row) in rows.chunks_mut(stride).enumerate() {
            let (row, behind) = row[..width].split_at_mut((first + i * step).min(width));
            behind.fill(T::ZERO);
            let top = largest(row);
            for v in row.iter_mut() {
                *v = ((*v - top) * scale).exp();
            }
            let factor = T::ONE / total(row, row, |v, _| v);
            for v in row.iter_mut() {
                *v = *v * factor;
            }
        }
    }

    /// Back through [`softmax`]: `slopes` holds the gradient of the probabilities on entry, that of the
    /// scores afterwards.
    pub fn softmax_backward<T: Real>(
        probabilities: &[T], slopes: &mut [T], stride: usize, width: usize, scale: T,
    ) {
        for (p, d) in probabilities.chunks(stride).zip(slopes.chunks_mut(stride)) {
            let (p, d) = (&p[..width], &mut d[..width]);
            let dot = total(p, d, |p, d| p * d);
            for (d, &p) in d.iter_mut().zip(p) {
                *d = p * (*d - dot) * scale;
            }
        }
    }
}
