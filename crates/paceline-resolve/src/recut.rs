//! A run that goes on with its network cut into other stages.

use paceline_pipeline::Cuts;
use paceline_plan::{Plan, PlanError};

use crate::DEFAULT_PIPELINE;

/// How a network is cut from now on.
#[derive(Clone, Debug)]
pub struct NewStages {
    /// How many stages.
    pub stages: usize,
    /// In which order they pass micro-batches; none: as before.
    pub pipeline: Option<String>,
    /// Where the network is cut; none: where its costs say.
    pub cuts: Option<Cuts>,
}

impl NewStages {
    /// The plan with these stages.
    pub fn of(&self, plan: Plan) -> Result<Plan, PlanError> {
        let stages = self.stages;
        let refuse = |problem: &str| Err(PlanError::new("--stages", stages, problem));
        if stages == 0 {
            return refuse("at least 1 is needed");
        }
        if plan.script.is_some() {
            return refuse("a script's model is its own, and is not cut; leave --stages out");
        }
        if !plan.servers.is_multiple_of(stages) {
            let problem = format!("the run has {} servers, and each stage needs as many", plan.servers);
            return refuse(&problem);
        }
        if plan.shares.is_some() {
            return refuse(
                "the run has --shares, which belong to workers without stages; leave --stages out",
            );
        }
        let alone = plan.replicas() == 1 && stages == 1;
        Ok(Plan {
            workers: plan.replicas() * stages,
            stages,
            pipeline: (stages > 1).then(|| {
                self.pipeline.clone().or(plan.pipeline.clone()).unwrap_or_else(|| DEFAULT_PIPELINE.into())
            }),
            cuts: match &self.cuts {
                Some(Cuts::Before(layers)) => layers.clone(),
                Some(Cuts::Auto) | None => Vec::new(),
            },
            transport: if alone { "tcp".into() } else { plan.transport.clone() },
            ..plan
        })
    }

    /// The command line that gives a plan with these stages, from the one that gave it without them.
    pub fn command(command: &str, plan: &Plan) -> String {
        const OWN: [&str; 4] = ["--workers", "--stages", "--pipeline", "--cuts"];
        let mut words = Vec::new();
        let mut all = command.split(' ').peekable();
        while let Some(word) = all.next() {
            match OWN.contains(&word) {
                true => drop(all.next()),
                false => words.push(word.to_owned()),
            }
        }
        words.extend([format!("--workers {}", plan.workers), format!("--stages {}", plan.stages)]);
        words.extend(plan.pipeline.iter().map(|name| format!("--pipeline {name}")));
        if !plan.cuts.is_empty() {
            words.push(format!("--cuts {}", plan.cuts.join(",")));
        }
        words.join(" ")
    }
}
