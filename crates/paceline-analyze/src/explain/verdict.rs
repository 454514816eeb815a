//! What a run was bound by, and which changes would help, in order.

use paceline_statistics::median;
use serde::Serialize;

use super::links::{NEAR_S, quantile};
use super::{LinkCosts, RankTimes, RecordedRun, Shares, WhatIf, workers};

/// What sets the pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Everybody computes most of the time.
    Compute,
    /// One worker is slower than the others.
    Straggler,
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
}

impl Cause {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Compute => "computing",
            Self::Straggler => "a straggler",
            Self::Server => "the servers",
            Self::Bandwidth => "the bandwidth of links",
            Self::Latency => "the latency of links",
            Self::SmallMessages => "many small messages",
            Self::Exchange => "exchanging",
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Change {
    pub what: String,
    /// What that is, for whoever can simulate it.
    #[serde(rename = "if")]
    pub if_: WhatIf,
    /// Part of a step's time that it saves: predicted by simulation if `predicted`, else the most that the recorded chain
    /// allows, which can be lost to the next longest one.
    pub gain: f64,
    /// Where the gain comes from.
    pub predicted: bool,
    /// Seconds of a step afterwards (of as many samples as a step has now), where it was predicted.
    pub step_s: Option<f64>,
}

impl Change {
    pub(super) fn new(if_: WhatIf, gain: f64, what: impl Into<String>) -> Self {
        Self { what: what.into(), if_, gain, predicted: false, step_s: None }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    pub cause: Cause,
    /// Part of a step's time that it is responsible for.
    pub share: f64,
    pub rank: Option<usize>,
    pub sentence: String,
    /// What would help most comes first.
    pub changes: Vec<Change>,
}

/// Messages below this, many of them, are small.
const SMALL_BYTES: f64 = 24.0 * 1024.0;
/// Pieces that gradients are cut into that are many.
const MANY: f64 = 24.0;
/// Part of its time for which a server of a real run is at work at least if it sets the pace: reading what has come
/// halfway counts as waiting.
const AT_WORK: f64 = 0.2;
/// Spread of waits, relative to their middle, below which they are steady.
const STEADY: f64 = 0.3;
/// Part of the waiting that a message round the ring takes at least where latency is what is waited for.
const FAR: f64 = 0.3;

pub(super) fn percent(share: f64) -> String {
    format!("{}%", (100.0 * share).round())
}

fn small(wires: &LinkCosts) -> bool {
    wires.message_bytes < SMALL_BYTES && wires.pieces >= MANY
}

pub(super) struct Case<'a> {
    pub recorded: &'a RecordedRun,
    pub ranks: &'a [RankTimes],
    pub step_s: f64,
    pub path: Option<&'a Shares>,
    pub wires: Option<&'a LinkCosts>,
}

impl Verdict {
    fn of(cause: Cause, share: f64, sentence: String, changes: Vec<Change>) -> Self {
        Self { cause, share, rank: None, sentence, changes }
    }

