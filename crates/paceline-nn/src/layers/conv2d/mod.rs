//! Two-dimensional convolution: its description, and the choice between the ways to compute it.

mod direct;
mod grouped;
mod pointwise;
mod winograd;

use super::{Init, Layer, Pass, Place, Spec, TensorSpec, sample};
use crate::accel::elementwise;
use crate::compute::Compute;
use crate::description::{Fields, Problem};
use crate::real::Real;
use crate::shape::Shape;

/// Longest side of a kernel: sizes of weights stay within what can be counted.
const KERNEL: usize = 1024;

/// Convolution with a weight of shape kernel height × kernel width × input channels of a group × channels.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv2d {
    /// Output channels.
    pub channels: usize,
    /// Kernel height and width.
    pub kernel: [usize; 2],
    /// Vertical and horizontal stride.
    pub stride: [usize; 2],
    /// Zeros added on each side, vertically and horizontally.
    pub pad: [usize; 2],
    /// Groups of channels that are convolved on their own.
    pub groups: usize,
    /// Whether a bias per channel is added.
    pub bias: bool,
}

impl Conv2d {
    /// A square kernel with equal strides and padding.
    pub fn square(channels: usize, kernel: usize, stride: usize, pad: usize, bias: bool) -> Self {
        Self { channels, kernel: [kernel; 2], stride: [stride; 2], pad: [pad; 2], groups: 1, bias }
    }

    /// The convolution of each group.
    fn of_group(&self) -> Self {
        Self { channels: self.channels / self.groups, groups: 1, ..self.clone() }
    }
}

impl Spec for Conv2d {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        let x = inputs[0];
        if self.channels == 0 || self.kernel.contains(&0) || self.stride.contains(&0) {
            return Err("channels, kernel and stride must be at least 1".into());
        }
        if self.kernel.iter().any(|&side| side > KERNEL) {
            return Err(format!("a kernel has at most {KERNEL} rows and columns"));
        }
        if self.groups == 0 || [x.c, self.channels].iter().any(|c| !c.is_multiple_of(self.groups)) {
            return Err(format!(
                "{} channels in and {} out cannot be cut into {} groups",
                x.c, self.channels, self.groups
            ));
        }
        let side = |size: usize, d: usize| {
            let padded = size + 2 * self.pad[d];
            padded.checked_sub(self.kernel[d]).map(|room| room / self.stride[d] + 1).ok_or_else(|| {
                format!(
                    "a kernel of {} does not fit an input side of {padded} (padding included)",
                    self.kernel[d]
                )
            })
        };
        Ok(Shape::new(side(x.h, 0)?, side(x.w, 1)?, self.channels))
    }
    fn params(&self, input: Shape) -> Vec<TensorSpec> {
        let channels = input.c / self.groups;
        let fan_in = self.kernel[0] * self.kernel[1] * channels;
        let init = Init::Uniform(1.0 / (fan_in as f64).sqrt());
        let shape = vec![self.kernel[0], self.kernel[1], channels, self.channels];
        let mut tensors = vec![TensorSpec { name: "weight", shape, init }];
        if self.bias {
            tensors.push(TensorSpec { name: "bias", shape: vec![self.channels], init });
        }
        tensors
    }
    fn multiply_adds(&self, input: Shape, output: Shape) -> u64 {
        (output.size() * self.kernel[0] * self.kernel[1] * (input.c / self.groups)) as u64
    }
    fn fuses_relu(&self) -> bool {
        true
    }
    fn saved(&self, input: Shape, output: Shape, fast: bool) -> usize {
        match self.way(input, fast) {
            Way::Grouped => {
                let part = |s: Shape| Shape::new(s.h, s.w, s.c / self.groups);
                self.groups * self.of_group().saved(part(input), part(output), fast)
            }
            Way::Pointwise => pointwise::saved(self, input, output),
            Way::Winograd => 0,
            Way::Direct => direct::saved(self, input),
        }
    }
    fn describe(&self) -> String {
        let ([kh, kw], [sh, sw], [ph, pw]) = (self.kernel, self.stride, self.pad);
        let groups = if self.groups > 1 { format!(", {} groups", self.groups) } else { String::new() };
        format!("{kh}×{kw}, stride {sh}×{sw}, pad {ph}×{pw}{groups}")
    }
}

impl Conv2d {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, Problem> {
        Ok(Self {
            channels: fields.needed("channels")?,
            kernel: fields.sides("kernel")?.unwrap_or([3, 3]),
            stride: fields.sides("stride")?.unwrap_or([1, 1]),
            pad: fields.sides("pad")?.unwrap_or([0, 0]),
            groups: fields.size("groups")?.unwrap_or(1),
            bias: fields.flag("bias")?.unwrap_or(true),
        })
    }

    pub(super) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        match self.way(at.input, T::FAST) {
            Way::Grouped => grouped::layer(self, &at),
            Way::Pointwise => pointwise::layer(self, &at),
            Way::Winograd => winograd::layer(self, &at),
            Way::Direct => direct::layer(self, &at),
        }
    }

    fn way(&self, input: Shape, fast: bool) -> Way {
        if self.groups > 1 {
            Way::Grouped
        } else if pointwise::suits(self) {
            Way::Pointwise
        } else if fast && winograd::suits(self, input) {
            Way::Winograd
        } else {
            Way::Direct
        }
    }
}

/// How a convolution is computed.
enum Way {
    Grouped,
    Pointwise,
    Winograd,
    Direct,
}

/// The bias gradient: each sample's sums, added up in sample order.
struct BiasGradient {
    size: usize,
    channels: usize,
    /// Numbers of scratch for the samples' sums.
    scratch: usize,
}

impl BiasGradient {
    fn new(conv: &Conv2d, at: &Place<'_>) -> Self {
        let channels = if conv.bias { conv.channels } else { 0 };
        Self { size: at.output.size(), channels, scratch: at.capacity * channels }
    }

    fn sum<T: Real>(&self, compute: &Compute, pass: &Pass<'_>, dy: &[T], scratch: &mut [T], out: &mut [T]) {
        let (level, c, size) = (compute.level, self.channels, self.size);
        if c == 0 {
            return;
        }
        let sums = &mut scratch[..pass.samples * c];
        compute.pool.split(sums, c, size, |first, sums| {
            for (i, sums) in sums.chunks_exact_mut(c).enumerate() {
                elementwise::column_sums(level, sample(dy, first + i, size), sums, false);
            }
        });
        elementwise::column_sums(level, sums, out, pass.adds());
    }
}
