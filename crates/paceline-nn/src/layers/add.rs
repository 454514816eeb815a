//! Residual addition.

use super::{Backward, Forward, Layer, Place, Spec};
use crate::accel::elementwise;
use crate::description::{Fields, Problem};
use crate::real::Real;
use crate::shape::Shape;

/// The sum of two values of the same shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Add;

impl Spec for Add {
    fn arity(&self) -> usize {
        2
    }
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        if inputs[0] != inputs[1] {
            return Err(format!("cannot add {} and {}", inputs[0], inputs[1]));
        }
        Ok(inputs[0])
    }
    fn fuses_relu(&self) -> bool {
        true
    }
    fn in_place(&self) -> bool {
        true
    }
}

impl Add {
    pub(super) fn read(_: &mut Fields<'_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    pub(super) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        Box::new(Exec { relu: at.relu })
    }
}

struct Exec {
    relu: bool,
}

impl<T: Real> Layer<T> for Exec {
    fn forward(&mut self, io: Forward<'_, T>) {
        io.compute.each(io.y, |first, y| {
            let at = first..first + y.len();
            elementwise::add(io.compute.level, &io.x[at.clone()], &io.x2[at], y, self.relu);
        });
    }

    /// Both inputs' gradient is the output's.
    fn backward(&mut self, io: Backward<'_, T>) {
        if self.relu {
            io.compute.relu_backward(io.y, io.dy);
        }
    }
}
