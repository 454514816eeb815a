//! Convolution by Winograd's transforms: 3×3 and 5×5 kernels of stride 1 with enough channels.
//!
//! Tiles of the image are transformed, multiplied by the transformed weights (36 products of matrices,
//! one per point, in one [`Product`]), and transformed back. The input gradient is the same with the
//! kernel flipped; the weight gradient multiplies the transformed input and output gradient.

use super::super::{Backward, Forward, Layer, Pass, Place};
use super::{BiasGradient, Conv2d};
use crate::accel::winograd::{
    Finish, POINTS, SIDE, Tiles, add_times, transform_gradients, transform_inputs, transform_outputs,
    weight_matrix,
};
use crate::accel::{Level, Product, Repeat, TileStart, elementwise};
use crate::compute::{Buffer, Compute};
use crate::real::Real;
use crate::shape::Shape;

/// Bytes of transformed tiles that stay in the second-level cache beside the weights.
const GROUP_BYTES: usize = 384 * 1024;

/// Bytes of transformed weights that stay in the second-level cache beside a group of tiles.
const NEAR_BYTES: usize = 768 * 1024;

/// Tiles that share a pass over weights which lie further away.
const FAR_GROUP: usize = 56;

/// Transformed weights above this are slower to move than the products that they save.
const MOST_BYTES: usize = 16 << 20;

/// The weight gradient is summed in at most this many parts of the batch, whatever the number of threads.
const PARTS: usize = 8;

/// Bytes of all parts of a large weight gradient, about.
const PARTS_BYTES: usize = 4 << 20;

/// Weights that are transformed at once: all their taps and points stay in cache.
const STRETCH: usize = 512;

/// Whether this way is the faster one: the transforms must be small beside the products.
pub(super) fn suits(conv: &Conv2d, input: Shape) -> bool {
    let [kernel, width] = conv.kernel;
    kernel == width
        && (kernel == 3 || kernel == 5)
        && conv.stride == [1, 1]
        && conv.pad[0] == conv.pad[1]
        && conv.pad[0] < kernel
        && input.c >= 16
        && conv.channels >= 16
        && transformed_bytes(input.c, conv.channels) <= MOST_BYTES
}

/// Bytes of the transformed weights.
fn transformed_bytes(inputs: usize, outputs: usize) -> usize {
    POINTS * inputs * outputs * size_of::<f32>()
}

pub(super) fn layer<T: Real>(conv: &Conv2d, at: &Place<'_>) -> Box<dyn Layer<T>> {
    let (x, y, kernel, pad) = (at.input, at.output, conv.kernel[0], conv.pad[0]);
    let weights = POINTS * x.c * y.c;
    let forward = Convolution::new(x, y, kernel, pad);
    let backward = Convolution::new(y, x, kernel, kernel - 1 - pad);
    let parts = (PARTS_BYTES / transformed_bytes(x.c, y.c)).clamp(2, PARTS);
    let bias = BiasGradient::new(conv, at);
    let scratch = forward.scratch().max(backward.scratch()) * at.compute.pool.threads();
    Box::new(Exec {
        x,
        y,
        factors: factors(&weight_matrix(kernel)),
        parts,
        relu: at.relu,
        weights: Buffer::new(weights),
        flipped: Buffer::new(if at.input_gradient { weights } else { 0 }),
        turned: Buffer::new(if at.input_gradient { kernel * kernel * x.c * y.c } else { 0 }),
        sums: Buffer::new(parts * weights),
        scratch: scratch.max(bias.scratch),
        bias,
        forward,
        backward,
    })
}

struct Convolution {
    input: Shape,
    output: Shape,
    /// Where tiles are read from the input.
    reads: Tiles,
    /// Where tiles are written to the output.
    writes: Tiles,
    /// Tiles that are worked on at once.
    group: usize,
}

impl Convolution {
    fn new(input: Shape, output: Shape, kernel: usize, pad: usize) -> Self {
        let step = SIDE + 1 - kernel;
        let grid = [output.h.div_ceil(step), output.w.div_ceil(step)];
        let tile = POINTS * (input.c + output.c) * size_of::<f32>();
        // Whole multiples of the product kernel's 14 rows.
        let group = if transformed_bytes(input.c, output.c) <= NEAR_BYTES {
            (GROUP_BYTES / tile / 14 * 14).clamp(14, 112)
        } else {
            FAR_GROUP
        };
        let tiles = |image, before| Tiles { image, grid, step, before, stride: group };
        Self { input, output, reads: tiles(input, pad), writes: tiles(output, 0), group }
    }

