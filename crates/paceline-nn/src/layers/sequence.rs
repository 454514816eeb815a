//! Sequences: reading an image as one, its last step, and a learned vector per step.
//!
//! A sequence of `t` steps of `c` numbers has the shape `1 × t × c`.

use super::{Backward, Forward, Init, Layer, Place, Spec, TensorSpec, sample};
use crate::accel::elementwise;
use crate::description::{Fields, Problem};
use crate::real::Real;
use crate::shape::Shape;

/// The steps and the numbers of each step, or why this is no sequence.
pub(super) fn steps(x: Shape) -> Result<(usize, usize), String> {
    if x.h == 1 {
        Ok((x.w, x.c))
    } else {
        Err("needs a sequence, 1 × steps × numbers; a layer `rows` makes one of an image".into())
    }
}

/// An image read as a sequence: each row of pixels is a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows;

impl Spec for Rows {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        Ok(Shape::new(1, inputs[0].h, inputs[0].w * inputs[0].c))
    }
    fn in_place(&self) -> bool {
        true
    }
}

impl Rows {
    pub(super) fn read(_: &mut Fields<'_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    pub(super) fn layer<T: Real>(&self, _: Place<'_>) -> Box<dyn Layer<T>> {
        Box::new(Same)
    }
}

/// The numbers stay in their order.
struct Same;

impl<T: Real> Layer<T> for Same {
    fn forward(&mut self, io: Forward<'_, T>) {
        io.y.copy_from_slice(io.x);
    }
    fn backward(&mut self, _: Backward<'_, T>) {}
}

/// The last step of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct LastStep;

impl Spec for LastStep {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        steps(inputs[0]).map(|(_, c)| Shape::vector(c))
    }
}

impl LastStep {
    pub(super) fn read(_: &mut Fields<'_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    pub(super) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        Box::new(Last { size: at.input.size(), c: at.input.c })
    }
}

struct Last {
    size: usize,
    c: usize,
}

impl<T: Real> Layer<T> for Last {
    fn forward(&mut self, io: Forward<'_, T>) {
        for (x, y) in io.x.chunks_exact(self.size).zip(io.y.chunks_exact_mut(self.c)) {
            y.copy_from_slice(&x[self.size - self.c..]);
        }
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        let Some(dx) = io.dx else { return };
        for (values, dy) in dx.values.chunks_exact_mut(self.size).zip(io.dy.chunks_exact(self.c)) {
            let (others, last) = values.split_at_mut(self.size - self.c);
            if dx.add {
                elementwise::accumulate(io.compute.level, dy, last);
            } else {
                others.fill(T::ZERO);
                last.copy_from_slice(dy);
            }
        }
    }
}

/// Adds a learned vector to each step, its own for each place in the sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Positions;

impl Spec for Positions {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        steps(inputs[0]).map(|_| inputs[0])
    }
    fn in_place(&self) -> bool {
        true
    }
    fn params(&self, input: Shape) -> Vec<TensorSpec> {
        vec![TensorSpec { name: "weight", shape: vec![input.w, input.c], init: Init::Normal(0.02) }]
    }
}

impl Positions {
    pub(super) fn read(_: &mut Fields<'_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    pub(super) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        Box::new(Added { shape: at.input })
    }
}

struct Added {
    shape: Shape,
}

impl<T: Real> Layer<T> for Added {
    fn forward(&mut self, io: Forward<'_, T>) {
        let size = self.shape.size();
        io.compute.pool.split(io.y, size, size, |first, y| {
            for (i, y) in y.chunks_exact_mut(size).enumerate() {
                let x = sample(io.x, first + i, size);
                elementwise::add(io.compute.level, x, io.params, y, false);
            }
        });
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        let (c, size, dy) = (self.shape.c, self.shape.size(), &*io.dy);
        io.compute.pool.split(io.grads, c, io.pass.samples * c, |first, rows| {
            if !io.pass.adds() {
                rows.fill(T::ZERO);
            }
            for sample in dy.chunks_exact(size) {
                elementwise::accumulate(io.compute.level, &sample[first * c..first * c + rows.len()], rows);
            }
        });
    }
}
