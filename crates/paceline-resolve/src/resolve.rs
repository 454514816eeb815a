//! Settings to plan: defaults, checks, refusals.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use paceline_data::{BadSetting, DatasetSettings, Sharding};
use paceline_nn::Schedule;
use paceline_pipeline::Cuts;
use paceline_plan::{
    Elastic, Hosts, NetworkLimits, PathRule, Plan, PlanError, Revocations, Script, TrainingLength, Weights,
};
use paceline_protocol::{
    AUTO, Averages, Coder, FROM_FILE, Options, Refusal, SINGLE, Setup, StrategyProgram, Topology,
    choose_paths,
};
use paceline_registry::Registry;
use paceline_wire::TransportKind;

use crate::registries::Registries;
use crate::settings::PlanSettings;
use crate::table::{byte_count, is_strategy_file};
use crate::typed::{strategy_program, unknown, wrong_strategy};

/// Epochs that are trained where nothing else is set.
pub const DEFAULT_EPOCHS: f64 = 5.0;

/// In which order stages pass micro-batches where nothing else is set: fewer slots than gpipe, and no longer a bubble.
pub const DEFAULT_PIPELINE: &str = "1f1b";

/// What stands for the dataset where a script has its own.
pub const SCRIPT_DATA: &str = "script";

/// Longest model or strategy file that is read, in bytes.
const LONGEST_FILE: u64 = 1 << 20;

/// Steps of a strategy file that are looked at when a plan is resolved.
const FIRST_STEPS: u64 = 64;

fn refuse(Refusal { flag, value, problem }: Refusal) -> PlanError {
    PlanError { flag, value, problem }
}

/// How members may change: as soon as one of its settings is given.
fn elastic(given: &PlanSettings, workers: usize) -> Result<Option<Elastic>, PlanError> {
    let spares: Option<usize> = given.optional("spare")?;
    let backup = given.text("backup") == Some("1");
    let bounds = given
        .text("elastic")
        .map(|text| Elastic::bounds(text).map_err(|problem| PlanError::new("--elastic", text, problem)));
    let bounds = bounds.transpose()?;
    if bounds.is_none() && spares.is_none() && !backup && !given.given("revoke") {
        return Ok(None);
    }
    let (least, most) = bounds.unwrap_or((1, workers));
    Ok(Some(Elastic { least, most, spares: spares.unwrap_or(0), backup }))
}

