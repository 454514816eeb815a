//! Runs whose members change, in virtual time: ranks are revoked, come back, or join. Each generation is driven until
//! it ends; what its survivors say of their parameters decides how the next one begins (`paceline_protocol::regroup`).

mod report;
mod seats;

use paceline_protocol::{
    Actions, DroppedSteps, Input, MemberId, Membership, Outcome, Participant, Rank, RankStanding, RegroupEnd,
    Regrouped, Setup, Strategy, TakingPart, Time, regroup,
};

use crate::costs::Costs;
use crate::driver::{Crash, run_generation};
use crate::memory::RankMemory;
use crate::report::{SimulatedTimes, SimulationReport};
pub use report::{ChangingReport, GenerationReport};
use seats::{Seats, costs_of};

/// A member that is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// When this is told: at once if there is no notice.
    pub at: Time,
    /// Who.
    pub member: MemberId,
    /// How long before it is killed.
    pub notice: Time,
    /// How long after that it is there again, with nothing.
    pub back_after: Option<Time>,
}

impl Revocation {
    /// When the member is killed.
    pub fn kill(&self) -> Time {
        self.at.saturating_add(self.notice)
    }

    fn back(&self) -> Option<Time> {
        Some(self.kill().saturating_add(self.back_after?))
    }
}

/// A run whose members change.
#[derive(Clone, Copy)]
pub struct ChangingRun<'a> {
    /// The strategy.
    pub strategy: &'a Strategy,
    /// The run with the members that it begins with: their numbers are their ranks there.
    pub setup: &'a Setup,
    /// Costs of those members.
    pub costs: &'a Costs,
    /// Whether server shards have backups.
    pub backups: bool,
    /// The fewest workers that the run goes on with.
    pub least: usize,
    /// The most.
    pub most: usize,
    /// Workers that wait until one is lost; they are as fast as the first one.
    pub spares: usize,
    /// Blocks of the optimiser's memory.
    pub blocks: u16,
    /// Who is taken away, and when.
    pub revocations: &'a [Revocation],
    /// How long until survivors know of a loss.
    pub noticed_after: Time,
    /// How long it takes to decide how to go on, and to connect again.
    pub regroup: Time,
}

/// A generation that has ended before the run has.
struct Stopped {
    ended: Time,
    /// Where its survivors stand.
    standings: Vec<(MemberId, RankStanding)>,
    /// Steps that each member has made, as far as that is known.
    told: Vec<(MemberId, u64)>,
    participants: Vec<(MemberId, Box<dyn Participant>)>,
}

/// Drives such a run to its end.
struct Changing<'a, M> {
    run: ChangingRun<'a>,
    memory: &'a mut M,
    membership: Membership,
    report: ChangingReport,
    /// Revocations whose members have come back; when each member came last; and spares in use.
    returned: Vec<bool>,
    joined: Vec<Option<Time>>,
    spares: usize,
    /// When it was last decided with whom the run goes on.
    decided: Option<Time>,
}

/// Runs it.
pub fn run_changing<M: RankMemory>(run: &ChangingRun<'_>, memory: &mut M) -> ChangingReport {
    let members = run.setup.world() + run.spares;
    let report = ChangingReport {
        generations: Vec::new(),
        end: None,
        stuck: Vec::new(),
        ended: 0,
        finished: vec![Vec::new(); members],
        spent: vec![SimulatedTimes::default(); members],
        messages: 0,
        staleness: Vec::new(),
    };
    let changing = Changing {
        run: *run,
        memory,
        membership: Membership::first(run.setup, run.backups),
        report,
        returned: vec![false; run.revocations.len()],
        joined: vec![None; members],
        spares: 0,
        decided: None,
    };
    changing.drive()
}

