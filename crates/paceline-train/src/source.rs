//! What computes gradients for a worker: a network of this process, or something else that fills the same buffers.

use std::ops::Range;

use paceline_nn::{Graph, Outcome};
use paceline_protocol::Tensor;

use crate::clock::Clock;
use crate::engine::Begin;
use crate::error::TrainError;

/// Names, shapes and places of a model's tensors: all that is known of a model where only sizes matter.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The parameters, in the order of the flat buffer.
    pub tensors: Vec<TensorLayout>,
    /// Numbers of the parameter buffer, and of the gradient buffers.
    pub params: usize,
    /// Numbers of the state that is not trained (batch norm's statistics), per position.
    pub state: usize,
}

/// A tensor of the flat parameter buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorLayout {
    /// Layer and tensor, e.g. `conv1.weight`.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Its elements in the buffer.
    pub range: Range<usize>,
}

impl Layout {
    /// The layout of a native network.
    pub fn of(graph: &Graph) -> Self {
        let tensors = graph.params().iter().map(|tensor| TensorLayout {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            range: tensor.range.clone(),
        });
        Self { tensors: tensors.collect(), params: graph.param_count(), state: graph.state_count() }
    }

    /// The tensors as strategies see them.
    pub fn matrices(&self) -> Vec<Tensor> {
        self.tensors.iter().map(|tensor| matrix(&tensor.shape, tensor.range.start)).collect()
    }
}

/// A tensor as a matrix, as square as its sizes allow.
fn matrix(shape: &[usize], offset: usize) -> Tensor {
    let split = |at: usize| (shape[..at].iter().product(), shape[at..].iter().product());
    let (rows, cols) = (0..=shape.len())
        .map(split)
        .min_by_key(|(rows, cols): &(usize, usize)| rows + cols)
        .unwrap_or((1, 1));
    Tensor { offset, rows, cols }
}

/// Takes a part of the gradient buffer that is final: its first element, and its numbers. Nothing of it is touched
/// again.
pub type Announce<'a, 'g> = &'a mut dyn FnMut(usize, &'g mut [f32]);

/// What computes gradients.
pub trait GradientSource {
    /// The model's tensors.
    fn layout(&self) -> &Layout;

    /// Fills in the parameters that training starts from.
    fn start(&mut self, params: &mut [f32]) -> Result<(), TrainError>;

    /// Ranges of the parameters that stay as they start.
    fn frozen(&self) -> Result<Vec<Range<usize>>, TrainError> {
        Ok(Vec::new())
    }

    /// Computes the gradient of a unit of work, for the position `slot` of this rank, and announces each part of it
    /// as soon as it is final, in any order, until all of it was. Sums over its samples; none if the source has
    /// run out of work: then nothing is announced, and the run ends before this step.
    fn gradient<'g>(
        &mut self,
        begin: &Begin,
        slot: usize,
        params: &[f32],
        grads: &'g mut [f32],
        announce: Announce<'_, 'g>,
        clock: &mut Clock,
    ) -> Result<Option<Outcome>, TrainError>;

    /// Sums over this worker's part of the samples that evaluations during the run take; over the whole test split if
    /// it is the `only` one that evaluates.
    fn evaluate(&mut self, params: &[f32], only: bool) -> Result<Outcome, TrainError>;

    /// Whether the model is to be evaluated after this step.
    fn evaluates_after(&self, step: u64) -> bool;

    /// Samples of all workers before a step.
    fn samples_before(&self, step: u64) -> u64;

    /// The state of all positions, one behind the other: saved with the parameters.
    fn state(&self) -> &[f32];

    /// Takes up a state that was saved.
    fn state_mut(&mut self) -> &mut [f32];
}
