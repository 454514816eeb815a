//! Convolution computed directly (no im2col): a row of output pixels is one [`Product`] over the padded
//! input. Any kernel, stride and padding.

use super::super::{Backward, Forward, Layer, Place};
use super::{BiasGradient, Conv2d};
use crate::accel::{Level, Product, Repeat, Start, elementwise};
use crate::compute::Buffer;
use crate::real::Real;
use crate::shape::Shape;

pub(super) fn layer<T: Real>(conv: &Conv2d, at: &Place<'_>) -> Box<dyn Layer<T>> {
    let (x, y) = (at.input, at.output);
    let padded = Shape::new(x.h + 2 * conv.pad[0], x.w + 2 * conv.pad[1], x.c);
    let xp = if padded == x { 0 } else { at.capacity * padded.size() };
    let phases = if at.input_gradient { Phases::new(conv, x, y) } else { Phases::default() };
    let flipped = if at.input_gradient { conv.kernel[0] * conv.kernel[1] * x.c * y.c } else { 0 };
    Box::new(Exec {
        conv: conv.clone(),
        x,
        y,
        padded,
        relu: at.relu,
        xp: Buffer::new(xp),
        flipped: Buffer::new(flipped),
        bias: BiasGradient::new(conv, at),
        scratch: phases.padded.size() * at.compute.pool.threads(),
        phases,
    })
}

struct Exec<T> {
    conv: Conv2d,
    x: Shape,
    y: Shape,
    padded: Shape,
    relu: bool,
    /// The batch's input with its border of zeros, kept for the weight gradient.
    xp: Buffer<T>,
    /// Weights as the input gradient needs them; see [`Phases`].
    flipped: Buffer<T>,
    bias: BiasGradient<T>,
    phases: Phases,
    scratch: usize,
}

impl<T: Real> Exec<T> {
    fn taps(&self) -> usize {
        self.conv.kernel[0] * self.conv.kernel[1] * self.x.c
    }

    fn forward_sample(&self, level: Level, xp: &[T], weight: &[T], start: Start<'_, T>, y: &mut [T]) {
        let ([kh, kw], [sh, sw]) = (self.conv.kernel, self.conv.stride);
        let (c, co, row) = (self.x.c, self.y.c, self.padded.w * self.x.c);
        for (i, y) in y.chunks_exact_mut(self.y.w * co).enumerate() {
            let task = Product {
                rows: self.y.w,
                cols: co,
                outer: kh,
                inner: kw * c,
                a: &xp[i * sh * row..],
                a_row: sw * c,
                a_outer: row,
                a_inner: 1,
                b: weight,
                b_outer: kw * c * co,
                b_inner: co,
                c: y,
                c_row: co,
                start,
                relu: self.relu,
                repeat: Repeat::ONCE,
            };
            T::product(level, task);
        }
    }

    /// Adds (or writes, with `fresh`) one sample's part of the weight gradient for the taps `first..`.
    fn weight_gradient(&self, level: Level, xp: &[T], dy: &[T], first: usize, rows: &mut [T], fresh: bool) {
        let ([_, kw], [sh, sw]) = (self.conv.kernel, self.conv.stride);
        let (c, co, row) = (self.x.c, self.y.c, self.padded.w * self.x.c);
        let (run, end) = (kw * c, first + rows.len() / co);
        let mut tap = first;
        while tap < end {
            let (kernel_row, within) = (tap / run, tap % run);
            let count = (run - within).min(end - tap);
            let task = Product {
                rows: count,
                cols: co,
                outer: self.y.h,
                inner: self.y.w,
                a: &xp[kernel_row * row + within..],
                a_row: 1,
                a_outer: sh * row,
                a_inner: sw * c,
                b: dy,
                b_outer: self.y.w * co,
                b_inner: co,
                c: &mut rows[(tap - first) * co..(tap - first + count) * co],
                c_row: co,
                start: if fresh { Start::Zero } else { Start::Output },
                relu: false,
                repeat: Repeat::ONCE,
            };
            T::product(level, task);
            tap += count;
        }
    }
}

