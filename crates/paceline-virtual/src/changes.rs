//! Members that change in virtual time: who is taken away when, and what comes of it.

use paceline_launch::gather::Gather;
use paceline_launch::{RankAccount, elastic};
use paceline_nn::Outcome;
use paceline_plan::{Elastic, Plan, PlanError, Revocations, RevokedRank};
use paceline_protocol::{Setup, Strategy};
use paceline_record::{MembershipChange, RunResult};
use paceline_sim::{
    ChangingReport, ChangingRun, Costs, GenerationReport, RankMemory, Revocation, SimulationReport,
    SizesOnly, run_changing,
};
use paceline_train::model::params_sha256;

use crate::error::VirtualError;
use crate::learn::Learning;

/// How the members of a run may change, and how they do.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberChanges {
    /// How they may.
    pub elastic: Elastic,
    /// Who is taken away.
    pub revocations: Revocations,
}

impl MemberChanges {
    /// The changes of a plan; none where nothing can change.
    pub fn of(plan: &Plan) -> Option<Self> {
        Some(Self { elastic: plan.elastic?, revocations: plan.revoke.clone().unwrap_or_default() })
    }

    /// Refuses what cannot be.
    pub fn check(&self, plan: &Plan, strategy: &Strategy, setup: &Setup) -> Result<(), PlanError> {
        elastic::check(&self.elastic, plan, strategy, setup)?;
        if plan.stop_at_target {
            let problem =
                "in virtual time, a run whose members change does not stop at a target: leave it out";
            return Err(PlanError::new("--stop-at-target", "", problem));
        }
        Ok(())
    }
}

