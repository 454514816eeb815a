//! What several devices tell, brought together: channels one behind the other, the largest, or the mean.

use super::{Backward, Forward, InputGradient, Layer, Place, Spec, sample};
use crate::accel::elementwise;
use crate::description::{Fields, Problem};
use crate::real::Real;
use crate::shape::Shape;

/// The channels of several values, one behind the other. The values have the same height and width.
#[derive(Clone, Debug, PartialEq)]
pub struct Concat;

/// The largest of several values of the same shape, element by element; the first of equals.
#[derive(Clone, Debug, PartialEq)]
pub struct Maximum;

/// The mean of several values of the same shape, element by element.
#[derive(Clone, Debug, PartialEq)]
pub struct Mean;

fn alike(inputs: &[Shape]) -> Result<Shape, String> {
    match inputs.iter().find(|shape| **shape != inputs[0]) {
        Some(other) => Err(format!("cannot bring {} and {other} together", inputs[0])),
        None => Ok(inputs[0]),
    }
}

impl Spec for Concat {
    fn arity(&self) -> usize {
        2
    }
    fn takes_more(&self) -> bool {
        true
    }
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        let Shape { h, w, .. } = inputs[0];
        match inputs.iter().find(|shape| (shape.h, shape.w) != (h, w)) {
            Some(other) => {
                Err(format!("cannot put the channels of {} and {other} behind each other", inputs[0]))
            }
            None => Ok(Shape::new(h, w, inputs.iter().map(|shape| shape.c).sum())),
        }
    }
}

impl Spec for Maximum {
    fn arity(&self) -> usize {
        2
    }
    fn takes_more(&self) -> bool {
        true
    }
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        alike(inputs)
    }
    /// Which input was the largest.
    fn saved(&self, _: Shape, output: Shape, _: bool) -> usize {
        output.size()
    }
}

impl Spec for Mean {
    fn arity(&self) -> usize {
        2
    }
    fn takes_more(&self) -> bool {
        true
    }
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        alike(inputs)
    }
}

impl Concat {
    pub(super) fn read(_: &mut Fields<'_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    pub(super) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        let channels = at.inputs.iter().map(|shape| shape.c).collect();
        Box::new(Channels { channels, total: at.output.c })
    }
}

impl Maximum {
    pub(super) fn read(_: &mut Fields<'_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    pub(super) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        Box::new(Largest { inputs: at.inputs.len() })
    }
}

impl Mean {
    pub(super) fn read(_: &mut Fields<'_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    pub(super) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        Box::new(Average { inputs: at.inputs.len() })
    }
}

struct Channels {
    /// Of each input.
    channels: Vec<usize>,
    total: usize,
}

impl<T: Real> Layer<T> for Channels {
    fn forward(&mut self, io: Forward<'_, T>) {
        let mut first = 0;
        for (k, &c) in self.channels.iter().enumerate() {
            let x = (io.inputs)(k);
            io.compute.pool.split(io.y, self.total, c, |pixel, y| {
                for (i, y) in y.chunks_exact_mut(self.total).enumerate() {
                    y[first..first + c].copy_from_slice(sample(x, pixel + i, c));
                }
            });
            first += c;
        }
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        let Some(InputGradient { values, add }) = io.dx else { return };
        let (first, c) = (self.channels[..io.which].iter().sum::<usize>(), self.channels[io.which]);
        let (dy, level) = (&*io.dy, io.compute.level);
        io.compute.pool.split(values, c, c, |pixel, dx| {
            for (i, dx) in dx.chunks_exact_mut(c).enumerate() {
                let dy = &sample(dy, pixel + i, self.total)[first..first + c];
                if add {
                    elementwise::accumulate(level, dy, dx);
                } else {
                    dx.copy_from_slice(dy);
                }
            }
        });
    }
}

struct Largest {
    inputs: usize,
}

impl<T: Real> Layer<T> for Largest {
    fn forward(&mut self, io: Forward<'_, T>) {
        io.y.copy_from_slice(io.x);
        io.saved.fill(T::ZERO);
        for k in 1..self.inputs {
            let (x, level) = ((io.inputs)(k), io.compute.level);
            io.compute.pool.split2(io.y, 1, io.saved, 1, 1, |first, y, which| {
                elementwise::larger_of(level, &x[first..first + y.len()], T::of(k as f64), y, which);
            });
        }
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        let Some(InputGradient { values, add }) = io.dx else { return };
        let (dy, which, level, k) = (&*io.dy, &*io.saved, io.compute.level, T::of(io.which as f64));
        io.compute.each(values, |first, dx| {
            let at = first..first + dx.len();
            elementwise::larger_of_backward(level, &dy[at.clone()], &which[at], k, dx, add);
        });
    }
}

struct Average {
    inputs: usize,
}

impl<T: Real> Layer<T> for Average {
    fn forward(&mut self, io: Forward<'_, T>) {
        let (weight, level) = (T::of(1.0 / self.inputs as f64), io.compute.level);
        for k in 0..self.inputs {
            let x = (io.inputs)(k);
            io.compute.each(io.y, |first, y| {
                elementwise::weighted(level, &x[first..first + y.len()], weight, y, k > 0);
            });
        }
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        let Some(InputGradient { values, add }) = io.dx else { return };
        let (dy, level, weight) = (&*io.dy, io.compute.level, T::of(1.0 / self.inputs as f64));
        io.compute.each(values, |first, dx| {
            elementwise::weighted(level, &dy[first..first + dx.len()], weight, dx, add);
        });
    }
}
