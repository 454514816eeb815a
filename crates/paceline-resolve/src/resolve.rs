//! Settings to plan: defaults, checks, refusals.

use std::fs;
use std::io::Read;
use std::path::Path;

use paceline_data::{BadSetting, DatasetSettings, Sharding};
use paceline_nn::Schedule;
use paceline_plan::{Hosts, NetworkLimits, Plan, PlanError, TrainingLength, Weights};
use paceline_protocol::{Averages, Coder, Options, Refusal, SINGLE};

use crate::registries::Registries;
use crate::settings::PlanSettings;
use crate::table::byte_count;
use crate::typed::unknown;

/// Epochs that are trained where nothing else is set.
pub const DEFAULT_EPOCHS: f64 = 5.0;

/// Longest model file that is read, in bytes.
const LONGEST_MODEL_FILE: u64 = 1 << 20;

fn refuse(Refusal { flag, value, problem }: Refusal) -> PlanError {
    PlanError { flag, value, problem }
}

/// The plan that settings describe, with everything that they leave open filled in. It is refused for all that can be
/// wrong with it whatever the dataset holds.
pub fn resolve(given: &PlanSettings) -> Result<Plan, PlanError> {
    given.check_pairs()?;
    let (workers, servers): (usize, usize) = (given.required("workers")?, given.required("servers")?);
    let sync: String = given.required("sync")?;
    let lr_scaling: String = given.required("lr-scaling")?;
    let shares: Option<usize> = given.optional("shares")?.filter(|shares| *shares != workers);
    let alone = shares.unwrap_or(workers) == 1 && servers == 0;
    let strategy = given.text("strategy").unwrap_or(if alone { SINGLE } else { "ring-allreduce" }).to_owned();
    let model_file = given.path("model-file").map(model_description).transpose()?;
    let (options, averages) = strategy_options(given, &strategy, &sync)?;
    let consistencies = &given.registries().protocols.consistencies;
    let whole_batches = consistencies.find(&sync).is_none_or(|model| model.whole_batches);
    if !whole_batches && lr_scaling == "linear" {
        let problem = format!("is for steps of whole global batches; {sync} makes single pushes");
        return Err(refuse(Refusal::new("--lr-scaling", "linear", problem)));
    }
    let epochs = || given.optional("epochs").map(|epochs| epochs.unwrap_or(DEFAULT_EPOCHS));
    let plan = Plan {
        options: options.0,
        averages: given.text("averages").unwrap_or(averages.name()).into(),
        compression: given.optional::<Coder>("compression")?.map(|coder| coder.to_string()),
        shard: given.required::<Sharding>("shard")?.to_string(),
        data: given.required("data")?,
        image_size: given.optional("image-size")?,
        window: given.optional("window")?,
        decoders: given.optional("decoders")?,
        model: match &model_file {
            Some((name, _)) => name.clone(),
            None => given.required("model")?,
        },
        model_file: model_file.map(|(_, text)| text),
        init: given.path("init").map(|file| weights(file, given.given("init-partial"))).transpose()?,
        frozen: given.text("freeze").map_or_else(Vec::new, |l| l.split(',').map(str::to_owned).collect()),
        workers,
        shares,
        micro_batches: given.required("micro-batches")?,
        servers,
        strategy,
        sync,
        transport: given.required("transport")?,
        buffer: given.read("buffer", byte_count)?,
        network: given.optional::<NetworkLimits>("network")?,
        hosts: given.optional::<Hosts>("hosts")?,
        placement: given.required("placement")?,
        bucket: given.read("bucket", byte_count)?.unwrap_or_default(),
        straggler: given.optional("straggler")?,
        stop_after_step: given.optional("stop-after-step")?,
        batch: given.required("batch")?,
        optimizer: given.required("optimizer")?,
        lr: given.required("lr")?,
        lr_scaling,
        schedule: given.required::<Schedule>("schedule")?.to_string(),
        warmup: given.required("warmup")?,
        momentum: given.required("momentum")?,
        nesterov: given.given("nesterov"),
        weight_decay: given.required("weight-decay")?,
        work: match given.optional("steps")? {
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
    };
    plan.check(usize::MAX)?;
    check_dataset(&plan, given.registries())?;
    Ok(plan)
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
    let strategy = protocols.strategies.find(strategy).ok_or_else(|| unknown("strategy", strategy))?;
    protocols.resolve(strategy, sync, &mut options).map_err(refuse)?;
    Ok((options, strategy.averages[0]))
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
    for name in ["compression", "buffer", "network", "hosts", "averages"] {
        if let Some(value) = given.text(name) {
            let problem = "one worker alone sends nothing; give more --workers or a --strategy";
            return Err(Refusal::new(&format!("--{name}"), value, problem));
        }
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
    let refused = |problem: String| PlanError::new("--model-file", path.display(), problem);
    let mut text = String::new();
    let file = paceline_files::open(path).map_err(|e| refused(e.to_string()))?;
    file.take(LONGEST_MODEL_FILE + 1).read_to_string(&mut text).map_err(|e| refused(e.to_string()))?;
    if text.len() as u64 > LONGEST_MODEL_FILE {
        return Err(refused(format!("a model file has at most {LONGEST_MODEL_FILE} bytes")));
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok((name, text))
}

/// A file of weights, as plans name it.
fn weights(file: &Path, partial: bool) -> Result<Weights, PlanError> {
    let refused = |problem: String| PlanError::new("--init", file.display(), problem);
    let path = fs::canonicalize(file).map_err(|e| refused(e.to_string()))?;
    let (_, sha256) =
        paceline_files::open(&path).and_then(paceline_files::sha256).map_err(|e| refused(e.to_string()))?;
    let file = path.into_os_string().into_string().map_err(|_| refused("its path is not UTF-8".into()))?;
    Ok(Weights { file, sha256, partial })
}
