//! Changes of a run that could help.

use paceline_plan::{NetworkLimits, Plan};
use serde::Serialize;

use super::sentence::{Part, Sentence, count, name, percent, seconds};

/// A change of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhatIf {
    /// Everybody computes as fast as the faster ones do.
    NoStraggler,
    /// Nobody waits for a straggler.
    LetGo,
    /// Every worker has as many samples.
    EvenShares,
    /// Twice as many servers.
    MoreServers,
    /// Servers that handle messages as fast as workers do.
    FasterServers,
    /// The slowest server is as fast as the others.
    NoSlowServer,
    /// Workers sum round a ring, without servers.
    Ring,
    /// Ten times the bandwidth.
    Bandwidth,
    /// A tenth of the latency.
    Latency,
    /// Fewer messages one after another.
    FewerHops,
    /// Messages of half the size.
    Half,
    /// Messages as they are, without a codec.
    NoCodec,
    /// Larger buckets.
    Bucket,
    /// Workers exchange every few steps.
    Local,
    /// Twice as many workers, each with half of the batch.
    MoreWorkers,
    /// As many workers as there are cores, with the same samples per step.
    FewerWorkers,
    /// Cores of its own for every rank.
    OwnCores,
    /// Twice the batch.
    LargerBatch,
    /// Twice as many threads that decode.
    MoreDecoders,
    /// Samples that need no decoding.
    NoDecoding,
    /// Cuts between which stages take the same.
    Cuts,
    /// Twice as many micro-batches.
    MicroBatches,
    /// Stages along another pipeline.
    Pipeline,
    /// One worker alone.
    OneWorker,
}

/// Bytes of a bucket that is large.
const BUCKET: usize = 4 << 20;
/// The codec that costs least.
const CHEAP: &str = "fp16";
/// Steps between two exchanges of `local`.
const EVERY: usize = 8;
/// How many times as fast a better network is.
const NETWORK: usize = 10;

/// The plan, if its members can change as they could before; others need no such plan.
fn stays_elastic(mut new: Plan) -> Option<Plan> {
    let Some(elastic) = &mut new.elastic else { return Some(new) };
    // Without servers there is nothing to copy.
    elastic.backup &= new.servers > 0;
    let within = new.workers > 1 && (elastic.least..=elastic.most).contains(&new.workers);
    let codes = new.compression.is_some() && new.servers > 0;
    (within && !codes).then_some(new)
}

impl WhatIf {
    /// In one word.
    pub fn id(self) -> String {
        serde_json::to_value(self).ok().and_then(|id| id.as_str().map(str::to_owned)).unwrap_or_default()
    }

