//! Loops over slices, compiled once per instruction set. Safe Rust throughout: the compiler makes the
//! vectors, `per_level!` the choice.
//!
//! Per-channel loops walk blocks of 16 channels, so that a block's sums and factors stay in
//! registers while the pixels pass by; NHWC makes each block's pixels contiguous vectors.

use super::level::{Isa, Level};
use crate::real::Real;

#[inline(always)]
fn lanes<T: Real, const N: usize>(row: &[T], at: usize) -> &[T; N] {
    row[at..at + N].try_into().expect("a block of N channels")
}

#[inline(always)]
fn lanes_mut<T: Real, const N: usize>(row: &mut [T], at: usize) -> &mut [T; N] {
    (&mut row[at..at + N]).try_into().expect("a block of N channels")
}

/// Per-channel sums of two quantities of each pixel, four pixels at a time (the additions of one
/// running sum wait for each other).
#[inline(always)]
fn two_sums<T: Real, const N: usize>(
    pixels: usize,
    sums: (&mut [T; N], &mut [T; N]),
    at: impl Fn(usize) -> ([T; N], [T; N]),
) {
    let mut acc = [([T::ZERO; N], [T::ZERO; N]); 4];
    let take = |pixel: usize, acc: &mut ([T; N], [T; N])| {
        let (a, b) = at(pixel);
        for k in 0..N {
            acc.0[k] += a[k];
            acc.1[k] += b[k];
        }
    };
    let whole = pixels / 4 * 4;
    for pixel in (0..whole).step_by(4) {
        for (i, acc) in acc.iter_mut().enumerate() {
            take(pixel + i, acc);
        }
    }
    for pixel in whole..pixels {
        take(pixel, &mut acc[0]);
    }
    for k in 0..N {
        sums.0[k] = (acc[0].0[k] + acc[1].0[k]) + (acc[2].0[k] + acc[3].0[k]);
        sums.1[k] = (acc[0].1[k] + acc[1].1[k]) + (acc[2].1[k] + acc[3].1[k]);
    }
}

/// Transposes in blocks that use every cache line while it is there.
#[inline(always)]
fn turn<T: Real>(from: &[T], rows: usize, cols: usize, first: usize, to: &mut [T], f: impl Fn(T, T) -> T) {
    const BLOCK: usize = 16;
    let count = to.len() / rows;
    for j0 in (0..count).step_by(BLOCK) {
        for r0 in (0..rows).step_by(BLOCK) {
            let (j1, r1) = ((j0 + BLOCK).min(count), (r0 + BLOCK).min(rows));
            for j in j0..j1 {
                for (r, o) in (r0..r1).zip(&mut to[j * rows + r0..j * rows + r1]) {
                    *o = f(*o, from[r * cols + first + j]);
                }
            }
        }
    }
}

