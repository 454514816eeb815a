//! One-dimensional convolution over the steps of a sequence.

use super::sequence::steps;
use super::{Conv2d, Layer, Place, Spec, TensorSpec};
use crate::description::{Fields, Problem};
use crate::real::Real;
use crate::shape::Shape;

/// Convolution along a sequence, with a weight of shape kernel × input channels of a group × channels.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv1d {
    /// Output channels.
    pub channels: usize,
    /// Steps of the kernel.
    pub kernel: usize,
    /// Distance between outputs, in steps.
    pub stride: usize,
    /// Zeros added at each end.
    pub pad: usize,
    /// Groups of channels that are convolved on their own.
    pub groups: usize,
    /// Whether a bias per channel is added.
    pub bias: bool,
}

impl Conv1d {
    /// A dense layer for each step on its own.
    pub fn each_step(channels: usize) -> Self {
        Self { channels, kernel: 1, stride: 1, pad: 0, groups: 1, bias: true }
    }

    /// The same over an image of one row.
    fn flat(&self) -> Conv2d {
        Conv2d {
            channels: self.channels,
            kernel: [1, self.kernel],
            stride: [1, self.stride],
            pad: [0, self.pad],
            groups: self.groups,
            bias: self.bias,
        }
    }
}

impl Spec for Conv1d {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        steps(inputs[0])?;
        self.flat().output(inputs)
    }
    fn params(&self, input: Shape) -> Vec<TensorSpec> {
        let mut tensors = self.flat().params(input);
        tensors[0].shape.remove(0);
        tensors
    }
    fn multiply_adds(&self, input: Shape, output: Shape) -> u64 {
        self.flat().multiply_adds(input, output)
    }
    fn fuses_relu(&self) -> bool {
        true
    }
    fn saved(&self, input: Shape, output: Shape, fast: bool) -> usize {
        self.flat().saved(input, output, fast)
    }
    fn describe(&self) -> String {
        let groups = if self.groups > 1 { format!(", {} groups", self.groups) } else { String::new() };
        format!("{}, stride {}, pad {}{groups}", self.kernel, self.stride, self.pad)
    }
}

impl Conv1d {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, Problem> {
        Ok(Self {
            channels: fields.needed("channels")?,
            kernel: fields.size("kernel")?.unwrap_or(1),
            stride: fields.size("stride")?.unwrap_or(1),
            pad: fields.size("pad")?.unwrap_or(0),
            groups: fields.size("groups")?.unwrap_or(1),
            bias: fields.flag("bias")?.unwrap_or(true),
        })
    }

    pub(super) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        self.flat().layer(at)
    }
}
