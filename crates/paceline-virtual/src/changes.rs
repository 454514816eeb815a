//! Members that change in virtual time: the file that says who is taken away when, and what comes of it.

use std::path::Path;

use paceline_launch::{RankAccount, elastic};
use paceline_nn::Outcome;
use paceline_plan::{Elastic, Plan, PlanError};
use paceline_protocol::{Setup, Strategy};
use paceline_record::{MembershipChange, RunResult};
use paceline_sim::{
    ChangingReport, ChangingRun, Costs, GenerationReport, RankMemory, Revocation, SimulationReport,
    SizesOnly, run_changing,
};
use paceline_train::model::params_sha256;
use serde::Deserialize;

use crate::error::{VirtualError, read, refuse};
use crate::learn::Learning;

/// Who is taken away when, as its file says.
///
/// ```toml
/// noticed-after-s = 0.01
/// regroup-s = 0.1
/// [[revoke]]
/// at-s = 2.5
/// rank = 3
/// notice-s = 1.0
/// back-after-s = 3.0
/// ```
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Revocations {
    /// Seconds until the others know that a rank is lost.
    #[serde(default = "noticed_after_s")]
    pub noticed_after_s: f64,
    /// Seconds to decide how the run goes on, and to connect again.
    #[serde(default = "regroup_s")]
    pub regroup_s: f64,
    /// The ranks.
    #[serde(default)]
    pub revoke: Vec<RevokedRank>,
}

/// A rank that is taken away.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RevokedRank {
    /// When, in seconds of the training clock.
    pub at_s: f64,
    /// Which rank of those that the run begins with: workers, then servers.
    pub rank: usize,
    /// Seconds between the notice and the kill.
    #[serde(default)]
    pub notice_s: f64,
    /// Seconds after the kill at which it is there again, with nothing.
    pub back_after_s: Option<f64>,
}

fn noticed_after_s() -> f64 {
    0.01
}

fn regroup_s() -> f64 {
    0.1
}

impl Default for Revocations {
    fn default() -> Self {
        Self { noticed_after_s: noticed_after_s(), regroup_s: regroup_s(), revoke: Vec::new() }
    }
}

impl Revocations {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self, VirtualError> {
        let file: Self = read("--revoke", path)?;
        let times =
            file.revoke.iter().flat_map(|one| [one.at_s, one.notice_s, one.back_after_s.unwrap_or(0.0)]);
        let times = times.chain([file.noticed_after_s, file.regroup_s]);
        if times.into_iter().any(|time| !time.is_finite() || time < 0.0) {
            return Err(refuse("--revoke", path, "times are seconds, at least 0").into());
        }
        Ok(file)
    }
}

/// How the members of a run may change, and how they do.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberChanges {
    /// How they may.
    pub elastic: Elastic,
    /// Who is taken away.
    pub revocations: Revocations,
}

impl MemberChanges {
    /// The changes of a plan, with those of a file; none where nothing can change.
    pub fn of(plan: &Plan, revocations: Option<Revocations>) -> Option<Self> {
        let elastic = match (plan.elastic, &revocations) {
            (Some(elastic), _) => elastic,
            (None, Some(_)) => Elastic::up_to(plan.workers),
            (None, None) => return None,
        };
        Some(Self { elastic, revocations: revocations.unwrap_or_default() })
    }

    /// Refuses what cannot be.
    pub fn check(&self, plan: &Plan, strategy: &Strategy, setup: &Setup) -> Result<(), PlanError> {
        elastic::check(&self.elastic, plan, strategy, setup)?;
        let world = setup.world();
        if let Some(one) = self.revocations.revoke.iter().find(|one| one.rank >= world) {
            let problem =
                format!("there is no rank {}: the run begins with ranks 0 to {}", one.rank, world - 1);
            return Err(PlanError::new("--revoke", "", problem));
        }
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
) -> Result<Changed, VirtualError> {
    let report = drive(changes, plan, run, blocks, &mut SizesOnly)?;
    let changes = self::changes(&report);
    Ok(Changed { happened: happened(report, run.1), changes, model: None, train_loss: f64::NAN })
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
    let model = workers.iter().find(|member| !lost(member)).copied().unwrap_or(0);
    let (params, state) = learning.model_of(model);
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
    let changes = self::changes(&report);
    let (model, train_loss) = (Some(params_sha256(&params)), sum.mean_loss());
    Ok(Changed { happened: happened(report, run.1), changes, model, train_loss })
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
    let ChangingReport { mut spent, mut finished, messages, ended, .. } = report;
    let world = setup.world();
    spent.truncate(world);
    finished.truncate(setup.workers);
    SimulationReport {
        spent,
        finished,
        outcomes: vec![None; world],
        staleness: vec![Vec::new(); world],
        sent_bytes: vec![0; world],
        messages,
        end: ended,
        ..SimulationReport::default()
    }
}

fn changes(report: &ChangingReport) -> Vec<MembershipChange> {
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
            pause_s: seconds(pause),
        }
    };
    pairs.zip(report.pauses()).map(change).collect()
}

impl Changed {
    /// Puts into a result what the accounts of the members that the run began with do not tell.
    pub fn correct(&self, result: &mut RunResult, steps: u64, samples: u64) {
        (result.steps, result.samples, result.train_loss) = (steps, samples, self.train_loss);
        result.seconds.train = seconds(self.happened.end);
        result.samples_per_s = samples as f64 / result.seconds.train;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_who_is_taken_away_and_times_are_seconds() {
        let text = "regroup-s = 0.5\n[[revoke]]\nat-s = 2.5\nrank = 3\nback-after-s = 1\n";
        let file: Revocations = toml::from_str(text).unwrap();
        assert_eq!((file.noticed_after_s, file.regroup_s), (0.01, 0.5));
        let one = RevokedRank { at_s: 2.5, rank: 3, notice_s: 0.0, back_after_s: Some(1.0) };
        assert_eq!(file.revoke, [one]);
        assert!(toml::from_str::<Revocations>("[[revoke]]\nat = 3").is_err());
    }
}