per_level! {
    /// `y = max(x, 0)`.
    pub fn relu<T: Real>(x: &[T], y: &mut [T]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = x.max(T::ZERO);
        }
    }

    /// Clears the gradient where the ReLU's output was not positive.
    pub fn relu_backward<T: Real>(y: &[T], dy: &mut [T]) {
        for (d, &y) in dy.iter_mut().zip(y) {
            *d = if y > T::ZERO { *d } else { T::ZERO };
        }
    }

    /// `y` = 1 where `x` ≥ 0, −1 where it is below, and `x` itself where it is no number.
    pub fn sign<T: Real>(x: &[T], y: &mut [T]) {
        for (y, &x) in y.iter_mut().zip(x) {
            let negative = if x < T::ZERO { -T::ONE } else { x };
            *y = if x >= T::ZERO { T::ONE } else { negative };
        }
    }

    /// Clears the gradient where |x| > 1.
    pub fn straight_through<T: Real>(x: &[T], dy: &mut [T]) {
        for (d, &x) in dy.iter_mut().zip(x) {
            *d = if x <= T::ONE && x >= -T::ONE { *d } else { T::ZERO };
        }
    }

    /// `best = max(best, x)`, and `which = k` where `x` was larger.
    pub fn larger_of<T: Real>(x: &[T], k: T, best: &mut [T], which: &mut [T]) {
        for ((b, w), &x) in best.iter_mut().zip(which).zip(x) {
            let larger = x > *b;
            *b = if larger { x } else { *b };
            *w = if larger { k } else { *w };
        }
    }

    /// The gradient of input `k` of a maximum: where it was the largest. `add` keeps what is there.
    pub fn larger_of_backward<T: Real>(dy: &[T], which: &[T], k: T, dx: &mut [T], add: bool) {
        for ((o, &w), &d) in dx.iter_mut().zip(which).zip(dy) {
            let v = if w == k { d } else { T::ZERO };
            *o = if add { *o + v } else { v };
        }
    }

    /// `y = weight · x`, added to what is there if `add`.
    pub fn weighted<T: Real>(x: &[T], weight: T, y: &mut [T], add: bool) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = if add { *y + weight * x } else { weight * x };
        }
    }

    /// `y = a + b`, then the positive part if `rectify`.
    pub fn add<T: Real>(a: &[T], b: &[T], y: &mut [T], rectify: bool) {
        if rectify {
            for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
                *y = (a + b).max(T::ZERO);
            }
        } else {
            for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
                *y = a + b;
            }
        }
    }

    /// `y += x`.
    pub fn accumulate<T: Real>(x: &[T], y: &mut [T]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y += x;
        }
    }

    /// Bytes to numbers, `bytes · scale + shift`, with one pair per channel (NHWC), or one for all.
    pub fn normalise<T: Real>(bytes: &[u8], scale: &[T], shift: &[T], out: &mut [T]) {
        if let ([scale], [shift]) = (scale, shift) {
            for (o, &b) in out.iter_mut().zip(bytes) {
                *o = T::of(f64::from(b)) * *scale + *shift;
            }
        } else {
            let c = scale.len();
            for (o, b) in out.chunks_exact_mut(c).zip(bytes.chunks_exact(c)) {
                for k in 0..c {
                    o[k] = T::of(f64::from(b[k])) * scale[k] + shift[k];
                }
            }
        }
    }

    /// Sums over the rows of a matrix with `out.len()` columns. `add`: they go on from what `out` holds.
    pub fn column_sums<T: Real>(rows: &[T], out: &mut [T], add: bool) {
        let c = out.len();
        if !add {
            out.fill(T::ZERO);
        }
        for row in rows.chunks_exact(c) {
            for (o, &v) in out.iter_mut().zip(row) {
                *o += v;
            }
        }
    }

    /// Per-channel sums of `x` and of `x²` over the pixels of one sample.
    pub fn moments<T: Real>(x: &[T], sum: &mut [T], square: &mut [T]) {
        let c = sum.len();
        channel_blocks!(c, |at, N| {
            let (s, q) = (lanes_mut::<T, N>(sum, at), lanes_mut::<T, N>(square, at));
            two_sums(x.len() / c, (s, q), |pixel| {
                let v = *lanes::<T, N>(x, pixel * c + at);
                (v, v.map(|v| v * v))
            });
        });
    }

    /// `y = x · scale + shift` per channel, then the positive part if `rectify`.
    pub fn scale_shift<T: Real>(x: &[T], scale: &[T], shift: &[T], y: &mut [T], rectify: bool) {
        let c = scale.len();
        channel_blocks!(c, |at, N| {
            let (a, b) = (*lanes::<T, N>(scale, at), *lanes::<T, N>(shift, at));
            for pixel in 0..x.len() / c {
                let (x, y) = (lanes::<T, N>(x, pixel * c + at), lanes_mut::<T, N>(y, pixel * c + at));
                for k in 0..N {
                    let v = x[k] * a[k] + b[k];
                    y[k] = if rectify { v.max(T::ZERO) } else { v };
                }
            }
        });
    }

    /// Per-channel sums of `dy` and of `dy · (x − mean)` over the pixels of one sample, after clearing
    /// `dy` where `y` is not positive if a ReLU was fused (`y` not empty).
    pub fn norm_backward_sums<T: Real>(x: &[T], y: &[T], dy: &mut [T], mean: &[T], sum: &mut [T], dot: &mut [T]) {
        let c = sum.len();
        if !y.is_empty() {
            for (d, &y) in dy.iter_mut().zip(y) {
                *d = if y > T::ZERO { *d } else { T::ZERO };
            }
        }
        let dy = &*dy;
        channel_blocks!(c, |at, N| {
            let m = *lanes::<T, N>(mean, at);
            let (s, q) = (lanes_mut::<T, N>(sum, at), lanes_mut::<T, N>(dot, at));
            two_sums(x.len() / c, (s, q), |pixel| {
                let (x, d) = (lanes::<T, N>(x, pixel * c + at), *lanes::<T, N>(dy, pixel * c + at));
                let mut dot = d;
                for k in 0..N {
                    dot[k] = d[k] * (x[k] - m[k]);
                }
                (d, dot)
            });
        });
    }

    /// `dy = dy · a + x · b + c` per channel: the input gradient of batch norm, in place.
    pub fn norm_backward<T: Real>(x: &[T], dy: &mut [T], a: &[T], b: &[T], c: &[T]) {
        let channels = a.len();
        channel_blocks!(channels, |at, N| {
            let (a, b, c) = (*lanes::<T, N>(a, at), *lanes::<T, N>(b, at), *lanes::<T, N>(c, at));
            for pixel in 0..x.len() / channels {
                let i = pixel * channels + at;
                let (x, d) = (lanes::<T, N>(x, i), lanes_mut::<T, N>(dy, i));
                for k in 0..N {
                    d[k] = d[k] * a[k] + (x[k] * b[k] + c[k]);
                }
            }
        });
    }

    /// One output pixel of max pooling: the largest of `taps` (offsets into `x`) and which it was.
    pub fn max_of_taps<T: Real>(x: &[T], taps: &[(T, u32)], y: &mut [T], which: &mut [T], rectify: bool) {
        let c = y.len();
        channel_blocks!(c, |at, N| {
            let mut best = *lanes::<T, N>(x, taps[0].1 as usize + at);
            let mut index = [taps[0].0; N];
            for &(tap, from) in &taps[1..] {
                let v = lanes::<T, N>(x, from as usize + at);
                for k in 0..N {
                    let larger = v[k] > best[k];
                    best[k] = if larger { v[k] } else { best[k] };
                    index[k] = if larger { tap } else { index[k] };
                }
            }
            let y = lanes_mut::<T, N>(y, at);
            for k in 0..N {
                y[k] = if rectify { best[k].max(T::ZERO) } else { best[k] };
            }
            *lanes_mut::<T, N>(which, at) = index;
        });
    }

    /// Back through [`max_of_taps`]: the gradient goes to the tap that was largest. `add` keeps what the
    /// input gradient holds already.
    pub fn max_of_taps_backward<T: Real>(dy: &[T], which: &[T], taps: &[(T, u32)], dx: &mut [T], add: bool) {
        let c = dy.len();
        channel_blocks!(c, |at, N| {
            let d = *lanes::<T, N>(dy, at);
            let which = lanes::<T, N>(which, at);
            for &(tap, to) in taps {
                let out = lanes_mut::<T, N>(dx, to as usize + at);
                for k in 0..N {
                    let v = if which[k] == tap { d[k] } else { T::ZERO };
                    out[k] = if add { out[k] + v } else { v };
                }
            }
        });
    }

    /// One output pixel of mean pooling: `weight` times the sum of `taps` (offsets into `x`).
    pub fn mean_of_taps<T: Real>(x: &[T], taps: &[(T, u32)], weight: T, y: &mut [T]) {
        let c = y.len();
        channel_blocks!(c, |at, N| {
            let mut sum = [T::ZERO; N];
            for &(_, from) in taps {
                let v = lanes::<T, N>(x, from as usize + at);
                for k in 0..N {
                    sum[k] += v[k];
                }
            }
            *lanes_mut::<T, N>(y, at) = sum.map(|s| s * weight);
        });
    }

    /// Back through [`mean_of_taps`], added to what the input gradient holds.
    pub fn mean_of_taps_backward<T: Real>(dy: &[T], taps: &[(T, u32)], weight: T, dx: &mut [T]) {
        let c = dy.len();
        channel_blocks!(c, |at, N| {
            let d = lanes::<T, N>(dy, at).map(|d| d * weight);
            for &(_, to) in taps {
                let out = lanes_mut::<T, N>(dx, to as usize + at);
                for k in 0..N {
                    out[k] += d[k];
                }
            }
        });
    }

    /// Columns `first..` of a matrix of `rows × cols`, as the rows of `to`.
    pub fn transpose<T: Real>(from: &[T], rows: usize, cols: usize, first: usize, to: &mut [T]) {
        turn(from, rows, cols, first, to, |_, new| new);
    }

    /// Adds columns `first..` of a matrix of `rows × cols` to the rows of `to`.
    pub fn transpose_add<T: Real>(from: &[T], rows: usize, cols: usize, first: usize, to: &mut [T]) {
        turn(from, rows, cols, first, to, |old, new| old + new);
    }

    /// SGD with momentum, PyTorch's form: `v ← μ·v + (g + λ·p)`, `p ← p − η·v` (Nesterov: `g + μ·v`).
    pub fn sgd<T: Real>(params: &mut [T], grads: &[T], velocity: &mut [T], lr: T, momentum: T, decay: T, nesterov: bool) {
        for ((p, &g), v) in params.iter_mut().zip(grads).zip(velocity) {
            let g = g + decay * *p;
            *v = momentum * *v + g;
            *p -= lr * if nesterov { g + momentum * *v } else { *v };
        }
    }

    pub fn sgd_plain<T: Real>(params: &mut [T], grads: &[T], lr: T, decay: T) {
        for (p, &g) in params.iter_mut().zip(grads) {
            *p -= lr * (g + decay * *p);
        }
    }

    /// Adam; `coupled` decay is added to the gradient, `decoupled` decay shrinks the parameter (AdamW).
    /// `rate` and `root` hold the bias corrections: `p ← p − rate·m / (√v · root + ε)`.
    pub fn adam<T: Real>(
        params: &mut [T], grads: &[T], m: &mut [T], v: &mut [T], beta: (T, T), rate: T, root: T, epsilon: T,
        coupled: T, decoupled: T,
    ) {
        for (((p, &g), m), v) in params.iter_mut().zip(grads).zip(m).zip(v) {
            *p -= decoupled * *p;
            let g = g + coupled * *p;
            *m = beta.0 * *m + (T::ONE - beta.0) * g;
            *v = beta.1 * *v + (T::ONE - beta.1) * g * g;
            *p -= rate * *m / (v.sqrt() * root + epsilon);
        }
    }
}
