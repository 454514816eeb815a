//! Every setting of a run. Command line, study files and help texts know no others.

use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;

use paceline_data::Sharding;
use paceline_nn::Schedule;
use paceline_pipeline::Cuts;
use paceline_plan::{Elastic, Hosts, NetworkLimits, Placement, Straggler};
use paceline_protocol::{Coder, DELEGATED, Parameter, Protocols};
use paceline_registry::{Entry, Registry};

use crate::registries::Registries;
use crate::resolve::{AUTO_TRANSPORT, AUTO_TRANSPORT_ABOUT};

/// Settings of native networks, their data and their optimiser.
const NATIVE: &[&str] = &[
    "data",
    "data-dir",
    "image-size",
    "window",
    "decoders",
    "model",
    "model-file",
    "init",
    "init-partial",
    "freeze",
    "stages",
    "pipeline",
    "cuts",
    "shares",
    "shard",
    "batch",
    "micro-batches",
    "lr",
    "lr-scaling",
    "schedule",
    "warmup",
    "optimizer",
    "momentum",
    "nesterov",
    "weight-decay",
    "epochs",
    "eval-every",
    "eval-samples",
];

/// Names and what each stands for.
type Names = Vec<(&'static str, &'static str)>;

/// One setting of a run.
pub struct RunSetting {
    /// The flag, without its dashes.
    pub name: &'static str,
    /// One line for help texts.
    pub about: Cow<'static, str>,
    /// The value where none is given.
    pub default: Option<&'static str>,
    /// The value where the setting is given without one.
    pub bare: Option<&'static str>,
    /// What the value is called in help texts.
    pub value_name: Cow<'static, str>,
    /// How the value is read.
    pub kind: SettingKind,
    /// The group that it is listed with.
    pub section: SettingSection,
    /// A setting that cannot be given together with this one.
    pub conflicts: Option<&'static str>,
    /// A setting that must be given with this one.
    pub requires: Option<&'static str>,
    /// Whether it is about a native network, its data or its optimiser: a script decides that itself.
    pub native: bool,
}

/// How a setting's value is read.
pub enum SettingKind {
    /// Yes or no.
    Switch,
    /// One of these names; the second text says what a name stands for.
    Name(Names),
    /// Text that this check accepts.
    Text(fn(&str) -> Result<(), String>),
    /// A file or a folder.
    Path,
    /// Words, separated by commas.
    List,
    /// A parameter that a strategy or a consistency model declares.
    Parameter(&'static Parameter),
}

/// The groups of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingSection {
    /// What the plan says, and where its data lie.
    Plan,
    /// What single strategies and consistency models take.
    Parameters,
    /// What is recorded.
    Recording,
}

impl RunSetting {
    fn new(name: &'static str, about: &'static str, kind: SettingKind) -> Self {
        let value_name = match kind {
            SettingKind::Path => "FILE".into(),
            _ => name.to_uppercase().replace('-', "_").into(),
        };
        Self {
            name,
            about: about.into(),
            default: None,
            bare: None,
            value_name,
            kind,
            section: SettingSection::Plan,
            conflicts: None,
            requires: None,
            native: NATIVE.contains(&name),
        }
    }

    fn parameter(parameter: &'static Parameter, protocols: &Protocols) -> Self {
        let Parameter { name, about, default, .. } = *parameter;
        let (first, rest) = about.split_at(1);
        let (owners, range) = (protocols.owners(name), parameter.range());
        let about = format!("{}{rest} ({owners}; {range}) [default: {default}]", first.to_uppercase());
        Self {
            about: about.into(),
            value_name: name.into(),
            section: SettingSection::Parameters,
            ..Self::new(name, "", SettingKind::Parameter(parameter))
        }
    }

