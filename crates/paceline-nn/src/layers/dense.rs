//! Fully connected layer.

use super::{Backward, Forward, Init, Layer, Place, Spec, TensorSpec};
use crate::accel::{Product, TileStart, elementwise};
use crate::description::{Fields, Problem};
use crate::real::Real;
use crate::shape::Shape;

/// `y = x·W + b` with `W` of shape inputs × outputs; the input is flattened in NHWC order.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// Number of outputs.
    pub outputs: usize,
}

impl Spec for Dense {
    fn output(&self, _: &[Shape]) -> Result<Shape, String> {
        if self.outputs == 0 {
            return Err("needs at least one output".into());
        }
        Ok(Shape::vector(self.outputs))
    }
    fn params(&self, input: Shape) -> Vec<TensorSpec> {
        let init = Init::Uniform(1.0 / (input.size() as f64).sqrt());
        vec![
            TensorSpec { name: "weight", shape: vec![input.size(), self.outputs], init },
            TensorSpec { name: "bias", shape: vec![self.outputs], init },
        ]
    }
    fn multiply_adds(&self, input: Shape, _: Shape) -> u64 {
        (input.size() * self.outputs) as u64
    }
    fn fuses_relu(&self) -> bool {
        true
    }
}

impl Dense {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, Problem> {
        Ok(Self { outputs: fields.needed("outputs")? })
    }

    pub(super) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        Box::new(Exec {
            inputs: at.input.size(),
            outputs: self.outputs,
            relu: at.relu,
            input_gradient: at.input_gradient,
            capacity: at.capacity,
        })
    }
}

struct Exec {
    inputs: usize,
    outputs: usize,
    relu: bool,
    input_gradient: bool,
    capacity: usize,
}

impl<T: Real> Layer<T> for Exec {
    fn forward(&mut self, io: Forward<'_, T>) {
        let (i, o) = (self.inputs, self.outputs);
        let (weight, bias) = io.params.split_at(i * o);
        let level = io.compute.level;
        io.compute.pool.split(io.y, o, i * o, |first, y| {
            let (size, x) = ([y.len() / o, o, i], (&io.x[first * i..], i, 1));
            let task = Product::matrices(size, x, (weight, o), (y, o), TileStart::Bias(bias));
            T::product(level, Product { relu: self.relu, ..task });
        });
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        let (i, o, n) = (self.inputs, self.outputs, io.pass.samples);
        let (level, pool) = (io.compute.level, &io.compute.pool);
        if self.relu {
            io.compute.relu_backward(io.y, io.dy);
        }
        let dy = &*io.dy;
        let (d_weight, d_bias) = io.grads.split_at_mut(i * o);
        elementwise::column_sums(level, dy, d_bias, io.pass.adds());
        pool.split(d_weight, o, n * o, |first, rows| {
            let (size, x) = ([rows.len() / o, o, n], (&io.x[first..], 1, i));
            T::product(level, Product::matrices(size, x, (dy, o), (rows, o), io.pass.start()));
        });
        let Some(dx) = io.dx else { return };
        // dxᵀ = W·dyᵀ: turning the samples is cheaper than turning the weights.
        let (turned_dy, turned_dx) = io.scratch[..n * (o + i)].split_at_mut(n * o);
        elementwise::transpose(level, dy, n, o, 0, turned_dy);
        let (turned_dy, weight) = (&*turned_dy, &io.params[..i * o]);
        pool.split(turned_dx, n, n * o, |first, rows| {
            let (size, weight) = ([rows.len() / n, n, o], (&weight[first * o..], o, 1));
            T::product(level, Product::matrices(size, weight, (turned_dy, n), (rows, n), TileStart::Zero));
        });
        let turned_dx = &*turned_dx;
        pool.split(dx.values, i, i, |first, rows| {
            if dx.add {
                elementwise::transpose_add(level, turned_dx, i, n, first, rows);
            } else {
                elementwise::transpose(level, turned_dx, i, n, first, rows);
            }
        });
    }

    fn scratch(&self) -> usize {
        if self.input_gradient { self.capacity * (self.inputs + self.outputs) } else { 0 }
    }
}
