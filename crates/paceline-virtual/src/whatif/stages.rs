//! Runs in stages: other cuts, more micro-batches, another pipeline.
//!
//! The run's program is driven in virtual time. Passes take what they took in the record, shared among a stage's layers as
//! counted costs tell; what a message takes is set so that a step takes as long as it did. Emulated links are the plan's.

use paceline_analyze::{ExplainError, Explanation, RecordedRun, RecordedStage, WhatIf};
use paceline_data::SampleForm;
use paceline_nn::Graph;
use paceline_pipeline::{StagePlan, better_cuts, counted_costs};
use paceline_plan::{Plan, TrainingLength};
use paceline_resolve::{Registries, TypedPlan, data_folders};
use paceline_sim::{Costs, SizesOnly, StageCost};
use paceline_train::{Layout, model, worker};

use crate::price::{self, Terms};

/// Steps of a simulation: what-ifs are to be answered at once, and a step follows another without a pause.
const STEPS: u64 = 4;
/// Halvings of the interval in which a message's time is looked for.
const HALVINGS: usize = 12;
/// By how much a step may take longer or shorter than it took, as a part of it, for the run to be understood.
const CLOSE: f64 = 0.1;

/// Why a run in stages took as long as it did, and what would help.
pub(super) fn explained(
    recorded: &RecordedRun,
    plan: &Plan,
    registries: &Registries,
) -> Result<Explanation, ExplainError> {
    let Some(model) = StagedRun::new(recorded, plan, registries) else { return Explanation::new(recorded) };
    let better_cuts = model.better_cuts();
    let mut said = Explanation::new(&RecordedRun { better_cuts: better_cuts.clone(), ..recorded.clone() })?;
    if let Some(fitted) = model.fitted(said.mean_step_s()) {
        said.predict(&|what_if| fitted.ratio(what_if, &better_cuts));
        // What another order of passes brings, the record does not tell.
        if let Some(ratio) = fitted.ratio(WhatIf::Pipeline, &better_cuts) {
            said.add_simulated(WhatIf::Pipeline, ratio);
        }
    }
    Ok(said)
}

/// A recorded run in stages, and its network.
struct StagedRun<'a> {
    plan: &'a Plan,
    registries: &'a Registries,
    graph: Graph,
    samples: usize,
    /// Where it is cut, and what each stage took.
    cut: StagePlan,
    took: Vec<RecordedStage>,
    /// Nanoseconds of each layer's passes, forward and backward, for each sample.
    layers: Vec<[f64; 2]>,
}

/// The same with what messages take.
struct FittedStages<'a> {
    run: &'a StagedRun<'a>,
    message_ns: u64,
    step_s: f64,
}

impl<'a> StagedRun<'a> {
    /// None where only the dataset's files say how large a sample is and they are not found, or where passes were not recorded.
    fn new(recorded: &RecordedRun, plan: &'a Plan, registries: &'a Registries) -> Option<Self> {
        let took = recorded.stages()?;
        let typed = TypedPlan::new(plan, registries).ok()?;
        let kind = typed.dataset().ok()?;
        let (graph, samples) = match kind.form {
            // Wherever its files are: the first steps have whole batches.
            SampleForm::Fixed { shape, classes } => (model::of_shape(&typed, shape, classes).ok()?, 0),
            SampleForm::FromFiles(_) => {
                let dataset = kind.load(&data_folders(None), &model::settings(plan)).ok()?;
                (model::graph(&typed, &dataset).ok()?, dataset.train.len())
            }
        };
        let cut = typed.stage_plan(&graph).ok()??;
        let counted = counted_costs(&graph, cut.capacity);
        let mut layers = vec![[0.0; 2]; counted.len()];
        for (part, took) in cut.parts.iter().zip(&took) {
            let own = &counted[part.nodes.clone()];
            let all = own.iter().fold([0, 0], |[f, b], cost| [f + cost.forward, b + cost.backward]);
            let [forward, backward] = [(took.forward_s, all[0]), (took.backward_s, all[1])]
                .map(|(seconds, all)| 1e9 * seconds / all.max(1) as f64);
            for (layer, cost) in layers[part.nodes.clone()].iter_mut().zip(own) {
                *layer = [forward * cost.forward as f64, backward * cost.backward as f64]
                    .map(|of_batch| of_batch / plan.batch as f64);
            }
        }
        Some(Self { plan, registries, samples, graph, cut, took, layers })
    }

