//! What the ranks of a run say, put together into one result.

use std::collections::BTreeMap;

use paceline_data::{Order, order};
use paceline_nn::Outcome;
use paceline_plan::Plan;
use paceline_protocol::DroppedSteps;
use paceline_record::process::Started;
use paceline_record::{Event, RankTotals, ReplicaAccuracy, RunResult, Seconds, Staleness};
use paceline_train::Curve;
use paceline_train::model::params_sha256;
use serde::{Deserialize, Serialize};

use crate::control::RankAccount;
use crate::rank::role;

/// What the launcher keeps at a pause: evaluations so far.
#[derive(Default, Serialize, Deserialize)]
struct Account {
    curve: Vec<(f64, f64)>,
    /// Loss, hits, predictions and samples of the last one.
    last: Option<(f64, usize, usize, usize)>,
    /// What a script has reported.
    #[serde(default)]
    reported: BTreeMap<String, f64>,
    /// Samples of workers that are gone which nobody trained on.
    #[serde(default)]
    dropped: u64,
}

/// The accounts of all ranks.
pub struct Gather<'a> {
    plan: &'a Plan,
    /// Evaluations under way: what each worker has told, and the latest clock.
    parts: BTreeMap<u64, (Vec<Option<Outcome>>, f64)>,
    curve: Curve,
    last: Option<Outcome>,
    /// Each rank's account.
    pub done: Vec<Option<RankAccount>>,
    /// Each rank's numbers: a server's shard; the state of a worker's positions, after its parameters where they
    /// count.
    pub numbers: Vec<Vec<f32>>,
    /// The order of samples; none where scripts have their own.
    order: Option<Order>,
    /// Figures of rank 0's script, the last of each name.
    reported: BTreeMap<String, f64>,
    /// Samples of workers that are gone which nobody trains on.
    dropped: u64,
}

impl<'a> Gather<'a> {
    /// Nothing yet, or what was there when the run paused; `samples` are those of the training split, if there is one.
    pub fn new(plan: &'a Plan, samples: Option<usize>, account: Option<&str>) -> Self {
        let world = plan.members();
        let account: Account = account.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let outcome = |(loss, correct, predictions, samples)| Outcome { loss, correct, predictions, samples };
        Self {
            plan,
            parts: BTreeMap::new(),
            curve: Curve::new(account.curve),
            last: account.last.map(outcome),
            done: vec![None; world],
            numbers: vec![Vec::new(); world],
            order: samples.map(|n| Order::new(plan.seed, n, plan.global_batch(), plan.total_samples(n))),
            reported: account.reported,
            dropped: account.dropped,
        }
    }

    /// What is to be kept at a pause.
    pub fn account(&self) -> String {
        let last = self.last.map(|o| (o.loss, o.correct, o.predictions, o.samples));
        let reported = self.reported.clone();
        let dropped = self.dropped;
        let account = Account { curve: self.curve.points().to_vec(), last, reported, dropped };
        serde_json::to_string(&account).expect("an account is plain data")
    }

    /// Adds a worker's part of an evaluation. Returns the training clock and the whole outcome with the last part.
    pub fn part(&mut self, rank: usize, step: u64, train_s: f64, outcome: Outcome) -> Option<(f64, Outcome)> {
        let (told, clock) = self.parts.entry(step).or_insert_with(|| (vec![None; self.plan.workers], 0.0));
        told[rank] = Some(outcome);
        *clock = clock.max(train_s);
        if told.iter().any(Option::is_none) {
            return None;
        }
        let (told, clock) = self.parts.remove(&step)?;
        // In the order of the ranks, so that the sum does not depend on who was first.
        let mut total = Outcome::default();
        told.iter().flatten().for_each(|part| total += *part);
        Some((clock, total))
    }

    /// A worker whose part of an evaluation is missing, and that evaluation's step.
    pub fn missing(&self) -> Option<(usize, u64)> {
        let missing = |told: &[Option<Outcome>]| told.iter().position(Option::is_none);
        self.parts.iter().find_map(|(step, (told, _))| Some((missing(told)?, *step)))
    }

    /// Whether an evaluation has reached the target.
    pub fn reached(&self) -> bool {
        self.plan.target_accuracy.is_some_and(|target| self.curve.time_to(target).is_some())
    }

