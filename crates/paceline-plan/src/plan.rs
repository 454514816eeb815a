//! One run, fully resolved.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::hosts::{Hosts, NetworkLimits, Placement};
use crate::members::{Elastic, Revocations};

/// How much a run trains.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrainingLength {
    /// Passes over the training split, by all workers together.
    Epochs(f64),
    /// Steps of the full global batch: `steps · workers · batch` samples.
    Steps(u64),
    /// Until a worker's script has no more work.
    UntilScriptEnds,
}

/// Injected slowness: a worker's computation is stretched.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the texts of the variants say what their fields are")]
pub enum Straggler {
    /// The worker `rank` takes `factor` times as long (at least 1).
    One { rank: usize, factor: f64 },
    /// In each step one worker, drawn at random, takes `factor` times as long (at least 1).
    Moving { factor: f64 },
    /// Every step of every worker takes e^(sigma·z) times as long, z standard normal, where that is longer.
    Lognormal { sigma: f64 },
}

impl Straggler {
    /// The forms that a user can write.
    pub const FORMS: &'static str = "rank=R,factor=F, moving,factor=F or lognormal,sigma=S";
}

impl FromStr for Straggler {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value = |part: &str, key: &str| {
            part.strip_prefix(key).and_then(|v| v.strip_prefix('=')).map(str::to_owned)
        };
        let number = |v: String| v.parse::<f64>().ok().filter(|v| v.is_finite());
        let parts: Vec<&str> = text.split(',').collect();
        let found = match parts.as_slice() {
            ["lognormal", sigma] => value(sigma, "sigma")
                .and_then(number)
                .filter(|s| *s >= 0.0)
                .map(|sigma| Straggler::Lognormal { sigma }),
            ["moving", factor] => value(factor, "factor")
                .and_then(number)
                .filter(|f| *f >= 1.0)
                .map(|factor| Straggler::Moving { factor }),
            [rank, factor] => {
                let rank = value(rank, "rank").and_then(|v| v.parse().ok());
                let factor = value(factor, "factor").and_then(number).filter(|f| *f >= 1.0);
                rank.zip(factor).map(|(rank, factor)| Straggler::One { rank, factor })
            }
            _ => None,
        };
        found.ok_or_else(|| format!("possible: {} (factor at least 1)", Self::FORMS))
    }
}

/// Weights that training starts from: a safetensors file with PyTorch's names and layouts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Weights {
    /// The file, at the same place on every machine.
    pub file: String,
    /// SHA-256 of its content, in hexadecimal: every rank must find the same.
    pub sha256: String,
    /// Whether tensors may be missing, left over or of another shape.
    pub partial: bool,
}

/// A program of the user's that computes the gradients in place of a native network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Script {
    /// The file, at the same place on every machine.
    pub file: String,
    /// SHA-256 of its content, in hexadecimal: every rank must find the same.
    pub sha256: String,
    /// What it is started with.
    pub args: Vec<String>,
    /// The program that runs it.
    pub python: String,
    /// Who updates the parameters: `worker` (the script's own optimiser) or `server`.
    pub apply: String,
    /// The backend of the script's own framework, where that averages: then links and waits are not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegated: Option<String>,
    /// GPUs of each machine that its workers take in turn, by number or UUID; empty: the script sees what there is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// Whether workers of one GPU take turns even where NVIDIA's multi-process service could be started.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_mps: bool,
    /// Whether a worker alone hands its gradients over as it would with others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub staged: bool,
    /// Whether the script says nothing of this program, and its model, optimiser and loaders are found while it runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub auto: bool,
}

