//! `paceline train`: one run.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::PossibleValue;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Args as _, Command, FromArgMatches as _};
use paceline_data::registry::BadSetting;
use paceline_data::{DATASETS, DatasetSettings, Sharding};
use paceline_nn::models::MODELS;
use paceline_nn::optim::OPTIMISERS;
use paceline_nn::schedule::Schedule;
use paceline_plan::{Hosts, NetworkLimits, Placement, Plan, PlanError, Straggler, TrainingLength};
use paceline_protocol::{
    Averages, CONSISTENCIES, Coder, Options, Parameter, Protocols, Refusal, SINGLE, STRATEGIES,
};
use paceline_record::process::{self, Started};
use paceline_wire::TRANSPORTS;

use super::data::{self, Place};
use super::listen::Listening;
use super::store::{RecordingArgs, Where};
use super::{model, weights};
use crate::failure::Failure;
use crate::output::Show;
use crate::request::RunRequest;

/// Epochs that are trained where nothing else is said.
const EPOCHS: f64 = 5.0;

/// Flags of `paceline train`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Dataset
    #[arg(long, default_value = "digits", value_parser = names(DATASETS.iter().map(|d| (d.name, d.about))))]
    data: String,
    #[command(flatten)]
    pub place: Place,
    /// Side of the squares that images on disk are made to, in pixels (image-folder) [default: 224]
    #[arg(long, value_name = "N")]
    image_size: Option<usize>,
    /// Characters of a window of text (text, tinyshakespeare, letters) [default: 64]
    #[arg(long, value_name = "N")]
    window: Option<usize>,
    /// Threads of each worker that decode images (image-folder) [default: 1, more if cores are left]
    #[arg(long, value_name = "N")]
    decoders: Option<usize>,
    /// Network
    #[arg(long, default_value = "mlp", value_parser = names(MODELS.iter().map(|m| (m.name, m.about))))]
    model: String,
    /// Network from a file: a list of layers in TOML, e.g. examples/models/lenet.toml
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    model_file: Option<PathBuf>,
    /// Start from these weights: a PyTorch state_dict saved as safetensors
    #[arg(long, value_name = "FILE")]
    init: Option<PathBuf>,
    /// Take what fits of --init and start the rest from the seed
    #[arg(long, requires = "init")]
    init_partial: bool,
    /// Layers whose parameters do not change, e.g. conv1,layer1 (layer1 and all of layer1.*)
    #[arg(long, value_name = "LAYER,...", value_delimiter = ',')]
    freeze: Vec<String>,
    /// Number of workers
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Number of parameter servers (with --strategy ps)
    #[arg(long, default_value_t = 0)]
    servers: usize,
    /// How the workers average [default: none with one worker, ring-allreduce with more]
    #[arg(long, value_parser = names(STRATEGIES.iter().map(|s| (s.name, s.about))))]
    strategy: Option<String>,
    /// When a worker may go on
    #[arg(long, default_value = "bsp", value_parser = names(CONSISTENCIES.iter().map(|c| (c.name, c.about))))]
    sync: String,
    /// What is averaged [default: gradients; weights with stepwise, gossip and local]
    #[arg(long, value_parser = ["gradients", "weights"])]
    averages: Option<String>,
    /// Make messages shorter: fp16, int8, 2bit,threshold=T, topk,ratio=R, sign or powersgd,rank=R
    #[arg(long, value_parser = |s: &str| s.parse::<Coder>())]
    compression: Option<Coder>,
    /// Which worker sees which samples: iid, by-label or dirichlet(A) (small A: few classes per worker)
    #[arg(long, default_value = "iid", value_parser = |s: &str| s.parse::<Sharding>())]
    shard: Sharding,
    /// What the workers talk over
    #[arg(long, default_value = "tcp", value_parser = names(TRANSPORTS.iter().map(|t| (t.name, t.about))))]
    transport: String,
    /// Bytes of each connection's buffer, e.g. 256KiB (tcp and uds: the kernel's; shm: the ring; grpc: the window)
    #[arg(long, value_parser = bytes)]
    buffer: Option<usize>,
    /// Emulate links between hosts: BANDWIDTH,LATENCY, e.g. 1gbit,200us (each worker is its own host unless
    /// --hosts says otherwise; traffic inside a host is not slowed)
    #[arg(long, value_parser = |s: &str| s.parse::<NetworkLimits>())]
    network: Option<NetworkLimits>,
    /// Hosts: their number, over which ranks are spread, or the host of each worker, e.g. 0,0,1,1
    #[arg(long, value_parser = |s: &str| s.parse::<Hosts>())]
    hosts: Option<Hosts>,
    /// Where servers sit, with --network or several --hosts
    #[arg(long, default_value = "colocated", value_parser = names(Placement::ALL.iter().copied()))]
    placement: String,
    /// Bytes of gradient that are fused and sent together while backward goes on, e.g. 4MiB
    #[arg(long, default_value = "4MiB", value_parser = bytes)]
    bucket: usize,
    /// Slow workers down: rank=R,factor=F, moving,factor=F (another one in each step) or lognormal,sigma=S
    #[arg(long, value_parser = |s: &str| s.parse::<Straggler>())]
    straggler: Option<Straggler>,
    /// End the run after this many steps without changing what they are
    #[arg(long)]
    stop_after_step: Option<u64>,
    /// Samples per worker and step
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Learning rate
    #[arg(long, default_value_t = 0.05)]
    lr: f64,
    /// How the learning rate follows the number of workers
    #[arg(long, default_value = "none", value_parser = ["none", "linear"])]
    lr_scaling: String,
    /// How the learning rate changes: constant, cosine, or step,every=EPOCHS,factor=F
    #[arg(long, default_value = "constant", value_parser = |s: &str| s.parse::<Schedule>())]
    schedule: Schedule,
    /// Fraction of the run over which the learning rate rises from zero
    #[arg(long, default_value_t = 0.0)]
    warmup: f64,
    /// Optimiser
    #[arg(long, default_value = "sgd", value_parser = names(OPTIMISERS.iter().map(|o| (o.name, o.about))))]
    optimizer: String,
    /// Momentum of sgd
    #[arg(long, default_value_t = 0.9)]
    momentum: f64,
    /// Nesterov's form of momentum
    #[arg(long)]
    nesterov: bool,
    /// Weight decay
    #[arg(long, default_value_t = 0.0)]
    weight_decay: f64,
    /// Passes over the training split by all workers together, fractions allowed [default: 5]
    #[arg(long, conflicts_with = "steps")]
    epochs: Option<f64>,
    /// Train steps·workers·batch samples. (The tail of an epoch is a smaller batch, so a run over
    /// several epochs takes a few more steps.)
    #[arg(long)]
    steps: Option<u64>,
    /// Test accuracy whose time is asked for, e.g. 0.98
    #[arg(long)]
    target_accuracy: Option<f64>,
    /// End the run at the evaluation that reaches the target
    #[arg(long)]
    stop_at_target: bool,
    /// Steps between evaluations; at epoch ends if left out
    #[arg(long)]
    eval_every: Option<u64>,
    /// Save the run every so many steps, so that `paceline resume` can go on from there
    #[arg(long, value_name = "STEPS")]
    checkpoint_every: Option<u64>,
    /// Checkpoints to keep
    #[arg(long, default_value_t = 2)]
    keep: usize,
    /// What to do when a process is lost: fail, or restart all from the last checkpoint
    #[arg(long, default_value = "fail", value_parser = ["fail", "restart"])]
    on_loss: String,
    /// How often a run may restart (with --on-loss restart)
    #[arg(long, default_value_t = 3)]
    restarts: u32,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads of each worker
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Keep each thread on a core of its own
    #[arg(long)]
    pin: bool,
    #[command(flatten)]
    pub store: Where,
    #[command(flatten)]
    pub kept: RecordingArgs,
    /// Leave no record of the run, and no checkpoint: it cannot be resumed
    #[arg(long, conflicts_with_all = ["store", "sample_hz", "trace", "checkpoint_every", "on_loss"])]
    pub no_record: bool,
    #[command(flatten)]
    pub listening: Listening,
    #[command(flatten)]
    parameters: Parameters,
}

