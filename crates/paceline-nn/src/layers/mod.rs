//! The layers. Each file holds a layer's description (shapes, tensors, cost) and its computation.
//!
//! To add one: write its file, then add its line to [`Op`].

mod activation;
mod add;
mod attention;
mod batch_norm;
mod combine;
mod conv1d;
mod conv2d;
mod dense;
mod dropout;
mod embedding;
mod layer;
mod layer_norm;
mod pool;
mod recurrent;
mod sequence;
mod view;

pub use activation::{Activation, Function};
pub use add::Add;
pub use attention::Attention;
pub use batch_norm::BatchNorm;
pub use combine::{Concat, Maximum, Mean};
pub use conv1d::Conv1d;
pub use conv2d::Conv2d;
pub use dense::Dense;
pub use dropout::Dropout;
pub use embedding::Embedding;
pub(crate) use layer::{Backward, Forward, InputGradient, Kernels, Layer, Place, sample};
pub use layer_norm::LayerNorm;
pub use pool::{AveragePool, GlobalAveragePool, MaxPool};
pub use recurrent::{Gru, Lstm};
pub use sequence::{LastStep, Positions, Rows};
pub use view::ViewPart;

use crate::accel::TileStart;
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
            pub const KINDS: &'static [LayerKind] =
                &[$(LayerKind { name: $kind, about: $about.trim_ascii(), settings: $settings }),*];

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
    /// A rectangle of an image: what one device sees.
    ViewPart("view": "top, left, height, width, blank"),
    /// Channels of several values, one behind the other.
    Concat("concat": ""),
    /// The largest of several values, element by element.
    Maximum("maximum": ""),
    /// The mean of several values, element by element.
    Mean("mean": ""),
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
pub struct LayerKind {
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
    /// How many values the layer takes, at least.
    fn arity(&self) -> usize {
        1
    }
    /// Whether it takes any larger number of values, too.
    fn takes_more(&self) -> bool {
        false
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
    /// Whether the input gradient takes the output gradient's place (for every input the same). A layer that is not
    /// in place is asked for the gradient of each of its inputs by itself.
    fn in_place(&self) -> bool {
        false
    }
    /// Numbers that forward keeps of each sample for backward, besides input and output. `fast` is
    /// [`Real::FAST`].
    fn saved(&self, _input: Shape, _output: Shape, _fast: bool) -> usize {
        0
    }
    /// One line for `model show`.
    fn describe(&self) -> String {
        String::new()
    }
}

/// What distinguishes one pass through the network from another. A pass takes a batch, or a part of it: a
/// micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// Samples of this pass.
    pub samples: usize,
    /// Training (batch statistics, dropout) or evaluation.
    pub training: bool,
    /// The run's seed.
    pub seed: u64,
    /// The global step.
    pub step: u64,
    /// Each sample's index in the dataset: with seed and step the key of its dropout mask.
    pub ids: &'a [u32],
    /// Where forward leaves what backward needs. Passes in different slots can be under way at once.
    pub slot: usize,
    /// Samples of the batch in the passes before this one: backward adds to their gradient.
    pub before: usize,
    /// Samples of the batch in the passes after this one: with the last, the gradient is final.
    pub after: usize,
}

impl<'a> Pass<'a> {
    /// A training pass over a whole batch, in slot 0.
    pub fn training(seed: u64, step: u64, ids: &'a [u32]) -> Self {
        Self { training: true, seed, step, ids, ..Self::evaluation(ids.len()) }
    }

    /// An evaluation of `samples` samples, in slot 0.
    pub fn evaluation(samples: usize) -> Self {
        Self { samples, training: false, seed: 0, step: 0, ids: &[], slot: 0, before: 0, after: 0 }
    }

    /// Micro-batch `i` of `count`, as even as possible; empty ones where there are fewer samples.
    pub fn micro_batch(&self, i: usize, count: usize) -> Self {
        let (from, to) = (i * self.samples / count, (i + 1) * self.samples / count);
        Self {
            samples: to - from,
            ids: self.ids.get(from..to).unwrap_or(&[]),
            before: self.before + from,
            after: self.after + self.samples - to,
            ..*self
        }
    }

    /// What the pass's sums over samples start from in the gradient buffer.
    pub(crate) fn start<T: Real>(&self) -> TileStart<'static, T> {
        if self.adds() { TileStart::Output } else { TileStart::Zero }
    }

    /// Whether the gradient buffer holds the sums over earlier samples of the batch.
    pub(crate) fn adds(&self) -> bool {
        self.before > 0
    }
}
