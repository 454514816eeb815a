//! Convolution with a 1×1 kernel: a matrix product over all pixels of the batch. A stride picks pixels
//! first.

use super::super::{Backward, Forward, Layer, Place, sample};
use super::{BiasGradient, Conv2d};
use crate::accel::{Level, Product, TileStart, elementwise};
use crate::compute::{Buffer, Compute};
use crate::real::Real;
use crate::shape::Shape;

/// Pixels that are multiplied at once: they stay in the second-level cache while the weights pass by.
const PIXELS: usize = 112;

/// Pixels that the weight gradient sums at once: both operands' part stays in the second-level cache.
const TERMS: usize = 256;

/// Whether a convolution is such a product.
pub(super) fn suits(conv: &Conv2d) -> bool {
    conv.kernel == [1, 1] && conv.pad == [0, 0] && conv.groups == 1
}

/// The pixels that a stride leaves, kept for the weight gradient.
pub(super) fn saved(conv: &Conv2d, x: Shape, y: Shape) -> usize {
    if conv.stride == [1, 1] { 0 } else { y.h * y.w * x.c }
}

pub(super) fn layer<T: Real>(conv: &Conv2d, at: &Place<'_>) -> Box<dyn Layer<T>> {
    let (x, y) = (at.input, at.output);
    let bias = BiasGradient::new(conv, at);
    let picked = if at.input_gradient { at.capacity * saved(conv, x, y) } else { 0 };
    Box::new(Exec {
        x,
        y,
        stride: conv.stride,
        relu: at.relu,
        turned: Buffer::new(if at.input_gradient { x.c * y.c } else { 0 }),
        scratch: picked.max(bias.scratch),
        bias,
    })
}

struct Exec<T> {
    x: Shape,
    y: Shape,
    stride: [usize; 2],
    relu: bool,
    turned: Buffer<T>,
    bias: BiasGradient,
    scratch: usize,
}

/// `out = start + rows · weight`, in pieces that stay in cache.
fn multiply<T: Real>(
    level: Level,
    rows: &[T],
    weight: &[T],
    start: TileStart<'_, T>,
    out: &mut [T],
    widths: [usize; 2],
    relu: bool,
) {
    let [c, co] = widths;
    for (rows, out) in rows.chunks(PIXELS * c).zip(out.chunks_mut(PIXELS * co)) {
        let size = [out.len() / co, co, c];
        let task = Product::matrices(size, (rows, c, 1), (weight, co), (out, co), start);
        T::product(level, Product { relu, ..task });
    }
}

impl<T: Real> Exec<T> {
    /// Calls `f(pixel of the input, pixel of the output)` for one sample.
    fn pixels(&self, mut f: impl FnMut(usize, usize)) {
        for (i, j) in (0..self.y.h).flat_map(|i| (0..self.y.w).map(move |j| (i, j))) {
            f(i * self.stride[0] * self.x.w + j * self.stride[1], i * self.y.w + j);
        }
    }

    /// Picks the pixels that the stride leaves.
    fn pick(&self, compute: &Compute, x: &[T], picked: &mut [T]) {
        let (c, size, each) = (self.x.c, self.x.size(), self.y.h * self.y.w * self.x.c);
        compute.pool.split(picked, each, each, |first, out| {
            for (out, x) in out.chunks_exact_mut(each).zip(x[first * size..].chunks_exact(size)) {
                self.pixels(|from, to| out[to * c..(to + 1) * c].copy_from_slice(sample(x, from, c)));
            }
        });
    }

    fn input_gradient(&self, compute: &Compute, dy: &[T], out: &mut [T], start: TileStart<'_, T>) {
        let (c, co) = (self.x.c, self.y.c);
        compute.pool.split(out, c, c * co, |first, out| {
            let dy = &dy[first * co..first * co + out.len() / c * co];
            multiply(compute.level, dy, &self.turned, start, out, [co, c], false);
        });
    }
}

impl<T: Real> Layer<T> for Exec<T> {
    fn forward(&mut self, io: Forward<'_, T>) {
        let (c, co, level) = (self.x.c, self.y.c, io.compute.level);
        let (weight, bias) = io.params.split_at(c * co);
        let start = if bias.is_empty() { TileStart::Zero } else { TileStart::Bias(bias) };
        self.pick(io.compute, io.x, io.saved);
        let x = if io.saved.is_empty() { io.x } else { &*io.saved };
        io.compute.pool.split(io.y, co, c * co, |first, y| {
            let x = &x[first * c..first * c + y.len() / co * c];
            multiply(level, x, weight, start, y, [c, co], self.relu);
        });
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        let (c, co) = (self.x.c, self.y.c);
        let (level, pool) = (io.compute.level, &io.compute.pool);
        if self.relu {
            io.compute.relu_backward(io.y, io.dy);
        }
        let dy = &*io.dy;
        let (d_weight, d_bias) = io.grads.split_at_mut(c * co);
        self.bias.sum(io.compute, io.pass, dy, io.scratch, d_bias);
        let pixels = dy.len() / co;
        let x = if io.saved.is_empty() { io.x } else { &*io.saved };
        pool.split(d_weight, co, pixels * co, |first, rows| {
            let count = rows.len() / co;
            for (k, (x, dy)) in x.chunks(TERMS * c).zip(dy.chunks(TERMS * co)).enumerate() {
                let start = if k == 0 { io.pass.start() } else { TileStart::Output };
                let (a, size) = ((&x[first..], 1, c), [count, co, dy.len() / co]);
                T::product(level, Product::matrices(size, a, (dy, co), (&mut *rows, co), start));
            }
        });
        let Some(dx) = io.dx else { return };
        elementwise::transpose(level, &io.params[..c * co], c, co, 0, &mut self.turned);
        if io.saved.is_empty() {
            let start = dx.start();
            return self.input_gradient(io.compute, dy, dx.values, start);
        }
        let picked = &mut io.scratch[..pixels * c];
        self.input_gradient(io.compute, dy, picked, TileStart::Zero);
        let (this, size, each) = (&*self, self.x.size(), self.y.h * self.y.w * c);
        pool.split(dx.values, size, size, |first, part| {
            if !dx.add {
                part.fill(T::ZERO);
            }
            for (values, from) in part.chunks_exact_mut(size).zip(picked[first * each..].chunks_exact(each)) {
                this.pixels(|to, at| {
                    elementwise::accumulate(level, sample(from, at, c), &mut values[to * c..(to + 1) * c]);
                });
            }
        });
    }

    fn scratch(&self) -> usize {
        self.scratch
    }
}
