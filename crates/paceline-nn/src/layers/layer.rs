//! What layers are computed with. Public for the sake of [`Real::kernels`]; other crates cannot name it.

use super::{Op, Pass};
use crate::accel::{Level, TileStart, elementwise};
use crate::compute::Compute;
use crate::loss::{self, Outcome, Targets};
use crate::real::Real;
use crate::shape::Shape;

/// What a network calls. Pointers, so that a crate that has a network compiles none of it again.
#[allow(clippy::type_complexity, reason = "each is the signature of one function, named where it is defined")]
pub struct Kernels<T: 'static> {
    pub layer: fn(&Op, Place<'_>) -> Box<dyn Layer<T>>,
    pub normalise: fn(Level, &[u8], &[T], &[T], &mut [T]),
    pub accumulate: fn(Level, &[T], &mut [T]),
    pub loss: fn(&[T], Shape, Targets<'_, T>) -> Outcome,
    pub loss_with_gradient: fn(&[T], Shape, Targets<'_, T>, T, &mut [T]) -> Outcome,
}

impl<T: Real> Kernels<T> {
    pub const ALL: Self = Self {
        layer: Op::layer,
        normalise: elementwise::normalise,
        accumulate: elementwise::accumulate,
        loss: loss::value,
        loss_with_gradient: loss::with_gradient,
    };
}

/// Where in a network a layer's computation is being set up.
pub struct Place<'a> {
    pub input: Shape,
    /// Shapes of all inputs.
    pub inputs: &'a [Shape],
    pub output: Shape,
    /// Most samples of a pass.
    pub capacity: usize,
    /// Passes that can be under way at once.
    pub slots: usize,
    pub relu: bool,
    /// Whether the input's gradient will be asked for.
    pub input_gradient: bool,
    pub compute: &'a Compute,
}

pub struct Forward<'a, T> {
    pub compute: &'a Compute,
    pub pass: &'a Pass<'a>,
    pub x: &'a [T],
    /// The second input, where there is one (else empty).
    pub x2: &'a [T],
    /// Each input by its number, for layers that take any number of them.
    pub inputs: &'a dyn Fn(usize) -> &'a [T],
    pub y: &'a mut [T],
    pub params: &'a [T],
    pub state: &'a mut [T],
    /// [`Spec::saved`](super::Spec::saved) numbers of each sample, for the backward pass of the same slot.
    pub saved: &'a mut [T],
    pub scratch: &'a mut [T],
}

pub struct Backward<'a, T> {
    pub compute: &'a Compute,
    pub pass: &'a Pass<'a>,
    /// Which input `x` and `dx` are those of. Layers with one input, and those in place, see 0 alone.
    pub which: usize,
    pub x: &'a [T],
    pub y: &'a [T],
    /// The output's gradient; an in-place layer turns it into the input's.
    pub dy: &'a mut [T],
    pub params: &'a [T],
    /// The layer's own part of the gradient buffer, overwritten by a batch's first pass. Sums over samples go on in
    /// the next pass as if it were the same one: [`Pass::start`].
    pub grads: &'a mut [T],
    pub dx: Option<InputGradient<'a, T>>,
    pub saved: &'a mut [T],
    pub scratch: &'a mut [T],
}

/// Where a layer that is not in place writes its input's gradient.
pub struct InputGradient<'a, T> {
    pub values: &'a mut [T],
    /// Add to what is there (another layer has contributed already) instead of overwriting it.
    pub add: bool,
}

impl<T: Real> InputGradient<'_, T> {
    pub fn start(&self) -> TileStart<'static, T> {
        if self.add { TileStart::Output } else { TileStart::Zero }
    }
}

/// Sample `i` of several of `size` numbers.
pub fn sample<T>(all: &[T], i: usize, size: usize) -> &[T] {
    &all[i * size..(i + 1) * size]
}

/// A layer with its memory. Nothing here allocates.
pub trait Layer<T: Real>: Send {
    fn forward(&mut self, io: Forward<'_, T>);
    fn backward(&mut self, io: Backward<'_, T>);
    /// Numbers of scratch that either pass needs.
    fn scratch(&self) -> usize {
        0
    }
}
