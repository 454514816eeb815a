//! The layers. Each file holds a layer's description (shapes, tensors, cost) and its computation.
//!
//! To add one: write its file, then add its line to [`Op`].

mod activation;
mod add;
mod attention;
mod batch_norm;
mod conv1d;
mod conv2d;
mod dense;
mod dropout;
mod embedding;
mod layer_norm;
mod pool;
mod recurrent;
mod sequence;

pub use activation::{Activation, Function};
pub use add::Add;
pub use attention::Attention;
pub use batch_norm::BatchNorm;
pub use conv1d::Conv1d;
pub use conv2d::Conv2d;
pub use dense::Dense;
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use layer_norm::LayerNorm;
pub use pool::{AveragePool, GlobalAveragePool, MaxPool};
pub use recurrent::{Gru, Lstm};
pub use sequence::{LastStep, Positions, Rows};

use crate::compute::Compute;
use crate::description::{Fields, Problem};
use crate::real::Real;
use crate::shape::Shape;

macro_rules! ops {
    ($(#[doc = $about:literal] $name:ident($kind:literal: $settings:literal)),* $(,)?) => {
        /// Any layer.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Op { $(#[doc = $about] $name($name)),* }

        $(impl From<$name> for Op {
            fn from(spec: $name) -> Op { Op::$name(spec) }
        })*

        impl Op {
            /// The layer's kind, as users write it.
            pub fn kind(&self) -> &'static str {
                match self { $(Op::$name(_) => $kind),* }
            }

            /// The layer's settings in a few words.
            pub fn describe(&self) -> String {
                self.spec().describe()
            }

            /// Every kind of layer.
            pub const KINDS: &'static [Kind] =
                &[$(Kind { name: $kind, about: $about.trim_ascii(), settings: $settings }),*];

            /// The layer of this kind with the settings of a description; none if there is no such kind.
            pub(crate) fn read(kind: &str, fields: &mut Fields<'_>) -> Option<Result<Op, Problem>> {
                match kind {
                    $($kind => Some($name::read(fields).map(Op::$name)),)*
                    _ => None,
                }
            }

            pub(crate) fn spec(&self) -> &dyn Spec {
                match self { $(Op::$name(spec) => spec),* }
            }

            pub(crate) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
                match self { $(Op::$name(spec) => spec.layer::<T>(at)),* }
            }
        }
    };
}

ops! {
    /// `y = x·W + b`.
    Dense("dense": "outputs"),
    /// Two-dimensional convolution.
    Conv2d("conv2d": "channels, kernel, stride, pad, groups, bias"),
    /// Convolution along a sequence.
    Conv1d("conv1d": "channels, kernel, stride, pad, groups, bias"),
    /// Batch normalisation.
    BatchNorm("batch-norm": "epsilon, momentum"),
    /// Layer normalisation.
    LayerNorm("layer-norm": "epsilon"),
    /// Largest of each window.
    MaxPool("max-pool": "size, stride, pad"),
    /// Mean of each window.
    AveragePool("average-pool": "size, stride, pad"),
    /// Mean over all pixels.
    GlobalAveragePool("global-average-pool": ""),
    /// A function of each element.
    Activation("activation": "function"),
    /// Random zeros while training.
    Dropout("dropout": "rate"),
    /// Sum of two values (a residual connection).
    Add("add": ""),
    /// An image read as a sequence of its rows.
    Rows("rows": ""),
    /// The last step of a sequence.
    LastStep("last-step": ""),
    /// A vector for each token.
    Embedding("embedding": "vocabulary, width"),
    /// A learned vector added to each step.
    Positions("positions": ""),
    /// Gated recurrent unit.
    Gru("gru": "width"),
    /// Long short-term memory.
    Lstm("lstm": "width"),
    /// Multi-head attention.
    Attention("attention": "heads, causal"),
}

/// A kind of layer, as users write it in a description.
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// One line for tables.
    pub about: &'static str,
    /// Its own settings.
    pub settings: &'static str,
}