/// The averaging path of buckets below a length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PathRule {
    /// The bytes that a bucket has to be below; absent in the last rule, which takes what is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below_bytes: Option<usize>,
    /// The strategy whose path it is.
    pub path: String,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Plan {
    /// The script that is trained with; then dataset, model, batch, optimiser and its settings are the script's own, and
    /// what stands here of them means nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Script>,
    /// Dataset.
    pub data: String,
    /// Side of the squares that images on disk are made to; the dataset's own if absent.
    pub image_size: Option<usize>,
    /// Characters of a window of text; the dataset's own if absent.
    pub window: Option<usize>,
    /// Threads of each worker that decode images; as cores allow if absent.
    pub decoders: Option<usize>,
    /// Model; the file's name where a file describes it.
    pub model: String,
    /// What the file says: the network itself, so that every rank builds the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_file: Option<String>,
    /// Weights that training starts from; those of the seed if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<Weights>,
    /// Layers whose parameters do not change, by name or by the beginning of it up to a dot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frozen: Vec<String>,
    /// Number of workers; with stages, those of all replicas together.
    pub workers: usize,
    /// Stages that the model is cut into, each on a worker of its own: so many workers are a replica of the model, and
    /// worker `w` has stage `w mod stages` of replica `w / stages`.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub stages: usize,
    /// In which order stages pass micro-batches; none without stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<String>,
    /// The layers that later stages begin with, or the beginnings of their names up to a dot; where it is empty, stages are
    /// made as even as counted costs are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cuts: Vec<String>,
    /// Shares of a global batch, where they are not one per worker; each has `batch` samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<usize>,
    /// How the members of the run may change; absent: it ends when one is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic: Option<Elastic>,
    /// Who is taken away from the run, and who comes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoke: Option<Revocations>,
    /// Passes in which a share's gradient is computed and added up.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub micro_batches: usize,
    /// Number of servers.
    pub servers: usize,
    /// Averaging path; `single` for one worker alone, `auto` where each bucket takes one of `paths`; the file's name where
    /// a file describes it.
    pub strategy: String,
    /// What the file says: the rounds themselves, so that every rank makes the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy_file: Option<String>,
    /// The paths that buckets take, with `auto`: the first one that a bucket's bytes are below.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathRule>,
    /// Consistency model.
    pub sync: String,
    /// Parameters of the strategy and the consistency model, by their flags.
    pub options: BTreeMap<String, String>,
    /// What is averaged: `gradients` or `weights`.
    pub averages: String,
    /// How messages are made shorter, as the codec writes itself.
    pub compression: Option<String>,
    /// Which worker sees which samples, as the sharding writes itself.
    pub shard: String,
    /// What the processes talk over.
    pub transport: String,
    /// Bytes of each connection's buffer; left to the transport if absent.
    pub buffer: Option<usize>,
    /// Emulated links between hosts.
    pub network: Option<NetworkLimits>,
    /// Which hosts there are; absent: one, or with a network each worker is its own.
    pub hosts: Option<Hosts>,
    /// Where servers sit.
    pub placement: Placement,
    /// Bytes of gradient that are fused and sent together.
    pub bucket: usize,
    /// Injected slowness.
    pub straggler: Option<Straggler>,
    /// End the run after this many steps, without changing what they are.
    pub stop_after_step: Option<u64>,
    /// Samples per share and step; a worker has one share, unless `shares` says something else.
    pub batch: usize,
    /// Optimiser.
    pub optimizer: String,
    /// Base learning rate.
    pub lr: f64,
    /// How the rate follows the number of workers: `none` or `linear`.
    pub lr_scaling: String,
    /// How the rate changes over the run, as the user wrote it.
    pub schedule: String,
    /// Fraction of the run over which the rate rises from zero.
    pub warmup: f64,
    /// Momentum of SGD.
    pub momentum: f64,
    /// Nesterov's form of momentum.
    pub nesterov: bool,
    /// Weight decay.
    pub weight_decay: f64,
    /// How much to train.
    pub work: TrainingLength,
    /// Steps between checkpoints; none if absent.
    pub checkpoint_every: Option<u64>,
    /// Checkpoints that are kept.
    pub keep: usize,
    /// How often a run that has lost a rank starts again from its last checkpoint.
    pub restarts: u32,
    /// Test accuracy whose time is asked for.
    pub target_accuracy: Option<f64>,
    /// Whether to end the run when the target is reached: at that evaluation where steps are made together, otherwise
    /// at the next step that all workers reach.
    pub stop_at_target: bool,
    /// Steps between evaluations; at the end of each epoch if absent.
    pub eval_every: Option<u64>,
    /// Samples of the test split that evaluations during the run take; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_samples: Option<usize>,
    /// Seed of everything random.
    pub seed: u64,
    /// Threads of each worker.
    pub threads: usize,
    /// Whether threads stay on their cores.
    pub pin: bool,
    /// What the run's checkpoints are found by, where it was cut anew for other hosts than it began on. It names what is there, and
    /// is no part of the plan's hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_as: Option<String>,
}