impl<T: Real> Layer<T> for Exec<T> {
    fn forward(&mut self, io: Forward<'_, T>) {
        let (weight, bias) = io.params.split_at(self.taps() * self.y.c);
        let start = if self.conv.bias { Start::Bias(bias) } else { Start::Zero };
        let (level, pool, n) = (io.compute.level, &io.compute.pool, io.pass.samples);
        let (x_size, y_size, padded_size) = (self.x.size(), self.y.size(), self.padded.size());
        let cost = self.taps() * y_size;
        if self.xp.is_empty() {
            return pool.split(io.y, y_size, cost, |first, y| {
                for (i, y) in y.chunks_exact_mut(y_size).enumerate() {
                    self.forward_sample(
                        level,
                        &io.x[(first + i) * x_size..(first + i + 1) * x_size],
                        weight,
                        start,
                        y,
                    );
                }
            });
        }
        let mut xp = std::mem::take(&mut self.xp);
        pool.split2(io.y, y_size, &mut xp[..n * padded_size], padded_size, cost, |first, y, xp| {
            for (i, (y, xp)) in y.chunks_exact_mut(y_size).zip(xp.chunks_exact_mut(padded_size)).enumerate() {
                let x = &io.x[(first + i) * x_size..(first + i + 1) * x_size];
                place(x, self.x, xp, self.padded, self.conv.pad);
                self.forward_sample(level, xp, weight, start, y);
            }
        });
        self.xp = xp;
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        let (level, pool, n) = (io.compute.level, &io.compute.pool, io.pass.samples);
        let (taps, y_size) = (self.taps(), self.y.size());
        if self.relu {
            io.compute.relu_backward(io.y, io.dy);
        }
        let dy = &*io.dy;
        let (d_weight, d_bias) = io.grads.split_at_mut(taps * self.y.c);
        self.bias.sum(io.compute, n, dy, d_bias);
        let this = &*self;
        let (xp, xp_size) =
            if this.xp.is_empty() { (io.x, this.x.size()) } else { (&this.xp[..], this.padded.size()) };
        pool.split(d_weight, this.y.c, n * y_size, |first, rows| {
            for i in 0..n {
                let (xp, dy) = (&xp[i * xp_size..(i + 1) * xp_size], &dy[i * y_size..(i + 1) * y_size]);
                this.weight_gradient(level, xp, dy, first, rows, i == 0);
            }
        });
        let Some(dx) = io.dx else { return };
        self.phases.flip(&self.conv, self.x.c, self.y.c, &io.params[..taps * self.y.c], &mut self.flipped);
        let (this, x_size, each) = (&*self, self.x.size(), self.phases.padded.size());
        pool.split_scratch(dx.values, x_size, io.scratch, each, taps * y_size, |first, dx_part, padded| {
            for (i, dx_sample) in dx_part.chunks_exact_mut(x_size).enumerate() {
                let dy = &dy[(first + i) * y_size..(first + i + 1) * y_size];
                place(dy, this.y, padded, this.phases.padded, this.phases.before);
                this.phases.input_gradient(level, this, padded, dx_sample, dx.add);
            }
        });
    }

    fn scratch(&self) -> usize {
        self.scratch
    }
}

/// Copies `from` into `to`, `before` rows and columns from its corner, and zeros all round it.
fn place<T: Real>(from: &[T], shape: Shape, to: &mut [T], padded: Shape, before: [usize; 2]) {
    let (row, wide) = (shape.w * shape.c, padded.w * padded.c);
    let left = before[1] * shape.c;
    to[..before[0] * wide].fill(T::ZERO);
    to[(before[0] + shape.h) * wide..].fill(T::ZERO);
    let lines = to[before[0] * wide..(before[0] + shape.h) * wide].chunks_exact_mut(wide);
    for (line, from) in lines.zip(from.chunks_exact(row)) {
        line[..left].fill(T::ZERO);
        line[left..left + row].copy_from_slice(from);
        line[left + row..].fill(T::ZERO);
    }
}

/// The input gradient as plain convolutions of the output gradient, one per phase of the stride.
///
/// With `i + pad = a + stride·u`, input row `i` meets only the kernel rows `a, a + stride, …`: kernel
/// row `a + stride·m` meets output row `u − m`. So the input rows (and columns) of each remainder `a`
/// form a stride-1 convolution with every `stride`-th kernel row, flipped. Stride 1 is the single
/// phase 0.
#[derive(Debug, Default)]
struct Phases {
    /// Zeros before the output gradient's first row and column.
    before: [usize; 2],
    /// The output gradient with its zeros.
    padded: Shape,
}

