//! A plan with its names looked up in the registries.

use std::ops::Deref;
use std::sync::Arc;

use paceline_data::{DatasetKind, Sharding};
use paceline_nn::models::Model;
use paceline_nn::optim::Optimiser;
use paceline_nn::{Graph, LrScaling, Schedule};
use paceline_pipeline::{Pipeline, StagePlan};
use paceline_plan::{PathRule, Plan, PlanError};
use paceline_protocol::consistency::ConsistencyModel;
use paceline_protocol::{
    AUTO, Averages, Coder, FROM_FILE, Protocols, SINGLE, SizedPath, Strategy, StrategyProgram,
};
use paceline_registry::{Entry, Registry};
use paceline_rounds::{Program, StrategyFileError};
use paceline_wire::TransportKind;

use crate::registries::Registries;

/// A plan and what its names stand for, looked up once. Its numbers are read through `Deref`.
#[derive(Clone)]
pub struct TypedPlan<'a> {
    /// The document.
    pub document: &'a Plan,
    /// Dataset; none where a script has its own.
    dataset: Option<&'static DatasetKind>,
    /// Network; none where a file describes it or a script has it.
    pub model: Option<&'static Model>,
    /// Averaging path; one worker alone has one without peers.
    pub strategy: &'static Strategy,
    /// The rounds of a strategy that a file describes.
    pub program: Option<Arc<dyn StrategyProgram>>,
    /// The paths that buckets take, where the strategy is a choice between several.
    pub paths: Vec<SizedPath>,
    /// Consistency model, still without its parameters: they depend on the number of steps.
    pub consistency: &'static ConsistencyModel,
    /// What is averaged.
    pub averages: Averages,
    /// How messages are made shorter.
    pub coder: Option<Coder>,
    /// Which worker sees which samples.
    pub sharding: Sharding,
    /// What the processes talk over.
    pub transport: &'static TransportKind,
    /// Optimiser.
    pub optimiser: &'static Optimiser,
    /// What a script's optimiser is looked up in, where servers run it.
    pub optimisers: Registry<Optimiser>,
    /// What the pipeline of stages is looked up in.
    pub pipelines: Registry<Pipeline>,
    /// How the learning rate changes over the run.
    pub schedule: Schedule,
    /// How the learning rate follows the number of workers.
    pub scaling: LrScaling,
}

impl Deref for TypedPlan<'_> {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        self.document
    }
}

impl<'a> TypedPlan<'a> {
    /// Looks up a plan's names. A plan of another version may have names that this one does not know.
    pub fn new(plan: &'a Plan, registries: &Registries) -> Result<Self, PlanError> {
        let Registries { protocols, transports, datasets, models, optimisers, pipelines, .. } = registries;
        let coder = plan.compression.as_deref().map(|text| parsed("compression", text)).transpose()?;
        let one_of = |flag: &str, value: &str, names: [&str; 2]| match names.contains(&value) {
            true => Ok(value == names[1]),
            false => Err(unknown(flag, value)),
        };
        let weights = one_of("averages", &plan.averages, ["gradients", "weights"])?;
        let linear = one_of("lr-scaling", &plan.lr_scaling, ["none", "linear"])?;
        Ok(Self {
            document: plan,
            dataset: match plan.script {
                Some(_) => None,
                None => Some(known("data", &plan.data, datasets)?),
            },
            model: match (&plan.model_file, &plan.script) {
                (None, None) => Some(known("model", &plan.model, models)?),
                _ => None,
            },
            strategy: strategy_of(plan, protocols).ok_or_else(|| unknown("strategy", &plan.strategy))?,
            program: program_of(plan)?,
            paths: paths(plan, protocols)?,
            consistency: known("sync", &plan.sync, &protocols.consistencies)?,
            averages: if weights { Averages::Weights } else { Averages::Gradients },
            coder,
            // One share sees everything, whatever would be split.
            sharding: if plan.shares() == 1 { Sharding::Iid } else { parsed("shard", &plan.shard)? },
            transport: known("transport", &plan.transport, transports)?,
            optimiser: known("optimizer", &plan.optimizer, optimisers)?,
            optimisers: optimisers.clone(),
            pipelines: pipelines.clone(),
            schedule: parsed("schedule", &plan.schedule)?,
            scaling: if linear { LrScaling::Linear } else { LrScaling::None },
        })
    }
}