/// The plan that settings describe, with everything that they leave open filled in. It is refused for all that can be
/// wrong with it whatever the dataset holds.
pub fn resolve(given: &PlanSettings) -> Result<Plan, PlanError> {
    given.check_pairs()?;
    let script = given.path("script").map(|file| script(file, given)).transpose()?;
    let servers: usize = given.required("servers")?;
    let stages: usize = given.required("stages")?;
    let workers = if given.given("workers") { given.required("workers")? } else { stages.max(1) };
    let sync: String = given.required("sync")?;
    let lr_scaling: String = given.required("lr-scaling")?;
    // As many shares as workers are the usual ones, where each worker is a replica of the model.
    let shares: Option<usize> = given.optional("shares")?.filter(|shares| stages > 1 || *shares != workers);
    let elastic = elastic(given, workers)?;
    // Scripts divide their data by as many workers as there can be.
    let of_scripts = elastic.filter(|elastic| script.is_some() && elastic.most > workers);
    let shares = of_scripts.map(|elastic| elastic.most).or(shares);
    let replicas = workers / stages.max(1);
    let alone = shares.unwrap_or(replicas) == 1 && servers == 0;
    let strategy = match given.text("strategy") {
        None | Some(AUTO) if alone => SINGLE,
        given => given.unwrap_or(AUTO),
    };
    let strategy_file = strategy_path(given).map(|path| strategy_description(&path)).transpose()?;
    let strategy = strategy_file.as_ref().map_or(strategy, |(name, _)| name).to_owned();
    let model_file = given.path("model-file").map(model_description).transpose()?;
    let (options, averages) = match &strategy_file {
        Some((name, text)) => file_options(given, name, text, &sync)?,
        None => strategy_options(given, &strategy, &sync)?,
    };
    let of_name = || given.registries().protocols.of_plan(&strategy).and_then(|strategy| strategy.delegated);
    let delegated = if strategy_file.is_some() { None } else { of_name() };
    let script = script.map(|script| Script { delegated: delegated.map(str::to_owned), ..script });
    let consistencies = &given.registries().protocols.consistencies;
    let whole_batches = consistencies.find(&sync).is_none_or(|model| model.whole_batches);
    if !whole_batches && lr_scaling == "linear" {
        let problem = format!("is for steps of whole global batches; {sync} makes single pushes");
        return Err(refuse(Refusal::new("--lr-scaling", "linear", problem)));
    }
    let epochs = || given.optional("epochs").map(|epochs| epochs.unwrap_or(DEFAULT_EPOCHS));
    let open = script.is_some() && !given.given("steps");
    let mut plan = Plan {
        options: options.0,
        averages: given.text("averages").unwrap_or(averages.name()).into(),
        compression: given.optional::<Coder>("compression")?.map(|coder| coder.to_string()),
        shard: given.required::<Sharding>("shard")?.to_string(),
        data: if script.is_some() { SCRIPT_DATA.into() } else { given.required("data")? },
        image_size: given.optional("image-size")?,
        window: given.optional("window")?,
        decoders: given.optional("decoders")?,
        model: match (&script, &model_file) {
            (Some(script), _) => file_name(Path::new(&script.file)),
            (_, Some((name, _))) => name.clone(),
            _ => given.required("model")?,
        },
        model_file: model_file.map(|(_, text)| text),
        init: given.path("init").map(|file| weights(file, given.given("init-partial"))).transpose()?,
        frozen: given.text("freeze").map_or_else(Vec::new, |l| l.split(',').map(str::to_owned).collect()),
        workers,
        stages,
        pipeline: (stages > 1).then(|| given.text("pipeline").unwrap_or(DEFAULT_PIPELINE).to_owned()),
        cuts: match given.optional::<Cuts>("cuts")? {
            Some(Cuts::Before(layers)) => layers,
            Some(Cuts::Auto) | None => Vec::new(),
        },
        shares,
        elastic,
        saved_as: None,
        revoke: given.path("revoke").map(revocations).transpose()?,
        micro_batches: given.required("micro-batches")?,
        servers,
        strategy,
        strategy_file: strategy_file.map(|(_, text)| text),
        paths: Vec::new(),
        sync,
        transport: transport(given, alone && stages == 1)?,
        buffer: given.read("buffer", byte_count)?,
        network: given.optional::<NetworkLimits>("network")?,
        hosts: given.optional::<Hosts>("hosts")?,
        placement: given.required("placement")?,
        bucket: given.read("bucket", byte_count)?.unwrap_or_default(),
        straggler: given.optional("straggler")?,
        stop_after_step: given.optional("stop-after-step")?,
        // How many samples a script takes is known once it runs.
        batch: if script.is_some() { 1 } else { given.required("batch")? },
        optimizer: given.required("optimizer")?,
        lr: given.required("lr")?,
        lr_scaling,
        schedule: given.required::<Schedule>("schedule")?.to_string(),
        warmup: given.required("warmup")?,
        momentum: given.required("momentum")?,
        nesterov: given.given("nesterov"),
        weight_decay: given.required("weight-decay")?,
        work: match given.optional("steps")? {
            None if open => TrainingLength::UntilScriptEnds,
            Some(steps) => TrainingLength::Steps(steps),
            None => TrainingLength::Epochs(epochs()?),
        },
        checkpoint_every: given.optional("checkpoint-every")?,
        keep: given.required("keep")?,
        restarts: if given.text("on-loss") == Some("restart") { given.required("restarts")? } else { 0 },
        target_accuracy: given.optional("target-accuracy")?,
        stop_at_target: given.given("stop-at-target"),
        eval_every: given.optional("eval-every")?,
        eval_samples: given.optional("eval-samples")?,
        seed: given.required("seed")?,
        threads: given.required("threads")?,
        pin: given.given("pin"),
        script,
    };
    if plan.script.is_some() {
        check_native(given)?;
    }
    plan.check(usize::MAX)?;
    check_stages(&plan, given.registries())?;
    check_rounds(&plan)?;
    plan.paths = paths(&plan, &given.registries().transports);
    if plan.script.is_some() {
        check_script(&plan)?;
    } else {
        check_dataset(&plan, given.registries())?;
    }
    Ok(plan)
}

