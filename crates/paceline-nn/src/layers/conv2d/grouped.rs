//! Grouped convolution: each group's channels are gathered and convolved on their own.

use super::super::{Backward, Forward, InputGradient, Layer, Place};
use super::Conv2d;
use crate::compute::{Buffer, Compute};
use crate::real::Real;
use crate::shape::Shape;

pub(super) fn layer<T: Real>(conv: &Conv2d, at: &Place<'_>) -> Box<dyn Layer<T>> {
    let (groups, capacity) = (conv.groups, at.capacity);
    let part = |s: Shape| Shape::new(s.h, s.w, s.c / groups);
    let (x, y) = (part(at.input), part(at.output));
    let one = conv.of_group();
    let taps = conv.kernel[0] * conv.kernel[1] * x.c;
    let length = taps * y.c + if conv.bias { y.c } else { 0 };
    let layers =
        (0..groups).map(|_| one.layer(Place { input: x, output: y, compute: at.compute, ..*at })).collect();
    Box::new(Exec {
        layers,
        groups,
        widths: [x.c, y.c],
        x: Buffer::new(capacity * x.size()),
        y: Buffer::new(capacity * y.size()),
        dy: Buffer::new(capacity * y.size()),
        dx: Buffer::new(if at.input_gradient { capacity * x.size() } else { 0 }),
        params: Buffer::new(length),
        grads: Buffer::new(length),
    })
}

struct Exec<T> {
    layers: Vec<Box<dyn Layer<T>>>,
    groups: usize,
    /// Channels of a group, in and out.
    widths: [usize; 2],
    x: Buffer<T>,
    y: Buffer<T>,
    dy: Buffer<T>,
    dx: Buffer<T>,
    /// A group's weight and bias: its part of each row of them.
    params: Buffer<T>,
    grads: Buffer<T>,
}

/// Copies each row's part `group` (of `groups` parts of `width`) out of `from`.
fn gather<T: Real>(compute: &Compute, from: &[T], groups: usize, group: usize, to: &mut [T], width: usize) {
    compute.pool.split(to, width, width, |first, to| {
        let rows = from[first * groups * width..].chunks_exact(groups * width);
        for (to, from) in to.chunks_exact_mut(width).zip(rows) {
            to.copy_from_slice(&from[group * width..(group + 1) * width]);
        }
    });
}

/// The way back: writes (or adds) the rows of `from` as part `group` of those of `to`.
fn scatter<T: Real>(
    compute: &Compute,
    from: &[T],
    width: usize,
    to: &mut [T],
    groups: usize,
    group: usize,
    add: bool,
) {
    compute.pool.split(to, groups * width, width, |first, to| {
        let rows = from[first * width..].chunks_exact(width);
        for (to, from) in to.chunks_exact_mut(groups * width).zip(rows) {
            let to = &mut to[group * width..(group + 1) * width];
            for (to, &v) in to.iter_mut().zip(from) {
                *to = if add { *to + v } else { v };
            }
        }
    });
}

impl<T: Real> Layer<T> for Exec<T> {
    fn forward(&mut self, io: Forward<'_, T>) {
        let (compute, groups, [c, co]) = (io.compute, self.groups, self.widths);
        let (x, y) = (&mut self.x[..io.x.len() / groups], &mut self.y[..io.y.len() / groups]);
        let saved = io.saved.len() / groups;
        for (g, layer) in self.layers.iter_mut().enumerate() {
            gather(compute, io.params, groups, g, &mut self.params, co);
            gather(compute, io.x, groups, g, x, c);
            layer.forward(Forward {
                compute,
                pass: io.pass,
                x,
                x2: &[],
                inputs: &|_| &[],
                y,
                params: &self.params,
                state: &mut [],
                saved: &mut io.saved[g * saved..(g + 1) * saved],
                scratch: io.scratch,
            });
            scatter(compute, y, co, io.y, groups, g, false);
        }
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        let (compute, groups, [c, co]) = (io.compute, self.groups, self.widths);
        let (x, y) = (&mut self.x[..io.x.len() / groups], &mut self.y[..io.y.len() / groups]);
        let dy = &mut self.dy[..io.y.len() / groups];
        let saved = io.saved.len() / groups;
        let mut dx = io.dx;
        for (g, layer) in self.layers.iter_mut().enumerate() {
            gather(compute, io.params, groups, g, &mut self.params, co);
            gather(compute, io.x, groups, g, x, c);
            gather(compute, io.y, groups, g, y, co);
            gather(compute, io.dy, groups, g, dy, co);
            if io.pass.adds() {
                gather(compute, io.grads, groups, g, &mut self.grads, co);
            }
            let values = &mut self.dx[..if dx.is_some() { x.len() } else { 0 }];
            layer.backward(Backward {
                compute,
                pass: io.pass,
                which: 0,
                x,
                y,
                dy,
                params: &self.params,
                grads: &mut self.grads,
                dx: dx.is_some().then_some(InputGradient { values: &mut *values, add: false }),
                saved: &mut io.saved[g * saved..(g + 1) * saved],
                scratch: io.scratch,
            });
            scatter(compute, &self.grads, co, io.grads, groups, g, false);
            if let Some(dx) = &mut dx {
                scatter(compute, values, c, dx.values, groups, g, dx.add);
            }
        }
    }

    fn scratch(&self) -> usize {
        self.layers.iter().map(|layer| layer.scratch()).max().unwrap_or(0)
    }
}