impl<M: RankMemory> Changing<'_, M> {
    fn drive(mut self) -> ChangingReport {
        let (mut now, mut number, mut going_on) = (0, 0, None::<Regrouped>);
        let mut handed = Vec::new();
        loop {
            let setup = self.membership.setup(self.run.setup, number, going_on.as_ref(), self.run.blocks);
            let stopped = self.generation(&setup, now);
            if let Some(last) = self.report.generations.last_mut() {
                last.handed = std::mem::take(&mut handed);
            }
            let Some(mut stopped) = stopped else { break };
            let (on, at) = match self.next(&stopped) {
                Ok(next) => next,
                Err(end) => {
                    self.report.end = Some(end);
                    break;
                }
            };
            let at = at + self.commit(&on, &mut stopped);
            if let Some(last) = self.report.generations.last_mut() {
                last.to = on.from;
                last.caught_up.clone_from(&on.commits);
                last.ahead = on.ahead.iter().map(Vec::len).sum();
                if let Some(work) = &on.work {
                    last.begun = on.from + work.open.len() as u64;
                    last.levelled = on.handovers.iter().filter(|handover| handover.older.is_some()).count();
                    last.open.clone_from(&work.open);
                }
                last.dropped.clone_from(&on.dropped);
            }
            (now, number) = (at, number + 1);
            self.membership = on.membership.clone();
            let member = |rank: Rank| on.membership.ranks().nth(rank);
            handed = on.handovers.iter().filter_map(|handover| member(handover.to)).collect();
            going_on = Some(on);
        }
        self.report
    }

    /// The revocations that a member has ahead of it.
    fn pending(&self, member: MemberId) -> impl Iterator<Item = &Revocation> {
        let ahead = move |(i, revoked): &(usize, &Revocation)| {
            let since = self.joined[member].is_none_or(|joined| revoked.kill() > joined);
            revoked.member == member && !self.returned[*i] && since
        };
        self.run.revocations.iter().enumerate().filter(ahead).map(|(_, revoked)| revoked)
    }

    fn is_server(&self, member: MemberId) -> bool {
        (self.run.setup.workers..self.run.setup.world()).contains(&member)
    }

    /// Revocations whose members are not back yet and for whom there would be room, with the time.
    fn coming(&self) -> impl Iterator<Item = (usize, Time)> + '_ {
        let membership = &self.membership;
        let workers = membership.workers.len() < self.run.most.min(self.run.setup.shares());
        let servers = membership.servers.len() < membership.shards.len();
        let due = move |i: usize| {
            let revoked = &self.run.revocations[i];
            let room = if self.is_server(revoked.member) { servers } else { workers };
            let there = membership.rank(revoked.member).is_some();
            Some((i, revoked.back().filter(|_| room && !there && !self.returned[i])?))
        };
        (0..self.run.revocations.len()).filter_map(due)
    }

    /// Drives a generation that begins now; nothing if the run is over, or stuck.
    fn generation(&mut self, setup: &Setup, now: Time) -> Option<Stopped> {
        let run = self.run;
        let members: Vec<MemberId> = self.membership.ranks().collect();
        let participants: Vec<_> =
            (0..members.len()).map(|rank| run.strategy.participant(setup, rank)).collect();
        for (rank, member) in members.iter().enumerate() {
            let positions = setup.positions(rank).len();
            self.memory.seat(*member, positions, participants[rank].scratch());
        }
        let crash = |(rank, member): (Rank, &MemberId)| {
            let at = self.pending(*member).map(Revocation::kill).min()?.saturating_sub(now);
            Some(Crash { rank, at, noticed_after: run.noticed_after })
        };
        let crashes: Vec<Crash> = members.iter().enumerate().filter_map(crash).collect();
        // Members that are told in time leave, and others join, between two steps.
        let told = members.iter().flat_map(|member| self.pending(*member));
        let news = |revoked: &&Revocation| self.decided.is_none_or(|decided| revoked.at > decided);
        let notices = told.filter(news).filter(|revoked| revoked.notice > 0).map(|revoked| revoked.at);
        let joins = self.coming().map(|(_, back)| back);
        let stop = notices.chain(joins).min().map(|at| at.saturating_sub(now));
        let costs = costs_of(run.costs, &members, setup.workers);
        let from: Vec<u64> = (0..members.len()).map(|rank| setup.first_step(rank)).collect();
        let mut seats = Seats {
            memory: &mut *self.memory,
            members: members.clone(),
            began: now,
            told: from.clone(),
            from,
            begun: setup.from,
            finished: Vec::new(),
        };
        let (happened, mut all) = run_generation(setup, participants, &costs, &mut seats, &crashes, stop);
        let (begun, finished) = (seats.begun, std::mem::take(&mut seats.finished));
        let mut told: Vec<(MemberId, u64)> = members.iter().copied().zip(seats.told).collect();
        let first_step = happened.first_step.map(|at| now + at);
        let ended = now + happened.spent.iter().map(|spent| spent.end).max().unwrap_or(0);
        self.account(&happened, &members, now, &finished);
        if !happened.stuck.is_empty() {
            self.report.stuck = happened.stuck.iter().map(|rank| members[*rank]).collect();
            return None;
        }
        let lost = |(rank, member): (Rank, &MemberId)| {
            let at = now + crashes.iter().find(|crash| crash.rank == rank)?.at;
            (at <= ended || happened.outcomes[rank].is_none()).then_some((*member, at))
        };
        let lost: Vec<_> = members.iter().enumerate().filter_map(lost).collect();
        let standings: Vec<_> = (0..members.len())
            .filter(|rank| lost.iter().all(|(member, _)| *member != members[*rank]))
            .map(|rank| (members[rank], all[rank].standing()))
            .collect();
        // Who stands says more.
        let stands = |member: MemberId| standings.iter().find(|(other, _)| *other == member);
        told.iter_mut().for_each(|(member, told)| {
            *told = stands(*member).map_or(*told, |(_, standing)| standing.at);
        });
        let done = happened.outcomes.iter().flatten().all(|outcome| *outcome == Outcome::Completed);
        let workers = || standings.iter().filter(|(member, _)| self.membership.workers.contains(member));
        let there = |standing: &RankStanding| standing.at >= setup.end() && standing.missing.is_empty();
        let (at_end, to) = match setup.sync.is_bsp() {
            true => (
                workers().all(|(_, standing)| there(standing)),
                workers().map(|(_, standing)| standing.at).max().unwrap_or(setup.from),
            ),
            // What counts are the updates that the servers have made.
            false => {
                let to = self.membership.steps_done(&standings, run.setup);
                (to >= setup.end(), to)
            }
        };
        let over = done && workers().next().is_some() && at_end;
        // Of shares whose workers were lost when all others had done their work; elsewhere regrouping says.
        let own = workers().any(|(_, standing)| standing.own);
        let of_lost = |(share, worker): (usize, &MemberId)| {
            let gone = lost.iter().any(|(member, _)| member == worker);
            let (_, told) = told.iter().find(|(member, _)| member == worker).filter(|_| own && gone)?;
            Some(DroppedSteps { share, steps: *told..setup.end() })
        };
        let dropped = self.membership.shares.iter().enumerate().filter_map(of_lost).collect();
        self.report.generations.push(GenerationReport {
            began: now,
            ended,
            from: setup.from,
            to,
            membership: self.membership.clone(),
            lost,
            left: Vec::new(),
            handed: Vec::new(),
            caught_up: Vec::new(),
            ahead: 0,
            levelled: 0,
            open: Vec::new(),
            dropped,
            begun,
            first_step,
        });
        let participants = members.into_iter().zip(all.drain(..)).collect();
        (!over).then_some(Stopped { ended, standings, told, participants })
    }

    /// Who is behind makes the update that it has put off; how long that takes.
    fn commit(&mut self, on: &Regrouped, stopped: &mut Stopped) -> Time {
        let mut longest = 0;
        for (member, participant) in &mut stopped.participants {
            if !on.commits.contains(member) {
                continue;
            }
            let mut actions = Actions::default();
            participant.on(stopped.ended, Input::Commit(on.from), &mut actions);
            let mut took = 0.0;
            for action in actions.drain() {
                took += self.run.costs.work.of(&action);
                self.memory.compute(*member, &action);
            }
            let at = stopped.ended + took as Time;
            self.memory.step_over(*member, on.from, at);
            longest = longest.max(took as Time);
            self.finished(*member, at);
        }
        longest
    }

    /// Decides with whom the run goes on, and when: as soon as it can.
    fn next(&mut self, stopped: &Stopped) -> Result<(Regrouped, Time), RegroupEnd> {
        let (run, standings) = (self.run, &stopped.standings);
        let mut now = stopped.ended;
        loop {
            // Who has been given notice leaves, unless the run cannot go on without it.
            let stays = |member: MemberId| self.pending(member).all(|revoked| revoked.at > now);
            let staying: Vec<_> = standings.iter().filter(|(member, _)| stays(*member)).cloned().collect();
            let alive = |member: MemberId| self.pending(member).all(|revoked| revoked.kill() > now);
            let alive: Vec<_> = standings.iter().filter(|(member, _)| alive(*member)).cloned().collect();
            let here: Vec<usize> = self.back_by(now).collect();
            let told = &stopped.told;
            let on = self.regrouped(staying, told, &here).or_else(|_| self.regrouped(alive, told, &here));
            match on {
                Ok(on) => {
                    self.admit(&on, &here, now);
                    self.decided = Some(now);
                    if let Some(last) = self.report.generations.last_mut() {
                        let gone = |member: &MemberId| on.membership.rank(*member).is_none();
                        last.left = standings.iter().map(|(member, _)| *member).filter(gone).collect();
                    }
                    return Ok((on, now + run.regroup));
                }
                Err(end) => {
                    let more = (0..run.revocations.len()).filter(|i| !self.returned[*i]);
                    let more =
                        more.filter_map(|i| run.revocations[i].back()).filter(|back| *back > now).min();
                    match (end, more) {
                        (RegroupEnd::TooFew { .. }, Some(back)) => now = back,
                        _ => return Err(end),
                    }
                }
            }
        }
    }

    /// Revocations whose members are back by now, the last one of each.
    fn back_by(&self, now: Time) -> impl Iterator<Item = usize> + '_ {
        let back = move |i: &usize| {
            let revoked = &self.run.revocations[*i];
            let again = self
                .pending(revoked.member)
                .any(|other| other.kill() <= now && other.back().is_none_or(|back| back > now));
            !self.returned[*i] && revoked.back().is_some_and(|back| back <= now) && !again
        };
        (0..self.run.revocations.len()).filter(back)
    }

    fn regrouped(
        &self,
        survivors: Vec<(MemberId, RankStanding)>,
        told: &[(MemberId, u64)],
        here: &[usize],
    ) -> Result<Regrouped, RegroupEnd> {
        let run = self.run;
        let mut back: Vec<MemberId> = here.iter().map(|i| run.revocations[*i].member).collect();
        back.retain(|member| survivors.iter().all(|(other, _)| other != member));
        back.dedup();
        let (servers, workers): (Vec<MemberId>, Vec<MemberId>) =
            back.into_iter().partition(|member| self.is_server(*member));
        let spares = (self.spares..run.spares).map(|n| run.setup.world() + n);
        let gone = |(member, _): &&(MemberId, u64)| survivors.iter().all(|(other, _)| other != member);
        let part = TakingPart {
            told: told.iter().filter(gone).copied().collect(),
            survivors,
            workers: workers.into_iter().chain(spares).collect(),
            servers,
            least: run.least,
            most: run.most,
        };
        regroup(&self.membership, &part, run.setup)
    }

    /// Notes who joins: with nothing.
    fn admit(&mut self, on: &Regrouped, here: &[usize], now: Time) {
        for i in here {
            let member = self.run.revocations[*i].member;
            if on.membership.rank(member).is_some() {
                self.returned[*i] = true;
                self.joined[member] = Some(now);
                self.memory.forget(member);
            }
        }
        let first = self.run.setup.world();
        let spares = on.membership.workers.iter().filter(|member| **member >= first).map(|m| m - first + 1);
        self.spares = self.spares.max(spares.max().unwrap_or(0));
    }

    /// A step was finished by a member.
    fn finished(&mut self, member: MemberId, at: Time) {
        self.report.finished[member].push(at);
    }

    fn account(
        &mut self,
        happened: &SimulationReport,
        members: &[MemberId],
        now: Time,
        finished: &[(MemberId, Time)],
    ) {
        finished.iter().for_each(|(member, at)| self.finished(*member, *at));
        self.report.messages += happened.messages;
        self.report.staleness.extend(happened.staleness.iter().flatten());
        for (spent, member) in happened.spent.iter().zip(members) {
            let sum = &mut self.report.spent[*member];
            sum.compute += spent.compute;
            sum.exchange += spent.exchange;
            sum.apply += spent.apply;
            sum.sent_bytes += spent.sent_bytes;
            sum.received_bytes += spent.received_bytes;
            sum.end = now + spent.end;
        }
        let last = happened.spent.iter().map(|spent| spent.end).max().unwrap_or(0);
        self.report.ended = self.report.ended.max(now + last);
    }
}
