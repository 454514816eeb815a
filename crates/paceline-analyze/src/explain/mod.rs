//! Why is this run slow? Where each rank's time went, the chain of work and messages that set the pace, what it was
//! bound by, and what would help: from recorded events alone, whatever the plan says was injected.
//!
//! Messages are recorded with `--trace`. Without them a slow rank or a busy server still shows, but bandwidth cannot be
//! told from latency, and that is said.

mod advice;
mod compare;
mod device;
mod exchange;
mod links;
mod members;
mod path;
mod sentence;
mod stages;
mod store;
mod straggler;
mod verdict;
mod whatif;
mod words;
mod work;

use paceline_plan::{PathRule, Plan};
use paceline_record::{MembershipChange, ScriptRecord};
use paceline_statistics::{mean, median};
use serde::Serialize;

pub use advice::{Change, GainSource, WhatIf};
pub use compare::RunComparison;
pub use links::LinkCosts;
pub use path::Shares;
pub use sentence::{ExactFigures, Sentence};
pub use stages::{RecordedStage, bubble_of};
pub use straggler::SlowGroup;
use verdict::Case;
pub use verdict::{Cause, Verdict};
pub use whatif::SingleWorker;

/// A run as it was recorded; times in seconds from the start of the run.
#[derive(Clone, Debug, Default)]
pub struct RecordedRun {
    /// Its id.
    pub run: String,
    /// Whether it was measured, or simulated in virtual time.
    pub simulated: bool,
    /// Its speed over the whole training clock; none without a result.
    pub samples_per_s: Option<f64>,
    /// Length of its parameter buffer; 0 where nobody has told.
    pub params: usize,
    /// Its ranks, by number.
    pub ranks: Vec<RecordedRank>,
    /// Steps of workers and updates of servers, in their order for each rank.
    pub steps: Vec<RecordedStep>,
    /// How long one rank waited for another over the whole run.
    pub waits: Vec<RecordedWait>,
    /// Messages that were traced on both sides.
    pub messages: Vec<Message>,
    /// Waits that were traced.
    pub pauses: Vec<RecordedPause>,
    /// What went over the links of each rank, over the whole run.
    pub links: Vec<RecordedLink>,
    /// Its settings: nothing is blamed because of them, but what is so already is not advised.
    pub plan: Option<Plan>,
    /// What is known of its scripts, where it has any.
    pub script: Option<ScriptRecord>,
    /// The layers before which stages would be more even, where somebody has found out.
    pub better_cuts: Vec<String>,
    /// Changes of its members, in their order.
    pub membership: Vec<MembershipChange>,
}

/// What a rank has to do with another over the whole run.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct RecordedLink {
    pub rank: usize,
    pub peer: usize,
    pub sent_messages: f64,
    pub sent_bytes: f64,
    pub received_bytes: f64,
    /// An empty message there and back, before the first step.
    pub greeting_s: Option<f64>,
}

/// One rank.
#[derive(Clone, Debug, Default)]
pub struct RecordedRank {
    /// Whether it is a worker; a server otherwise.
    pub worker: bool,
    /// Its machine.
    pub host: String,
    /// Cores of that machine that it may use, where that is known.
    pub cores: Option<usize>,
    /// Whether it hardly took part: a spare that was not needed, or a member that came late or was lost at once.
    pub idle: bool,
}

/// A step of a worker, or updates of a server.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct RecordedStep {
    pub rank: usize,
    /// Its number, from 1.
    pub step: u64,
    pub begin_s: f64,
    /// Gathering the batch, forward and backward pass.
    pub compute_s: f64,
    /// The part of it until the batch was there.
    pub data_s: f64,
    /// The part of it in which gradients were computed.
    pub backward_s: f64,
    /// The part of it in which there was no core to go on with, where that is known.
    pub core_wait_s: Option<f64>,
    /// Sending, receiving and summing.
    pub send_s: f64,
    pub wait_s: f64,
    /// The part of it that was waited for earlier stages, and the one for later stages.
    pub wait_up_s: f64,
    pub wait_down_s: f64,
    pub apply_s: f64,
    /// Encoding and decoding, a part of sending and waiting.
    pub codec_s: f64,
    /// Samples of this rank's share.
    pub samples: u64,
    /// Micro-batches that were under way in its stage at once, at most.
    pub live_slots: u64,
}

impl RecordedStep {
    /// From its beginning to its end.
    pub fn duration_s(&self) -> f64 {
        self.compute_s + self.send_s + self.wait_s + self.apply_s
    }
}

/// How long one rank waited for another.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct RecordedWait {
    pub rank: usize,
    pub on: usize,
    /// How long, over the whole run.
    pub seconds: f64,
}

