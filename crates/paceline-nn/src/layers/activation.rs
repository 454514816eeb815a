//! Functions of single elements.

use super::{Backward, Forward, Layer, Place, Spec};
use crate::accel::elementwise;
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
}

impl Spec for Activation {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        Ok(inputs[0])
    }
    fn describe(&self) -> String {
        format!("{:?}", self.function).to_lowercase()
    }
}

impl Activation {
    pub(super) fn layer<T: Real>(&self, _: Place<'_>) -> Box<dyn Layer<T>> {
        Box::new(Exec { function: self.function })
    }
}

struct Exec {
    function: Function,
}

/// `y = f(x)` for each element.
fn map<T: Real>(x: &[T], y: &mut [T], f: impl Fn(T) -> T) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = f(x);
    }
}

/// `dy = dy · slope` for each element, the slope from the input or the output.
fn chain<T: Real>(from: &[T], dy: &mut [T], slope: impl Fn(T) -> T) {
    for (d, &v) in dy.iter_mut().zip(from) {
        *d = *d * slope(v);
    }
}

fn normal_cdf<T: Real>(x: T) -> T {
    T::of(0.5) * (T::ONE + (x * T::of(std::f64::consts::FRAC_1_SQRT_2)).erf())
}

fn normal_density<T: Real>(x: T) -> T {
    T::of(1.0 / std::f64::consts::TAU.sqrt()) * (-(x * x) * T::of(0.5)).exp()
}

impl<T: Real> Layer<T> for Exec {
    fn forward(&mut self, io: Forward<'_, T>) {
        let level = io.compute.level;
        io.compute.each(io.y, |first, y| {
            let x = &io.x[first..first + y.len()];
            match self.function {
                Function::Relu => elementwise::relu(level, x, y),
                Function::Gelu => map(x, y, |x| x * normal_cdf(x)),
                Function::Tanh => map(x, y, T::tanh),
                Function::Sigmoid => map(x, y, |x| T::ONE / (T::ONE + (-x).exp())),
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
                Function::Gelu => chain(x, dy, |x| normal_cdf(x) + x * normal_density(x)),
                Function::Tanh => chain(y, dy, |y| T::ONE - y * y),
                Function::Sigmoid => chain(y, dy, |y| y * (T::ONE - y)),
            }
        });
    }

    fn in_place(&self) -> bool {
        true
    }
}