fn time(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

fn seconds(time: u64) -> f64 {
    time as f64 * 1e-9
}

/// What came of a run whose members changed.
pub(crate) struct Changed {
    /// What happened to the members that it began with.
    pub happened: SimulationReport,
    pub changes: Vec<MembershipChange>,
    /// Samples of workers that were gone which nobody trained on.
    pub dropped: u64,
    /// The hash of the final model, and the mean loss of the last step.
    pub model: Option<String>,
    pub train_loss: f64,
}

/// Drives a run whose members change; `blocks` counts what the optimiser remembers of each parameter.
fn drive<M: RankMemory>(
    changes: &MemberChanges,
    plan: &Plan,
    (strategy, setup, costs): (&Strategy, &Setup, &Costs),
    blocks: usize,
    memory: &mut M,
) -> Result<ChangingReport, VirtualError> {
    let Elastic { least, most, spares, backup: backups } = changes.elastic;
    let revocation = |one: &RevokedRank| Revocation {
        at: time(one.at_s),
        member: one.rank,
        notice: time(one.notice_s),
        back_after: one.back_after_s.map(time),
    };
    let revocations: Vec<_> = changes.revocations.revoke.iter().map(revocation).collect();
    let run = ChangingRun {
        strategy,
        setup,
        costs,
        backups,
        least,
        most,
        spares,
        blocks: blocks as u16,
        revocations: &revocations,
        noticed_after: time(changes.revocations.noticed_after_s),
        regroup: time(changes.revocations.regroup_s),
    };
    ended(run_changing(&run, memory), plan)
}

/// Time alone.
pub(crate) fn time_alone(
    changes: &MemberChanges,
    plan: &Plan,
    run: (&Strategy, &Setup, &Costs),
    blocks: usize,
    gather: &Gather<'_>,
) -> Result<Changed, VirtualError> {
    let report = drive(changes, plan, run, blocks, &mut SizesOnly)?;
    let (changes, dropped) = (self::changes(&report, gather), dropped(&report, gather));
    Ok(Changed { happened: happened(report, run.1), changes, dropped, model: None, train_loss: f64::NAN })
}

/// Time and learning.
pub(crate) fn learn(
    changes: &MemberChanges,
    plan: &Plan,
    run: (&Strategy, &Setup, &Costs),
    learning: &mut Learning<'_, '_>,
) -> Result<Changed, VirtualError> {
    learning.changing = true;
    let report = drive(changes, plan, run, learning.blocks(), learning);
    if let Some(failed) = learning.failed.take() {
        return Err(failed.into());
    }
    let report = report?;
    let last = report.generations.last();
    let lost = |member: &usize| last.is_some_and(|last| last.lost.iter().any(|(lost, _)| lost == member));
    let workers: Vec<usize> = last.map_or_else(Vec::new, |last| last.membership.workers.clone());
    let there: Vec<usize> = workers.iter().filter(|member| !lost(member)).copied().collect();
    let (params, state) = match run.1.sync.is_bsp() {
        true => {
            learning.ended(&there);
            learning.model_of_members(&there)
        }
        false => {
            let holders = last.map_or(&[][..], |last| &last.membership.shards).iter().map(|shard| {
                let backup = shard.backup.filter(|_| lost(&shard.primary));
                backup.unwrap_or(shard.primary)
            });
            let (params, state) = learning.model_of_servers(&holders.collect::<Vec<_>>(), &there);
            learning.tell(run.1.end(), report.ended, &params, state.clone());
            (params, state)
        }
    };
    if plan.eval_samples.is_some() {
        let outcome = learning.evaluate_whole(&params, state);
        learning.gather.final_outcome(outcome);
    }
    let mut sum = Outcome::default();
    workers.iter().for_each(|member| sum += learning.ranks[*member].last);
    for rank in 0..run.1.world() {
        let own = &learning.ranks[rank];
        let (samples, params_sha256) = (own.samples, params_sha256(&own.params));
        learning.gather.done[rank] = Some(RankAccount { samples, params_sha256, ..RankAccount::default() });
    }
    let (changes, dropped) = (self::changes(&report, &learning.gather), dropped(&report, &learning.gather));
    let (model, train_loss) = (Some(params_sha256(&params)), sum.mean_loss());
    Ok(Changed { happened: happened(report, run.1), changes, dropped, model, train_loss })
}

/// Refuses a run that did not come to its end, saying from where a real one would go on.
fn ended(report: ChangingReport, plan: &Plan) -> Result<ChangingReport, VirtualError> {
    let last = report.generations.last();
    let step = last.map_or(0, |last| last.to);
    if !report.stuck.is_empty() {
        return Err(VirtualError::Stuck { ranks: report.stuck, steps: step as usize });
    }
    let Some(why) = report.end else { return Ok(report) };
    let at_s = seconds(last.map_or(0, |last| last.ended));
    let hint = match plan.checkpoint_every {
        Some(every) => format!("a real run goes on from its checkpoint of step {}", step / every * every),
        None => "without --checkpoint-every there is no checkpoint that a real run could go on from".into(),
    };
    Err(VirtualError::Members { at_s, step, why: why.to_string(), hint })
}

/// The report of the members that the run began with.
fn happened(report: ChangingReport, setup: &Setup) -> SimulationReport {
    let ChangingReport { mut spent, mut finished, messages, ended, staleness: all, .. } = report;
    let mut staleness = vec![Vec::new(); setup.world()];
    // Whichever server counted them: of them all, the first of the plan's stands for the others.
    staleness.get_mut(setup.workers).into_iter().for_each(|first| first.clone_from(&all));
    let world = setup.world();
    spent.truncate(world);
    finished.truncate(setup.workers);
    SimulationReport {
        spent,
        finished,
        outcomes: vec![None; world],
        staleness,
        sent_bytes: vec![0; world],
        messages,
        end: ended,
        ..SimulationReport::default()
    }
}

fn changes(report: &ChangingReport, gather: &Gather<'_>) -> Vec<MembershipChange> {
    let pairs = report.generations.iter().zip(report.generations.iter().skip(1));
    let change = |((before, after), (at, pause)): ((&GenerationReport, &GenerationReport), (u64, u64))| {
        let new = |member: &usize| before.membership.rank(*member).is_none();
        let back = |member: &usize| before.lost.iter().any(|(lost, _)| lost == member);
        MembershipChange {
            at_s: seconds(at),
            lost: before.lost.iter().map(|(member, _)| *member).collect(),
            left: before.left.clone(),
            joined: after.membership.ranks().filter(|member| new(member) || back(member)).collect(),
            took_over: after.membership.took_over(&before.membership),
            workers: after.membership.workers.len(),
            servers: after.membership.servers.len(),
            step: after.from,
            steps_anew: before.anew(),
            samples_dropped: before.dropped.iter().map(|dropped| gather.samples_of(dropped)).sum(),
            pause_s: seconds(pause),
        }
    };
    pairs.zip(report.pauses()).map(change).collect()
}

/// Samples that nobody trained on, because their workers were gone.
fn dropped(report: &ChangingReport, gather: &Gather<'_>) -> u64 {
    let all = report.generations.iter().flat_map(|generation| &generation.dropped);
    all.map(|dropped| gather.samples_of(dropped) as u64).sum()
}

impl Changed {
    /// Puts into a result what the accounts of the members that the run began with do not tell.
    pub fn correct(&self, result: &mut RunResult, steps: u64, samples: u64) {
        let samples = samples - self.dropped;
        (result.steps, result.samples, result.train_loss) = (steps, samples, self.train_loss);
        result.seconds.train = seconds(self.happened.end);
        result.samples_per_s = samples as f64 / result.seconds.train;
    }
}