/// A message.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct Message {
    pub from: usize,
    pub to: usize,
    /// When it was handed to the transport.
    pub sent_s: f64,
    /// When it was taken from the transport.
    pub received_s: f64,
    pub bytes: f64,
    pub step: u64,
    /// The piece of the gradients that it belongs to, from 0.
    pub bucket: u64,
}

impl Message {
    /// From handing over to taking in.
    pub fn under_way_s(&self) -> f64 {
        self.received_s - self.sent_s
    }
}

/// A time in which a rank could do nothing but wait.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct RecordedPause {
    pub rank: usize,
    pub from_s: f64,
    pub to_s: f64,
}

/// Where a rank's time went: medians over its steps (means for a server, whose steps differ).
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct RankTimes {
    pub rank: usize,
    /// `worker` or `server`.
    pub role: &'static str,
    pub host: String,
    pub steps: usize,
    /// Data, forward and backward, per step.
    pub compute_s: f64,
    /// The part of it until the batch was there.
    pub data_s: f64,
    /// The part of it in which there was no core to go on with.
    pub core_wait_s: Option<f64>,
    /// Sending, receiving and summing, per step.
    pub send_s: f64,
    pub wait_s: f64,
    pub apply_s: f64,
    /// Encoding and decoding, a part of sending and waiting.
    pub codec_s: f64,
    pub step_s: f64,
    /// Samples of its share.
    pub samples: f64,
    /// The part of a pass in which parameters are moved through memory, by what an update takes.
    pub moving_s: f64,
    /// Part of its time in which it did not wait.
    pub busy: f64,
    /// Whom it waited for most, and which part of its waits that was.
    pub waits_for: Option<(usize, f64)>,
}

/// What a pass takes at most for moving parameters, relative to an update: it reads them twice, clears, writes and
/// reads their gradients.
const MOVING: f64 = 1.5;

/// Probabilities at which the variation of compute times is told.
const JITTER: usize = 21;

impl RankTimes {
    /// Seconds that a pass would take on a core of its own.
    pub fn on_core_s(&self) -> f64 {
        self.compute_s - self.core_wait_s.unwrap_or(0.0).min(self.compute_s)
    }
}

/// Why a run took as long as it did.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct Explanation {
    pub run: String,
    /// `measured` or `simulated`.
    pub origin: &'static str,
    pub ranks: Vec<RankTimes>,
    /// Time of a step of all workers: the median.
    pub step_s: f64,
    /// As the run's result has it; of a run without one, that of its steady steps.
    pub samples_per_s: f64,
    /// Of steady steps.
    #[serde(skip)]
    steady_rate: f64,
    /// What the chain that sets the pace consists of, in parts of it; none without a trace.
    pub path: Option<Shares>,
    /// What messages tell about the wires; none without a trace.
    pub wires: Option<LinkCosts>,
    /// Who waited for whom, the longest first.
    pub waits: Vec<RecordedWait>,
    /// What it was bound by, and what would help.
    pub verdict: Verdict,
    /// What one worker alone does, where that was simulated or measured.
    pub alone: Option<SingleWorker>,
    pub cannot_tell: Vec<Sentence>,
    /// What each change of members cost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub membership: Vec<Sentence>,
    /// The paths that buckets took, where `--strategy auto` chose them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathRule>,
    /// The run's settings, for changes of them.
    #[serde(skip)]
    pub plan: Option<Plan>,
    /// How compute times vary: relative to their median, at equally spaced probabilities.
    #[serde(skip)]
    pub jitter: Vec<f64>,
    /// Cores that each worker's machine has for the run.
    #[serde(skip)]
    pub cores: Option<usize>,
    /// When parts of the gradient were final, where a script told.
    #[serde(skip)]
    pub ready: Vec<GradientReady>,
    /// The tensors of a script whose gradients were final last: names, numbers of elements, and seconds after backward
    /// began.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub late_gradients: Vec<(String, usize, f64)>,
}

/// From when on a part of the gradient was final.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientReady {
    /// As a part of the pass: data, forward and backward.
    pub at: f64,
    /// The first element of the end of the gradient that is final then.
    pub from: usize,
}

/// A run that cannot be explained.
#[derive(Debug, thiserror::Error)]
#[error("run {run} cannot be explained: {problem}")]
pub struct ExplainError {
    /// The run.
    pub run: String,
    /// Why not, and what to do.
    pub problem: String,
}

fn late_gradients(script: &ScriptRecord) -> Vec<(String, usize, f64)> {
    script.late().into_iter().map(|(name, len, ready_s)| (name.to_owned(), len, ready_s)).collect()
}

fn workers(ranks: &[RankTimes]) -> Vec<&RankTimes> {
    ranks.iter().filter(|r| r.role == "worker").collect()
}

