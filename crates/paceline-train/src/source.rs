//! What computes gradients for a worker: a network of this process, or something else that fills the same buffers.

use std::io;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use paceline_attach::Arrivals;
use paceline_memory::{Allocator, TensorStorage};
use paceline_nn::{Graph, GraphPart, Outcome};
use paceline_protocol::{GradientScale, OpId, Rank, Setup, Tensor};
use paceline_record::process::thread_cpu_seconds;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::crossings::Crossings;
use crate::engine::{Begin, StagePass};
use crate::error::TrainError;
use crate::segment::StagePlace;

/// Names, shapes and places of a model's tensors: all that is known of a model where only sizes matter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    /// The parameters, in the order of the flat buffer.
    pub tensors: Vec<TensorLayout>,
    /// Numbers of the parameter buffer, and of the gradient buffers.
    pub params: usize,
    /// Numbers of the state that is not trained (batch norm's statistics), per position.
    pub state: usize,
}

/// A tensor of the flat parameter buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
        Self::of_part(graph, &graph.whole())
    }

    /// The layout of a part of one.
    pub fn of_part(graph: &Graph, part: &GraphPart) -> Self {
        let own = &part.params;
        let inside = |range: &Range<usize>| own.start <= range.start && range.end <= own.end;
        let tensors =
            graph.params().iter().filter(|tensor| inside(&tensor.range)).map(|tensor| TensorLayout {
                name: tensor.name.clone(),
                shape: tensor.shape.clone(),
                range: tensor.range.start - own.start..tensor.range.end - own.start,
            });
        Self { tensors: tensors.collect(), params: own.len(), state: part.state.len() }
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

/// Takes what a source has finished, and exchanges it.
pub trait GradientSink<'g> {
    /// Takes a part of the gradient buffer that is final, as [`Announce`] does.
    fn finished(&mut self, offset: usize, slice: &'g mut [f32]);

    /// Tells the servers what the learning rate is from now on, as a multiple of the first one.
    fn rate(&mut self, rate: f64);

    /// Exchanges what can be exchanged while a source that computes elsewhere has nothing to say, at most for a while.
    /// Whether the run has ended meanwhile.
    fn wait(&mut self, wait: Duration) -> bool;

    /// The next pass through this rank's stage, once its pipeline asks for it; none if the run has ended.
    fn next_pass(&mut self) -> Option<StagePass>;

    /// What goes to other stages and comes from them.
    fn crossings(&mut self) -> &mut Crossings;

    /// Exchanges what can be exchanged between two layers of a pass.
    fn between_layers(&mut self);

    /// The computation of a pass is over, and stretched if the plan says so; the time that was exchanged in meanwhile.
    fn pass_over(&mut self) -> Duration;

    /// What a pass has left may go to other stages.
    fn passed(&mut self, op: OpId);
}

/// What follows a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AfterStep {
    /// Another one, whose gradient is weighted so.
    Next(GradientScale),
    /// The same, but the source is first asked for what somebody who joins begins with.
    HandOver(GradientScale),
    /// A pause: what the source needs to go on is asked for.
    Pause,
    /// Nothing: the run is over.
    End,
}

/// Figures that a source reports.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceReport {
    /// Steps that the source had done.
    pub step: u64,
    /// The training clock, in seconds.
    pub train_s: f64,
    /// Names and figures.
    pub values: Vec<(String, f64)>,
}

/// What a source beside this process has taken.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceCosts {
    /// Time spent on copying gradients.
    pub staging: Duration,
    /// Microseconds after the start of backward at which each tensor was final.
    pub ready_us: Vec<u32>,
    /// CPU time, in seconds.
    pub cpu_s: f64,
    /// Most resident memory.
    pub rss_peak_bytes: u64,
}

/// What computes gradients.
pub trait GradientSource {
    /// The model's tensors.
    fn layout(&self) -> &Layout;

    /// The parameters and the gradients of each position, where the source may work on them too.
    fn buffers(
        &mut self,
        positions: usize,
        allocator: Allocator,
    ) -> io::Result<(TensorStorage, Vec<TensorStorage>)> {
        let zeros = || allocator.zeros(self.layout().params);
        Ok((zeros()?, (0..positions).map(|_| zeros()).collect::<io::Result<_>>()?))
    }