    /// The layers before which stages would be more even.
    fn better_cuts(&self) -> Vec<String> {
        let took: Vec<f64> = self.took.iter().map(|stage| stage.compute_s).collect();
        better_cuts(&self.graph, self.cut.capacity, &self.cut.cuts, &took)
    }

    /// Seconds of a step of a plan like the run's, if a message inside a host takes so long.
    fn step_s(&self, plan: &Plan, message_ns: u64) -> Option<f64> {
        // Evaluations and targets stop the clock, not the stages; what slows a stage down is in what it took.
        let work = TrainingLength::Steps(STEPS);
        let plan = Plan { work, target_accuracy: None, straggler: None, ..plan.clone() };
        let typed = TypedPlan::new(&plan, self.registries).ok()?;
        let stages = typed.stage_plan(&self.graph).ok()??;
        let samples = self.samples.max(STEPS as usize * plan.global_batch());
        let setup = worker::staged_setup(&typed, &Layout::of(&self.graph), Some(&stages), samples);
        typed.strategy.check(&setup).ok()?;
        let terms =
            Terms { registries: self.registries, calibration: None, cluster: None, jitter: Some(false) };
        let (costs, _) = price::staged_costs(&typed, &self.graph, &stages, &setup, &terms);
        let cost = |rank: usize| {
            let own = &self.layers[stages.parts[setup.stage_of(rank)].nodes.clone()];
            let all = own.iter().fold([0.0; 2], |[f, b], layer| [f + layer[0], b + layer[1]]);
            let [forward, backward] = all.map(|sample| (sample * stages.capacity as f64) as u64);
            StageCost { forward, backward, parts: costs.stages[rank].parts.clone() }
        };
        let costs =
            Costs { stages: (0..setup.workers).map(cost).collect(), local_latency: message_ns, ..costs };
        let ranks = (0..setup.world()).map(|rank| typed.strategy.participant(&setup, rank)).collect();
        let happened = paceline_sim::run(&setup, ranks, &costs, &mut SizesOnly);
        let last = happened.finished.iter().filter_map(|times| times.last()).max().copied();
        last.filter(|_| happened.stuck.is_empty()).map(|last| 1e-9 * last as f64 / setup.end() as f64)
    }

    /// With messages that take as long as makes a step what it was; none where that cannot be.
    fn fitted(&self, wanted: f64) -> Option<FittedStages<'_>> {
        let (mut low, mut high) = (0_u64, (1e9 * wanted) as u64);
        for _ in 0..HALVINGS {
            let middle = low.midpoint(high);
            let shorter = self.step_s(self.plan, middle)? < wanted;
            *if shorter { &mut low } else { &mut high } = middle;
        }
        let step_s = self.step_s(self.plan, low)?;
        // What is not understood is not predicted.
        ((step_s / wanted - 1.0).abs() <= CLOSE).then_some(FittedStages {
            run: self,
            message_ns: low,
            step_s,
        })
    }
}

impl FittedStages<'_> {
    /// Seconds of a step after a change, relative to now.
    fn ratio(&self, what_if: WhatIf, better_cuts: &[String]) -> Option<f64> {
        let Self { run, message_ns, step_s } = self;
        let plan = match what_if {
            WhatIf::Cuts => Plan { cuts: better_cuts.to_vec(), ..run.plan.clone() },
            // It is cut where it was, though costs may tell of another place for smaller micro-batches.
            WhatIf::MicroBatches | WhatIf::Pipeline => {
                let at = run.cut.cuts.iter().map(|&at| run.graph.nodes()[at].name.clone());
                Plan { cuts: at.collect(), ..what_if.changed(run.plan, None)? }
            }
            WhatIf::OneWorker => {
                let passes: f64 = run.took.iter().map(|stage| stage.compute_s).sum();
                return Some(passes * run.plan.replicas() as f64 / step_s);
            }
            _ => return None,
        };
        Some(run.step_s(&plan, *message_ns)? / step_s)
    }
}