/// The name that leaves the transport to where ranks sit.
pub const AUTO_TRANSPORT: &str = "auto";

/// What it stands for, in help texts.
pub(crate) const AUTO_TRANSPORT_ABOUT: &str =
    "shm: shared memory within a machine, TCP between machines (--listen)";

/// The transport of ranks that share machines, or of ranks each of which is on a machine of its own.
pub fn auto_transport(all_apart: bool) -> &'static str {
    if all_apart { "tcp" } else { "shm" }
}

/// What a plan's processes talk over.
fn transport(given: &PlanSettings, alone: bool) -> Result<String, PlanError> {
    let name: String = given.required("transport")?;
    if name != AUTO_TRANSPORT {
        return Ok(name);
    }
    // One worker alone sends nothing: its plans have the name that they always had.
    Ok(auto_transport(alone).into())
}

/// The paths that a plan's buckets take, where it leaves the choice: from the number of positions, where they sit, what
/// they talk over and whether messages are encoded.
pub fn paths(plan: &Plan, transports: &Registry<TransportKind>) -> Vec<PathRule> {
    if plan.strategy != AUTO {
        return Vec::new();
    }
    // Those of one stage average among themselves: as the first stage's sit, so do the others'.
    let hosts: Vec<usize> = plan.layout()[..plan.workers].iter().step_by(plan.stages).copied().collect();
    let topology = Topology::of_workers(&hosts, plan.shares());
    let memory = transports.find(&plan.transport).is_some_and(|kind| kind.memory);
    let chosen = choose_paths(&topology, memory, plan.compression.is_some());
    chosen.iter().map(|sized| PathRule { below_bytes: sized.below_bytes, path: sized.name.into() }).collect()
}

/// The parameters of a strategy and a consistency model, and what is averaged where nothing else is set.
fn strategy_options(
    given: &PlanSettings,
    strategy: &str,
    sync: &str,
) -> Result<(Options, Averages), PlanError> {
    let mut options = Options(given.parameters());
    if strategy == SINGLE {
        check_alone(given, sync, &options).map_err(refuse)?;
        return Ok((options, Averages::Gradients));
    }
    let protocols = &given.registries().protocols;
    let strategy = protocols.of_plan(strategy).ok_or_else(|| unknown("strategy", strategy))?;
    if strategy.delegated.is_some() {
        check_delegated(given, strategy.name).map_err(refuse)?;
    }
    protocols.resolve(strategy, sync, &mut options).map_err(refuse)?;
    Ok((options, strategy.averages[0]))
}

/// The file of the strategy, if one describes it.
fn strategy_path(given: &PlanSettings) -> Option<PathBuf> {
    let named = given.text("strategy").filter(|name| is_strategy_file(name)).map(PathBuf::from);
    given.path("strategy-file").map(Path::to_owned).or(named)
}

/// The parameters of a run whose strategy a file describes, and what it averages.
fn file_options(
    given: &PlanSettings,
    name: &str,
    text: &str,
    sync: &str,
) -> Result<(Options, Averages), PlanError> {
    let mut options = Options(given.parameters());
    let program = strategy_program(name, text)?;
    given.registries().protocols.resolve(&FROM_FILE, sync, &mut options).map_err(refuse)?;
    Ok((options, program.averages()))
}

/// Refuses rounds that these workers cannot make. How many steps there are is not known here: the launcher, which
/// knows, looks at all of them.
fn check_rounds(plan: &Plan) -> Result<(), PlanError> {
    let Some(text) = &plan.strategy_file else { return Ok(()) };
    let program = strategy_program(&plan.strategy, text)?;
    let scripts = if plan.script.is_some() { program.check_scripts() } else { Ok(()) };
    let checked = scripts.and_then(|()| program.check(plan.workers, &plan.layout(), plan.seed, FIRST_STEPS));
    checked.map(drop).map_err(|error| wrong_strategy(&plan.strategy, &error))
}

