//! Weights: those that a run starts from, and `paceline export-weights`.

use std::fs;
use std::path::{Path, PathBuf};

use paceline_data::Folders;
use paceline_nn::Graph;
use paceline_plan::Plan;
use paceline_record::store::run_folder;
use paceline_record::{Checkpoint, Checkpoints, Damaged, Store};
use paceline_resolve::TypedPlan;
use paceline_train::{model, native, weights};
use serde::Serialize;

use super::store::Where;
use crate::failure::Failure;
use crate::flags::{PlaceFlags, registries};
use crate::output::{self, Show};
use paceline_record::FailureKind;

/// Flags of `paceline export-weights`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The run: its id or its name, the beginning of either, or `last`; or the folder of one checkpoint
    run: String,
    /// File to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    place: PlaceFlags,
    #[command(flatten)]
    store: Where,
}

#[derive(Serialize)]
struct Exported<'a> {
    file: &'a Path,
    model: &'a str,
    step: u64,
    parameters: usize,
    params_sha256: String,
}

/// A run's plan, and the checkpoint that is meant.
fn checkpoint(run: &str, store: &Where) -> Result<(Plan, Checkpoint), Failure> {
    let folder = Path::new(run);
    let damaged = |Damaged { path, problem }: Damaged| {
        let hint = "another checkpoint of the run may be whole; the run's id takes the newest that is";
        Failure::new(FailureKind::Storage, format!("{} cannot be used: {problem}", path.display()), hint)
    };
    if folder.join("manifest.json").is_file() {
        // STORE/runs/RUN/checkpoints/STEP: the plan is in the store.
        let whole = fs::canonicalize(folder).map_err(|e| Failure::file(folder, &e))?;
        let above = |n: usize| whole.ancestors().nth(n).unwrap_or(&whole);
        let run = above(2).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let run = Store::open(above(4))?.find(&run)?;
        let plan = run.plan.ok_or_else(|| Failure::plan(&run.run))?;
        let found = Checkpoints::open(folder, &plan.checkpoint_hash()).map_err(damaged)?;
        return Ok((plan, found));
    }
    let found = store.open()?.find(run)?;
    let run = found.run;
    let plan = found.plan.ok_or_else(|| Failure::plan(&run))?;
    let folder = run_folder(&store.folder(), &run);
    let (found, unusable) = Checkpoints::of(&folder).latest(&plan.checkpoint_hash())?;
    for Damaged { path, problem } in unusable {
        output::note(&format!("{} cannot be used: {problem}", path.display()));
    }
    let found = found.ok_or_else(|| {
        let hint = "train with --checkpoint-every STEPS; the last checkpoint is what can be exported";
        Failure::new(FailureKind::Other, format!("run {run} has no checkpoint"), hint)
    })?;
    Ok((plan, found))
}

/// What a run has learnt.
pub struct TrainedWeights {
    /// The run's plan.
    pub plan: Plan,
    graph: Graph,
    params: Vec<f32>,
    state: Vec<f32>,
    step: u64,
}

impl TrainedWeights {
    /// Those of a run's last checkpoint, or of the checkpoint in a folder.
    pub fn read(run: &str, folders: &Folders, store: &Where) -> Result<Self, Failure> {
        let (document, checkpoint) = checkpoint(run, store)?;
        let plan = TypedPlan::new(&document, registries().runs())?;
        // The shapes of a network's layers follow from its samples.
        let dataset = plan.dataset()?.load(folders, &model::settings(&plan))?;
        let graph = model::graph(&plan, &dataset)?;
        let workers = &checkpoint.parts[..plan.workers.min(checkpoint.parts.len())];
        let servers = &checkpoint.parts[workers.len()..];
        let mean = |name: &str, len: usize| {
            let all: Vec<f32> = workers.iter().flat_map(|part| part.numbers(name)).copied().collect();
            native::mean(&all, len)
        };
        let params = match servers {
            [] => mean("params", graph.param_count()),
            // Server `i` has stage `i mod stages`.
            shards => (0..plan.stages)
                .flat_map(|stage| shards.iter().skip(stage).step_by(plan.stages))
                .flat_map(|part| part.numbers("params"))
                .copied()
                .collect(),
        };
        let state = mean("state", graph.state_count());
        if (params.len(), state.len()) != (graph.param_count(), graph.state_count()) {
            let message = format!(
                "the checkpoint has {} parameters and {} numbers of state, the network {} and {}",
                params.len(),
                state.len(),
                graph.param_count(),
                graph.state_count()
            );
            let hint = "is the dataset still the one of the run?";
            return Err(Failure::new(FailureKind::Storage, message, hint));
        }
        Ok(Self { plan: document, graph, params, state, step: checkpoint.step })
    }

    /// Writes them as a safetensors file.
    pub fn save(&self, file: &Path) -> Result<(), Failure> {
        weights::save(file, &self.graph, &self.params, &self.state).map_err(|e| Failure::file(file, &e))
    }
}

/// `paceline export-weights`.
pub fn export(args: &Args, show: Show) -> Result<(), Failure> {
    let trained = TrainedWeights::read(&args.run, &args.place.0.data_folders(), &args.store)?;
    trained.save(&args.out)?;
    let TrainedWeights { plan, params, step, .. } = trained;
    let exported = Exported {
        file: &args.out,
        model: &plan.model,
        step,
        parameters: params.len(),
        params_sha256: model::params_sha256(&params),
    };
    if show.json {
        return Ok(output::json(&exported)?);
    }
    let Exported { model, step, parameters, .. } = exported;
    let text = format!(
        "{}: {parameters} parameters of {model} after step {step}, with PyTorch's names and layouts\n",
        args.out.display()
    );
    Ok(output::text(&text)?)
}