impl RecordedRun {
    /// Steps of a rank without the first few, in which caches and connections warm up.
    fn steady(&self, rank: usize) -> Vec<RecordedStep> {
        let own: Vec<RecordedStep> = self.steps.iter().filter(|s| s.rank == rank).copied().collect();
        let skip = (own.len() / 10).clamp(usize::from(own.len() > 2), 20);
        own[skip.min(own.len())..].to_vec()
    }

    fn workers(&self) -> Vec<usize> {
        (0..self.ranks.len()).filter(|r| self.ranks[*r].worker && !self.ranks[*r].idle).collect()
    }

    fn servers(&self) -> Vec<usize> {
        (0..self.ranks.len()).filter(|r| !self.ranks[*r].worker).collect()
    }

    /// How compute times vary, over all workers.
    fn jitter(&self) -> Vec<f64> {
        let of = |rank: usize| {
            let all: Vec<f64> = self.steady(rank).iter().map(|s| s.compute_s).collect();
            let middle = if all.is_empty() { 0.0 } else { median(&all) };
            all.into_iter().filter(move |_| middle > 0.0).map(move |s| s / middle)
        };
        let all: Vec<f64> = self.workers().into_iter().flat_map(of).collect();
        let at = |i: usize| links::quantile(all.clone(), i as f64 / (JITTER - 1) as f64);
        (0..JITTER).filter_map(at).collect()
    }

    /// When ends of the gradient were final, where a script told: they are sent from the end to the start, so that the
    /// latest tensor behind an element decides.
    fn ready(&self) -> Vec<GradientReady> {
        let Some(script) = &self.script else { return Vec::new() };
        let steps: Vec<RecordedStep> =
            self.workers().into_iter().flat_map(|rank| self.steady(rank)).collect();
        let typical = |of: fn(&RecordedStep) -> f64| median(&steps.iter().map(of).collect::<Vec<_>>());
        if steps.is_empty() || script.tensors.is_empty() || typical(|s| s.compute_s) <= 0.0 {
            return Vec::new();
        }
        let (whole, backward) = (typical(|s| s.compute_s), typical(|s| s.backward_s));
        let latest = script.ready_s().into_iter().flatten().fold(0.0, f64::max);
        if latest <= 0.0 || backward <= 0.0 {
            return Vec::new();
        }
        let (mut from, mut behind) = (self.params, 0.0_f64);
        let mut all = Vec::new();
        for ((_, len), ready) in script.tensors.iter().zip(script.ready_s()).rev() {
            from = from.saturating_sub(*len);
            behind = behind.max(ready.unwrap_or(latest));
            // A step differs from the typical one: parts of its backward pass are parts of that.
            let at = (whole - backward + backward * behind / latest) / whole;
            all.push(GradientReady { at: at.min(1.0), from });
        }
        // What lies before the first tensor says which ones were used, and is final with them.
        if let Some(last) = all.last_mut() {
            *last = GradientReady { at: 1.0, from: 0 };
        }
        all
    }

    /// Cores of the workers' machines, where they all have as many.
    fn cores(&self) -> Option<usize> {
        let mut all = self.ranks.iter().filter(|r| r.worker).map(|r| r.cores);
        let first = all.next()??;
        all.all(|cores| cores == Some(first)).then_some(first)
    }

    fn at_work(&self, rank: usize) -> f64 {
        let steps = self.steady(rank);
        let (whole, waited) = steps.iter().fold((0.0, 0.0), |(w, p), s| (w + s.duration_s(), p + s.wait_s));
        if whole > 0.0 { 1.0 - waited / whole } else { 1.0 }
    }

    fn spent(&self, rank: usize) -> Option<RankTimes> {
        let steps = self.steady(rank);
        if steps.is_empty() {
            return None;
        }
        let worker = self.ranks[rank].worker;
        let typical = |of: fn(&RecordedStep) -> f64| {
            let values: Vec<f64> = steps.iter().map(of).collect();
            if worker { median(&values) } else { mean(&values) }
        };
        let own: Vec<&RecordedWait> = self.waits.iter().filter(|w| w.rank == rank).collect();
        let all: f64 = own.iter().map(|w| w.seconds).sum();
        let most = own.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let [compute_s, data_s, apply_s] =
            [typical(|s| s.compute_s), typical(|s| s.data_s), typical(|s| s.apply_s)];
        // In virtual time passes only compute.
        let moving = if self.simulated { 0.0 } else { MOVING };
        Some(RankTimes {
            rank,
            role: if worker { "worker" } else { "server" },
            host: self.ranks[rank].host.clone(),
            steps: self.steps.iter().filter(|s| s.rank == rank).count(),
            compute_s,
            data_s,
            moving_s: (moving * apply_s).min(compute_s - data_s),
            core_wait_s: steps
                .iter()
                .all(|s| s.core_wait_s.is_some())
                .then(|| typical(|s| s.core_wait_s.unwrap_or(0.0))),
            send_s: typical(|s| s.send_s),
            wait_s: typical(|s| s.wait_s),
            apply_s,
            codec_s: typical(|s| s.codec_s),
            samples: typical(|s| s.samples as f64),
            step_s: typical(RecordedStep::duration_s),
            busy: self.at_work(rank),
            waits_for: most.filter(|_| all > 0.0).map(|w| (w.on, w.seconds / all)),
        })
    }
}