/// How a tensor's values start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Uniform in `±bound`.
    Uniform(f64),
    /// Normal with this standard deviation.
    Normal(f64),
    /// All the same.
    Constant(f64),
}

/// A tensor that a layer needs.
pub(crate) struct TensorSpec {
    pub name: &'static str,
    pub shape: Vec<usize>,
    pub init: Init,
}

/// What a layer is, before any memory is given to it.
pub(crate) trait Spec {
    /// How many values the layer takes.
    fn arity(&self) -> usize {
        1
    }
    /// The output's shape, or what is wrong with the inputs.
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String>;
    /// Trained tensors, in the order of the flat buffers.
    fn params(&self, _input: Shape) -> Vec<TensorSpec> {
        Vec::new()
    }
    /// Tensors that are kept but not trained.
    fn state(&self, _input: Shape) -> Vec<TensorSpec> {
        Vec::new()
    }
    /// Multiply-adds of one sample's forward pass.
    fn multiply_adds(&self, _input: Shape, _output: Shape) -> u64 {
        0
    }
    /// Number of tokens, where the layer reads tokens: they have no gradient.
    fn vocabulary(&self) -> Option<usize> {
        None
    }
    /// Whether a following ReLU can be folded into this layer.
    fn fuses_relu(&self) -> bool {
        false
    }
    /// One line for `model show`.
    fn describe(&self) -> String {
        String::new()
    }
}

/// Where in a network a layer's computation is being set up.
pub(crate) struct Place<'a> {
    pub input: Shape,
    pub output: Shape,
    /// Most samples of a batch.
    pub capacity: usize,
    pub relu: bool,
    /// Whether the input's gradient will be asked for.
    pub input_gradient: bool,
    pub compute: &'a Compute,
}

/// What distinguishes one pass through the network from another.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// Samples of this batch.
    pub samples: usize,
    /// Training (batch statistics, dropout) or evaluation.
    pub training: bool,
    /// The run's seed.
    pub seed: u64,
    /// The global step.
    pub step: u64,
    /// Each sample's index in the dataset: with seed and step the key of its dropout mask.
    pub ids: &'a [u32],
}

impl Pass<'_> {
    /// An evaluation of `samples` samples.
    pub fn evaluation(samples: usize) -> Self {
        Self { samples, training: false, seed: 0, step: 0, ids: &[] }
    }
}

pub(crate) struct Forward<'a, T> {
    pub compute: &'a Compute,
    pub pass: &'a Pass<'a>,
    pub x: &'a [T],
    /// The second input, where [`Spec::arity`] is 2 (else empty).
    pub x2: &'a [T],
    pub y: &'a mut [T],
    pub params: &'a [T],
    pub state: &'a mut [T],
    pub scratch: &'a mut [T],
}

pub(crate) struct Backward<'a, T> {
    pub compute: &'a Compute,
    pub pass: &'a Pass<'a>,
    pub x: &'a [T],
    pub y: &'a [T],
    /// The output's gradient; an in-place layer turns it into the input's.
    pub dy: &'a mut [T],
    pub params: &'a [T],
    /// The layer's own part of the gradient buffer, to be overwritten.
    pub grads: &'a mut [T],
    pub dx: Option<InputGradient<'a, T>>,
    pub scratch: &'a mut [T],
}

/// Where a layer that is not in place writes its input's gradient.
pub(crate) struct InputGradient<'a, T> {
    pub values: &'a mut [T],
    /// Add to what is there (another layer has contributed already) instead of overwriting it.
    pub add: bool,
}

/// A layer with its memory. Nothing here allocates.
pub(crate) trait Layer<T: Real>: Send {
    fn forward(&mut self, io: Forward<'_, T>);
    fn backward(&mut self, io: Backward<'_, T>);
    /// Whether `backward` leaves the input gradient in `dy` (for every input the same).
    fn in_place(&self) -> bool {
        false
    }
    /// Numbers of scratch that either pass needs.
    fn scratch(&self) -> usize {
        0
    }
}