impl Phases {
    fn new(conv: &Conv2d, x: Shape, y: Shape) -> Self {
        let before = [0, 1].map(|d| conv.kernel[d].div_ceil(conv.stride[d]) - 1);
        let side = |d: usize, x: usize, y: usize| {
            let last = (x - 1 + conv.pad[d]) / conv.stride[d];
            before[d] + y.max(last + 1)
        };
        Self { before, padded: Shape::new(side(0, x.h, y.h), side(1, x.w, y.w), y.c) }
    }

    /// Kernel rows (or columns) of remainder `a`.
    fn count(kernel: usize, stride: usize, a: usize) -> usize {
        if a < kernel { (kernel - a).div_ceil(stride) } else { 0 }
    }

    /// Phase by phase, kernel rows and columns in falling order, output channels, input channels.
    fn flip<T: Real>(&self, conv: &Conv2d, c: usize, co: usize, weight: &[T], out: &mut [T]) {
        let ([kh, kw], [sh, sw]) = (conv.kernel, conv.stride);
        let mut blocks = out.chunks_exact_mut(c * co);
        for (ah, aw) in (0..sh).flat_map(|ah| (0..sw).map(move |aw| (ah, aw))) {
            for mh in (0..Self::count(kh, sh, ah)).rev() {
                for mw in (0..Self::count(kw, sw, aw)).rev() {
                    let tap = (ah + sh * mh) * kw + aw + sw * mw;
                    let from = &weight[tap * c * co..(tap + 1) * c * co];
                    let to = blocks.next().expect("one block per kernel tap");
                    elementwise::transpose(Level::PORTABLE, from, c, co, 0, to);
                }
            }
        }
    }

    fn input_gradient<T: Real>(&self, level: Level, conv: &Exec<T>, dy: &[T], dx: &mut [T], add: bool) {
        let (x, co) = (conv.x, conv.y.c);
        let (kernel, stride, pad) = (conv.conv.kernel, conv.conv.stride, conv.conv.pad);
        let wide = self.padded.w * co;
        let start = if add { Start::Output } else { Start::Zero };
        let mut weight = &conv.flipped[..];
        for (ah, aw) in (0..stride[0]).flat_map(|ah| (0..stride[1]).map(move |aw| (ah, aw))) {
            let rows = Self::count(kernel[0], stride[0], ah);
            let cols = Self::count(kernel[1], stride[1], aw);
            let (phase, rest) = weight.split_at(rows * cols * co * x.c);
            weight = rest;
            // The first input row and column of this remainder, and their u.
            let first = |d: usize, a: usize| {
                let i = (a + stride[d] - pad[d] % stride[d]) % stride[d];
                (i, (i + pad[d]) / stride[d])
            };
            let ((i0, u0), (j0, v0)) = (first(0, ah), first(1, aw));
            if j0 >= x.w {
                continue;
            }
            for (k, i) in (i0..x.h).step_by(stride[0]).enumerate() {
                // Output row u − m is at padded row u − m + before; m falls from rows − 1 to 0. Where the
                // stride skips the kernel (no rows or columns) the sum is empty and the place immaterial.
                let (top, left) = match rows * cols {
                    0 => (0, 0),
                    _ => (u0 + k + self.before[0] + 1 - rows, v0 + self.before[1] + 1 - cols),
                };
                let task = Product {
                    rows: (x.w - j0).div_ceil(stride[1]),
                    cols: x.c,
                    outer: rows,
                    inner: cols * co,
                    a: &dy[top * wide + left * co..],
                    a_row: co,
                    a_outer: wide,
                    a_inner: 1,
                    b: phase,
                    b_outer: cols * co * x.c,
                    b_inner: x.c,
                    c: &mut dx[(i * x.w + j0) * x.c..],
                    c_row: stride[1] * x.c,
                    start,
                    relu: false,
                    repeat: Repeat::ONCE,
                };
                T::product(level, task);
            }
        }
    }
}
