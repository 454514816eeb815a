//! The end of a run: the last evaluations, and the result.

use std::sync::Arc;

use paceline_data::order;
use paceline_nn::{Compute, Outcome};
use paceline_protocol::ReplicaAgreement;
use paceline_record::{Event, RunResult};
use paceline_train::model::params_sha256;
use paceline_train::native::mean;
use paceline_train::{Replica, TrainError, model};

use super::Watch;
use crate::error::LaunchError;
use crate::rank::{RankContext, RankModel};
use crate::run::Launch;

impl Watch<'_> {
    pub(crate) fn finish(&mut self, report: &mut dyn FnMut(Event<'_>)) -> Result<RunResult, LaunchError> {
        self.jobs = None;
        while let Ok((step, train_s, outcome)) = self.results.recv() {
            self.gather.evaluation(step, train_s, outcome?, report);
        }
        let (plan, launch) = (self.launch.plan, self.launch);
        let mut model = None;
        let test = launch.dataset.map_or(0, |dataset| dataset.test.len());
        let apart = self.agreement == ReplicaAgreement::Apart && launch.dataset.is_some();
        // Workers whose models agree have evaluated the last step themselves, on what evaluations take.
        if let Some(elastic) = self.elastic.as_ref().filter(|elastic| !elastic.is_together()) {
            let (params, state) = (self.params_of_holders(elastic)?, self.state_of_workers(elastic));
            model = Some(params_sha256(&params));
            let samples = model::evaluation_samples(plan, test);
            let outcome = evaluate(launch, &params, state.clone(), &samples, 1)?;
            self.gather.evaluation(self.steps_of_holders(), self.gather.train_s(), outcome, report);
            if plan.eval_samples.is_some() {
                let samples = model::all_samples(test);
                self.gather.final_outcome(evaluate(launch, &params, state, &samples, 1)?);
            }
        } else if let Some(elastic) = &self.elastic {
            // Whoever has the first share has the model: that of all.
            let first = self.gather.done[elastic.first_worker()].as_ref();
            let known = first.or_else(|| self.gather.done.iter().flatten().find(|done| done.steps > 0));
            let own = self.mean_of_members();
            model = match &own {
                Some(mean) => Some(params_sha256(mean)),
                None => known.map(|account| account.params_sha256.clone()),
            };
            if plan.eval_samples.is_some() {
                let params = self.gather.numbers[elastic.first_worker()].get(..self.params);
                let params = own.as_deref().or(params).unwrap_or_default();
                let (all, state) = (model::all_samples(test), self.state_of_shares());
                let shares = if self.state > 0 || own.is_some() { 1 } else { plan.replicas() };
                let outcome = evaluate(launch, params, state, &all, shares)?;
                self.gather.final_outcome(outcome);
            }
        } else if apart || plan.eval_samples.is_some() || self.stages.is_some() {
            let workers = &self.gather.numbers[..plan.workers];
            let (params, state) = match plan.servers {
                _ if self.stages.is_some() => self.model(workers),
                0 => self.model(workers),
                _ => (self.gather.server_params(), Some(mean(&workers.concat(), self.state))),
            };
            if apart || self.stages.is_some() {
                model = Some(params_sha256(&params));
            }
            if apart {
                let samples = model::evaluation_samples(plan, test);
                let outcome = evaluate(launch, &params, state.clone(), &samples, 1)?;
                let (steps, train_s) = (self.gather.steps(), self.gather.train_s());
                self.gather.evaluation(steps, train_s, outcome, report);
            }
            if plan.eval_samples.is_some() {
                let samples = model::all_samples(test);
                // Summed up as it would be if evaluations took them all.
                let shares = if apart || self.state > 0 { 1 } else { plan.replicas() };
                self.gather.final_outcome(evaluate(launch, &params, state, &samples, shares)?);
            }
        }
        self.gather.phases(report);
        let mut result =
            self.gather.result(launch.run, self.startup.unwrap_or_default(), launch.started, model);
        let of_holders = self.steps_of_holders();
        if let Some(elastic) = &self.elastic {
            // Accounts of members that were lost are missing; steps and samples are those of the plan.
            let steps = self.gather.done.iter().flatten().map(|account| account.steps).max();
            result.steps = if elastic.is_together() { steps.unwrap_or_default() } else { of_holders };
            let of_members = self.samples_of_scripts(result.steps);
            result.samples = of_members.unwrap_or_else(|| self.gather.samples_before(result.steps, 0));
        }
        if let Some(elastic) = &mut self.elastic {
            result.samples_per_s = result.samples as f64 / result.seconds.train;
            result.membership = std::mem::take(&mut elastic.changes);
        }
        Ok(result)
    }
}

/// Evaluates parameters on samples of the test split, in this process, share by share.
pub(crate) fn evaluate(
    launch: &Launch<'_>,
    params: &[f32],
    state: Option<Vec<f32>>,
    samples: &[u32],
    shares: usize,
) -> Result<Outcome, TrainError> {
    let RankModel::Native { dataset, graph } = RankContext::new(launch.plan, launch.dataset, 0)?.model else {
        return Ok(Outcome::default());
    };
    let compute = Arc::new(Compute::new(1, false));
    let mut state = match state {
        Some(state) => state,
        None => model::start(launch.plan, &graph)?.1,
    };
    let mut replica = Replica::new(launch.plan, graph, compute);
    let mut total = Outcome::default();
    for share in 0..shares {
        let part = &samples[order::share(samples.len(), share, shares)];
        total += replica.evaluate(dataset, part, params, &mut state)?;
    }
    Ok(total)
}