    pub(super) fn new(
        recorded: &RecordedRun,
        ranks: &[RankTimes],
        step_s: f64,
        path: Option<&Shares>,
        wires: Option<&LinkCosts>,
    ) -> Self {
        let case = Case { recorded, ranks, step_s, path, wires };
        let mut found = vec![case.computing()];
        found.extend(case.straggler());
        found.extend(case.exchange());
        let weight = |v: &Self| match v.cause {
            // What a straggler costs is waiting for others and computing for itself: it goes first where there is one.
            Cause::Straggler => v.share * 3.0,
            // Computing is what a run is for: it is named if nothing else takes as much.
            Cause::Compute => v.share * 0.5,
            // So is exchanging, if nothing holds it up.
            Cause::Exchange => v.share * 0.7,
            _ => v.share,
        };
        found.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        let others: Vec<Change> = found[1..].iter().flat_map(|v| v.changes.iter().take(1).cloned()).collect();
        let mut verdict = found.swap_remove(0);
        verdict.changes.extend(others);
        verdict.changes.sort_by(|a, b| b.gain.total_cmp(&a.gain));
        verdict.changes.retain(|c| c.gain >= 0.02);
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
    fn typical(&self, of: impl Fn(&RankTimes) -> f64) -> f64 {
        median(&self.workers().into_iter().map(of).collect::<Vec<_>>())
    }

    fn computing(&self) -> Verdict {
        let share = (self.typical(|r| r.compute_s) / self.step_s).min(1.0);
        let sentence = format!(
            "Workers compute {} of the time: it is bound by computing, and exchanging takes little beside it",
            percent(share)
        );
        let changes = vec![Change::new(
            WhatIf::MoreWorkers,
            share / 2.0,
            "twice the workers, each with half of the batch, on cores of their own",
        )];
        Verdict::of(Cause::Compute, share, sentence, changes)
    }

    fn exchange(&self) -> Vec<Verdict> {
        if self.ranks.len() < 2 {
            return Vec::new();
        }
        match (self.path, self.wires) {
            (Some(path), Some(wires)) => self.judge(path, wires, path.hops_per_step),
            (_, Some(wires)) => {
                let (path, hops) = self.estimate(wires);
                self.judge(&path, wires, hops)
            }
            _ => {
                let share = self.exchanging();
                let sentence = format!("Workers spend {} of the time exchanging", percent(share));
                vec![Verdict::of(Cause::Exchange, share, sentence, Vec::new())]
            }
        }
    }

    /// Part of a step that whoever exchanges least spends on it.
    fn exchanging(&self) -> f64 {
        let least =
            self.workers().iter().map(|r| (r.wait_s + r.send_s) / self.step_s).fold(f64::INFINITY, f64::min);
        least.min(1.0)
    }

    /// The chain without a trace: waits are divided by what counts and empty messages tell. And its hops.
    fn estimate(&self, wires: &LinkCosts) -> (Shares, f64) {
        let workers = self.workers();
        let send = self.typical(|r| r.send_s) / self.step_s;
        let mut left = (self.exchanging() - send).max(0.0);
        // There and back at least; round the ring at most.
        let round =
            if self.recorded.servers().is_empty() { 2.0 * (workers.len().max(2) - 1) as f64 } else { 2.0 };
        let once = wires.latency_s / self.step_s;
        // Greetings alone can have been held up by whoever else uses the cores.
        let near = if self.recorded.simulated { NEAR_S } else { 10.0 * NEAR_S };
        let far = wires.latency_s >= near && round * once > FAR * left;
        let hops = if far { (left / once).clamp(2.0, round) } else { 2.0 };
        let mut path = Shares { handling: send, hops_per_step: hops, ..Shares::default() };
        if wires.latency_s >= near {
            path.latency = (hops * once).min(left);
            left -= path.latency;
        }
        let server = self.ranks.iter().filter(|r| r.role == "server").map(|r| r.busy).fold(0.0, f64::max);
        if server > AT_WORK {
            path.server = left;
        } else if wires.could_be_thin(left * self.step_s, self.steady_waits()) && !small(wires) {
            path.bytes = left;
        } else {
            path.handling += left;
        }
        (path, hops)
    }

    /// Whether workers wait about as long in each step: links are steady, cores that others use are not.
    fn steady_waits(&self) -> bool {
        let spread = |rank: usize| {
            let waits: Vec<f64> = self.recorded.steady(rank).iter().map(|s| s.wait_s).collect();
            let at = |below: f64| quantile(waits.clone(), below).unwrap_or(0.0);
            (at(0.75) - at(0.25)) / at(0.5).max(1e-9)
        };
        self.typical(|r| spread(r.rank)) < STEADY
    }

    fn judge(&self, path: &Shares, wires: &LinkCosts, hops: f64) -> Vec<Verdict> {
        let mut found = Vec::new();
        if small(wires) {
            found.push(self.small_messages(path, wires));
        } else {
            found.extend(self.servers(path));
            let sentence = format!(
                "Exchanging itself sets the pace: sending, summing, copying and waking up take {} of the time. Links are \
                 as fast as ranks are",
                percent(path.handling)
            );
            let changes = vec![Change::new(WhatIf::Local, path.handling * 7.0 / 8.0, LOCAL)];
            found.push(Verdict::of(Cause::Exchange, path.handling, sentence, changes));
        }
        let pace = wires.bytes_per_s.map_or_else(String::new, |b| format!(" at {:.3} Gbit/s", 8e-9 * b));
        let local = Change::new(WhatIf::Local, (path.bytes + path.latency) * 7.0 / 8.0, LOCAL);
        let sentence = format!(
            "Links are thin: the {:.2} MB that a rank moves per step go{pace}, which is {} of the time",
            wires.bytes_per_step / 1e6,
            percent(path.bytes)
        );
        let faster = "ten times the bandwidth: a faster network, or all ranks on one machine";
        let changes = vec![
            Change::new(WhatIf::Bandwidth, path.bytes * 0.9, faster),
            Change::new(WhatIf::Half, path.bytes / 2.0, "half of the bytes: --compression fp16"),
            local.clone(),
        ];
        found.push(Verdict::of(Cause::Bandwidth, path.bytes, sentence, changes));
        let sentence = format!(
            "Messages are long under way: {} each whatever their size, {hops:.1} of them one after another per step, \
             which is {} of the time",
            seconds(wires.latency_s),
            percent(path.latency)
        );
        let nearer = "a tenth of the latency: a nearer network, or all ranks on one machine";
        let fewer = "fewer messages one after another: --strategy halving-doubling, or ps, instead of a ring";
        let changes = vec![
            Change::new(WhatIf::Latency, path.latency * 0.9, nearer),
            Change::new(WhatIf::FewerHops, path.latency / 2.0, fewer),
            local,
        ];
        found.push(Verdict::of(Cause::Latency, path.latency, sentence, changes));
        found
    }

    fn small_messages(&self, path: &Shares, wires: &LinkCosts) -> Verdict {
        let share = path.handling + path.server;
        let sentence = format!(
            "Messages are many and small: a rank sends {:.0} per step of {} bytes on average, and handling them takes {} \
             of the time",
            wires.messages_per_step,
            wires.message_bytes.round(),
            percent(share)
        );
        let changes = vec![Change::new(
            WhatIf::Bucket,
            share * (1.0 - (MANY / 2.0 / wires.pieces).min(1.0)),
            "larger buckets (--bucket 4MiB): the same bytes in fewer messages",
        )];
        Verdict::of(Cause::SmallMessages, share, sentence, changes)
    }

    fn servers(&self, path: &Shares) -> Option<Verdict> {
        let servers: Vec<&RankTimes> = self.ranks.iter().filter(|r| r.role == "server").collect();
        let busiest = servers.iter().max_by(|a, b| a.busy.total_cmp(&b.busy))?;
        let waiting = self.typical(|r| r.wait_s) / self.step_s;
        let share = path.server;
        let count = servers.len();
        let sentence = format!(
            "{} the pace: server {} is at work {} of the time, while workers wait {} of theirs",
            if count == 1 { "The server sets" } else { "Servers set" },
            busiest.rank,
            percent(busiest.busy),
            percent(waiting)
        );
        let more = format!("twice as many servers (--servers {}), on cores of their own", 2 * count);
        let faster = format!("a faster machine for server {}: as fast as the workers are", busiest.rank);
        let changes = vec![
            Change::new(WhatIf::MoreServers, share / 2.0, more),
            Change::new(WhatIf::FasterServers, share / 2.0, faster),
            Change::new(WhatIf::Ring, share * 0.4, "--strategy ring-allreduce: every worker sums a part"),
        ];
        Some(Verdict { cause: Cause::Server, share, rank: Some(busiest.rank), sentence, changes })
    }
}

const LOCAL: &str = "exchange every 8 steps: --strategy local (another algorithm: look at the accuracy)";

pub(super) fn seconds(value: f64) -> String {
    crate::chart::ChartUnit::Seconds.show(value)
}