/// Refuses what cannot be done with a network in stages. Where it is cut is looked at once the network is known.
fn check_stages(plan: &Plan, registries: &Registries) -> Result<(), PlanError> {
    let stages = plan.stages;
    if stages < 2 {
        let problem = "1 stage is the whole network: give more --stages, or leave it out";
        let named = PlanError::new("--cuts", plan.cuts.join(","), problem);
        return if plan.cuts.is_empty() { Ok(()) } else { Err(named) };
    }
    if plan.strategy_file.is_some() {
        let problem = "replicas of a model in stages average along an exact path or over servers: use e.g. --strategy \
                       ring-allreduce, or leave --stages out";
        return Err(PlanError::new("--strategy-file", &plan.strategy, problem));
    }
    let protocols = &registries.protocols;
    let strategy = protocols.of_plan(&plan.strategy).ok_or_else(|| unknown("strategy", &plan.strategy))?;
    let coder = plan.compression.as_deref().map(str::parse).transpose();
    let setup = Setup {
        shares: plan.shares,
        sync: protocols.consistency(&plan.sync, &Options(plan.options.clone()), 1),
        averages: if plan.averages == "weights" { Averages::Weights } else { Averages::Gradients },
        coder: coder.map_err(|problem: String| PlanError::new("--compression", "", problem))?,
        ..Setup::new(plan.workers, plan.servers, usize::MAX, 1)
    };
    if plan.sync != "bsp" {
        let problem = "stages of a model make every step together: use --sync bsp, or leave --stages out";
        return Err(PlanError::new("--sync", &plan.sync, problem));
    }
    strategy.check_stages(&setup, stages).map_err(refuse)
}

/// Refuses what makes no sense without anybody to talk to.
fn check_alone(given: &PlanSettings, sync: &str, options: &Options) -> Result<(), Refusal> {
    if sync != "bsp" {
        let problem = "one worker alone waits for nobody; give a --strategy that has it, e.g. ps";
        return Err(Refusal::new("--sync", sync, problem));
    }
    if let Some((name, value)) = options.0.iter().next() {
        let problem = format!("belongs to {}", given.registries().protocols.owners(name));
        return Err(Refusal::new(&format!("--{name}"), value, problem));
    }
    let staged = given.text("stages").is_some_and(|stages| stages != "1");
    let (names, problem) = match staged {
        false => (
            &["compression", "buffer", "network", "hosts", "averages"][..],
            "one worker alone sends nothing; give more --workers or a --strategy",
        ),
        // Stages talk to each other, but one replica has nobody to average with.
        true => (
            &["compression", "averages"][..],
            "one replica of the model averages with nobody; give --workers a larger multiple of --stages, or leave it out",
        ),
    };
    for name in names {
        if let Some(value) = given.text(name) {
            return Err(Refusal::new(&format!("--{name}"), value, problem));
        }
    }
    Ok(())
}

/// How this program exchanges: it means nothing where a script's own framework averages.
pub const OWN_EXCHANGE: [&str; 5] = ["compression", "transport", "buffer", "averages", "bucket"];
/// What runs are made to meet by this program, and not where a script's own framework averages.
pub const OWN_CONDITIONS: [&str; 3] = ["network", "hosts", "straggler"];

/// Refuses what means nothing where a script's own framework averages.
fn check_delegated(given: &PlanSettings, strategy: &str) -> Result<(), Refusal> {
    if !given.given("script") {
        let problem = "is averaging by the framework of a script: give --script FILE";
        return Err(Refusal::new("--strategy", strategy, problem));
    }
    for name in OWN_EXCHANGE.into_iter().chain(OWN_CONDITIONS) {
        if given.given(name) {
            let problem =
                format!("means nothing with --strategy {strategy}: the script's framework averages");
            return Err(Refusal::new(&format!("--{name}"), given.text(name).unwrap_or_default(), problem));
        }
    }
    Ok(())
}

