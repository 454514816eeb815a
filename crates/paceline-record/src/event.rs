//! The events of a run. As JSON, each is one line whose `type` says which it is.

use std::borrow::Cow;
use std::collections::BTreeMap;

use paceline_plan::Plan;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

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
pub struct EventLine<'a, T: Serialize> {
    /// The event, or the result.
    #[serde(flatten)]
    pub what: &'a T,
    /// Where it comes from.
    pub origin: RunOrigin,
}

/// One fact of a run. Times are in seconds, `train_s` by the training clock.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
#[allow(clippy::large_enum_variant, reason = "an event is passed on at once, and kept by nobody")]
#[allow(missing_docs, reason = "what an event reports says what its fields are")]
pub enum Event<'a> {
    /// The run begins: version of the schema ([`SCHEMA`]), the run's id, its plan and the plan's SHA-256, length of the
    /// parameter buffer, steps of the whole run (null: until a script ends), instruction set of the kernels.
    Start {
        schema: u32,
        run: &'a str,
        plan: &'a Plan,
        plan_sha256: String,
        parameters: usize,
        #[serde(serialize_with = "known_end")]
        steps: u64,
        kernels: String,
    },
    /// A rank is there, and listens at an address. Not part of the stream of `--json`.
    #[serde(skip)]
    Bound { rank: usize, address: &'a str },
    /// How far the run has come: steps and samples done, and the mean loss of the last step. A few times per second.
    Progress { step: u64, samples: u64, train_s: f64, train_loss: f64 },
    /// The model was evaluated on the test split, or on as many samples of it as the plan says, after these steps and
    /// samples: mean loss, and the fraction of samples classified rightly.
    Evaluation { step: u64, samples: u64, train_s: f64, loss: f64, accuracy: f64 },
    /// Where a worker's training time went: gathering and normalising batches; forward pass and loss; backward pass;
    /// sending, receiving and summing; waiting for others, in all and by the rank that was waited for; optimiser.
    Phases {
        rank: usize,
        data_s: f64,
        forward_s: f64,
        backward_s: f64,
        send_s: f64,
        wait_s: f64,
        wait_for_s: Vec<f64>,
        apply_s: f64,
    },
    /// The scripts of the workers have attached: what they compute with, and the names and lengths of their tensors, in
    /// the order of the parameters.
    Attached { framework: &'a str, tensors: Vec<(&'a str, usize)> },
    /// The GPUs of the launcher's machine that scripts may compute on, and which workers take which (`ranks`; nobody where
    /// `--gpus` is not given and scripts choose themselves); whether NVIDIA's multi-process service is used where one has several
    /// workers (`started` for this run, `running` before, `absent`, or `not-needed`); what there is to note.
    Devices { gpus: &'a [AssignedGpu], mps: &'static str, notes: &'a [String] },
    /// The script of a rank has written a line.
    Script { rank: usize, line: &'a str },
    /// The script of a rank is waited for: where it is.
    ScriptWait { rank: usize, text: &'a str },
    /// Rank 0's script has reported figures; those that are no numbers are null.
    Reported { step: u64, samples: u64, train_s: f64, values: BTreeMap<&'a str, Option<f64>> },
    /// What a worker's script spent on copying gradients, in seconds in all, and how long after the start of backward each
    /// tensor was final in the last step that it told of, in the order of the parameters; null where it was not used.
    Staging { rank: usize, staging_s: f64, ready_s: Vec<Option<f64>> },
    /// The run waits at an address for other machines: how many hosts it needs, the launcher's included, and how many
    /// are there.
    Waiting { hosts: usize, joined: usize, address: &'a str },
    /// What became of another machine, by number and by name and address: `joined`, `left` before the run began,
    /// `quiet` (nothing heard for a while), `back`, or `ending` (whoever started it has asked it to end). In an elastic run
    /// also `leaving` (it was asked to), `left`, `lost`, or `failed` (one of its ranks could not begin).
    Host { host: usize, name: &'a str, state: &'static str },
    /// Whether a rank gives signs of life: `suspect` (nothing heard for 2 s) or `back`.
    Liveness { rank: usize, state: &'static str },
    /// Everybody has paused, and the run is about to be saved: what was reported so far is stored first. Not part of the
    /// stream of `--json`.
    #[serde(skip)]
    Paused,
    /// The run has paused and was saved after these steps.
    Checkpoint { step: u64 },
    /// A rank was lost, for this cause; the run starts again from the steps that were saved. How often it may still do so.
    Restarted { step: u64, cause: &'a str, left: u32 },
    /// The members of the run have changed, and it goes on.
    Membership { change: &'a MembershipChange },
    /// A stranger was turned away by a rank, or where machines join; the run goes on. The cause says who it was, and why.
    Refused { rank: Option<usize>, cause: &'a str },
    /// Rows that a rank ships: steps, samples, traces. Kept in the store; not part of the stream of `--json`.
    #[serde(skip)]
    Batch { rank: usize, batch: &'a Batch },
    /// The run has failed, or was interrupted: kind of failure, exit code, what happened, and what to do.
    Failed { kind: FailureKind, code: u8, message: &'a str, hint: &'a str },
    /// The run has ended well.
    Result(RunResult),
}

/// A GPU, and the workers that it is given to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignedGpu {
    /// Its number or UUID, as it was named.
    pub gpu: String,
    /// Its number, where anybody told.
    pub index: Option<usize>,
    /// Its model.
    pub name: Option<String>,
    /// Its UUID.
    pub uuid: Option<String>,
    /// Its memory.
    pub memory_bytes: Option<u64>,
    /// The workers.
    pub ranks: Vec<usize>,
}

impl AssignedGpu {
    /// In words: `GPU 0 (NVIDIA H200, 150.8 GB): workers 0, 2`.
    pub fn words(&self) -> String {
        let memory = self.memory_bytes.map(|bytes| format!("{:.1} GB", bytes as f64 / 1e9));
        let about: Vec<String> = self.name.iter().cloned().chain(memory).collect();
        let about = if about.is_empty() { String::new() } else { format!(" ({})", about.join(", ")) };
        let ranks: Vec<String> = self.ranks.iter().map(ToString::to_string).collect();
        let workers = match ranks.len() {
            0 => String::new(),
            1 => format!(": worker {}", ranks[0]),
            _ => format!(": workers {}", ranks.join(", ")),
        };
        format!("GPU {}{about}{workers}", self.gpu)
    }
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
    pub replicas: Option<ReplicaAccuracy>,
    /// Training clock at the evaluation that reached the target.
    pub time_to_accuracy_s: Option<f64>,
    /// The steps after which reaching the target ended the run, if that was before the plan's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_at_target: Option<u64>,
    /// Training clock at the first evaluation within 1% of the final smoothed accuracy.
    pub convergence_s: Option<f64>,
    /// SHA-256 of the evaluated model's parameters.
    pub params_sha256: String,
    /// How old the parameters were that updates came from.
    pub staleness: Staleness,
    /// Further figures that rank 0's script has reported, the last of each name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reported: BTreeMap<String, f64>,
    /// Whether a script's own framework averaged: then bytes, sending and waiting were not observed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exchange_unobserved: bool,
    /// Rows of the record that there was no room for, steps, samples and traces together.
    #[serde(default)]
    pub dropped_rows: u64,
    /// Each process.
    pub ranks: Vec<RankTotals>,
    /// Changes of the run's members, in time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub membership: Vec<MembershipChange>,
    /// What only simulated runs tell.
    #[serde(flatten)]
    pub simulated: Option<Box<SimulationDetails>>,
}

/// Steps of a run; of one that ends when a script does, nobody knows them.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn known_end<S: Serializer>(steps: &u64, to: S) -> Result<S::Ok, S::Error> {
    Some(steps).filter(|steps| **steps != u64::MAX).serialize(to)
}

/// A number; what is none is written as null.
pub fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// What only simulated runs tell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SimulationDetails {
    /// SHA-256 of every worker's finish times of its steps.
    pub trace_sha256: String,
    /// What the hosts cost over the training clock, where their prices are known, in the prices' unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// The prices' unit, where the cluster's file says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// The hosts of the cluster that are used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostsUsed>,
    /// How virtual time was made.
    pub simulation: Simulation,
}

/// A change of a run's members. They are numbered by the ranks that the run begins with; spares come behind them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MembershipChange {
    /// When, in seconds of the training clock.
    pub at_s: f64,
    /// Members that were lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<usize>,
    /// Members that left in time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<usize>,
    /// Members that joined.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joined: Vec<usize>,
    /// Members that took over shares or server shards of others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub took_over: Vec<usize>,
    /// Workers from then on.
    pub workers: usize,
    /// Servers from then on.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub servers: usize,
    /// Steps that were done by then.
    pub step: u64,
    /// Steps that were begun and were made anew.
    pub steps_anew: u64,
    /// Samples of workers that are gone which nobody trains on, where workers have weights of their own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub samples_dropped: usize,
    /// Seconds until the next step began.
    pub pause_s: f64,
}

impl MembershipChange {
    /// In one line: the same wherever changes are told.
    pub fn words(&self) -> String {
        let ranks = |what: &str, ranks: &[usize]| {
            let numbers: Vec<String> = ranks.iter().map(ToString::to_string).collect();
            let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
            (!ranks.is_empty()).then(|| format!("{what} {noun} {}", numbers.join(", ")))
        };
        let Self { at_s, lost, left, joined, took_over, workers, servers, step, steps_anew, .. } = self;
        let Self { samples_dropped, pause_s, .. } = self;
        let what = [ranks("lost", lost), ranks("left by", left), ranks("joined by", joined)];
        let what: Vec<String> = what.into_iter().flatten().collect();
        let what = if what.is_empty() { "a connection was lost".into() } else { what.join(", ") };
        let plural = |n: usize, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
        let servers =
            if *servers > 0 { format!(" and {}", plural(*servers, "server")) } else { String::new() };
        let anew = plural(*steps_anew as usize, "step");
        let workers = plural(*workers, "worker");
        let dropped = match samples_dropped {
            0 => String::new(),
            _ => format!(", {} dropped", plural(*samples_dropped, "sample")),
        };
        let took_over =
            ranks("the work went to", took_over).map_or_else(String::new, |words| format!("; {words}"));
        format!(
            "at {at_s:.3} s: {what}{took_over}; {workers}{servers} went on after {pause_s:.3} s, from step {step}, {anew} made anew{dropped}"
        )
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Alike hosts of a cluster that a run uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostsUsed {
    /// What they are called.
    pub name: String,
    /// How many there are.
    pub count: usize,
}

/// How virtual time was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Simulation {
    /// `schedule`: as a recurrence over the path's schedule; `events`: event by event.
    pub by: Cow<'static, str>,
    /// Messages that arrived.
    pub messages: u64,
    /// Real seconds that it took, learning included.
    #[serde(alias = "seconds")]
    pub real_s: f64,
    /// Real seconds from the process's start to the result.
    #[serde(default)]
    pub real_total_s: f64,
    /// Peak memory of the simulating process.
    pub rss_peak_bytes: u64,
}

/// Accuracy of single replicas.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReplicaAccuracy {
    /// The least.
    pub min_accuracy: f64,
    /// The greatest.
    pub max_accuracy: f64,
}

/// Times of a run, in seconds; of a simulated one in virtual ones.
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
    /// Of a rank with a stage: what its buffers took, counted at the end. (`train --dry-run` says it beforehand.)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_bytes: Option<u64>,
}
