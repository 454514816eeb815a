//! What a worker is given, and what comes of it.

use std::sync::Arc;

use paceline_data::Order;
use paceline_nn::{Compute, Outcome};
use paceline_pipeline::{StageMemory, StagePlan};
use paceline_plan::TrainingLength;
use paceline_protocol::{BatchLengths, Options, Rank, SINGLE, Setup, Strategy, Trace};
use paceline_record::{Observer, StepRow};
use paceline_resolve::TypedPlan;

use super::MESSAGE;
use crate::engine::Times;
use crate::source::{Layout, SourceCosts};

/// What a strategy is told about a plan.
pub fn setup(plan: &TypedPlan<'_>, layout: &Layout, samples: usize) -> Setup {
    let planned = match (&plan.script, plan.work) {
        (None, _) => {
            let total = plan.total_samples(samples);
            Order::new(plan.seed, samples, plan.global_batch(), total).steps()
        }
        (Some(_), TrainingLength::Steps(steps)) => steps,
        (Some(_), _) => u64::MAX,
    };
    let steps = planned.min(plan.stop_after_step.unwrap_or(u64::MAX));
    let options = Options(plan.options.clone());
    // Where a run switches is a fraction of the whole plan, wherever it is stopped.
    let sync = (plan.consistency.make)(&options, planned);
    // One worker alone sends nothing: its gradient is one piece, unless it is to be handed over as if it were not alone.
    let staged = plan.script.as_ref().is_some_and(|script| script.staged);
    let whole = plan.document.strategy == SINGLE && !staged;
    let bucket = if whole { layout.params } else { plan.bucket / size_of::<f32>() };
    Setup {
        shares: plan.shares,
        hosts: plan.layout(),
        paths: plan.paths.clone(),
        bucket: bucket.max(1),
        message: MESSAGE,
        tensors: layout.matrices(),
        sync,
        averages: plan.averages,
        coder: plan.coder,
        options,
        program: plan.program.clone(),
        seed: plan.seed,
        steps: Some(steps).filter(|steps| *steps < u64::MAX),
        ..Setup::new(plan.workers, plan.servers, layout.params, steps)
    }
}

/// The same where the network is cut into stages.
pub fn staged_setup(
    plan: &TypedPlan<'_>,
    layout: &Layout,
    stages: Option<&StagePlan>,
    samples: usize,
) -> Setup {
    let order = Order::new(plan.seed, samples, plan.global_batch(), plan.total_samples(samples));
    let batches = || BatchLengths(Arc::new(move |step| order.batch_len(step)));
    Setup { stages: stages.map(|stages| Arc::new(stages.setup(batches()))), ..setup(plan, layout, samples) }
}

/// What a worker tells while it trains.
#[derive(Clone, Debug)]
pub enum WorkerEvent {
    /// A stranger was turned away.
    Refused(String),
    /// The first step begins.
    Started,
    /// A step is done.
    Step {
        /// Steps done, in the count of the whole run.
        step: u64,
        /// Samples that this worker has done.
        samples: u64,
        /// What it took, in the worker's own count.
        row: StepRow,
        /// Its training clock, in seconds.
        train_s: f64,
    },
    /// It has evaluated its part of the test split.
    Evaluated {
        /// Steps done.
        step: u64,
        /// Its training clock, in seconds.
        train_s: f64,
        /// Sums over its part.
        outcome: Outcome,
    },
    /// Figures that its source has reported.
    Reported {
        /// Steps done.
        step: u64,
        /// Samples that this worker has done.
        samples: u64,
        /// Its training clock, in seconds.
        train_s: f64,
        /// Names and figures.
        values: Vec<(String, f64)>,
    },
    /// Its model at an evaluation that it cannot make alone: parameters (where they count) and state.
    Snapshot {
        /// Steps done.
        step: u64,
        /// Its training clock, in seconds.
        train_s: f64,
        /// Parameters, then state.
        numbers: Vec<f32>,
    },
}

/// What came of a worker.
pub struct Summary {
    /// Steps done.
    pub steps: u64,
    /// Samples done.
    pub samples: u64,
    /// Training clock, in seconds.
    pub train_s: f64,
    /// Sums of its last step.
    pub last: Outcome,
    /// Its parameters.
    pub params: Vec<f32>,
    /// The batch-norm statistics of its positions, one behind the other.
    pub state: Vec<f32>,
    /// Time spent on others.
    pub times: Times,
    /// Accuracy of its own replica on the whole test split, where replicas differ.
    pub accuracy: Option<f64>,
    /// Where the compute time went: data, forward, backward.
    pub phases: [f64; 3],
    /// Bytes sent and received.
    pub traffic: (u64, u64),
    /// What a source beside has taken.
    pub beside: SourceCosts,
    /// The worker that ran out of work, if that ended the run.
    pub left: Option<Rank>,
    /// The buffers that it had at the end, where the model is cut into stages; bodies under way are not counted.
    pub memory: Option<StageMemory>,
    /// What was done, if asked for.
    pub trace: Option<Trace>,
}

/// A worker's place in a run.
pub struct Job<'a> {
    /// The plan.
    pub plan: &'a TypedPlan<'a>,
    /// Samples of the training split.
    pub samples: usize,
    /// Threads and instruction set of its updates.
    pub compute: Arc<Compute>,
    /// The strategy.
    pub strategy: &'static Strategy,
    /// What it is told.
    pub setup: &'a Setup,
    /// This worker.
    pub rank: Rank,
    /// Who records its links and messages.
    pub observer: Option<Arc<Observer>>,
    /// Whether to keep a trace.
    pub traced: bool,
}