    /// The buffers for another number of positions, with the same parameters, after a change of members. All of it is new:
    /// peers may still have the old memory mapped, and must not see it change.
    fn buffers_anew(
        &mut self,
        positions: usize,
        allocator: Allocator,
        (before, _): (TensorStorage, Vec<TensorStorage>),
    ) -> io::Result<(TensorStorage, Vec<TensorStorage>)> {
        let (mut params, grads) = self.buffers(positions, allocator)?;
        params.copy_from_slice(&before);
        Ok((params, grads))
    }

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
        sink: &mut dyn GradientSink<'g>,
        clock: &mut Clock,
    ) -> Result<Option<Outcome>, TrainError>;

    /// The step is exchanged: what it has come to lies in the buffers, of which the parameters are shown.
    fn settled(&mut self, _step: u64, _next: AfterStep, _params: &[f32]) -> Result<(), TrainError> {
        Ok(())
    }

    /// A generation begins at this step, with these parameters: what came before it is settled, by whoever. Samples of this
    /// source in a step that it learns only now to be settled.
    fn caught_up(&mut self, _step: u64, _params: &[f32]) -> Result<u64, TrainError> {
        Ok(0)
    }

    /// Whether the source computes beside this thread, and what then ends a wait for it.
    fn beside(&self) -> Option<Arc<UnixStream>> {
        None
    }

    /// Where the source is told of parts of the mean gradient before the step is settled, if it wants to be.
    fn arrivals(&self) -> Option<Arrivals> {
        None
    }

    /// CPU time that the source has taken, in seconds.
    fn cpu_seconds(&self) -> f64 {
        thread_cpu_seconds()
    }

    /// Figures that it has reported since this was asked last.
    fn reports(&mut self) -> Vec<SourceReport> {
        Vec::new()
    }

    /// What it has taken, where it computes beside this process.
    fn costs(&self) -> SourceCosts {
        SourceCosts::default()
    }

    /// The run is over: waits until the source has ended as well; the parameters that it ends with, if it has its own.
    fn finish(&mut self, _clock: &mut Clock) -> Result<Option<Vec<f32>>, TrainError> {
        Ok(None)
    }

    /// Whether evaluations are made here: otherwise the source makes and reports its own.
    fn evaluates(&self) -> bool {
        true
    }

    /// Sums over this worker's part of the samples that evaluations during the run take; over the whole test split if
    /// it is the `only` one that evaluates.
    fn evaluate(&mut self, params: &[f32], only: bool) -> Result<Outcome, TrainError>;

    /// Whether the model is to be evaluated after this step.
    fn evaluates_after(&self, step: u64) -> bool;

    /// Samples of all workers before a step.
    fn samples_before(&self, step: u64) -> u64;

    /// The state of all positions, one behind the other: saved with the parameters.
    fn state(&self) -> &[f32];

    /// The parameters to save, where the worker's buffer holds something else.
    fn params_to_save(&self) -> Option<&[f32]> {
        None
    }

    /// Brings the state up to date before it is saved.
    fn save(&mut self) -> Result<(), TrainError> {
        Ok(())
    }

    /// Bytes of what one slot keeps of its micro-batch, where the model is cut into stages.
    fn slot_bytes(&self) -> usize {
        0
    }

    /// Bytes that it has for passes, where the model is cut into stages.
    fn pass_bytes(&self) -> usize {
        0
    }

    /// Which part of the model this is, if it is cut into stages.
    fn place(&self) -> Option<StagePlace> {
        None
    }

    /// Takes up a state that was saved.
    fn restore(&mut self, state: &[f32]) -> Result<(), TrainError>;

    /// Takes up parameters that are not those of the worker's buffer, where somebody who is at the same step has others.
    fn restore_own(&mut self, _params: &[f32]) {}

    /// What came of asking for what somebody who joins begins with, told once: its state is that, or why there is none.
    fn handed_over(&mut self) -> Option<Result<(), String>> {
        None
    }

    /// Goes on as another rank, with other positions, after a change of members.
    fn take_place(&mut self, _setup: &Setup, _rank: Rank) -> Result<(), TrainError> {
        let problem = "members can change where a network of this program, or a script, is trained".into();
        Err(TrainError::Restore { problem })
    }
}