    /// The plan after a change; none where it is the machines that change, or where a run cannot be changed like that.
    /// What comes out as it was is so already.
    pub fn changed(self, plan: &Plan, cores: Option<usize>) -> Option<Plan> {
        let mut new = plan.clone();
        let to = |new: &mut Plan, strategy: &str, servers: usize, sync: &str| {
            if (new.strategy.as_str(), new.sync.as_str()) != (strategy, sync) {
                new.options.clear();
            }
            (new.strategy, new.servers, new.sync) = (strategy.into(), servers, sync.into());
            new.paths.clear();
            new.strategy_file = None;
        };
        let together = plan.replicas() > 1;
        // Another number of workers is another number of replicas; where those of stages average, some changes are none.
        let stages = plan.stages > 1;
        match self {
            Self::LetGo
            | Self::MoreServers
            | Self::Local
            | Self::MoreWorkers
            | Self::FewerWorkers
            | Self::OneWorker
                if stages =>
            {
                return None;
            }
            Self::LetGo if together => to(&mut new, "ps", plan.servers.max(1), "asp"),
            Self::MicroBatches if stages && plan.batch >= 2 * plan.micro_batches => new.micro_batches *= 2,
            Self::Pipeline if stages => {
                let other = if plan.pipeline.as_deref() == Some("1f1b") { "gpipe" } else { "1f1b" };
                new.pipeline = Some(other.into());
            }
            Self::MoreServers if plan.servers > 0 => new.servers *= 2,
            Self::Ring if together => to(&mut new, "ring-allreduce", 0, "bsp"),
            Self::FewerHops if together && plan.servers == 0 => {
                let better = if plan.replicas().is_power_of_two() { "halving-doubling" } else { "tree" };
                to(&mut new, better, 0, "bsp");
            }
            Self::Half => new.compression = Some(CHEAP.into()),
            Self::NoCodec => new.compression = None,
            Self::Bucket => new.bucket = plan.bucket.max(BUCKET),
            Self::Local if together => to(&mut new, "local", 0, "bsp"),
            // A script's batch is its own: it stays what it is.
            Self::MoreWorkers if plan.script.is_some() => new.workers *= 2,
            Self::MoreWorkers if plan.batch.is_multiple_of(2) => {
                (new.workers, new.batch) = (2 * plan.workers, plan.batch / 2);
            }
            Self::FewerWorkers => {
                let fewer = cores.filter(|cores| (1..plan.workers).contains(cores))?;
                if plan.script.is_some() {
                    new.workers = fewer;
                    return Some(new);
                }
                let samples = plan.workers * plan.batch;
                if plan.shares.is_some() || !samples.is_multiple_of(fewer) {
                    return None;
                }
                (new.workers, new.batch) = (fewer, samples / fewer);
            }
            Self::LargerBatch => new.batch *= 2,
            Self::Bandwidth => {
                let NetworkLimits { bits_per_s, latency_ns } = plan.network?;
                let bits_per_s = bits_per_s.saturating_mul(NETWORK as u64);
                new.network = Some(NetworkLimits { bits_per_s, latency_ns });
            }
            Self::Latency => {
                let NetworkLimits { bits_per_s, latency_ns } = plan.network?;
                new.network = Some(NetworkLimits { bits_per_s, latency_ns: latency_ns / NETWORK as u64 });
            }
            Self::NoStraggler if plan.straggler.is_some() => new.straggler = None,
            Self::MoreDecoders if plan.script.is_none() => {
                new.decoders = Some(2 * plan.decoders.unwrap_or(1))
            }
            Self::OneWorker if plan.shares.is_none() => {
                (new.batch, new.workers) = (plan.workers * plan.batch, 1);
                to(&mut new, "single", 0, "bsp");
            }
            _ => return None,
        }
        stays_elastic(new)
    }

    /// Whether it changes settings, not machines.
    fn is_setting(self) -> bool {
        !matches!(
            self,
            Self::NoStraggler
                | Self::EvenShares
                | Self::FasterServers
                | Self::NoSlowServer
                | Self::Bandwidth
                | Self::Latency
                | Self::OwnCores
                | Self::NoDecoding
        )
    }

    /// Whether a run can be changed like that, and is not so already.
    pub(super) fn is_new(self, plan: &Plan, cores: Option<usize>) -> bool {
        !self.is_setting() || self.changed(plan, cores).is_some_and(|new| !alike(&new, plan))
    }

