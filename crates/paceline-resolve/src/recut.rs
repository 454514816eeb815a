//! A run that goes on with its network cut into other stages. Hosts that nobody sits on then, and a slow worker that is not
//! there any more, are left out.

use paceline_pipeline::Cuts;
use paceline_plan::{Hosts, Placement, Plan, PlanError, Straggler};

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
        let (alone, workers) = (plan.replicas() == 1 && stages == 1, plan.replicas() * stages);
        let placed = Plan {
            hosts: plan.hosts.clone().and_then(|_| hosts(&plan, workers)).filter(|_| !alone),
            network: plan.network.filter(|_| !alone),
            straggler: plan.straggler.filter(|straggler| match straggler {
                Straggler::One { rank, .. } => *rank < workers,
                Straggler::Moving { .. } | Straggler::Lognormal { .. } => true,
            }),
            ..plan.clone()
        };
        let elsewhere = placed != plan;
        Ok(Plan {
            saved_as: if elsewhere { Some(plan.checkpoint_hash()) } else { plan.saved_as.clone() },
            workers,
            stages,
            pipeline: (stages > 1).then(|| {
                self.pipeline.clone().or(plan.pipeline.clone()).unwrap_or_else(|| DEFAULT_PIPELINE.into())
            }),
            cuts: match &self.cuts {
                Some(Cuts::Before(layers)) => layers.clone(),
                Some(Cuts::Auto) | None => Vec::new(),
            },
            transport: if alone { "tcp".into() } else { plan.transport.clone() },
            ..placed
        })
    }

    /// What of the plan before does not fit the one with these stages, in words.
    pub fn left_out(&self, before: &Plan, plan: &Plan) -> Vec<String> {
        let with = format!("with --stages {} the run has", self.stages);
        let words = |hosts: &Option<Hosts>| {
            hosts.as_ref().map_or("no --hosts".into(), |hosts| format!("--hosts {hosts}"))
        };
        let hosts = (before.hosts != plan.hosts)
            .then(|| format!("{with} {}, not {}", words(&plan.hosts), words(&before.hosts)));
        let network =
            (before.network != plan.network).then(|| format!("{with} nobody to send to: no --network"));
        let slow =
            (before.straggler != plan.straggler).then(|| format!("{with} no slow worker: no --straggler"));
        [hosts, network, slow].into_iter().flatten().collect()
    }

    /// The command line that gives a plan with these stages, from the one that gave it without them.
    pub fn command(command: &str, plan: &Plan) -> String {
        const OWN: [&str; 6] = ["--workers", "--stages", "--pipeline", "--cuts", "--hosts", "--network"];
        let mut words = Vec::new();
        let mut all = command.split(' ').peekable();
        while let Some(word) = all.next() {
            let nobody_is_slow = word == "--straggler" && plan.straggler.is_none();
            match OWN.contains(&word) || nobody_is_slow {
                true => drop(all.next()),
                false => words.push(word.to_owned()),
            }
        }
        words.extend([format!("--workers {}", plan.workers), format!("--stages {}", plan.stages)]);
        words.extend(plan.pipeline.iter().map(|name| format!("--pipeline {name}")));
        if !plan.cuts.is_empty() {
            words.push(format!("--cuts {}", plan.cuts.join(",")));
        }
        words.extend(plan.hosts.iter().map(|hosts| format!("--hosts {hosts}")));
        words.extend(plan.network.iter().map(|network| format!("--network {network}")));
        words.join(" ")
    }
}

/// The hosts of a plan, or as many of them as so many workers can fill.
fn hosts(plan: &Plan, workers: usize) -> Option<Hosts> {
    let own = plan.hosts.clone()?;
    if let Hosts::Each(each) = &own
        && [workers, workers + plan.servers].contains(&each.len())
    {
        return Some(own);
    }
    let dedicated = plan.placement == Placement::Dedicated;
    let most = if dedicated { workers + plan.servers } else { workers };
    Some(Hosts::Count(plan.host_count().min(most)))
}