impl TypedPlan<'_> {
    /// The dataset of a native network.
    pub fn dataset(&self) -> Result<&'static DatasetKind, PlanError> {
        let script = self.script.as_ref().map_or("", |script| &script.file);
        let refused = || {
            PlanError::new(
                "--script",
                script,
                "a script has its own data: this is for native networks. What a script takes is known from a recorded run \
                       of it: `paceline explain` and `paceline predict STUDY.toml` answer from one",
            )
        };
        self.dataset.ok_or_else(refused)
    }

    /// The stages of the plan's network; none where it is not cut.
    pub fn stage_plan(&self, graph: &Graph) -> Result<Option<StagePlan>, PlanError> {
        StagePlan::new(self, &self.pipelines, graph)
    }

    /// Whether this is one worker alone, which sends nothing to anybody.
    pub fn alone(&self) -> bool {
        self.document.strategy == SINGLE && self.stages == 1
    }
}

/// The strategy that carries out a plan, whether it has a name or a file.
pub fn strategy_of(plan: &Plan, protocols: &Protocols) -> Option<&'static Strategy> {
    if plan.strategy_file.is_some() { Some(&FROM_FILE) } else { protocols.of_plan(&plan.strategy) }
}

/// The rounds of a plan whose strategy a file describes.
pub fn program_of(plan: &Plan) -> Result<Option<Arc<dyn StrategyProgram>>, PlanError> {
    let program = |text: &String| strategy_program(&plan.strategy, text);
    let program = plan.strategy_file.as_ref().map(program).transpose()?;
    Ok(program.map(|program| program as Arc<dyn StrategyProgram>))
}

/// Reads the rounds of a strategy file.
pub fn strategy_program(name: &str, text: &str) -> Result<Arc<Program>, PlanError> {
    Program::parse(name, text).map(Arc::new).map_err(|error| wrong_strategy(name, &error))
}

/// The refusal of a strategy file.
pub fn wrong_strategy(name: &str, error: &StrategyFileError) -> PlanError {
    let key = if error.key.is_empty() { String::new() } else { format!("{}: ", error.key) };
    PlanError::new("--strategy-file", name, format!("line {}: {key}{}", error.line, error.problem))
}

/// What a plan's rules stand for. A choice needs them; the last one takes whatever bytes are left.
fn paths(plan: &Plan, protocols: &Protocols) -> Result<Vec<SizedPath>, PlanError> {
    let refused = || {
        let problem =
            "the plan's `paths` do not say which path every bucket takes; was it made by another version?";
        PlanError::new("--strategy", &plan.strategy, problem)
    };
    let sized = |PathRule { below_bytes, path }: &PathRule| {
        let strategy = protocols.strategies.find(path).filter(|strategy| strategy.name != AUTO);
        let strategy = strategy.ok_or_else(|| unknown("strategy", path))?;
        let path = strategy.path.ok_or_else(refused)?;
        Ok(SizedPath { below_bytes: *below_bytes, name: strategy.name, path })
    };
    let paths = plan.paths.iter().map(sized).collect::<Result<Vec<_>, _>>()?;
    let whole = paths.last().is_some_and(|last| last.below_bytes.is_none());
    if whole == (plan.strategy == AUTO) { Ok(paths) } else { Err(refused()) }
}

/// The refusal of a name that no registry has.
pub fn unknown(flag: &str, value: &str) -> PlanError {
    let problem = "this version does not know it; was the plan made by another one?";
    PlanError::new(&format!("--{flag}"), value, problem)
}

fn known<T: Entry>(flag: &str, name: &str, registry: &Registry<T>) -> Result<&'static T, PlanError> {
    registry.find(name).ok_or_else(|| unknown(flag, name))
}

fn parsed<T: std::str::FromStr<Err: ToString>>(flag: &str, text: &str) -> Result<T, PlanError> {
    let refuse = |error: T::Err| PlanError { problem: error.to_string(), ..unknown(flag, text) };
    text.parse().map_err(refuse)
}