/// Settings of native networks, their data and their optimiser.
const OF_NATIVE: &[&str] = &[
    "data",
    "image-size",
    "window",
    "decoders",
    "model-file",
    "init",
    "frozen",
    "stages",
    "pipeline",
    "cuts",
    "shares",
    "elastic",
    "revoke",
    "micro-batches",
    "shard",
    "batch",
    "optimizer",
    "lr",
    "lr-scaling",
    "schedule",
    "warmup",
    "momentum",
    "nesterov",
    "weight-decay",
    "eval-every",
    "eval-samples",
];

/// Settings of this program's own exchange.
const OF_OWN_EXCHANGE: &[&str] = &[
    "paths",
    "strategy-file",
    "averages",
    "compression",
    "transport",
    "buffer",
    "network",
    "hosts",
    "placement",
    "bucket",
    "straggler",
];

fn one() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_one(number: &usize) -> bool {
    *number == 1
}

/// A plan that cannot be run, and what would be possible.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{flag} {value}: {problem}")]
pub struct PlanError {
    /// The flag at fault.
    pub flag: String,
    /// Its value.
    pub value: String,
    /// Why it cannot be.
    pub problem: String,
}

impl PlanError {
    /// The refusal of a flag's value.
    pub fn new(flag: &str, value: impl ToString, problem: impl Into<String>) -> Self {
        Self { flag: flag.into(), value: value.to_string(), problem: problem.into() }
    }
}

/// Most ranks of a plan, in real or virtual time.
const MOST_RANKS: usize = 1 << 20;

impl Plan {
    /// Samples that the run trains on, for a training split of `samples`.
    pub fn total_samples(&self, samples: usize) -> u64 {
        match self.work {
            TrainingLength::Epochs(epochs) => (epochs * samples as f64).round() as u64,
            TrainingLength::Steps(steps) => steps.saturating_mul(self.global_batch() as u64),
            TrainingLength::UntilScriptEnds => u64::MAX,
        }
    }

    /// Models that are trained side by side: workers, or as many of them as have all stages of one.
    pub fn replicas(&self) -> usize {
        self.workers / self.stages.max(1)
    }

    /// Which stage a rank has, in words; none without stages.
    pub fn stage_words(&self, rank: usize) -> Option<String> {
        let stage = rank.checked_sub(self.workers).unwrap_or(rank) % self.stages.max(1);
        let replica = match rank / self.stages.max(1) {
            replica if rank < self.workers && self.replicas() > 1 => format!(" of replica {replica}"),
            _ => String::new(),
        };
        (self.stages > 1).then(|| format!("stage {stage} of {}{replica}", self.stages))
    }

    /// Processes of a real run: every rank, and workers that wait until another one is lost.
    pub fn processes(&self) -> usize {
        self.workers
            .saturating_add(self.servers)
            .saturating_add(self.elastic.map_or(0, |elastic| elastic.spares))
    }