    /// What a user has to do for it; none where that depends on the run.
    pub(super) fn words(self, plan: Option<&Plan>, cores: Option<usize>) -> Option<Sentence> {
        let new = plan.and_then(|plan| self.changed(plan, cores));
        let of = |read: fn(&Plan) -> usize| new.as_ref().map(read);
        let id = |what: &str| format!("{}_{what}", self.id());
        let flag = |words: &'static str, what: &str, value: Option<usize>| match value {
            Some(value) => Part::Sentence(Sentence::new(words, [count(id(what), value)])),
            None => Part::Words(""),
        };
        let script = plan.is_some_and(|plan| plan.script.is_some());
        let strategy = || new.as_ref().map_or("tree", |new| new.strategy.as_str()).to_owned();
        Some(match self {
            Self::LetGo => {
                let servers = plan.is_some_and(|plan| plan.servers > 0);
                Sentence::new(
                    "let the others go on: {} (another algorithm: look at the accuracy)",
                    [Part::Words(if servers { "`--sync asp`" } else { "`--strategy ps --sync asp`" })],
                )
            }
            Self::MoreServers => Sentence::new(
                "twice as many servers{}, on cores of their own",
                [flag(" (`--servers {}`)", "servers", of(|new| new.servers))],
            ),
            Self::Ring => {
                Sentence::new("no servers: `--strategy ring-allreduce`, every worker sums a part", [])
            }
            Self::Bandwidth => Sentence::new(
                "{} times the bandwidth: a faster network between the hosts",
                [count(id("times"), NETWORK)],
            ),
            Self::Latency => Sentence::new(
                "messages {} times as soon: a nearer network between the hosts",
                [count(id("times"), NETWORK)],
            ),
            Self::FewerHops => Sentence::new(
                "fewer messages one after another: {}",
                [name(&format!("--strategy {}", strategy()))],
            ),
            Self::Half => Sentence::new("half of the bytes: `--compression fp16`", []),
            Self::NoCodec => Sentence::new("messages as they are, without `--compression`", []),
            Self::Bucket => Sentence::new(
                "larger buckets (`--bucket {}MiB`): the same bytes in fewer messages",
                [count(id("mib"), BUCKET >> 20)],
            ),
            Self::Local => Sentence::new(
                "exchange every {} steps: `--strategy local` (another algorithm: look at the accuracy)",
                [count(id("steps"), EVERY)],
            ),
            Self::MoreWorkers if script => Sentence::new(
                "twice the workers{}, on cores of their own: twice the samples per step (look at the accuracy)",
                [flag(" (`--workers {}`)", "workers", of(|new| new.workers))],
            ),
            Self::FewerWorkers if script => Sentence::new(
                "as many workers as cores{}: fewer samples per step",
                [flag(" (`--workers {}`)", "workers", of(|new| new.workers))],
            ),
            Self::LargerBatch if script => Sentence::new(
                "twice the batch, by the script's own arguments: parameters are moved once for twice the samples (look \
                 at the accuracy)",
                [],
            ),
            Self::NoDecoding if script => Sentence::new(
                "samples that are ready sooner: more `num_workers` of the script's DataLoader where cores are left, or \
                 samples that are decoded beforehand",
                [],
            ),
            Self::MoreWorkers => Sentence::new(
                "twice the workers, each with half of the batch{}{}, on cores of their own",
                [
                    flag(" (`--workers {}`", "workers", of(|new| new.workers)),
                    flag(" `--batch {}`)", "batch", of(|new| new.batch)),
                ],
            ),
            Self::FewerWorkers => Sentence::new(
                "as many workers as cores, with as many samples per step{}{}",
                [
                    flag(" (`--workers {}`", "workers", of(|new| new.workers)),
                    flag(" `--batch {}`)", "batch", of(|new| new.batch)),
                ],
            ),
            Self::OwnCores => {
                Sentence::new("cores of its own for every rank: more machines, or larger ones", [])
            }
            Self::LargerBatch => Sentence::new(
                "twice the batch{}: parameters are moved once for twice the samples (look at the accuracy)",
                [flag(" (`--batch {}`)", "batch", of(|new| new.batch))],
            ),
            Self::MoreDecoders => Sentence::new(
                "twice the threads that decode{}",
                [flag(" (`--decoders {}`)", "decoders", of(|new| new.decoders.unwrap_or(1)))],
            ),
            Self::NoDecoding => Sentence::new(
                "samples that are ready: images stored near the size that they are trained at, or more cores for \
                 decoding",
                [],
            ),
            Self::MicroBatches => Sentence::new(
                "twice as many micro-batches{}: stages fill and drain in a smaller part of a step (batch norm sees fewer \
                 samples at a time)",
                [flag(" (`--micro-batches {}`)", "micro_batches", of(|new| new.micro_batches))],
            ),
            Self::Pipeline => {
                let other = new.as_ref().and_then(|new| new.pipeline.as_deref()).unwrap_or_default();
                Sentence::new("another order of passes: {}", [name(&format!("--pipeline {other}"))])
            }
            Self::NoStraggler
            | Self::EvenShares
            | Self::FasterServers
            | Self::NoSlowServer
            | Self::Cuts
            | Self::OneWorker => return None,
        })
    }
}

