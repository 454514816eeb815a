//! What a run was bound by, and which changes would help, in order.

use paceline_statistics::median;
use serde::Serialize;

use super::advice::{Change, WhatIf};
use super::sentence::{Sentence, percent};
use super::straggler::SlowGroup;
use super::{LinkCosts, RankTimes, RecordedRun, Shares, workers};

/// What sets the pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Everybody computes most of the time.
    Compute,
    /// Some workers are slower than the others.
    Straggler,
    /// Some workers have more samples than the others.
    Imbalance,
    /// Ranks share cores, and slow each other down.
    SharedCores,
    /// Programs that are not part of the run use the cores.
    OtherPrograms,
    /// Samples are read and decoded more slowly than they are trained on.
    Data,
    /// Parameters are moved through memory for few samples.
    Memory,
    /// Messages are made shorter at a cost.
    Codec,
    /// Servers have more to do than they can.
    Server,
    /// Links carry too few bytes per second.
    Bandwidth,
    /// Messages are too long under way, whatever their size.
    Latency,
    /// Messages are too many and too small.
    SmallMessages,
    /// Exchanging itself: copying, summing, waking up; links are as fast as ranks are.
    Exchange,
    /// A script's own framework averages: what it waits for is not seen.
    NotObserved,
    /// A stage takes longer than the others.
    Stage,
    /// Stages fill and drain.
    Bubble,
    /// Gradients are copied between scripts and their ranks.
    Staging,
    /// GPUs compute most of the time.
    Gpu,
    /// GPUs wait for what the host does: loading, Python, starting kernels.
    Host,
}

impl Cause {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Compute => "computing",
            Self::Straggler => "a straggler",
            Self::Imbalance => "uneven work",
            Self::SharedCores => "shared cores",
            Self::OtherPrograms => "other programs on the same cores",
            Self::Data => "reading and decoding samples",
            Self::Memory => "memory",
            Self::Codec => "compression",
            Self::Server => "the servers",
            Self::Bandwidth => "the bandwidth of links",
            Self::Latency => "the latency of links",
            Self::SmallMessages => "many small messages",
            Self::Exchange => "exchanging",
            Self::NotObserved => "the script, which averages by itself",
            Self::Stage => "a stage that takes longer than the others",
            Self::Bubble => "stages that fill and drain",
            Self::Staging => "copying gradients (staging)",
            Self::Gpu => "the GPUs",
            Self::Host => "the host, which GPUs wait for",
        }
    }

    /// What its share counts for beside those of the others.
    fn weight(self) -> f64 {
        match self {
            // What a straggler costs is waiting for others and computing for itself: it goes first where there is one.
            Self::Straggler | Self::Imbalance | Self::Stage => 3.0,
            // Computing is what a run is for: it is named if nothing else takes as much.
            Self::Compute | Self::Gpu => 0.5,
            // Some of the host's time is the time that any step needs around its kernels.
            Self::Host => 0.8,
            // So is exchanging, if nothing holds it up.
            Self::Exchange => 0.7,
            // Who else uses the cores stretches everything alike.
            Self::OtherPrograms => 0.5,
            _ => 1.0,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    pub cause: Cause,
    /// Part of a step's time that it is responsible for.
    pub share: f64,
    /// The rank that it is about, where it is one.
    pub rank: Option<usize>,
    /// All ranks that it is about; empty: everybody.
    pub ranks: Vec<usize>,
    /// What the slower ones would take if they were like the others.
    #[serde(skip)]
    pub slow: Option<SlowGroup>,
    pub sentence: Sentence,
    /// What would help most comes first.
    pub changes: Vec<Change>,
}

/// Changes that save less than this part of a step are not worth a word.
pub(super) const WORTH: f64 = 0.02;

pub(super) struct Case<'a> {
    pub recorded: &'a RecordedRun,
    pub ranks: &'a [RankTimes],
    pub step_s: f64,
    pub path: Option<&'a Shares>,
    pub wires: Option<&'a LinkCosts>,
}