    /// Processes that the run can ever have: those that it begins with, and workers that join it later.
    pub fn members(&self) -> usize {
        let later = |elastic: Elastic| elastic.most.saturating_sub(self.workers);
        self.processes().saturating_add(self.elastic.map_or(0, later))
    }

    /// Whether a process of the run is a worker: those that do not begin with it come behind the servers.
    pub fn is_worker(&self, process: usize) -> bool {
        process < self.workers || process >= self.workers + self.servers
    }

    /// The most workers that there can be: as many shares of their data scripts are told of.
    pub fn script_workers(&self) -> usize {
        self.elastic.map_or(self.workers, |elastic| elastic.most.max(self.workers))
    }

    /// The number of a worker that the script of a process goes by until it is told which share of the data it reads.
    pub fn script_number(&self, process: usize) -> usize {
        let later = process.saturating_sub(self.servers) % self.script_workers();
        if process < self.workers { process } else { later }
    }

    /// Shares of a global batch.
    pub fn shares(&self) -> usize {
        self.shares.unwrap_or(self.replicas())
    }

    /// Samples of a step of all workers together.
    pub fn global_batch(&self) -> usize {
        self.batch.saturating_mul(self.shares())
    }

    /// Whether the plan can be run on a training split of `samples`.
    pub fn check(&self, samples: usize) -> Result<(), PlanError> {
        let need = |holds: bool, flag: &str, value: &dyn ToString, problem: &str| {
            if holds { Ok(()) } else { Err(PlanError::new(flag, value.to_string(), problem)) }
        };
        let rate = |v: f64| v.is_finite() && v >= 0.0;
        need(self.workers > 0, "--workers", &self.workers, "at least 1 is needed")?;
        need(self.stages > 0, "--stages", &self.stages, "at least 1 is needed")?;
        let stages = self.stages;
        let problem = format!(
            "must be a multiple of --stages ({stages}): each replica of the model has {stages} workers"
        );
        need(self.workers.is_multiple_of(stages), "--workers", &self.workers, &problem)?;
        let problem = format!("the training split has only {samples} samples: at most {samples} workers");
        need(self.replicas() <= samples, "--workers", &self.workers, &problem)?;
        need(self.batch > 0, "--batch", &self.batch, "at least 1 sample is needed")?;
        let problem = format!("the training split has only {samples} samples: at most {samples} in a batch");
        need(self.batch <= samples, "--batch", &self.batch, &problem)?;
        let problem = format!("must be between 1 and --batch ({}): each pass needs a sample", self.batch);
        let passes = self.micro_batches;
        need((1..=self.batch).contains(&passes), "--micro-batches", &passes, &problem)?;
        let problem = format!("the training split has only {samples} samples: at most {samples} shares");
        need(self.shares() <= samples, "--shares", &self.shares(), &problem)?;
        let ranks = self.workers.saturating_add(self.servers);
        let problem = format!("at most {MOST_RANKS} ranks in all");
        need(ranks <= MOST_RANKS, "--workers", &self.workers, &problem)?;
        self.check_hosts()?;
        if let Some(problem) = self.revoke.as_ref().and_then(|revoke| revoke.problem(self)) {
            return Err(PlanError::new("--revoke", "", problem));
        }
        need(self.bucket >= size_of::<f32>(), "--bucket", &self.bucket, "at least 4 bytes")?;
        if let Some(Straggler::One { rank, .. }) = self.straggler {
            let problem = format!("there are {} workers, counted from 0", self.workers);
            need(rank < self.workers, "--straggler", &format!("rank={rank}"), &problem)?;
        }
        need(self.stop_after_step != Some(0), "--stop-after-step", &0, "at least 1 is needed")?;
        need((1..=1024).contains(&self.threads), "--threads", &self.threads, "must be between 1 and 1024")?;
        need(rate(self.lr) && self.lr > 0.0, "--lr", &self.lr, "must be a positive number")?;
        let small = rate(self.momentum) && self.momentum < 1.0;
        need(small, "--momentum", &self.momentum, "must be at least 0 and below 1")?;
        need(!self.nesterov || self.momentum != 0.0, "--nesterov", &"", "needs a momentum above 0")?;
        need(!self.nesterov || self.optimizer == "sgd", "--nesterov", &"", "belongs to --optimizer sgd")?;
        let decay = self.weight_decay;
        need(rate(decay), "--weight-decay", &decay, "must be a number of at least 0")?;
        let partial = rate(self.warmup) && self.warmup < 1.0;
        need(partial, "--warmup", &self.warmup, "a fraction of the run: at least 0 and below 1")?;
        if let TrainingLength::Epochs(epochs) = self.work {
            need(rate(epochs) && epochs > 0.0, "--epochs", &epochs, "must be a positive number")?;
        }
        let (flag, value, problem): (_, &dyn ToString, _) = match &self.work {
            TrainingLength::Epochs(epochs) => ("--epochs", epochs, "comes to no sample at all"),
            TrainingLength::Steps(steps) => ("--steps", steps, "at least 1 is needed"),
            TrainingLength::UntilScriptEnds => ("--steps", &"", ""),
        };
        need(self.total_samples(samples) > 0, flag, value, problem)?;
        if let Some(target) = self.target_accuracy {
            let fraction = rate(target) && target <= 1.0;
            need(fraction, "--target-accuracy", &target, "a fraction between 0 and 1, e.g. 0.98")?;
        }
        let target = !self.stop_at_target || self.target_accuracy.is_some();
        need(target, "--stop-at-target", &"", "needs --target-accuracy")?;
        let none = "at least 1 step is needed; leave it out for none";
        need(self.checkpoint_every != Some(0), "--checkpoint-every", &0, none)?;
        need(self.keep > 0, "--keep", &0, "at least 1 checkpoint must be kept")?;
        let ends = "at least 1 step is needed; leave it out for epoch ends";
        need(self.eval_every != Some(0), "--eval-every", &0, ends)?;
        let all = "at least 1 sample is needed; leave it out for the whole test split";
        need(self.eval_samples != Some(0), "--eval-samples", &0, all)?;
        Ok(())
    }