    fn scratch(&self) -> usize {
        POINTS * self.group * (self.input.c + self.output.c)
    }

    /// Calls `f(first tile, count)` for the groups of a number of images.
    fn groups(&self, images: usize, mut f: impl FnMut(usize, usize)) {
        let tiles = images * self.reads.grid[0] * self.reads.grid[1];
        for first in (0..tiles).step_by(self.group) {
            f(first, self.group.min(tiles - first));
        }
    }

    /// Convolves the images of `x` into those of `y`.
    fn run<T: Real>(
        &self,
        level: Level,
        x: &[T],
        weights: &[T],
        y: &mut [T],
        finish: Finish<'_, T>,
        scratch: &mut [T],
    ) {
        let (c, co, group) = (self.input.c, self.output.c, self.group);
        let (u, m) = scratch.split_at_mut(POINTS * group * c);
        self.groups(y.len() / self.output.size(), |first, count| {
            transform_inputs(level, x, &self.reads, first, count, u);
            let size = [count, co, c];
            let task = Product::matrices(size, (&*u, c, 1), (weights, co), (&mut *m, co), TileStart::Zero);
            let repeat = Repeat { count: POINTS, a: group * c, b: c * co, c: group * co };
            T::product(level, Product { repeat, ..task });
            transform_outputs(level, m, &self.writes, first, count, y, finish);
        });
    }

    /// The weight gradient's transform for the images of `x` and `dy`.
    fn weight_sums<T: Real>(
        &self,
        level: Level,
        (x, dy): (&[T], &[T]),
        sums: &mut [T],
        start: TileStart<'_, T>,
        scratch: &mut [T],
    ) {
        let (c, co, group) = (self.input.c, self.output.c, self.group);
        let (u, m) = scratch.split_at_mut(POINTS * group * c);
        self.groups(dy.len() / self.output.size(), |first, count| {
            transform_inputs(level, x, &self.reads, first, count, u);
            transform_gradients(level, dy, &self.writes, first, count, m);
            let (size, start) = ([c, co, count], if first == 0 { start } else { TileStart::Output });
            let task = Product::matrices(size, (&*u, 1, c), (&*m, co), (&mut *sums, co), start);
            let repeat = Repeat { count: POINTS, a: group * c, b: group * co, c: c * co };
            T::product(level, Product { repeat, ..task });
        });
    }
}

struct Exec<T> {
    x: Shape,
    y: Shape,
    /// Each point and kernel tap with the tap's factor at the point.
    factors: Vec<(usize, usize, T)>,
    /// Parts of the batch that the weight gradient is summed in.
    parts: usize,
    relu: bool,
    forward: Convolution,
    backward: Convolution,
    /// Transformed weights, `[36][inputs][outputs]`.
    weights: Buffer<T>,
    /// Transformed weights of the input gradient, `[36][outputs][inputs]`.
    flipped: Buffer<T>,
    /// The kernel flipped, with its channels swapped.
    turned: Buffer<T>,
    /// Transformed weight gradient of each part of the batch, until its last pass.
    sums: Buffer<T>,
    bias: BiasGradient,
    scratch: usize,
}

/// Each point and kernel tap with the tap's factor at the point, zeros left out.
fn factors<T: Real>(matrix: &[Vec<f64>; SIDE]) -> Vec<(usize, usize, T)> {
    let kernel = matrix[0].len();
    let factor = |point: usize, tap: usize| {
        let factor = matrix[point / SIDE][tap / kernel] * matrix[point % SIDE][tap % kernel];
        (factor != 0.0).then(|| (point, tap, T::of(factor)))
    };
    (0..POINTS).flat_map(|point| (0..kernel * kernel).filter_map(move |tap| factor(point, tap))).collect()
}

/// The stretches of `0..block`.
fn stretches(block: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..block).step_by(STRETCH).map(move |start| start..block.min(start + STRETCH))
}

impl<T: Real> Exec<T> {
    fn transform_weights(level: Level, factors: &[(usize, usize, T)], kernel: &[T], out: &mut [T]) {
        let block = out.len() / POINTS;
        for at in stretches(block) {
            let place = |i: usize| i * block + at.start..i * block + at.end;
            (0..POINTS).for_each(|point| out[place(point)].fill(T::ZERO));
            for &(point, tap, factor) in factors {
                add_times(level, factor, &kernel[place(tap)], &mut out[place(point)]);
            }
        }
    }

