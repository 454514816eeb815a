//! Leads the ranks of a run to its end: what one says is told to the others, whoever is lost ends the run or is done
//! without, and ranks are taken away and brought back.

use std::time::{Duration, Instant};

use paceline_record::Event;
use paceline_wire::Interfaces;

use crate::control::{RankCommand, RankEvent};
use crate::elastic::Commands;
use crate::emulated::EmulatedNetwork;
use crate::error::LaunchError;
use crate::joining::ProcessSignal;
use crate::liveness::Liveness;
use crate::processes::ProcessEvent;
use crate::rank::role;
use crate::ranks::{Ranks, RanksEvent};
use crate::requests::{Asked, MemberAnswer, MemberRequest};
use crate::revoking::{Deed, Revoking};
use crate::run::Launch;
use crate::watch::{Reaction, Watch};

/// Time that a lost rank's process has to end before the loss is told without its cause of death.
const BLAME: Duration = Duration::from_secs(1);

/// A run under way, and its ranks.
pub(crate) struct Lead<'l, 'w> {
    launch: &'l Launch<'l>,
    watch: &'l mut Watch<'w>,
    ranks: &'l mut Ranks,
    revoking: &'l mut Revoking,
    interfaces: Option<Interfaces>,
    /// Whether each rank's pipe is closed, and its process has ended.
    ended: Vec<(bool, bool)>,
    /// Ranks that were started again because they died before all knew each other.
    replaced: Vec<bool>,
    liveness: Liveness,
    /// A rank that gave up because it lost a peer is a victim; who died without a word is not.
    blamed: Option<(Instant, usize, LaunchError)>,
}

impl<'l, 'w> Lead<'l, 'w> {
    /// Of ranks that were just started.
    pub fn new(
        launch: &'l Launch<'l>,
        watch: &'l mut Watch<'w>,
        ranks: &'l mut Ranks,
        revoking: &'l mut Revoking,
    ) -> Result<Self, LaunchError> {
        let (begin, members) = (launch.plan.processes(), launch.plan.members());
        let mut liveness = Liveness::new(members);
        let silent = if ranks.say_that_they_live() { begin } else { 0 };
        (silent..members).for_each(|rank| liveness.forget(rank));
        if launch.checkpointing.resumed.is_none() {
            revoking.begin_at(0.0);
        }
        Ok(Self {
            launch,
            watch,
            ranks,
            revoking,
            interfaces: EmulatedNetwork::of(launch.plan).map(|emulated| emulated.interfaces()).transpose()?,
            ended: vec![(false, false); members],
            replaced: vec![false; members],
            liveness,
            blamed: None,
        })
    }