/// Refuses what a script decides itself.
fn check_native(given: &PlanSettings) -> Result<(), PlanError> {
    let Some((setting, text)) = given.iter().find(|(setting, _)| setting.native) else { return Ok(()) };
    let (name, text) = (setting.name, text.to_string_lossy());
    let problem =
        format!("the script decides that; its own arguments stand behind --, e.g. -- --{name} {text}");
    Err(PlanError::new(&format!("--{name}"), text, problem))
}

/// Refuses what cannot be done with a script.
fn check_script(plan: &Plan) -> Result<(), PlanError> {
    let Some(script) = &plan.script else { return Ok(()) };
    if script.apply == "server" && plan.servers == 0 {
        let problem =
            "needs servers: --strategy ps --servers 1, or leave it out for the script's own optimiser";
        return Err(PlanError::new("--apply", "server", problem));
    }
    if script.apply == "server" && plan.averages == "weights" {
        let problem = "servers that average weights make no updates; leave --apply or --averages out";
        return Err(PlanError::new("--apply", "server", problem));
    }
    if script.delegated.as_deref() == Some("nccl") && script.gpus.len() < plan.workers {
        let problem = format!(
            "NCCL needs a GPU for each of {} workers, and --gpus names {}; --strategy ddp-gloo takes any",
            plan.workers,
            if script.gpus.is_empty() { "none".into() } else { script.gpus.len().to_string() }
        );
        return Err(PlanError::new("--strategy", &plan.strategy, problem));
    }
    if script.staged && plan.delegated() {
        let problem =
            format!("means nothing with --strategy {}: the script's framework averages", plan.strategy);
        return Err(PlanError::new("--staging", "always", problem));
    }
    if script.auto && plan.delegated() {
        let problem =
            "its framework must wrap the model before the first forward pass: the script has to call attach";
        return Err(PlanError::new(
            "--auto",
            "",
            format!("not with --strategy {}: {problem}", plan.strategy),
        ));
    }
    if script.auto && plan.checkpoint_every.is_some() {
        let problem = "not with --checkpoint-every: where an unchanged script is in its data is not known";
        return Err(PlanError::new("--auto", "", problem));
    }
    check_members(plan, script)?;
    let counted = plan.options.keys().any(|name| name == "switch-at");
    if counted && plan.work == TrainingLength::UntilScriptEnds {
        let problem = "switches after a part of the run: give its --steps";
        return Err(PlanError::new("--sync", &plan.sync, problem));
    }
    Ok(())
}

/// Refuses members of a run of scripts that cannot change so.
fn check_members(plan: &Plan, script: &Script) -> Result<(), PlanError> {
    let Some(elastic) = &plan.elastic else { return Ok(()) };
    let refuse = |flag: &str, value: String, problem: &str| Err(PlanError::new(flag, value, problem));
    let bounds = format!("{}..{}", elastic.least, elastic.most);
    if plan.delegated() {
        let problem = "the script's own framework averages, and its workers end together: members can change where this \
                       program averages, e.g. --strategy ring-allreduce";
        return refuse("--strategy", plan.strategy.clone(), problem);
    }
    let back = plan.revoke.iter().flat_map(|file| &file.revoke).any(|one| one.back_after_s.is_some());
    let joins = [
        (elastic.most > plan.workers, "--elastic", bounds),
        (elastic.spares > 0, "--spare", elastic.spares.to_string()),
        (back, "--revoke", String::new()),
    ];
    if let Some((_, flag, value)) = joins.into_iter().find(|(given, ..)| *given && script.auto) {
        let problem =
            "nobody joins a run of unchanged scripts (--auto): where they are in their data is not known";
        return refuse(flag, value, problem);
    }
    if script.apply == "server" {
        let problem = "the servers' optimiser has settings for each tensor, and is not handed over: members can change \
                       where scripts make the updates";
        return refuse("--apply", "server".into(), problem);
    }
    Ok(())
}