/// Whether two plans are the same configuration, however long they train and whatever their seed is.
pub(super) fn alike(a: &Plan, b: &Plan) -> bool {
    let codec = |plan: &Plan| plan.compression.as_ref().map(|text| text.split(',').next().map(str::to_owned));
    (&a.data, &a.model, &a.model_file, &a.strategy, &a.strategy_file, &a.sync, &a.transport, &a.optimizer)
        == (
            &b.data,
            &b.model,
            &b.model_file,
            &b.strategy,
            &b.strategy_file,
            &b.sync,
            &b.transport,
            &b.optimizer,
        )
        && (a.workers, a.servers, a.batch, a.bucket, a.shares, a.micro_batches, a.threads)
            == (b.workers, b.servers, b.batch, b.bucket, b.shares, b.micro_batches, b.threads)
        && (a.image_size, a.window, a.decoders, a.placement, &a.hosts)
            == (b.image_size, b.window, b.decoders, b.placement, &b.hosts)
        && (a.stages, &a.pipeline, &a.cuts) == (b.stages, &b.pipeline, &b.cuts)
        && a.script == b.script
        && (codec(a), a.network, a.straggler) == (codec(b), b.network, b.straggler)
}

/// Where a gain is known from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GainSource {
    /// The most that the recorded chain allows, which can be lost to the next longest one.
    Recorded,
    /// A simulation of the run.
    Simulated,
    /// Another run, measured.
    Measured(String),
}

#[derive(Clone, Debug, Serialize)]
pub struct Change {
    pub what: Sentence,
    /// What that is, for the simulator.
    #[serde(rename = "if")]
    pub if_: WhatIf,
    /// Part of a step's time that it saves.
    pub gain: f64,
    pub source: GainSource,
    /// Whether the gain was simulated.
    pub predicted: bool,
    /// Seconds of a step afterwards (of as many samples as a step has now), where that is known.
    pub step_s: Option<f64>,
}

impl Change {
    pub(super) fn new(if_: WhatIf, gain: f64, what: Sentence) -> Self {
        Self { what, if_, gain, source: GainSource::Recorded, predicted: false, step_s: None }
    }

    /// The gain becomes what somebody found out: a step takes `ratio` times as long.
    pub(super) fn found(&mut self, ratio: f64, step_s: f64, source: GainSource) {
        self.predicted = source == GainSource::Simulated;
        (self.gain, self.step_s, self.source) = (1.0 - ratio, Some(ratio * step_s), source);
    }

    /// In words: what is saved, how that is known, and what to do.
    pub fn words(&self) -> Sentence {
        let id = |what: &str| format!("{}_{what}", self.if_.id());
        let then = match (&self.source, self.step_s) {
            (GainSource::Simulated, Some(step_s)) => {
                Sentence::new("a step of {}, predicted by simulation", [seconds(id("step_s"), step_s)])
            }
            (GainSource::Measured(run), Some(step_s)) => Sentence::new(
                "{} for as many samples, measured in {}",
                [seconds(id("step_s"), step_s), name(run)],
            ),
            _ => Sentence::new("at most, by the recorded chain; not simulated", []),
        };
        Sentence::new(
            "{} less ({}): {}",
            [percent(id("gain"), self.gain), Part::Sentence(then), Part::Sentence(self.what.clone())],
        )
    }
}