    fn default(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    fn called(self, value_name: &'static str) -> Self {
        Self { value_name: value_name.into(), ..self }
    }

    fn recorded(self) -> Self {
        Self { section: SettingSection::Recording, ..self }
    }

    /// Whether a value can be; otherwise, what could.
    pub fn check(&self, value: &str) -> Result<(), String> {
        match &self.kind {
            SettingKind::Switch | SettingKind::Path | SettingKind::List => Ok(()),
            SettingKind::Name(_) if self.name == "strategy" && is_strategy_file(value) => Ok(()),
            SettingKind::Name(names) => {
                let names: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
                let possible = || format!("[possible values: {}]", names.join(", "));
                if names.contains(&value) { Ok(()) } else { Err(possible()) }
            }
            SettingKind::Text(check) => check(value),
            SettingKind::Parameter(parameter) => parameter.check(value),
        }
    }
}

/// Every setting of a run, and what the names among their values stand for.
pub struct SettingTable {
    /// What can be named.
    pub registries: Registries,
    settings: Vec<RunSetting>,
}

impl SettingTable {
    /// The settings of runs that can name these things.
    pub fn new(registries: Registries) -> Self {
        let protocols = &registries.protocols;
        let parameters = protocols.parameters().into_iter().map(|p| RunSetting::parameter(p, protocols));
        let settings = of_plans(&registries).into_iter().chain(parameters).chain(of_recordings()).collect();
        Self { registries, settings }
    }

    /// Every setting, in the order of help texts.
    pub fn iter(&self) -> impl Iterator<Item = &RunSetting> {
        self.settings.iter()
    }

