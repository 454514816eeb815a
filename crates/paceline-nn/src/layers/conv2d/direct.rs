//! Convolution computed directly (no im2col): a row of output pixels is one [`Product`] over the padded
//! input. Any kernel, stride and padding.

use super::super::{Backward, Forward, Layer, Place, sample};
use super::{BiasGradient, Conv2d};
use crate::accel::{Level, Product, TileStart, elementwise};
use crate::compute::Buffer;
use crate::real::Real;
use crate::shape::Shape;

/// The input with its border of zeros, kept for the weight gradient.
pub(super) fn saved(conv: &Conv2d, x: Shape) -> usize {
    if conv.pad == [0, 0] { 0 } else { padded(conv, x).size() }
}

fn padded(conv: &Conv2d, x: Shape) -> Shape {
    Shape::new(x.h + 2 * conv.pad[0], x.w + 2 * conv.pad[1], x.c)
}

pub(super) fn layer<T: Real>(conv: &Conv2d, at: &Place<'_>) -> Box<dyn Layer<T>> {
    let (x, y) = (at.input, at.output);
    let bias = BiasGradient::new(conv, at);
    let phases = if at.input_gradient { Phases::new(conv, x, y) } else { Phases::default() };
    let flipped = if at.input_gradient { conv.kernel[0] * conv.kernel[1] * x.c * y.c } else { 0 };
    Box::new(Exec {
        conv: conv.clone(),
        x,
        y,
        padded: padded(conv, x),
        relu: at.relu,
        flipped: Buffer::new(flipped),
        scratch: bias.scratch.max(phases.padded.size() * at.compute.pool.threads()),
        bias,
        phases,
    })
}

struct Exec<T> {
    conv: Conv2d,
    x: Shape,
    y: Shape,
    padded: Shape,
    relu: bool,
    /// Weights as the input gradient needs them; see [`Phases`].
    flipped: Buffer<T>,
    bias: BiasGradient,
    phases: Phases,
    scratch: usize,
}

impl<T: Real> Exec<T> {
    fn taps(&self) -> usize {
        self.conv.kernel[0] * self.conv.kernel[1] * self.x.c
    }

    fn forward_sample(&self, level: Level, xp: &[T], weight: &[T], start: TileStart<'_, T>, y: &mut [T]) {
        let ([kh, kw], [sh, sw]) = (self.conv.kernel, self.conv.stride);
        let (c, co, row) = (self.x.c, self.y.c, self.padded.w * self.x.c);
        for (i, y) in y.chunks_exact_mut(self.y.w * co).enumerate() {
            let (size, a) = ([self.y.w, co, kw * c], (&xp[i * sh * row..], sw * c, 1));
            let task = Product::matrices(size, a, (weight, co), (y, co), start);
            let (outer, a_outer, b_outer) = (kh, row, kw * c * co);
            T::product(level, Product { outer, a_outer, b_outer, relu: self.relu, ..task });
        }
    }

    /// One sample's part of the weight gradient for the taps `first..`.
    fn weight_gradient(
        &self,
        level: Level,
        (xp, dy): (&[T], &[T]),
        first: usize,
        rows: &mut [T],
        start: TileStart<'_, T>,
    ) {
        let ([_, kw], [sh, sw]) = (self.conv.kernel, self.conv.stride);
        let (c, co, row) = (self.x.c, self.y.c, self.padded.w * self.x.c);
        let (run, end) = (kw * c, first + rows.len() / co);
        let mut tap = first;
        while tap < end {
            let (kernel_row, within) = (tap / run, tap % run);
            let count = (run - within).min(end - tap);
            let (size, a) = ([count, co, self.y.w], (&xp[kernel_row * row + within..], 1, sw * c));
            let task = Product::matrices(size, a, (dy, co), (&mut rows[(tap - first) * co..], co), start);
            let (outer, a_outer, b_outer) = (self.y.h, sh * row, self.y.w * co);
            T::product(level, Product { outer, a_outer, b_outer, ..task });
            tap += count;
        }
    }
}

impl<T: Real> Layer<T> for Exec<T> {
    fn forward(&mut self, io: Forward<'_, T>) {
        let (weight, bias) = io.params.split_at(self.taps() * self.y.c);
        let start = if self.conv.bias { TileStart::Bias(bias) } else { TileStart::Zero };
        let (level, padded) = (io.compute.level, self.padded.size());
        let (x_size, y_size) = (self.x.size(), self.y.size());
        let (each, cost) = (io.saved.len() / io.pass.samples, self.taps() * y_size);
        io.compute.pool.split2(io.y, y_size, io.saved, each, cost, |first, y, saved| {
            for (i, y) in y.chunks_exact_mut(y_size).enumerate() {
                let mut x = sample(io.x, first + i, x_size);
                if each > 0 {
                    let xp = &mut saved[i * padded..(i + 1) * padded];
                    place(x, self.x, xp, self.padded, self.conv.pad);
                    x = xp;
                }
                self.forward_sample(level, x, weight, start, y);
            }
        });
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        let (level, pool, n) = (io.compute.level, &io.compute.pool, io.pass.samples);
        let (taps, y_size) = (self.taps(), self.y.size());
        if self.relu {
            io.compute.relu_backward(io.y, io.dy);
        }
        let dy = &*io.dy;
        let (d_weight, d_bias) = io.grads.split_at_mut(taps * self.y.c);
        self.bias.sum(io.compute, io.pass, dy, io.scratch, d_bias);
        let this = &*self;
        let xp = if io.saved.is_empty() { io.x } else { &*io.saved };
        let xp_size = this.padded.size();
        pool.split(d_weight, this.y.c, n * y_size, |first, rows| {
            for i in 0..n {
                let start = if i == 0 { io.pass.start() } else { TileStart::Output };
                let of_sample = (sample(xp, i, xp_size), sample(dy, i, y_size));
                this.weight_gradient(level, of_sample, first, rows, start);
            }
        });
        let Some(dx) = io.dx else { return };
        self.phases.flip(&self.conv, self.x.c, self.y.c, &io.params[..taps * self.y.c], &mut self.flipped);
        let (this, x_size, each) = (&*self, self.x.size(), self.phases.padded.size());
        let start = dx.start();
        pool.split_scratch(dx.values, x_size, io.scratch, each, taps * y_size, |first, dx_part, padded| {
            for (i, dx_sample) in dx_part.chunks_exact_mut(x_size).enumerate() {
                let dy = sample(dy, first + i, y_size);
                place(dy, this.y, padded, this.phases.padded, this.phases.before);
                this.phases.input_gradient(level, this, padded, dx_sample, start);
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

    fn input_gradient<T: Real>(
        &self,
        level: Level,
        conv: &Exec<T>,
        dy: &[T],
        dx: &mut [T],
        start: TileStart<'_, T>,
    ) {
        let (x, co) = (conv.x, conv.y.c);
        let (kernel, stride, pad) = (conv.conv.kernel, conv.conv.stride, conv.conv.pad);
        let wide = self.padded.w * co;
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
                let (count, from) = ((x.w - j0).div_ceil(stride[1]), &dy[top * wide + left * co..]);
                let to = (&mut dx[(i * x.w + j0) * x.c..], stride[1] * x.c);
                let task = Product::matrices([count, x.c, cols * co], (from, co, 1), (phase, x.c), to, start);
                let (outer, a_outer, b_outer) = (rows, wide, cols * co * x.c);
                T::product(level, Product { outer, a_outer, b_outer, ..task });
            }
        }
    }
}