    /// The parts are those of the whole batch, so the sums are the same however many passes it takes.
    fn weight_gradient(
        &mut self,
        compute: &Compute,
        pass: &Pass<'_>,
        (x, dy): (&[T], &[T]),
        out: &mut [T],
        scratch: &mut [T],
    ) {
        let (before, n) = (pass.before, pass.samples);
        let batch = before + n + pass.after;
        let (level, parts) = (compute.level, self.parts.min(batch));
        let (x_size, y_size) = (self.x.size(), self.y.size());
        let length = self.weights.len();
        let (forward, each) = (&self.forward, self.forward.scratch());
        let sums = &mut self.sums[..parts * length];
        let cost = n.div_ceil(parts) * y_size * self.x.c;
        compute.pool.split_scratch(sums, length, scratch, each, cost, |first, sums, scratch| {
            for (i, sums) in sums.chunks_exact_mut(length).enumerate() {
                let (begin, end) = ((first + i) * batch / parts, (first + i + 1) * batch / parts);
                let (from, to) = (begin.max(before), end.min(before + n));
                if from < to {
                    let (from, to) = (from - before, to - before);
                    let images = (&x[from * x_size..to * x_size], &dy[from * y_size..to * y_size]);
                    let start = if begin < before { TileStart::Output } else { TileStart::Zero };
                    forward.weight_sums(level, images, sums, start, scratch);
                }
            }
        });
        if pass.after > 0 {
            return;
        }
        let (total, others) = sums.split_at_mut(length);
        for part in others.chunks_exact(length) {
            elementwise::accumulate(level, part, total);
        }
        let (block, total) = (length / POINTS, &*total);
        out.fill(T::ZERO);
        for at in stretches(block) {
            let place = |i: usize| i * block + at.start..i * block + at.end;
            for &(point, tap, factor) in &self.factors {
                add_times(level, factor, &total[place(point)], &mut out[place(tap)]);
            }
        }
    }
}

impl<T: Real> Layer<T> for Exec<T> {
    fn forward(&mut self, io: Forward<'_, T>) {
        let level = io.compute.level;
        let (kernel, bias) = io.params.split_at(io.params.len() - self.bias.channels);
        Self::transform_weights(level, &self.factors, kernel, &mut self.weights);
        let (this, x_size, y_size) = (&*self, self.x.size(), self.y.size());
        let (each, cost) = (self.forward.scratch(), y_size * self.x.c);
        io.compute.pool.split_scratch(io.y, y_size, io.scratch, each, cost, |first, y, scratch| {
            let x = &io.x[first * x_size..first * x_size + y.len() / y_size * x_size];
            let finish = Finish { bias, relu: this.relu, add: false };
            this.forward.run(level, x, &this.weights, y, finish, scratch);
        });
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        let level = io.compute.level;
        if self.relu {
            io.compute.relu_backward(io.y, io.dy);
        }
        let (dy, taps) = (&*io.dy, io.params.len() - self.bias.channels);
        let (d_weight, d_bias) = io.grads.split_at_mut(taps);
        self.bias.sum(io.compute, io.pass, dy, io.scratch, d_bias);
        self.weight_gradient(io.compute, io.pass, (io.x, dy), d_weight, io.scratch);
        let Some(dx) = io.dx else { return };
        let block = self.x.c * self.y.c;
        let blocks = io.params[..taps].chunks_exact(block).rev();
        for (from, to) in blocks.zip(self.turned.chunks_exact_mut(block)) {
            elementwise::transpose(level, from, self.x.c, self.y.c, 0, to);
        }
        Self::transform_weights(level, &self.factors, &self.turned, &mut self.flipped);
        let (this, x_size, y_size) = (&*self, self.x.size(), self.y.size());
        let (each, cost) = (self.backward.scratch(), y_size * self.x.c);
        io.compute.pool.split_scratch(dx.values, x_size, io.scratch, each, cost, |first, values, scratch| {
            let dy = &dy[first * y_size..first * y_size + values.len() / x_size * y_size];
            let finish = Finish { bias: &[], relu: false, add: dx.add };
            this.backward.run(level, dy, &this.flipped, values, finish, scratch);
        });
    }

    fn scratch(&self) -> usize {
        self.scratch
    }
}