    /// The setting of a name.
    pub fn find(&self, name: &str) -> Option<&RunSetting> {
        self.iter().find(|setting| setting.name == name)
    }
}

/// Whether a strategy is named by its file.
pub fn is_strategy_file(value: &str) -> bool {
    value.ends_with(".toml")
}

/// Text that reads as a `T`.
fn text<T: FromStr<Err: Display>>() -> SettingKind {
    SettingKind::Text(|text| text.parse::<T>().map(drop).map_err(|error| error.to_string()))
}

fn names<T: Entry>(registry: &Registry<T>) -> SettingKind {
    SettingKind::Name(registry.described().collect())
}

fn words(names: [&'static str; 2]) -> SettingKind {
    SettingKind::Name(names.map(|name| (name, "")).to_vec())
}

#[rustfmt::skip] // A setting is a line or two.
fn of_plans(registries: &Registries) -> Vec<RunSetting> {
    use SettingKind::{List, Path, Switch};
    let new = RunSetting::new;
    let delegated = DELEGATED.iter().map(|strategy| (strategy.name, strategy.about));
    let strategies = registries.protocols.strategies.described().chain(delegated);
    let transports = registries.transports.described().chain([(AUTO_TRANSPORT, AUTO_TRANSPORT_ABOUT)]);
    vec![
        new("data", "Dataset", names(&registries.datasets)).default("digits"),
        new("data-dir", "Folder of datasets, tried as DIR/<name> and as the dataset's own folder (or file) [default: \
            PACELINE_DATA, then the user's data directory]", Path).called("DIR"),
        new("image-size", "Side of the squares that images on disk are made to, in pixels (image-folder) [default: 224]",
            text::<usize>()).called("N"),
        new("window", "Characters of a window of text (text, tinyshakespeare, letters) [default: 64]",
            text::<usize>()).called("N"),
        new("decoders", "Threads of each worker that decode images (image-folder) [default: 1, more if cores are left]",
            text::<usize>()).called("N"),
        new("model", "Network", names(&registries.models)).default("mlp"),
        RunSetting { conflicts: Some("model"), ..new("model-file",
            "Network from a file: a list of layers in TOML, e.g. examples/models/lenet.toml", Path) },
        RunSetting { conflicts: Some("model-file"), ..new("script",
            "Train what this Python script computes, one process for each worker (docs/pytorch.md); what is written \
            behind -- are its arguments", Path) },
        RunSetting { requires: Some("script"), ..new("python",
            "Program that runs the script [default: PACELINE_PYTHON, else python3]", text::<String>()) }.called("PROGRAM"),
        RunSetting { requires: Some("script"), ..new("args",
            "The script's arguments as one text, as a shell reads it: for files; a command line has them behind --",
            SettingKind::Text(|text| words_of(text).map(drop))) }.called("TEXT"),
        RunSetting { requires: Some("script"), ..new("apply",
            "Who updates the parameters of a script: its own optimiser, or servers with a native one that is set as \
            the script's is (SGD, Adam, AdamW) [default: worker]", words(["worker", "server"])) },
        RunSetting { requires: Some("script"), ..new("gpus",
            "GPUs that the workers of a machine take in turn, by number or UUID, e.g. 0,1 (docs/pytorch.md#gpus) [default: the \
            script chooses]", List) }.called("LIST"),
        RunSetting { requires: Some("gpus"), ..new("mps",
            "Whether several workers of a GPU share it by NVIDIA's multi-process service, where that can be started [default: \
            auto]", words(["auto", "off"])) },
        RunSetting { requires: Some("script"), ..new("staging",
            "Whether a script that is the only worker hands its gradients over as if there were others, to measure what that costs \
            it; several workers always do [default: auto, which does not]", words(["auto", "always"])) },
        RunSetting { requires: Some("script"), ..new("auto",
            "The script says nothing of Paceline: its model, optimiser and loaders are found while it runs, or refused \
            (docs/pytorch.md#unchanged-scripts); an experiment", Switch) },
        new("init", "Start from these weights: a PyTorch state_dict saved as safetensors", Path),
        RunSetting { requires: Some("init"), ..new("init-partial",
            "Take what fits of --init and start the rest from the seed", Switch) },
        new("freeze", "Layers whose parameters do not change, e.g. conv1,layer1 (layer1 and all of layer1.*)", List)
            .called("LAYER,..."),
        new("workers", "Number of workers; with --stages, a multiple of them: each replica of the model has as many workers as \
            stages, and all of them where it is left out", text::<usize>()).default("1"),
        new("stages", "Cut the network into this many stages, each on a worker of its own, through which micro-batches are \
            passed (docs/pipelines.md); the result is that of one worker with the same --micro-batches, bit for bit",
            text::<usize>()).called("S").default("1"),
        RunSetting { requires: Some("stages"), ..new("pipeline", "In which order stages pass micro-batches [default: 1f1b]",
            names(&registries.pipelines)) },
        RunSetting { requires: Some("stages"), ..new("cuts", "Where the network is cut: auto, so that the longest stage is as \
            short as counted costs tell, or the first layer of each stage but the first, e.g. layer2.0,layer3 [default: auto]",
            text::<Cuts>()) }.called("LAYER,..."),
        new("shares", "Shares of a global batch, --batch samples each [default: one per worker]: 2 workers with 4 shares \
            train exactly as 4 workers would (exact paths and ps, with --sync bsp)", text::<usize>()).called("S"),
        new("elastic", "Go on when workers are lost, with at least MIN and at most MAX of them: the rest take over their \
            shares, and with --sync bsp the result is the same (docs/elastic.md)", SettingKind::Text(|text| Elastic::bounds(text).map(drop)))
            .called("MIN..MAX"),
        new("spare", "Workers that wait until another one is lost, and take its place", text::<usize>()).called("N"),
        new("backup", "Copies of each server shard on other servers, 0 or 1: a lost server's copy takes its place",
            words(["0", "1"])).called("COPIES"),
        new("revoke", "Who is taken away: a file of times, ranks, notices and returns (docs/elastic.md); real runs do it to \
            their own processes", Path),
        new("servers", "Number of parameter servers (with --strategy ps)", text::<usize>()).default("0"),
        new("strategy", "How the workers average [default: none with one worker, auto with more]",
            SettingKind::Name(strategies.collect())),
        RunSetting { conflicts: Some("strategy"), ..new("strategy-file",
            "Average as a file's rounds say (docs/own-strategy.md), e.g. examples/strategies/gossip.toml; \
            --strategy FILE.toml is the same", Path) },
        new("sync", "When a worker may go on", names(&registries.protocols.consistencies))
            .default("bsp"),
        new("averages", "What is averaged [default: gradients; weights with stepwise, gossip and local]",
            words(["gradients", "weights"])),
        new("compression", "Make messages shorter: fp16, int8, 2bit,threshold=T, topk,ratio=R, sign or powersgd,rank=R",
            text::<Coder>()),
        new("shard", "Which worker sees which samples: iid, by-label or dirichlet(A) (small A: few classes per worker)",
            text::<Sharding>()).default("iid"),
        new("transport", "What the workers talk over", SettingKind::Name(transports.collect()))
            .default(AUTO_TRANSPORT),
        new("buffer", "Bytes of each connection's buffer, e.g. 256KiB (tcp and uds: the kernel's; shm: the ring; grpc: \
            the window)", SettingKind::Text(|text| byte_count(text).map(drop))),
        new("network", "Emulate links between hosts: BANDWIDTH,LATENCY, e.g. 1gbit,200us (each worker is its own host \
            unless --hosts says otherwise; traffic inside a host is not slowed)", text::<NetworkLimits>()),
        new("hosts", "Hosts: their number, over which ranks are spread, or the host of each worker, e.g. 0,0,1,1",
            text::<Hosts>()),
        new("placement", "Where servers sit, with --network or several --hosts", SettingKind::Name(Placement::ALL.to_vec()))
            .default("colocated"),
        new("bucket", "Bytes of gradient that are fused and sent together while backward goes on, e.g. 4MiB",
            SettingKind::Text(|text| byte_count(text).map(drop))).default("4MiB"),
        new("straggler", "Slow workers down: rank=R,factor=F, moving,factor=F (another one in each step) or \
            lognormal,sigma=S", text::<Straggler>()),
        new("stop-after-step", "End the run after this many steps without changing what they are", text::<u64>()),
        new("batch", "Samples per worker and step (per share, with --shares)", text::<usize>()).default("64"),
        new("micro-batches", "Passes in which a worker computes its batch, adding up gradients: less memory for \
            activations, and batch norm sees only a part at a time", text::<usize>()).called("M").default("1"),
        new("lr", "Learning rate", text::<f64>()).default("0.05"),
        new("lr-scaling", "How the learning rate follows the number of workers",
            words(["none", "linear"])).default("none"),
        new("schedule", "How the learning rate changes: constant, cosine, or step,every=EPOCHS,factor=F",
            text::<Schedule>()).default("constant"),
        new("warmup", "Fraction of the run over which the learning rate rises from zero", text::<f64>()).default("0"),
        new("optimizer", "Optimiser", names(&registries.optimisers)).default("sgd"),
        new("momentum", "Momentum of sgd", text::<f64>()).default("0.9"),
        new("nesterov", "Nesterov's form of momentum", Switch),
        new("weight-decay", "Weight decay", text::<f64>()).default("0"),
        RunSetting { conflicts: Some("steps"), ..new("epochs",
            "Passes over the training split by all workers together, fractions allowed [default: 5]", text::<f64>()) },
        new("steps", "Train steps·workers·batch samples. (The tail of an epoch is a smaller batch, so a run over several \
            epochs takes a few more steps.)", text::<u64>()),
        new("target-accuracy", "Test accuracy whose time is asked for, e.g. 0.98", text::<f64>()),
        new("stop-at-target", "End the run at the evaluation that reaches the target: workers that step together wait \
            there for the verdict; others end at the next step that all reach", Switch),
        new("eval-every", "Steps between evaluations; at epoch ends if left out", text::<u64>()),
        new("eval-samples", "Samples of the test split that evaluations during the run take: the first N of an order \
            that --seed decides, the same for every strategy and number of workers; what is reached is judged by \
            them, and the final figures by the whole split [default: all]", text::<usize>()).called("N"),
        new("checkpoint-every", "Save the run every so many steps, so that `paceline resume` can go on from there",
            text::<u64>()).called("STEPS"),
        new("keep", "Checkpoints to keep", text::<usize>()).default("2"),
        new("on-loss", "What to do when a process is lost: fail, or restart all from the last checkpoint",
            words(["fail", "restart"])).default("fail"),
        new("restarts", "How often a run may restart (with --on-loss restart)", text::<u32>()).default("3"),
        new("seed", "Seed of everything random", text::<u64>()).default("1"),
        new("threads", "Threads of each worker", text::<usize>()).default("1"),
        new("pin", "Keep each thread on a core of its own", Switch),
    ]
}

fn of_recordings() -> Vec<RunSetting> {
    let rate = |text: &str| {
        let rate = text.parse::<f64>().ok().filter(|hz| (0.0..=1000.0).contains(hz));
        rate.map(drop).ok_or_else(|| "a number of samples per second from 0 to 1000 is needed".into())
    };
    let trace = "Record single messages and waits for `export --format trace`, at most so many per rank";
    let trace = RunSetting::new("trace", trace, text::<u64>()).called("MESSAGES").default("0");
    vec![
        RunSetting::new(
            "sample-hz",
            "Samples of each rank's resources per second; 0 for none",
            SettingKind::Text(rate),
        )
        .default("10")
        .recorded(),
        RunSetting { bare: Some("50000"), ..trace }.recorded(),
    ]
}

/// The words of a text, as a shell reads it: spaces separate, quotes and backslashes keep together.
pub fn words_of(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('\\', None | Some('"')) => {
                let next = rest.next().ok_or("it ends with a backslash that nothing follows")?;
                word.get_or_insert_default().push(next);
            }
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    if let Some(quote) = quote {
        return Err(format!("the quote {quote} is not closed"));
    }
    words.extend(word);
    Ok(words)
}

/// A number of bytes with an optional unit.
pub fn byte_count(text: &str) -> Result<usize, String> {
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