impl Explanation {
    /// Seconds for as many samples as all workers have in a step: a step's mean, where they go on together.
    pub fn mean_step_s(&self) -> f64 {
        let samples: f64 = workers(&self.ranks).iter().map(|r| r.samples).sum();
        if samples > 0.0 && self.steady_rate > 0.0 { samples / self.steady_rate } else { self.step_s }
    }

    /// Of a recorded run.
    pub fn new(recorded: &RecordedRun) -> Result<Self, ExplainError> {
        let fail = |problem: &str| ExplainError { run: recorded.run.clone(), problem: problem.into() };
        let workers = recorded.workers();
        let ranks = (0..recorded.ranks.len()).filter(|rank| !recorded.ranks[*rank].idle);
        let ranks: Vec<RankTimes> = ranks.filter_map(|rank| recorded.spent(rank)).collect();
        let of_workers = self::workers(&ranks);
        if of_workers.len() < workers.len() || of_workers.is_empty() {
            return Err(fail(if recorded.simulated {
                "its steps and messages were not recorded; simulate it again with --trace"
            } else {
                "some worker has no recorded step; was it made with --no-record, or did it fail at once?"
            }));
        }
        if of_workers.iter().any(|r| r.steps < 3) {
            return Err(fail("it has fewer than three steps: run more (--steps, --epochs)"));
        }
        let step_s = median(&of_workers.iter().map(|r| r.step_s).collect::<Vec<_>>());
        let rate = |rank: usize| {
            let steps = recorded.steady(rank);
            let (samples, seconds) = steps
                .iter()
                .fold((0.0, 0.0), |(n, s), step| (n + step.samples as f64, s + step.duration_s()));
            if seconds > 0.0 { samples / seconds } else { 0.0 }
        };
        let mut wires = LinkCosts::new(recorded);
        let traced = wires.as_ref().filter(|wires| wires.messages >= 20);
        let path = traced.and_then(|wires| Shares::new(recorded, wires));
        let mut waits: Vec<RecordedWait> =
            recorded.waits.iter().filter(|w| w.seconds > 0.0).copied().collect();
        waits.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        let mut cannot_tell = Vec::new();
        if path.is_none() && workers.len() > 1 && !recorded.messages.is_empty() {
            cannot_tell.push(Sentence::new(
                "Too few single messages were recorded ({}) to follow the chain that sets the pace: what links and \
                 messages are blamed for is estimated from counts and waits. Run more steps",
                [sentence::count("messages", recorded.messages.len())],
            ));
        } else if path.is_none() && workers.len() > 1 {
            cannot_tell.push(Sentence::new(
                "Single messages were not recorded: what links and messages are blamed for is estimated from counts \
                 and waits. Run it again with `--trace`",
                [],
            ));
        }
        let steady_rate = workers.iter().map(|r| rate(*r)).sum();
        let delegated = recorded.plan.as_ref().is_some_and(Plan::delegated);
        if delegated {
            cannot_tell = vec![Sentence::new(
                "Links and waits were not observed: the script's own framework averages, within its backward pass. How \
                 much of that is waiting cannot be told; a run with another `--strategy` shows it",
                [],
            )];
        }
        let case = Case { recorded, ranks: &ranks, step_s, path: path.as_ref(), wires: wires.as_ref() };
        let verdict = if delegated { Verdict::not_observed(&case) } else { Verdict::new(&case) };
        if let Some(wires) = wires.as_mut().filter(|_| path.is_none() && verdict.cause == Cause::Bandwidth) {
            wires.bytes_per_s = Some(wires.bytes_per_step / (verdict.share * step_s));
        }
        Ok(Self {
            run: recorded.run.clone(),
            origin: if recorded.simulated { "simulated" } else { "measured" },
            step_s,
            samples_per_s: recorded.samples_per_s.unwrap_or(steady_rate),
            steady_rate,
            ranks,
            path,
            wires,
            waits,
            verdict,
            alone: None,
            cannot_tell,
            membership: members::sentences(recorded),
            paths: recorded.plan.iter().flat_map(|plan| plan.paths.clone()).collect(),
            plan: recorded.plan.clone(),
            jitter: recorded.jitter(),
            cores: recorded.cores(),
            ready: recorded.ready(),
            late_gradients: recorded.script.iter().flat_map(late_gradients).collect(),
        })
    }
}
