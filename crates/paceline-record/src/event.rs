//! The events of a run. As JSON, each is one line whose `type` says which it is.

use std::borrow::Cow;

use paceline_plan::Plan;
use serde::{Deserialize, Deserializer, Serialize};

use crate::failure::FailureKind;
use crate::row::Batch;

/// Version of the schema: of events, rows and tables.
pub const SCHEMA: u32 = 1;

/// Where an event comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunOrigin {
    /// A real run.
    #[default]
    Measured,
    /// Virtual time.
    Simulated,
}

/// An event or a result as it is written: with where it comes from.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Marked<'a, T: Serialize> {
    /// The event, or the result.
    #[serde(flatten)]
    pub what: &'a T,
    /// Where it comes from.
    pub origin: RunOrigin,
}

/// One fact of a run.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Event<'a> {
    /// The run begins.
    Start {
        /// Version of the schema ([`SCHEMA`]).
        schema: u32,
        /// The run's id.
        run: &'a str,
        /// What will be run.
        plan: &'a Plan,
        /// SHA-256 of the plan.
        plan_sha256: String,
        /// Length of the parameter buffer.
        parameters: usize,
        /// Steps of the whole run.
        steps: u64,
        /// Instruction set of the kernels.
        kernels: String,
    },
    /// How far the run has come; a few times per second.
    Progress {
        /// Steps done.
        step: u64,
        /// Samples done.
        samples: u64,
        /// Training clock, in seconds.
        train_s: f64,
        /// Mean loss of the last step.
        train_loss: f64,
    },
    /// The model was evaluated on the whole test split.
    Evaluation {
        /// Steps done.
        step: u64,
        /// Samples done.
        samples: u64,
        /// Training clock, in seconds.
        train_s: f64,
        /// Mean loss.
        loss: f64,
        /// Fraction of samples classified rightly.
        accuracy: f64,
    },
    /// Where a worker's training time went, in seconds.
    Phases {
        /// The worker.
        rank: usize,
        /// Gathering and normalising batches.
        data_s: f64,
        /// Forward pass and loss.
        forward_s: f64,
        /// Backward pass.
        backward_s: f64,
        /// Sending, receiving and summing.
        send_s: f64,
        /// Waiting for others.
        wait_s: f64,
        /// Waiting, by the rank that was waited for.
        wait_for_s: Vec<f64>,
        /// Optimiser.
        apply_s: f64,
    },
    /// The run waits for other machines.
    Waiting {
        /// How many hosts it needs, the launcher's included.
        hosts: usize,
        /// How many are there.
        joined: usize,
        /// Where they come.
        address: &'a str,
    },
    /// What became of another machine.
    Host {
        /// Which host.
        host: usize,
        /// Its name and address.
        name: &'a str,
        /// `joined`, `left` before the run began, `quiet` (nothing heard for a while) or `back`.
        state: &'static str,
    },
    /// Whether a rank gives signs of life.
    Liveness {
        /// Which rank.
        rank: usize,
        /// `suspect` (nothing heard for 2 s) or `back`.
        state: &'static str,
    },
    /// Everybody has paused, and the run is about to be saved: what was told so far is stored first. Not part of the
    /// stream of `--json`.
    #[serde(skip)]
    Paused,
    /// The run has paused and was saved.
    Checkpoint {
        /// Steps done.
        step: u64,
    },
    /// A rank was lost; the run starts again from its last checkpoint.
    Restarted {
        /// The steps that were saved.
        step: u64,
        /// What happened.
        cause: &'a str,
        /// How often it may still do so.
        left: u32,
    },
    /// A stranger was turned away; the run goes on.
    Refused {
        /// By whom; absent if it came to where machines join.
        rank: Option<usize>,
        /// Who it was, and why.
        cause: &'a str,
    },
    /// Rows that a rank ships: steps, samples, traces. Kept in the store; not part of the stream of `--json`.
    #[serde(skip)]
    Batch {
        /// Whose.
        rank: usize,
        /// The rows.
        batch: &'a Batch,
    },
    /// The run has failed, or was interrupted.
    Failed {
        /// Which kind of failure.
        kind: FailureKind,
        /// The exit code.
        code: u8,
        /// What happened.
        message: &'a str,
        /// What to do.
        hint: &'a str,
    },
    /// The run has ended well.
    Result(RunResult),
}