/// Refuses settings that the dataset does not take.
fn check_dataset(plan: &Plan, registries: &Registries) -> Result<(), PlanError> {
    let source = registries.datasets.find(&plan.data).ok_or_else(|| unknown("data", &plan.data))?;
    let Plan { image_size, window, decoders, .. } = *plan;
    let bad = |BadSetting { flag, value, problem }| PlanError::new(&flag, value, problem);
    source.check(&DatasetSettings { image_size, window, decoders }, &registries.datasets).map_err(bad)
}

/// The name and the text of a model file.
pub fn model_description(path: &Path) -> Result<(String, String), PlanError> {
    described(path, "--model-file", "a model file")
}

/// The name and the text of a strategy file.
pub fn strategy_description(path: &Path) -> Result<(String, String), PlanError> {
    described(path, "--strategy-file", "a strategy file")
}

/// Who is taken away, as a file says.
fn revocations(path: &Path) -> Result<Revocations, PlanError> {
    let (_, text) = described(path, "--revoke", "a file of revocations")?;
    Revocations::parse(&text).map_err(|problem| PlanError::new("--revoke", path.display(), problem))
}

fn described(path: &Path, flag: &str, what: &str) -> Result<(String, String), PlanError> {
    let refused = |problem: String| PlanError::new(flag, path.display(), problem);
    let mut text = String::new();
    let file = paceline_files::open(path).map_err(|e| refused(e.to_string()))?;
    file.take(LONGEST_FILE + 1).read_to_string(&mut text).map_err(|e| refused(e.to_string()))?;
    if text.len() as u64 > LONGEST_FILE {
        return Err(refused(format!("{what} has at most {LONGEST_FILE} bytes")));
    }
    Ok((file_name(path), text))
}

/// A script, as plans name it.
fn script(file: &Path, given: &PlanSettings) -> Result<Script, PlanError> {
    let refused = |problem: String| PlanError::new("--script", file.display(), problem);
    let (file, sha256) = named_file(file).map_err(refused)?;
    let python = given.text("python").map(str::to_owned).or_else(|| std::env::var("PACELINE_PYTHON").ok());
    Ok(Script {
        file,
        sha256,
        args: given.script_args()?,
        python: python.unwrap_or_else(|| "python3".into()),
        apply: given.text("apply").unwrap_or("worker").into(),
        delegated: None,
        gpus: given.text("gpus").map_or(Ok(Vec::new()), gpus)?,
        without_mps: given.text("mps") == Some("off"),
        staged: given.text("staging") == Some("always"),
        auto: given.given("auto"),
    })
}

/// GPUs by number or UUID, each once.
fn gpus(text: &str) -> Result<Vec<String>, PlanError> {
    let refused = |problem: String| PlanError::new("--gpus", text, problem);
    let all: Vec<String> = text.split(',').map(|gpu| gpu.trim().to_owned()).collect();
    for (i, gpu) in all.iter().enumerate() {
        let uuid = |kind: &str| gpu.strip_prefix(kind).is_some_and(|rest| !rest.is_empty());
        let plain = gpu.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if gpu.parse::<u32>().is_err() && !(plain && (uuid("GPU-") || uuid("MIG-"))) {
            return Err(refused(format!(
                "{gpu:?} is neither the number of a GPU (0, 1, …) nor its UUID (GPU-… or MIG-…); `nvidia-smi -L` lists them"
            )));
        }
        if all[..i].contains(gpu) {
            return Err(refused(format!(
                "{gpu} is there twice: workers take GPUs in turn, each is named once"
            )));
        }
    }
    Ok(all)
}

/// The absolute path of a file, and the SHA-256 of its content.
fn named_file(file: &Path) -> Result<(String, String), String> {
    let path = fs::canonicalize(file).map_err(|e| e.to_string())?;
    let (_, sha256) =
        paceline_files::open(&path).and_then(paceline_files::sha256).map_err(|e| e.to_string())?;
    let file = path.into_os_string().into_string().map_err(|_| "its path is not UTF-8".to_owned())?;
    Ok((file, sha256))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// A file of weights, as plans name it.
fn weights(file: &Path, partial: bool) -> Result<Weights, PlanError> {
    let refused = |problem: String| PlanError::new("--init", file.display(), problem);
    let (file, sha256) = named_file(file).map_err(refused)?;
    Ok(Weights { file, sha256, partial })
}