    /// Whether a test split of `samples` has as many as evaluations are to take.
    pub fn check_test(&self, samples: usize) -> Result<(), PlanError> {
        let Some(count) = self.eval_samples.filter(|count| *count > samples) else { return Ok(()) };
        let problem = format!(
            "the test split of {} has only {samples} samples; leave it out to evaluate on all of them",
            self.data
        );
        Err(PlanError::new("--eval-samples", count, problem))
    }

    /// What is trained, in words.
    pub fn subject(&self) -> String {
        match &self.script {
            Some(_) => self.model.clone(),
            None => format!("{} on {}", self.model, self.data),
        }
    }

    /// How workers average, in words: with `auto`, which buckets take which path.
    pub fn averaging(&self) -> String {
        if self.paths.is_empty() {
            return self.strategy.clone();
        }
        format!("{}: {}", self.strategy, self.path_rules())
    }

    /// Which buckets take which path, in words.
    fn path_rules(&self) -> String {
        let rule = |PathRule { below_bytes, path }: &PathRule| match below_bytes {
            Some(bytes) if bytes.is_multiple_of(1024) => format!("{path} below {} KiB", bytes / 1024),
            Some(bytes) => format!("{path} below {bytes} bytes"),
            None => path.clone(),
        };
        let rules: Vec<String> = self.paths.iter().map(rule).collect();
        rules.join(", else ")
    }

    /// Whether the script's own framework averages: then links and waits are not observed.
    pub fn delegated(&self) -> bool {
        self.script.as_ref().is_some_and(|script| script.delegated.is_some())
    }