    /// Adds an evaluation.
    pub fn evaluation(
        &mut self,
        step: u64,
        train_s: f64,
        outcome: Outcome,
        report: &mut dyn FnMut(Event<'_>),
    ) {
        self.curve.push(train_s, outcome.accuracy());
        self.last = Some(outcome);
        let samples = self.samples_before(step, 0);
        let (loss, accuracy) = (outcome.mean_loss(), outcome.accuracy());
        report(Event::Evaluation { step, samples, train_s, loss, accuracy });
    }

    /// Adds what the final model makes of the whole test split, where evaluations during the run took less of it.
    pub fn final_outcome(&mut self, outcome: Outcome) {
        self.last = Some(outcome);
    }

    /// Adds what rank 0's script has reported.
    pub fn report(
        &mut self,
        step: u64,
        samples: u64,
        train_s: f64,
        values: &[(String, Option<f64>)],
        report: &mut dyn FnMut(Event<'_>),
    ) {
        let number = |value: Option<f64>| value.unwrap_or(f64::NAN);
        self.reported.extend(values.iter().map(|(name, value)| (name.clone(), number(*value))));
        let told = values.iter().map(|(name, value)| (&name[..], *value)).collect();
        report(Event::Reported { step, samples, train_s, values: told });
        let known = |name: &str| values.iter().find(|(n, _)| n == name).map(|(_, value)| number(*value));
        let (loss, accuracy) = (known("loss"), known("accuracy"));
        if loss.is_some() || accuracy.is_some() {
            if let Some(accuracy) = accuracy.filter(|accuracy| accuracy.is_finite()) {
                self.curve.push(train_s, accuracy);
            }
            let (loss, accuracy) = (loss.unwrap_or(f64::NAN), accuracy.unwrap_or(f64::NAN));
            report(Event::Evaluation { step, samples, train_s, loss, accuracy });
        }
    }

    /// Samples of the steps before this one; where scripts have their own data, as many as rank 0 has done for each worker.
    pub fn samples_before(&self, step: u64, own: u64) -> u64 {
        match &self.order {
            Some(order) => order.samples_before(step).saturating_sub(self.dropped),
            None => own * self.plan.workers as u64,
        }
    }

    /// The samples of some steps of a share.
    pub fn samples_of(&self, DroppedSteps { share, steps }: &DroppedSteps) -> usize {
        let Some(order) = &self.order else { return 0 };
        let own = |step| order::share(order.batch_len(step), *share, self.plan.shares()).len();
        steps.clone().map(own).sum()
    }

    /// Nobody trains on so many samples more.
    pub fn drop_samples(&mut self, samples: usize) {
        self.dropped += samples as u64;
    }

    /// Whether every rank has given its account.
    pub fn complete(&self) -> bool {
        self.done.iter().all(Option::is_some)
    }

    fn accounts(&self) -> impl Iterator<Item = &RankAccount> {
        self.done.iter().flatten()
    }

    /// The training clock: the longest of the workers'.
    pub fn train_s(&self) -> f64 {
        self.accounts().map(|d| d.train_s).fold(0.0, f64::max)
    }

    /// Steps done, as the workers count them.
    pub fn steps(&self) -> u64 {
        let workers = &self.done[..self.plan.workers];
        let total: u64 = workers.iter().flatten().map(|d| d.steps).sum();
        total / self.plan.workers as u64
    }

    /// The servers' parameters put together.
    pub fn server_params(&self) -> Vec<f32> {
        let (servers, stages) = (&self.numbers[self.plan.workers..], self.plan.stages);
        // Server `i` has stage `i mod stages`.
        (0..stages).flat_map(|stage| servers.iter().skip(stage).step_by(stages)).flatten().copied().collect()
    }

    /// Tells where the workers' time went, as far as their accounts are there.
    pub fn phases(&self, report: &mut dyn FnMut(Event<'_>)) {
        for (rank, done) in self.done[..self.plan.workers].iter().enumerate() {
            let Some(done) = done else { continue };
            if self.plan.script.is_some() {
                let seconds = |us: &u32| Some(*us).filter(|us| *us < u32::MAX).map(|us| f64::from(us) * 1e-6);
                let ready_s = done.ready_us.iter().map(seconds).collect();
                report(Event::Staging { rank, staging_s: done.staging_s, ready_s });
            }
            let [data_s, forward_s, backward_s] = done.phases;
            report(Event::Phases {
                rank,
                data_s,
                forward_s,
                backward_s,
                send_s: done.send_s,
                wait_s: done.wait_s,
                wait_for_s: done.wait_for_s.clone(),
                apply_s: done.apply_s,
            });
        }
    }

    /// The result.
    /// `model` is the hash of the evaluated model, where that is no rank's own.
    pub fn result(&self, run: &str, startup: f64, started: Started, model: Option<String>) -> RunResult {
        let (plan, train) = (self.plan, self.train_s());
        let outcome = self.last.unwrap_or_default();
        let (loss, count) =
            self.accounts().fold((0.0, 0), |(loss, n), d| (loss + d.last_loss, n + d.last_samples));
        let samples: u64 = self.accounts().map(|d| d.samples).sum();
        let sha = if let Some(model) = model {
            model
        } else if plan.servers > 0 && plan.script.is_none() {
            params_sha256(&self.server_params())
        } else {
            self.accounts().next().map_or_else(String::new, |d| d.params_sha256.clone())
        };
        let own = |name: &str| self.reported.get(name).copied().unwrap_or(f64::NAN);
        let (final_loss, final_accuracy) = match plan.script {
            None => (outcome.mean_loss(), outcome.accuracy()),
            Some(_) => (own("loss"), own("accuracy")),
        };
        let mut reported = self.reported.clone();
        reported.retain(|name, value| name != "loss" && name != "accuracy" && value.is_finite());
        let layout = self.plan.layout();
        RunResult {
            run: run.to_owned(),
            strategy: plan.strategy.clone(),
            steps: self.steps(),
            samples,
            seconds: Seconds { total: started.seconds(), startup, train },
            samples_per_s: samples as f64 / train,
            train_loss: loss / count.max(1) as f64,
            final_loss,
            final_accuracy,
            reported,
            exchange_unobserved: plan.delegated(),
            replicas: self.replicas(),
            stopped_at_target: self.stopped_at_target(),
            time_to_accuracy_s: plan.target_accuracy.and_then(|target| self.curve.time_to(target)),
            convergence_s: self.curve.convergence(),
            params_sha256: sha,
            staleness: staleness(self.accounts().flat_map(|d| &d.staleness).copied().collect()),
            dropped_rows: 0,
            ranks: self
                .done
                .iter()
                .enumerate()
                .filter_map(|(rank, d)| Some(self.rank(rank, d.as_ref()?, &layout)))
                .collect(),
            membership: Vec::new(),
            simulated: None,
        }
    }

    /// A rank's process is another one from now on.
    pub fn forget(&mut self, rank: usize) {
        (self.done[rank], self.numbers[rank]) = (None, Vec::new());
    }

    /// Whether a rank has given its account.
    pub fn gave_account(&self, rank: usize) -> bool {
        self.done.get(rank).is_some_and(Option::is_some)
    }

    /// Where reaching the target ended the run, if it did.
    fn stopped_at_target(&self) -> Option<u64> {
        let planned = self.order.as_ref().map_or(u64::MAX, Order::steps);
        let planned = planned.min(self.plan.stop_after_step.unwrap_or(u64::MAX));
        let stops = self.plan.stop_at_target && self.reached();
        Some(self.steps()).filter(|steps| stops && *steps < planned)
    }

    fn replicas(&self) -> Option<ReplicaAccuracy> {
        let all: Vec<f64> = self.accounts().filter_map(|d| d.accuracy).collect();
        (!all.is_empty()).then(|| ReplicaAccuracy {
            min_accuracy: all.iter().copied().fold(1.0, f64::min),
            max_accuracy: all.iter().copied().fold(0.0, f64::max),
        })
    }

    fn rank(&self, rank: usize, d: &RankAccount, layout: &[usize]) -> RankTotals {
        RankTotals {
            rank,
            role: role(self.plan, rank).into(),
            host: match self.plan.network {
                Some(_) => format!("{}#{}", d.host, layout[rank % layout.len()]),
                None => d.host.clone(),
            },
            params_sha256: d.params_sha256.clone(),
            compute_s: d.phases.iter().sum(),
            send_s: d.send_s,
            wait_s: d.wait_s,
            apply_s: d.apply_s,
            sent_bytes: d.sent_bytes,
            received_bytes: d.received_bytes,
            cpu_s: d.cpu_s,
            rss_peak_bytes: d.rss_peak_bytes,
            buffer_bytes: d.buffer_bytes,
        }
    }
}

fn staleness(mut all: Vec<u64>) -> Staleness {
    all.sort_unstable();
    let Some(&max) = all.last() else { return Staleness::default() };
    let p95 = all[(all.len() * 95).div_ceil(100).max(1) - 1];
    let mean = all.iter().sum::<u64>() as f64 / all.len() as f64;
    Staleness { mean, p95: p95 as f64, max: max as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staleness_is_summed_up_as_mean_p95_and_max() {
        let s = staleness((1..=100).collect());
        assert_eq!((s.mean, s.p95, s.max), (50.5, 95.0, 100.0));
        assert_eq!(staleness(Vec::new()).max, 0.0);
    }
}
