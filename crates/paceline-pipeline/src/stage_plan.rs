//! The stages of a plan's network: where it is cut, which work each one does when, what goes from one to another.

use paceline_nn::{Graph, GraphPart, PartEdge};
use paceline_plan::{Plan, PlanError};
use paceline_protocol::{BatchLengths, Crossing, Stage, StageSetup};
use paceline_registry::Registry;

use crate::check::CheckedProgram;
use crate::costs::CutCosts;
use crate::cuts::{CutError, Cuts};
use crate::pipelines::Pipeline;

/// The stages of a plan's network.
#[derive(Clone, Debug)]
pub struct StagePlan {
    /// The first layer of each stage but the first.
    pub cuts: Vec<usize>,
    /// The parts of the network, one per stage.
    pub parts: Vec<GraphPart>,
    /// Which work is done when: each stage is a rank of it.
    pub program: CheckedProgram,
    /// Most samples of a micro-batch.
    pub capacity: usize,
}

impl StagePlan {
    /// The stages of a plan for its network; none where it is not cut.
    pub fn new(
        plan: &Plan,
        pipelines: &Registry<Pipeline>,
        graph: &Graph,
    ) -> Result<Option<Self>, PlanError> {
        let Some(name) = plan.pipeline.as_deref().filter(|_| plan.stages > 1) else { return Ok(None) };
        let unknown = || {
            let problem = "this version does not know it; was the plan made by another one?";
            PlanError::new("--pipeline", name, problem)
        };
        let pipeline = pipelines.find(name).ok_or_else(unknown)?;
        let program = pipeline
            .program(plan.stages, plan.micro_batches)
            .map_err(|error| PlanError::new("--pipeline", name, error.to_string()))?;
        let cuts = if plan.cuts.is_empty() { Cuts::Auto } else { Cuts::Before(plan.cuts.clone()) };
        let capacity = plan.batch.div_ceil(plan.micro_batches.max(1));
        let cuts = cuts.find(graph, &CutCosts::counted(graph, capacity), plan.stages).map_err(refusal)?;
        let parts = graph.parts(&cuts);
        Ok(Some(Self { cuts, parts, program, capacity }))
    }

    /// What strategies are told of the stages, with the samples of each step's global batch.
    pub fn setup(&self, batches: BatchLengths) -> StageSetup {
        let stage = |(i, part): (usize, &GraphPart)| Stage {
            work: self.program.ranks()[self.program.rank_of(i)].work.clone(),
            slots: self.program.slots(i),
            crossings: part
                .receives
                .iter()
                .map(|edge| self.crossing(i, edge, false))
                .chain(part.sends.iter().map(|edge| self.crossing(i, edge, true)))
                .collect(),
            received: part.receives.len(),
            params: part.params.clone(),
        };
        StageSetup {
            stages: self.parts.iter().enumerate().map(stage).collect(),
            micro_batches: self.program.micro_batches(),
            capacity: self.capacity,
            batches,
        }
    }

    /// A value that stage `here` sends, or receives.
    fn crossing(&self, here: usize, edge: &PartEdge, sends: bool) -> Crossing {
        let there = &self.parts[edge.part];
        let same = |other: &PartEdge| other.value == edge.value && other.part == here;
        let place = |edges: &[PartEdge]| edges.iter().position(same).expect("both ends know of a value");
        Crossing {
            stage: edge.part,
            there: if sends { place(&there.receives) } else { there.receives.len() + place(&there.sends) },
            size: edge.size,
            gradient: edge.gradient,
        }
    }
}

/// The refusal of a cut, by its flag.
fn refusal(error: CutError) -> PlanError {
    let text = error.to_string();
    let (flag, value) = match &error {
        CutError::Stages { stages, .. } | CutError::Exits { stages } => ("--stages", stages.to_string()),
        CutError::Count { names, .. } => ("--cuts", names.join(",")),
        CutError::Unknown { name, .. } | CutError::Empty { name, .. } => ("--cuts", name.clone()),
    };
    let problem = text.strip_prefix(&format!("{flag} {value}: ")).unwrap_or(&text).to_owned();
    PlanError::new(flag, value, problem)
}