impl RunOrigin {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Simulated => "simulated",
        }
    }
}

impl Event<'_> {
    /// Its `type`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::Progress { .. } => "progress",
            Self::Evaluation { .. } => "evaluation",
            Self::Phases { .. } => "phases",
            Self::Waiting { .. } => "waiting",
            Self::Host { .. } => "host",
            Self::Liveness { .. } => "liveness",
            Self::Paused => "paused",
            Self::Checkpoint { .. } => "checkpoint",
            Self::Restarted { .. } => "restarted",
            Self::Refused { .. } => "refused",
            Self::Batch { .. } => "batch",
            Self::Failed { .. } => "failed",
            Self::Result(_) => "result",
        }
    }
}

/// The result of a run: the last line on standard output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunResult {
    /// The run's id.
    pub run: String,
    /// Averaging path; `single` for one worker.
    pub strategy: String,
    /// Steps done.
    pub steps: u64,
    /// Samples done.
    pub samples: u64,
    /// Times.
    pub seconds: Seconds,
    /// Samples per second of the training clock.
    pub samples_per_s: f64,
    /// Sample-weighted mean loss of the last step.
    #[serde(deserialize_with = "number")]
    pub train_loss: f64,
    /// Mean loss over the whole test split.
    #[serde(deserialize_with = "number")]
    pub final_loss: f64,
    /// Accuracy over the whole test split.
    #[serde(deserialize_with = "number")]
    pub final_accuracy: f64,
    /// Least and greatest accuracy of single replicas, where they differ.
    pub replicas: Option<Replicas>,
    /// Training clock at the evaluation that reached the target.
    pub time_to_accuracy_s: Option<f64>,
    /// Training clock at the first evaluation within 1% of the final smoothed accuracy.
    pub convergence_s: Option<f64>,
    /// SHA-256 of the evaluated model's parameters.
    pub params_sha256: String,
    /// How old the parameters were that updates came from.
    pub staleness: Staleness,
    /// Rows of the record that there was no room for, steps, samples and traces together.
    #[serde(default)]
    pub dropped_rows: u64,
    /// Each process.
    pub ranks: Vec<RankTotals>,
    /// What only simulated runs tell.
    #[serde(flatten)]
    pub simulated: Option<Box<Simulated>>,
}

/// A number; what is none is written as null.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// What only simulated runs tell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Simulated {
    /// SHA-256 of every worker's finish times of its steps.
    pub trace_sha256: String,
    /// What the hosts cost over the training clock, where their prices are known, in the prices' unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// How virtual time was made.
    pub simulation: Simulation,
}

/// How virtual time was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Simulation {
    /// `schedule`: as a recurrence over the path's schedule; `events`: event by event.
    pub by: Cow<'static, str>,
    /// Messages that arrived.
    pub messages: u64,
    /// Seconds that it took, learning included.
    pub seconds: f64,
    /// Peak memory of the simulating process.
    pub rss_peak_bytes: u64,
}

/// Accuracy of single replicas.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Replicas {
    /// The least.
    pub min_accuracy: f64,
    /// The greatest.
    pub max_accuracy: f64,
}

/// Times of a run, in seconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Seconds {
    /// Process start to result.
    pub total: f64,
    /// Process start to first step, loading included.
    pub startup: f64,
    /// The training clock.
    pub train: f64,
}

/// Versions between the parameters that an update was computed from and those it was applied to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Staleness {
    /// Mean.
    pub mean: f64,
    /// 95th percentile.
    pub p95: f64,
    /// Largest.
    pub max: f64,
}

/// One process of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RankTotals {
    /// Its number.
    pub rank: usize,
    /// `worker` or `server`.
    pub role: String,
    /// The machine it ran on.
    pub host: String,
    /// SHA-256 of its parameters.
    pub params_sha256: String,
    /// Data, forward and backward.
    pub compute_s: f64,
    /// Sending.
    pub send_s: f64,
    /// Waiting for others.
    pub wait_s: f64,
    /// Applying updates.
    pub apply_s: f64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// CPU time of the process.
    pub cpu_s: f64,
    /// Peak resident memory.
    pub rss_peak_bytes: u64,
}
