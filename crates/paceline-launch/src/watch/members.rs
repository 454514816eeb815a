//! What the launcher knows of a run whose members change.

use std::ops::Range;
use std::sync::Arc;

use paceline_nn::Compute;
use paceline_protocol::{RegroupEnd, ReplicaAgreement};
use paceline_record::{Event, FailureKind};
use paceline_train::Update;
use paceline_train::native::mean;

use super::{Incomplete, Reaction, Snapshot, Watch};
use crate::control::{RankCommand, RankEvent, ScriptCommon};
use crate::elastic::{Commands, ElasticRun, Resized};
use crate::error::LaunchError;
use crate::pauses::pack;
use crate::rank::{RankContext, role};
use crate::requests::MemberRequest;
use crate::run::Launch;

/// Why nobody joins a run of unchanged scripts.
const AUTO_KEEPS_NOTHING: &str = "where an unchanged script (--auto) is in its data is not known";

impl Watch<'_> {
    /// The same where members change: parts go by share, and a model that was evaluated already is not evaluated again.
    pub(super) fn snapshot_of_shares(&mut self, rank: usize, step: u64, train_s: f64, mut numbers: Vec<f32>) {
        let Some(elastic) = &self.elastic else { return };
        let shares = elastic.membership.shares.len();
        let at = self.snapshots.iter().position(|s| s.step == step).unwrap_or_else(|| {
            let parts = vec![None; shares];
            self.snapshots.push(Incomplete { step, train_s, of_servers: false, parts });
            self.snapshots.len() - 1
        });
        let snapshot = &mut self.snapshots[at];
        snapshot.train_s = snapshot.train_s.max(train_s);
        self.clock.stands_at(train_s);
        let own_weights = self.agreement == ReplicaAgreement::Apart && self.launch.plan.servers == 0;
        if own_weights {
            // Every worker counts once, whatever its shares.
            let state = numbers.split_off(self.params.min(numbers.len()));
            numbers.extend(mean(&state, self.state));
        }
        for share in elastic.shares_of(rank) {
            let own = match own_weights {
                true => numbers.len(),
                false => self.state + if share == 0 { self.params } else { 0 },
            };
            let rest = numbers.split_off(own.min(numbers.len()));
            snapshot.parts[share] = Some(std::mem::replace(&mut numbers, rest));
        }
        if snapshot.parts.iter().any(Option::is_none) {
            return;
        }
        let Incomplete { step, train_s, parts, .. } = self.snapshots.swap_remove(at);
        if self.shown.is_some_and(|shown| shown >= step) {
            if self.under_way == 0 {
                self.clock.runs();
                self.verdicts.push(RankCommand::Verdict { step, ends: false });
            }
            return;
        }
        self.shown = Some(step);
        let (params, state) = self.model(&parts.into_iter().flatten().collect::<Vec<_>>());
        if let Some(jobs) = &self.jobs {
            self.under_way += 1;
            // The evaluator listens as long as the run lasts.
            let _ =
                jobs.send(Snapshot { step, train_s, params, state: state.filter(|state| !state.is_empty()) });
        }
    }

    /// Goes on with other members, once all stand; what they are told.
    pub(crate) fn regroup(&mut self, more: bool) -> Result<Commands, LaunchError> {
        let Some(elastic) = &mut self.elastic else { return Ok(Vec::new()) };
        let (pauses, gather) = (&self.pauses, &self.gather);
        let samples_of = |dropped: &_| gather.samples_of(dropped);
        let (segment, commands) = match elastic.regroup(more, |from| pauses.end_of(from), samples_of) {
            Ok(None) => return Ok(Vec::new()),
            Ok(Some(regrouped)) => regrouped,
            Err(end) => return Err(self.nobody_left(&end)),
        };
        self.gather.drop_samples(elastic.dropped_last());
        let part = (0..elastic.addresses.len()).map(|member| elastic.takes_part(member)).collect();
        self.pauses.regrouped(segment, part, elastic.chooser());
        self.snapshots.clear();
        self.clock.runs();
        Ok(commands)
    }

    /// Members whose processes have ended, all for one reason: whether the run goes on without them, and what the others
    /// are told. How each ended is told if the run cannot go on.
    pub(crate) fn members_lost(&mut self, lost: Vec<(usize, Option<String>)>) -> Commands {
        let members: Vec<usize> = lost.iter().map(|(rank, _)| *rank).collect();
        for (rank, how) in lost {
            if let Some(how) = how {
                // Why its script ended is known already.
                self.deaths.entry(rank).or_insert(how);
            }
        }
        let train_s = self.clock.now_s();
        self.elastic.as_mut().map_or_else(Vec::new, |elastic| elastic.lost(&members, train_s))
    }

    /// Members that are to leave: what the others are told.
    pub(crate) fn members_leave(&mut self, members: &[usize]) -> Commands {
        let train_s = self.clock.now_s();
        self.elastic.as_mut().map_or_else(Vec::new, |elastic| elastic.drain(members, train_s))
    }

    /// Members without a process that the run has use for, once all ranks know each other.
    pub(crate) fn missing(&self) -> Vec<usize> {
        let elastic = self.elastic.as_ref().filter(|_| self.connected);
        elastic.map_or_else(Vec::new, ElasticRun::missing)
    }

    /// A worker's script was ended by somebody: whether the run goes on without that worker. How it ended is told if the run
    /// cannot go on.
    pub(crate) fn script_lost(&mut self, rank: usize, said: &RankEvent) -> bool {
        let RankEvent::Failed { message, kind: FailureKind::Lost, lost: None, .. } = said else {
            return false;
        };
        let lost = self.elastic.is_some() && self.launch.plan.script.is_some();
        if lost {
            self.deaths.insert(rank, message.clone());
        }
        lost
    }

    /// Whether a worker has joined a run of scripts, and has told of no step since then: what happens to it is no failure
    /// of the run.
    pub(crate) fn has_just_joined(&self, rank: usize) -> bool {
        self.elastic.as_ref().is_some_and(|elastic| elastic.has_just_joined(rank))
    }

    /// Whether a script that is to join fits to the others; what is wrong with it, if not.
    pub(crate) fn attaches_late(&mut self, rank: usize, common: &ScriptCommon) -> Option<String> {
        self.attached[rank] = Some(common.clone());
        let (_, problem) = self.misfit().filter(|(other, _)| *other == rank)?;
        self.attached[rank] = None;
        Some(problem)
    }

    /// Adds what those who join begin with to what they are told.
    pub(crate) fn hand_out(&mut self, commands: &mut [(usize, RankCommand)]) -> Vec<f32> {
        let Some((packed, numbers)) =
            self.elastic.as_mut().and_then(ElasticRun::begins_with).as_ref().map(pack)
        else {
            return Vec::new();
        };
        for (_, command) in commands {
            if let RankCommand::Peers { restored, script, stands_for: Some(_), .. } = command {
                *restored = Some(packed.clone());
                *script = self.attached.first().and_then(Clone::clone);
            }
        }
        numbers
    }

    /// A worker has nothing to hand over to who joins: those who wait are not needed.
    pub(super) fn nobody_joins(
        &mut self,
        rank: usize,
        problem: &str,
        report: &mut dyn FnMut(Event<'_>),
    ) -> Reaction {
        let now_s = self.clock.now_s();
        let Some(elastic) = &mut self.elastic else { return Reaction::Nothing };
        let (waiting, commands) = elastic.hands_nothing(rank, problem, now_s);
        for member in waiting {
            let name = format!("worker {member} cannot join: worker {rank}: {problem}");
            report(Event::Host { host: 0, name: &name, state: "failed" });
        }
        Reaction::Members(commands)
    }

    /// Samples of all workers before a step, where scripts have their own data, as far as workers have told: each has made
    /// as many steps as it took part in, with as many samples as in those that it has told of.
    pub(super) fn samples_of_scripts(&self, step: u64) -> Option<u64> {
        let elastic = self.elastic.as_ref().filter(|_| self.launch.plan.script.is_some())?;
        // Steps since its process takes part, and samples of those.
        let own = |member: usize| {
            let (steps, samples) = self.told[member];
            let began = elastic.steps_of(member).last()?.start;
            Some((steps.saturating_sub(began), samples)).filter(|(steps, _)| *steps > 0)
        };
        let first = (0..self.told.len()).find_map(own)?;
        let samples = |member: usize| {
            let (steps, samples) = own(member).unwrap_or(first);
            let made: u64 = elastic
                .steps_of(member)
                .iter()
                .map(|part| part.end.min(step).saturating_sub(part.start))
                .sum();
            (u128::from(samples) * u128::from(made) / u128::from(steps)) as u64
        };
        Some((0..self.told.len()).map(samples).sum())
    }

    /// Somebody asks for other members: what is to be done, or why it cannot be.
    pub(crate) fn asked(&mut self, request: MemberRequest) -> Result<Resized, String> {
        let (connected, now_s) = (self.connected, self.clock.now_s());
        let Some(elastic) = self.elastic.as_mut().filter(|_| connected) else {
            return Err("its ranks are starting: try it again in a moment".into());
        };
        match request {
            MemberRequest::Resize(workers) => elastic.resize(workers, now_s),
            MemberRequest::Drain(rank) => elastic.asked_to_drain(rank, now_s),
        }
    }

    /// A process of a member is started: it comes back, or is new.
    pub(crate) fn starts(&mut self, rank: usize) {
        self.addresses[rank].clear();
        self.gather.forget(rank);
        self.deaths.remove(&rank);
        if let Some(attached) = self.attached.get_mut(rank) {
            *attached = None;
        }
        if let (true, Some(elastic)) = (self.connected, &mut self.elastic) {
            elastic.started(rank);
        }
    }

    /// Whether a member has no process, and the run could still have use for one.
    pub(crate) fn is_gone(&self, rank: usize) -> bool {
        self.elastic.as_ref().is_some_and(|elastic| elastic.is_gone(rank) && !elastic.is_over())
    }

    /// Whether a member's process was started, and was not told yet to take part in the run under way.
    pub(crate) fn is_coming(&self, rank: usize) -> bool {
        self.connected && self.elastic.as_ref().is_some_and(|elastic| elastic.is_coming(rank))
    }

    /// The training clock now, in seconds; none before training has begun.
    pub(crate) fn training_clock(&self) -> Option<f64> {
        self.startup.and_then(|_| self.clock.known()).filter(|_| self.elastic.is_some())
    }

    /// Who has given an account of a shard's parameters: who serves it, or else has a copy.
    fn accounts_of_holders<'e>(
        &'e self,
        elastic: &'e ElasticRun,
    ) -> impl Iterator<Item = Option<(Range<usize>, usize)>> + 'e {
        elastic.holders().map(|(range, holders)| {
            let gave_account = |member: &usize| self.gather.gave_account(*member);
            Some((range, holders.into_iter().flatten().find(gave_account)?))
        })
    }

    /// The servers' parameters at the end of a run whose workers take units one by one.
    pub(super) fn params_of_holders(&self, elastic: &ElasticRun) -> Result<Vec<f32>, LaunchError> {
        let mut params = Vec::with_capacity(self.params);
        for (shard, holder) in self.accounts_of_holders(elastic).enumerate() {
            let numbers = holder.and_then(|(range, member)| self.gather.numbers[member].get(range));
            let Some(numbers) = numbers else {
                return Err(self.nobody_left(&RegroupEnd::ShardLost(shard)));
            };
            params.extend_from_slice(numbers);
        }
        Ok(params)
    }

    /// Steps of which every shard has all updates.
    pub(super) fn steps_of_holders(&self) -> u64 {
        let Some(elastic) = &self.elastic else { return 0 };
        let steps = self.accounts_of_holders(elastic).map(|holder| {
            let account = self.gather.done[holder?.1].as_ref();
            account.map(|account| account.steps)
        });
        steps.map(Option::unwrap_or_default).min().unwrap_or_default()
    }

    /// The mean state of the workers at the end of such a run; none without state.
    pub(super) fn state_of_workers(&self, elastic: &ElasticRun) -> Option<Vec<f32>> {
        let own = |member: &usize| {
            let numbers = &self.gather.numbers[*member];
            numbers.len().checked_sub(self.state).map(|from| numbers[from..].to_vec())
        };
        let states: Vec<f32> = elastic.membership.workers.iter().filter_map(own).flatten().collect();
        (self.state > 0 && !states.is_empty()).then(|| mean(&states, self.state))
    }

    /// The error of a run that too few are left of.
    fn nobody_left(&self, end: &RegroupEnd) -> LaunchError {
        let (saved, run) = (self.saved(), self.launch.run.to_owned());
        // Workers tell how far they are now and then only.
        let reached = self.elastic.as_ref().map_or(0, |elastic| elastic.reached);
        LaunchError::NobodyLeft {
            step: reached.max(saved.unwrap_or(0)),
            cause: end.to_string(),
            gone: self.gone(),
            saved,
            run,
            scripts: self.launch.plan.script.is_some(),
        }
    }

    /// The members that are gone, and how their processes ended, in words.
    fn gone(&self) -> String {
        let lost = |rank: usize| match self.deaths.get(&rank) {
            Some(how) => format!("{} {rank} ({how})", role(self.launch.plan, rank)),
            None => format!("{} {rank}", role(self.launch.plan, rank)),
        };
        let gone = self.elastic.as_ref().map_or_else(Vec::new, ElasticRun::gone);
        gone.into_iter().map(lost).collect::<Vec<_>>().join(", ")
    }

    /// The step of the last checkpoint, if there is one.
    fn saved(&self) -> Option<u64> {
        self.launch.checkpointing.checkpoints.latest_step(&self.launch.plan.checkpoint_hash())
    }

    /// The mean parameters of the workers that have given their accounts, where each has its own.
    pub(super) fn mean_of_members(&self) -> Option<Vec<f32>> {
        let apart = self.agreement == ReplicaAgreement::Apart && self.launch.plan.servers == 0;
        let elastic = self.elastic.as_ref().filter(|_| apart)?;
        let own = |member: &usize| self.gather.numbers[*member].get(..self.params);
        Some(mean(
            &elastic.membership.workers.iter().filter_map(own).collect::<Vec<_>>().concat(),
            self.params,
        ))
    }

    /// The mean state of all shares, out of what their workers have shown at the end; none without state.
    pub(super) fn state_of_shares(&self) -> Option<Vec<f32>> {
        let elastic = self.elastic.as_ref().filter(|_| self.state > 0)?;
        let mut states = vec![0.0; self.state * elastic.membership.shares.len()];
        for member in &elastic.membership.workers {
            let own = self.gather.numbers[*member].get(self.params..).unwrap_or_default();
            for (share, state) in elastic.shares_of(*member).into_iter().zip(own.chunks(self.state)) {
                states[share * self.state..][..state.len()].copy_from_slice(state);
            }
        }
        Some(mean(&states, self.state))
    }
}

/// The members of a run that may change.
pub(super) fn elastic(launch: &Launch<'_>, context: &RankContext<'_>) -> Option<ElasticRun> {
    let (elastic, base) = (launch.plan.elastic?, context.setup.clone());
    // What a script's optimiser remembers is in the script.
    let Some(dataset) = launch.dataset else {
        let unchanged = launch.plan.script.as_ref().is_some_and(|script| script.auto);
        let closed = unchanged.then(|| AUTO_KEEPS_NOTHING.to_owned());
        return Some(ElasticRun::new(elastic, base, 0).of_scripts(closed));
    };
    let update = Update::new(launch.plan, dataset.train.len(), Arc::new(Compute::new(1, false)));
    Some(ElasticRun::new(elastic, base, update.blocks()))
}