impl Verdict {
    pub(super) fn of(cause: Cause, share: f64, sentence: Sentence, changes: Vec<Change>) -> Self {
        Self { cause, share, rank: None, ranks: Vec::new(), slow: None, sentence, changes }
    }

    /// The same, about one rank.
    pub(super) fn about(self, rank: usize) -> Self {
        Self { rank: Some(rank), ranks: vec![rank], ..self }
    }

    /// Of a run whose exchange is part of its scripts.
    pub(super) fn not_observed(case: &Case<'_>) -> Self {
        let share = case.part(|r| r.compute_s);
        let sentence = Sentence::new(
            "Workers are in their scripts for {} of the time, and what of it is exchange was not observed: their own \
             framework averages while they compute",
            [percent("script_share", share)],
        );
        Self::of(Cause::NotObserved, share, sentence, Vec::new())
    }

    pub(super) fn new(case: &Case<'_>) -> Self {
        let mut found = case.on_gpus().map_or_else(|| vec![case.computing()], Vec::from);
        found.extend(case.staging());
        match case.stages() {
            // Stages differ, as they wait for each other: neither is a straggler.
            Some(verdicts) => found.extend(verdicts),
            None => found.extend(case.straggler()),
        }
        found.extend(case.own_work());
        found.extend(case.exchange());
        let weight = |v: &Self| v.share * v.cause.weight();
        found.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        // How stages are cut and filled is a question of its own, whatever else holds a run up.
        let of_stages = |v: &Self| matches!(v.cause, Cause::Stage | Cause::Bubble);
        let shown = |v: &Self| if of_stages(v) { v.changes.len() } else { 1 };
        let others: Vec<Change> =
            found[1..].iter().flat_map(|v| v.changes.iter().take(shown(v)).cloned()).collect();
        let mut verdict = found.swap_remove(0);
        verdict.changes.extend(others);
        verdict.changes.sort_by(|a, b| b.gain.total_cmp(&a.gain));
        verdict.changes.retain(|c| c.gain >= WORTH);
        let mut known: Vec<WhatIf> = Vec::new();
        verdict.changes.retain(|c| {
            let new = !known.contains(&c.if_);
            known.push(c.if_);
            new
        });
        verdict
    }
}

impl Case<'_> {
    pub fn workers(&self) -> Vec<&RankTimes> {
        workers(self.ranks)
    }

    /// The median over workers.
    pub fn typical(&self, of: impl Fn(&RankTimes) -> f64) -> f64 {
        median(&self.workers().into_iter().map(of).collect::<Vec<_>>())
    }

    /// The same as a part of a step.
    pub fn part(&self, of: impl Fn(&RankTimes) -> f64) -> f64 {
        (self.typical(of) / self.step_s).clamp(0.0, 1.0)
    }

    /// A change, unless it is so already or cannot be made.
    pub fn change(&self, if_: WhatIf, gain: f64) -> Option<Change> {
        let (plan, cores) = (self.recorded.plan.as_ref(), self.recorded.cores());
        if plan.is_some_and(|plan| !if_.is_new(plan, cores)) {
            return None;
        }
        Some(Change::new(if_, gain, if_.words(plan, cores)?))
    }

    /// Those of these that can be made, with their gains.
    pub fn changes<const N: usize>(&self, wanted: [(WhatIf, f64); N]) -> Vec<Change> {
        wanted.into_iter().filter_map(|(if_, gain)| self.change(if_, gain)).collect()
    }

    fn computing(&self) -> Verdict {
        let share = self.part(|r| r.compute_s);
        // What computing is without everything that is a cause of its own.
        let copied = self.staging_share().unwrap_or(0.0);
        let own = share - self.part(|r| r.data_s) - self.held_off_cores() - self.moving_in_pass() - copied;
        let own = own.max(0.0);
        let sentence = Sentence::new(
            "Workers compute {} of the time: the run is bound by computing",
            [percent("compute_share", share)],
        );
        // Where ranks are in each other's way already, more of them are no help.
        let more = (!self.share_cores()).then(|| self.change(WhatIf::MoreWorkers, share / 2.0)).flatten();
        Verdict::of(Cause::Compute, own, sentence, more.into_iter().collect())
    }
}