/// The flags of the strategies' and consistency models' own parameters, as the registries declare them.
#[derive(Clone, Debug, Default)]
struct Parameters(BTreeMap<String, String>);

impl clap::FromArgMatches for Parameters {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |p: &&Parameter| {
            matches.get_one::<String>(p.name).map(|value| (p.name.to_owned(), value.clone()))
        };
        Ok(Self(Protocols::default().parameters().iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for Parameters {
    fn augment_args(command: Command) -> Command {
        Protocols::default().parameters().into_iter().fold(command, |command, p| {
            let owners = Protocols::default().owners(p.name);
            let (first, rest) = p.about.split_at(1);
            let about = first.to_uppercase() + rest;
            let help = format!("{about} ({owners}; {}) [default: {}]", p.range(), p.default);
            command.arg(
                Arg::new(p.name)
                    .long(p.name)
                    .help(help)
                    .help_heading("Parameters of single strategies and consistency models")
                    .value_parser(move |value: &str| p.check(value).map(|()| value.to_owned())),
            )
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// A number of bytes with an optional unit.
pub fn bytes(text: &str) -> Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let factor = match &text[digits..] {
        "" | "B" => 1,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "kB" => 1_000,
        "MB" => 1_000_000,
        _ => 0,
    };
    let number = text[..digits].parse::<usize>().ok().and_then(|n| n.checked_mul(factor)).filter(|&n| n > 0);
    number.ok_or_else(|| "a positive number of bytes is needed, e.g. 65536, 64KiB, 4MiB or 25MB".into())
}

/// A parser of registered names that shows what each one is.
pub fn names(entries: impl Iterator<Item = (&'static str, &'static str)>) -> PossibleValuesParser {
    PossibleValuesParser::new(
        entries.map(|(name, about)| PossibleValue::new(name).help(about)).collect::<Vec<_>>(),
    )
}

impl Args {
    /// Where datasets are looked for.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The plan that the flags describe, with everything that they leave open filled in.
    pub fn plan(&self) -> Result<Plan, PlanError> {
        let strategy = self.strategy.clone().unwrap_or_else(|| {
            if self.workers == 1 && self.servers == 0 { SINGLE.into() } else { "ring-allreduce".into() }
        });
        let refuse = |refusal: Refusal| {
            let Refusal { flag, value, problem } = refusal;
            PlanError { flag, value, problem }
        };
        let model_file = self.model_file.as_deref().map(model::description).transpose()?;
        let mut options = Options(self.parameters.0.clone());
        let mut averages = Averages::Gradients;
        let protocols = Protocols::default();
        match protocols.strategies.find(&strategy) {
            Some(strategy) => {
                protocols.resolve(strategy, &self.sync, &mut options).map_err(refuse)?;
                averages = strategy.averages[0];
            }
            None => self.check_alone(&options).map_err(refuse)?,
        }
        let asynchronous = !["bsp", "switch"].contains(&self.sync.as_str());
        if asynchronous && self.lr_scaling == "linear" {
            let problem = format!("is for steps of whole global batches; {} makes single pushes", self.sync);
            return Err(refuse(Refusal::new("--lr-scaling", "linear", problem)));
        }
        Ok(Plan {
            options: options.0,
            averages: self.averages.clone().unwrap_or_else(|| averages.name().into()),
            compression: self.compression.map(|coder| coder.to_string()),
            shard: self.shard.to_string(),
            data: self.data.clone(),
            image_size: self.image_size,
            window: self.window,
            decoders: self.decoders,
            model: model_file.as_ref().map_or_else(|| self.model.clone(), |(name, _)| name.clone()),
            model_file: model_file.map(|(_, text)| text),
            init: self.init.as_deref().map(|file| weights::plan(file, self.init_partial)).transpose()?,
            frozen: self.freeze.clone(),
            workers: self.workers,
            servers: self.servers,
            strategy,
            sync: self.sync.clone(),
            transport: self.transport.clone(),
            buffer: self.buffer,
            network: self.network,
            hosts: self.hosts.clone(),
            placement: self.placement.parse().expect("clap lets registered names pass only"),
            bucket: self.bucket,
            straggler: self.straggler,
            stop_after_step: self.stop_after_step,
            batch: self.batch,
            optimizer: self.optimizer.clone(),
            lr: self.lr,
            lr_scaling: self.lr_scaling.clone(),
            schedule: self.schedule.to_string(),
            warmup: self.warmup,
            momentum: self.momentum,
            nesterov: self.nesterov,
            weight_decay: self.weight_decay,
            work: self
                .steps
                .map_or(TrainingLength::Epochs(self.epochs.unwrap_or(EPOCHS)), TrainingLength::Steps),
            checkpoint_every: self.checkpoint_every,
            keep: self.keep,
            restarts: if self.on_loss == "restart" { self.restarts } else { 0 },
            target_accuracy: self.target_accuracy,
            stop_at_target: self.stop_at_target,
            eval_every: self.eval_every,
            seed: self.seed,
            threads: self.threads,
            pin: self.pin,
        })
    }

    /// What makes no sense without anybody to talk to.
    fn check_alone(&self, options: &Options) -> Result<(), Refusal> {
        let problem = "one worker alone waits for nobody; give a --strategy that has it, e.g. ps";
        if self.sync != "bsp" {
            return Err(Refusal::new("--sync", &self.sync, problem));
        }
        if let Some((name, value)) = options.0.iter().next() {
            let problem = format!("belongs to {}", Protocols::default().owners(name));
            return Err(Refusal::new(&format!("--{name}"), value, problem));
        }
        let problem = "one worker alone sends nothing; give more --workers or a --strategy";
        if let Some(coder) = self.compression {
            return Err(Refusal::new("--compression", coder, problem));
        }
        if let Some(buffer) = self.buffer {
            return Err(Refusal::new("--buffer", buffer, problem));
        }
        if let Some(network) = self.network {
            return Err(Refusal::new("--network", network, problem));
        }
        if let Some(hosts) = &self.hosts {
            return Err(Refusal::new("--hosts", hosts, problem));
        }
        if let Some(averages) = &self.averages {
            return Err(Refusal::new("--averages", averages, problem));
        }
        Ok(())
    }
}

impl Args {
    /// The plan, after everything that can be wrong with it whatever the dataset: that is said before a large one is
    /// loaded.
    pub fn checked(&self) -> Result<Plan, Failure> {
        let plan = self.plan()?;
        plan.check(usize::MAX)?;
        let source = paceline_data::find(&plan.data).expect("clap lets registered names pass only");
        let Plan { image_size, window, decoders, .. } = plan;
        source.check(&DatasetSettings { image_size, window, decoders }).map_err(|bad| {
            let BadSetting { flag, value, problem } = bad;
            PlanError { flag, value: value.to_string(), problem }
        })?;
        Ok(plan)
    }
}

/// The plan of these flags of `paceline train`, which must be valid.
pub fn planned(words: Vec<OsString>) -> Result<Plan, PlanError> {
    let command = Args::augment_args(Command::new("train").no_binary_name(true));
    let matches = command.try_get_matches_from(words).expect("the caller's flags are valid");
    Args::from_arg_matches(&matches).expect("the flags match").plan()
}

/// `paceline train`: runs the plan that the flags describe.
pub fn train(args: &Args, show: Show, started: Started) -> Result<(), Failure> {
    let plan = args.checked()?;
    args.listening.check(&plan, plan.strategy == SINGLE)?;
    let request = RunRequest {
        plan,
        folders: data::folders(&args.place),
        store: args.store.folder(),
        run: process::new_run_id(),
        resumes: false,
        recording: (!args.no_record).then(|| args.kept.recording()),
    };
    request.execute(&args.listening, show, started)
}