    /// The settings that count, by name: with a script, what it decides itself is not among them, and what it is
    /// started with stands beside the others.
    pub fn settings(&self) -> serde_json::Map<String, serde_json::Value> {
        let document = serde_json::to_value(self).expect("a plan is plain data");
        let serde_json::Value::Object(mut all) = document else { unreachable!("a plan is a table") };
        if !self.paths.is_empty() {
            all.insert("paths".into(), self.path_rules().into());
        }
        all.remove("saved-as");
        let Some(script) = &self.script else { return all };
        all.retain(|name, _| !OF_NATIVE.contains(&name.as_str()));
        if self.delegated() {
            all.retain(|name, _| !OF_OWN_EXCHANGE.contains(&name.as_str()));
        }
        let Script { file, sha256, args, python, apply, delegated: _, gpus, without_mps, staged, auto } =
            script;
        if !gpus.is_empty() {
            all.insert("gpus".into(), gpus.join(",").into());
        }
        if *without_mps {
            all.insert("mps".into(), "off".into());
        }
        if *staged {
            all.insert("staging".into(), "always".into());
        }
        if *auto {
            all.insert("auto".into(), true.into());
        }
        for (name, value) in [
            ("script", file),
            ("script-sha256", sha256),
            ("args", &args.join(" ")),
            ("python", python),
            ("apply", apply),
        ] {
            all.insert(name.into(), value.clone().into());
        }
        all
    }

    /// The GPU of a worker, by number or UUID: workers of a machine take them in turn. Emulated hosts are one machine.
    pub fn gpu_of(&self, rank: usize) -> Option<&str> {
        let gpus = &self.script.as_ref().filter(|script| !script.gpus.is_empty())?.gpus;
        if rank >= self.workers {
            // Workers that come later have no machine yet: they take the GPUs in turn.
            let later = self.elastic.is_some() && rank < self.members() && self.is_worker(rank);
            return later.then(|| &gpus[(rank - self.servers) % gpus.len()][..]);
        }
        let layout = self.layout();
        let index = match self.network {
            Some(_) => rank,
            None => (0..rank).filter(|other| layout[*other] == layout[rank]).count(),
        };
        Some(&gpus[index % gpus.len()])
    }

    /// A small plan, for tests to change: one worker trains the mlp on the digits for ten steps.
    pub fn example() -> Self {
        let document = r#"{"data": "digits", "model": "mlp", "workers": 1, "servers": 0, "strategy": "single",
            "sync": "bsp", "options": {}, "averages": "gradients", "shard": "iid", "transport": "tcp",
            "placement": "colocated", "bucket": 4194304, "batch": 64, "optimizer": "sgd", "lr": 0.05,
            "lr-scaling": "none", "schedule": "constant", "warmup": 0.0, "momentum": 0.9, "nesterov": false,
            "weight-decay": 0.0, "work": {"steps": 10}, "keep": 2, "restarts": 0, "stop-at-target": false,
            "seed": 1, "threads": 1, "pin": false}"#;
        serde_json::from_str(document).expect("the example is a plan")
    }

    /// The hash by which checkpoints are found: that of the same run without stages, since a checkpoint holds the whole
    /// model whoever had which part, and with nobody taken away.
    pub fn checkpoint_hash(&self) -> String {
        if let Some(saved_as) = &self.saved_as {
            return saved_as.clone();
        }
        let (workers, alone) = (self.replicas(), self.replicas() == 1 && self.servers == 0);
        let whole =
            Self { workers, stages: 1, pipeline: None, cuts: Vec::new(), revoke: None, ..self.clone() };
        // One worker alone has this transport, since it sends nothing.
        let transport = if self.stages > 1 && alone { "tcp".into() } else { self.transport.clone() };
        Self { transport, ..whole }.hash()
    }

    /// SHA-256 of the plan, in hexadecimal.
    pub fn hash(&self) -> String {
        let own = self.saved_as.is_some().then(|| Self { saved_as: None, ..self.clone() });
        let text = serde_json::to_string(own.as_ref().unwrap_or(self)).expect("a plan is plain data");
        Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests;
