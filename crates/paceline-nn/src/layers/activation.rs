//! Functions of single elements.

use super::{Backward, Forward, Layer, Place, Spec};
use crate::accel::{elementwise, gates};
use crate::description::{Fields, Problem};
use crate::real::Real;
use crate::shape::Shape;

/// An activation function as a layer of its own. (A ReLU after most layers is folded into them.)
#[derive(Clone, Debug, PartialEq)]
pub struct Activation {
    /// Which one.
    pub function: Function,
}

/// The activation functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// max(x, 0).
    Relu,
    /// x·Φ(x), with the exact normal distribution function.
    Gelu,
    /// Hyperbolic tangent.
    Tanh,
    /// 1 / (1 + e⁻ˣ).
    Sigmoid,
    /// 1 from 0 on, −1 below. Its gradient is passed straight through where |x| ≤ 1, and is 0 elsewhere.
    Sign,
}

impl Spec for Activation {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        Ok(inputs[0])
    }
    fn in_place(&self) -> bool {
        true
    }
    fn describe(&self) -> String {
        format!("{:?}", self.function).to_lowercase()
    }
}

impl Activation {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, Problem> {
        let functions = [
            ("relu", Function::Relu),
            ("gelu", Function::Gelu),
            ("tanh", Function::Tanh),
            ("sigmoid", Function::Sigmoid),
            ("sign", Function::Sign),
        ];
        Ok(Self { function: fields.choice("function", &functions)? })
    }

    pub(super) fn layer<T: Real>(&self, _: Place<'_>) -> Box<dyn Layer<T>> {
        Box::new(Exec { function: self.function })
    }
}

struct Exec {
    function: Function,
}

impl<T: Real> Layer<T> for Exec {
    fn forward(&mut self, io: Forward<'_, T>) {
        let level = io.compute.level;
        io.compute.each(io.y, |first, y| {
            let x = &io.x[first..first + y.len()];
            match self.function {
                Function::Relu => elementwise::relu(level, x, y),
                Function::Gelu => gates::gelu(level, x, y),
                Function::Tanh => gates::tanh(level, x, y),
                Function::Sigmoid => gates::sigmoid(level, x, y),
                Function::Sign => elementwise::sign(level, x, y),
            }
        });
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        let level = io.compute.level;
        io.compute.each(io.dy, |first, dy| {
            let at = first..first + dy.len();
            let (x, y) = (&io.x[at.clone()], &io.y[at]);
            match self.function {
                Function::Relu => elementwise::relu_backward(level, y, dy),
                Function::Gelu => gates::gelu_backward(level, x, dy),
                Function::Tanh => gates::tanh_backward(level, y, dy),
                Function::Sigmoid => gates::sigmoid_backward(level, y, dy),
                Function::Sign => elementwise::straight_through(level, x, dy),
            }
        });
    }
}