    /// Watches over every rank until all have given their accounts.
    pub fn finish(mut self, report: &mut dyn FnMut(Event<'_>)) -> Result<(), LaunchError> {
        let clock = Instant::now();
        self.watch.announce(report);
        while !self.watch.complete() {
            let tidings = self.ranks.next(self.patience());
            let mut signs = self.liveness.look(clock.elapsed());
            match &tidings {
                Some(RanksEvent::Rank(ProcessEvent::Rank(rank, said, _))) => {
                    signs.extend(self.liveness.heard(*rank));
                    if let RankEvent::Done(_) | RankEvent::Failed { .. } = said {
                        self.liveness.forget(*rank);
                    }
                }
                Some(RanksEvent::Rank(ProcessEvent::Closed(rank) | ProcessEvent::Exited(rank))) => {
                    self.liveness.forget(*rank);
                }
                _ => {}
            }
            for silent in self.watch.signs(&signs, self.ranks, report)? {
                // Stopped processes too: nothing of it comes late.
                self.ranks.signal(silent, ProcessSignal::Kill);
            }
            self.watch.side_results(report)?;
            let failure = match tidings {
                Some(tidings) => self.hear(tidings, report)?,
                None => None,
            };
            if let Some(failure) = failure.or_else(|| self.watch.late(clock.elapsed())) {
                return Err(failure);
            }
            let verdicts = std::mem::take(&mut self.watch.verdicts);
            for verdict in verdicts {
                self.watch.workers().into_iter().for_each(|rank| self.ranks.tell(rank, verdict.clone(), &[]));
            }
            if let Some(order) = self.watch.interrupted()? {
                if let Some((name, cause)) =
                    self.ranks.own_ending(self.launch.checkpointing.interrupt.cause())
                {
                    report(Event::Host { host: 0, name: &format!("{name}: {cause}"), state: "ending" });
                }
                let first = self.watch.pauses.asked_first();
                first.into_iter().for_each(|rank| self.ranks.tell(rank, order.clone(), &[]));
            }
            self.revoke()?;
            // Of a machine that is under suspicion it is soon known whether it is lost: then that is the cause.
            let quiet = |lost: usize| self.ranks.quiet(lost);
            let ripe = |(since, lost, _): &(Instant, usize, _)| since.elapsed() > BLAME && !quiet(*lost);
            if let Some((_, _, told)) = self.blamed.take_if(|blamed| ripe(blamed)) {
                return Err(told);
            }
        }
        Ok(())
    }

    /// How long to wait for news: until something is due, at most.
    fn patience(&self) -> Duration {
        let patience = self.watch.patience();
        let due = self.revoking.next_s().zip(self.watch.training_clock());
        let left = due.map(|(at_s, now_s)| Duration::from_secs_f64((at_s - now_s).clamp(0.001, 1.0)));
        left.map_or(patience, |left| left.min(patience))
    }

    /// Takes news; the failure to tell, if it ends the run.
    fn hear(
        &mut self,
        tidings: RanksEvent,
        report: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<LaunchError>, LaunchError> {
        match tidings {
            RanksEvent::Rank(ProcessEvent::Rank(rank, mut said, numbers)) => {
                locate(&mut said, rank, self.ranks);
                if let RankEvent::Failed { lost: Some(lost), message, hint, kind } = said {
                    // A member of an elastic run that fails is done without.
                    if self.watch.elastic.is_none() {
                        self.watch.victims[rank] = true;
                        let role = role(self.launch.plan, rank);
                        let told = LaunchError::Failed { role, rank, message, hint, kind };
                        self.blamed = self.blamed.take().or(Some((Instant::now(), lost, told)));
                    }
                    return Ok(None);
                }
                let (coming, joined) = (self.watch.is_coming(rank), self.watch.has_just_joined(rank));
                if let (RankEvent::Attached { common, .. }, true) = (&said, coming) {
                    if let Some(problem) = self.watch.attaches_late(rank, common) {
                        self.report_failed(rank, &problem, report);
                        self.ranks.signal(rank, ProcessSignal::Kill);
                    }
                    return Ok(None);
                }
                if let (RankEvent::Failed { message, .. }, true) = (&said, coming || joined) {
                    self.report_failed(rank, message, report);
                    // Of no use without its script.
                    self.ranks.signal(rank, ProcessSignal::Kill);
                    return Ok(None);
                }
                if self.watch.script_lost(rank, &said) {
                    // Its rank is of no use without it, and ends like one that is lost.
                    self.ranks.signal(rank, ProcessSignal::Kill);
                    return Ok(None);
                }
                let reaction = self.watch.take(rank, said, numbers, report)?;
                self.react(reaction)?;
            }
            RanksEvent::Rank(ProcessEvent::Closed(rank)) => {
                self.ended[rank].0 = true;
                return self.died(rank);
            }
            RanksEvent::Rank(ProcessEvent::Exited(rank)) => {
                self.ended[rank].1 = true;
                return self.died(rank);
            }
            RanksEvent::HostLost { host, cause } => return self.host_lost(host, &cause, report),
            RanksEvent::HostJoined { host, name } => {
                report(Event::Host { host, name: &name, state: "joined" });
                self.fill()?;
            }
            RanksEvent::HostLeaving { host } => {
                let (name, _) = self.ranks.host(host);
                report(Event::Host { host, name: &name, state: "leaving" });
                self.hosts_leave()?;
            }
            RanksEvent::Interrupted => self.launch.checkpointing.interrupt.request(),
            RanksEvent::HostLiveness { host, there } => {
                let (name, _) = self.ranks.host(host);
                report(Event::Host { host, name: &name, state: if there { "back" } else { "quiet" } });
            }
            RanksEvent::HostEnding { host, cause } => {
                let (name, _) = self.ranks.host(host);
                report(Event::Host { host, name: &format!("{name}: {cause}"), state: "ending" });
            }
            RanksEvent::Refused { cause } => report(Event::Refused { rank: None, cause: &cause }),
            RanksEvent::Asked(Asked { request, answer }) => {
                // Who does not wait any more is told nothing.
                let _ = answer.send(self.asked(request)?);
            }
            RanksEvent::Nothing => {}
        }
        Ok(None)
    }

    /// Somebody asks for other members: does it, or says why not.
    fn asked(&mut self, request: MemberRequest) -> Result<MemberAnswer, LaunchError> {
        let resized = match self.watch.asked(request) {
            Ok(resized) => resized,
            Err(problem) => return Ok(MemberAnswer::Refused(problem)),
        };
        for member in resized.starts {
            if let Err(error) = self.start(member) {
                return Ok(MemberAnswer::Refused(error.to_string()));
            }
        }
        self.tell_members(resized.commands)?;
        Ok(MemberAnswer::Accepted(resized.words))
    }

    fn react(&mut self, reaction: Reaction) -> Result<(), LaunchError> {
        match reaction {
            Reaction::Nothing => {}
            Reaction::Connect => {
                let path = self.interfaces.as_ref().and_then(Interfaces::path);
                for rank in 0..self.launch.plan.workers + self.launch.plan.servers {
                    let (order, numbers) = self.watch.peers(rank, path.clone());
                    self.ranks.tell(rank, order, &numbers);
                }
                self.hosts_leave()?;
                self.fill()?;
            }
            Reaction::TellAll(order) => self.ranks.tell_all(&order),
            Reaction::Members(commands) => self.tell_members(commands)?,
            Reaction::Tell(some, order) => {
                some.into_iter().for_each(|rank| self.ranks.tell(rank, (*order).clone(), &[]));
            }
        }
        Ok(())
    }

    /// A rank's process has ended, or its pipe has: the failure to tell, if that ends the run.
    fn died(&mut self, rank: usize) -> Result<Option<LaunchError>, LaunchError> {
        if self.watch.elastic.is_none() {
            return Ok(self.watch.died(rank, self.ended[rank], self.ranks));
        }
        if self.ended[rank] != (true, true) {
            return Ok(None);
        }
        self.ranks.end_script(rank);
        if !self.watch.connected() {
            // Nothing is lost yet that another process does not have; one that dies again will always die.
            if std::mem::replace(&mut self.replaced[rank], true) {
                return Ok(self.watch.died(rank, self.ended[rank], self.ranks));
            }
            return self.start(rank).map(|()| None);
        }
        if !self.watch.gather.gave_account(rank) {
            if self.watch.is_coming(rank) {
                self.ranks.unfit(rank);
            }
            let how = self.ranks.status(rank);
            let commands = self.watch.members_lost(vec![(rank, how)]);
            self.tell_members(commands)?;
        }
        Ok(None)
    }

    /// A machine is gone, with all its ranks: an elastic run goes on without them, once all ranks know each other.
    fn host_lost(
        &mut self,
        host: usize,
        cause: &str,
        report: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<LaunchError>, LaunchError> {
        let (name, all) = self.ranks.host(host);
        let mut ranks = all.clone();
        ranks.retain(|rank| self.ended[*rank] != (true, true));
        if self.watch.elastic.is_none() || !ranks.is_empty() && !self.watch.connected() {
            return Ok(Some(self.watch.host_lost((name, all), cause.to_owned())));
        }
        let state = if ranks.is_empty() { "left" } else { "lost" };
        report(Event::Host { host, name: &format!("{name}: {cause}"), state });
        self.ranks.lose(host, cause);
        for rank in &ranks {
            self.ended[*rank] = (true, true);
            self.liveness.forget(*rank);
        }
        ranks.retain(|rank| !self.watch.gather.gave_account(*rank));
        let lost = ranks.into_iter().map(|rank| (rank, self.ranks.status(rank))).collect();
        let commands = self.watch.members_lost(lost);
        self.tell_members(commands)?;
        Ok(None)
    }

    /// Machines that are to leave: their ranks hand over what they have, once all ranks know each other. Those that do not
    /// take part yet just end.
    fn hosts_leave(&mut self) -> Result<(), LaunchError> {
        if !self.watch.connected() {
            return Ok(());
        }
        for host in self.ranks.leaving() {
            let (_, ranks) = self.ranks.host(host);
            let (coming, here): (Vec<_>, Vec<_>) =
                ranks.into_iter().partition(|rank| self.watch.is_coming(*rank));
            coming.into_iter().for_each(|rank| self.ranks.signal(rank, ProcessSignal::Kill));
            let commands = self.watch.members_leave(&here);
            self.tell_members(commands)?;
        }
        Ok(())
    }

    /// Machines that wait take up what is missing, each as much as a machine of the plan has.
    fn fill(&mut self) -> Result<(), LaunchError> {
        while let Some(host) = self.ranks.idle() {
            let mut missing = self.watch.missing();
            // Those of a machine that is leaving are taken up together, once it has left.
            missing.retain(|rank| !self.ranks.is_leaving(*rank));
            missing.truncate(self.ranks.share());
            if missing.is_empty() {
                break;
            }
            self.start_on(host, &missing)?;
        }
        Ok(())
    }

    /// Starts another process in place of a rank's that has ended, or the first one of a member that joins.
    fn start(&mut self, rank: usize) -> Result<(), LaunchError> {
        self.start_on(self.ranks.host_for(rank), &[rank])
    }

    fn start_on(&mut self, host: usize, ranks: &[usize]) -> Result<(), LaunchError> {
        for rank in ranks {
            self.ended[*rank] = (false, false);
            self.revoking.is_back(*rank);
            self.liveness.begin(*rank);
            self.watch.starts(*rank);
        }
        self.ranks.start_on(host, ranks)
    }

    /// Tells why a member could not begin; the run goes on without it.
    fn report_failed(&self, rank: usize, message: &str, report: &mut dyn FnMut(Event<'_>)) {
        let host = self.ranks.host_of(rank);
        let name = format!("{} {rank}: {message}", role(self.launch.plan, rank));
        report(Event::Host { host, name: &name, state: "failed" });
    }

    /// Tells members of an elastic run what they are to do, and regroups them if all stand.
    fn tell_members(&mut self, commands: Commands) -> Result<(), LaunchError> {
        // Who is on its way is waited for, if too few are left.
        self.fill()?;
        let mut regrouped = self.watch.regroup(self.revoking.brings_back())?;
        let handed = self.watch.hand_out(&mut regrouped);
        for (member, mut command) in commands.into_iter().chain(regrouped) {
            let mut numbers = &[][..];
            if let RankCommand::Peers { interfaces: path, restored, .. } = &mut command {
                *path = self.interfaces.as_ref().and_then(Interfaces::path);
                numbers = if restored.is_some() { &handed } else { &[] };
            }
            self.ranks.tell(member, command, numbers);
        }
        Ok(())
    }

    /// Takes ranks away, and brings them back, as the file of revocations says.
    fn revoke(&mut self) -> Result<(), LaunchError> {
        let Some(now_s) = self.watch.training_clock() else { return Ok(()) };
        if let Some(first_s) = self.watch.resumed_at.take() {
            self.revoking.begin_at(first_s);
        }
        let ended = &self.ended;
        let gone = |rank: usize| self.watch.is_gone(rank) && ended[rank] == (true, true);
        for deed in self.revoking.due(now_s, gone) {
            match deed {
                Deed::Notice(rank) => self.ranks.signal(rank, ProcessSignal::Notice),
                Deed::Kill(rank) => self.ranks.signal(rank, ProcessSignal::Kill),
                Deed::Start(rank) => self.start(rank)?,
            }
        }
        Ok(())
    }
}

/// Adds the machine to what a rank says, where it matters which one it was.
fn locate(said: &mut RankEvent, rank: usize, ranks: &Ranks) {
    match said {
        RankEvent::Failed { message, lost, .. } => {
            if let Some(place) = ranks.place(rank) {
                *message = format!("on {place}: {message}");
            }
            if let Some((lost, place)) = lost.and_then(|lost| Some((lost, ranks.place(lost)?))) {
                *message += &format!(" (rank {lost} is on {place})");
            }
        }
        RankEvent::Done(account) => {
            if let (None, Some(name)) = (ranks.place(rank), ranks.own_name()) {
                account.host = name;
            }
        }
        RankEvent::Recorded(batch) => {
            if let (Some(site), None, Some(name)) = (&mut batch.site, ranks.place(rank), ranks.own_name()) {
                site.host = name;
            }
        }
        _ => {}
    }
}
