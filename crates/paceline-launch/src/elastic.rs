//! The members of an elastic run, as the launcher leads them: who takes part, who was lost or leaves, and with whom the run
//! goes on. Policy without processes: what is to be told to whom comes back as commands.

mod resize;
mod scripts;

use std::ops::Range;
use std::time::Instant;

use paceline_plan::{Elastic, Plan, PlanError};
use paceline_protocol::{
    DroppedSteps, GenerationMembers, Handover, MemberId, Membership, RankStanding, Refusal, RegroupEnd,
    Regrouped, Setup, Strategy, TakingPart, regroup,
};
use paceline_record::{MembershipChange, RankState};
use paceline_train::{Generation, Segment};

use crate::control::RankCommand;

pub(crate) use resize::Resized;
use scripts::ScriptMembers;

/// What members are told: each command with its member.
pub(crate) type Commands = Vec<(MemberId, RankCommand)>;

/// Refuses a plan whose members cannot change as `elastic` asks for.
pub fn check(elastic: &Elastic, plan: &Plan, strategy: &Strategy, setup: &Setup) -> Result<(), PlanError> {
    strategy.check_membership(setup, elastic.backup).map_err(|Refusal { flag, value, problem }| {
        let value = if flag == "--sync" { plan.sync.clone() } else { value };
        PlanError { flag, value, problem }
    })?;
    if plan.script.is_some() && (!setup.sync.is_bsp() || strategy.own_weights(setup)) {
        let problem = "a script's members can change where gradients are averaged and all make their steps together: along an \
                       exact path, or with servers under --sync bsp";
        return Err(PlanError::new("--strategy", plan.strategy.clone(), problem));
    }
    let (workers, shares) = (plan.workers, plan.shares());
    let Elastic { least, most, .. } = *elastic;
    let refuse = |problem: String| Err(PlanError::new("--elastic", format!("{least}..{most}"), problem));
    if least < 1 {
        return refuse(format!("a run needs a worker: give at least 1..{most}"));
    }
    if least > most {
        return refuse(format!("the fewest workers come first: give {most}..{least}"));
    }
    if least > workers || most < workers {
        return refuse(format!("the run begins with {workers} workers, which must be within"));
    }
    if most > shares && (!setup.sync.is_bsp() || strategy.own_weights(setup)) {
        return refuse(format!(
            "each worker has one share here, and there are {shares}: no more can take part than the run begins with"
        ));
    }
    if most > shares {
        return refuse(format!(
            "a worker computes at least one share, and there are {shares}: give --shares {most}"
        ));
    }
    Ok(())
}

/// What a member does.
#[derive(Clone, Debug, PartialEq)]
enum MemberState {
    /// There is no process of it yet.
    Absent,
    /// Its process was started, and does not listen yet.
    Starting,
    /// It listens, and waits to be admitted.
    Waiting,
    /// It takes part in the present generation.
    Active,
    /// Its generation has ended, and it stands here.
    Standing(RankStanding),
    /// It has done all its work.
    Concluded,
    /// It was told to end, and will give its account.
    Leaving,
    /// Its process has ended.
    Gone,
}

/// A change of members under way.
#[derive(Debug)]
struct Change {
    since: Instant,
    at_s: f64,
    lost: Vec<MemberId>,
}

/// The members of an elastic run.
pub(crate) struct ElasticRun {
    elastic: Elastic,
    base: Setup,
    /// Blocks of the optimiser's memory.
    blocks: u16,
    /// What is known of the members' scripts, if they have some: these keep parameters and the optimiser's memory.
    scripts: Option<ScriptMembers>,
    pub membership: Membership,
    /// The generation of messages.
    generation: u32,
    states: Vec<MemberState>,
    /// Members that are to leave as soon as the run can do without them.
    drained: Vec<bool>,
    /// Members that were lost, and did not come back.
    lost_before: Vec<bool>,
    /// Where each member listens.
    pub addresses: Vec<String>,
    /// The most workers that the run goes on with at present.
    wanted: usize,
    change: Option<Change>,
    /// The last change, until its first step begins, and since when.
    resuming: Option<(Instant, MembershipChange)>,
    /// Changes so far.
    pub changes: Vec<MembershipChange>,
    /// How many of them were news already.
    reported: usize,
    /// The furthest step that anybody has told of, or where a generation or a segment begins.
    pub reached: u64,
    /// Steps that each member has told of.
    told: Vec<u64>,
    /// The training clock of the last change.
    clock_s: f64,
    /// Whether everybody was told that the run is over.
    concluded: bool,
}

impl ElasticRun {
    /// A run with the members that it begins with; spares wait. `base` is what the strategy is told of it.
    pub fn new(elastic: Elastic, base: Setup, blocks: usize) -> Self {
        let (world, begin) = (base.world(), base.world() + elastic.spares);
        let members = begin + elastic.most.saturating_sub(base.workers);
        let state = |member| match member {
            _ if member < world => MemberState::Active,
            _ if member < begin => MemberState::Waiting,
            _ => MemberState::Absent,
        };
        Self {
            membership: Membership::first(&base, elastic.backup),
            wanted: elastic.most,
            elastic,
            base,
            blocks: blocks as u16,
            scripts: None,
            generation: 0,
            states: (0..members).map(state).collect(),
            drained: vec![false; members],
            lost_before: vec![false; members],
            addresses: vec![String::new(); members],
            change: None,
            resuming: None,
            changes: Vec::new(),
            reported: 0,
            reached: 0,
            told: vec![0; members],
            clock_s: 0.0,
            concluded: false,
        }
    }

    /// Whether workers make their steps together.
    pub fn is_together(&self) -> bool {
        self.base.sync.is_bsp()
    }

    /// Who has the parameters of each shard, with the backups of those that cannot give them any more.
    pub fn holders(&self) -> impl Iterator<Item = (Range<usize>, [Option<MemberId>; 2])> {
        let holders = self.membership.shards.iter().map(|shard| [Some(shard.primary), shard.backup]);
        self.base.shards().into_iter().zip(holders.collect::<Vec<_>>())
    }

    /// A member has told of so many steps.
    pub fn stepped(&mut self, member: MemberId, step: u64) {
        self.reached = self.reached.max(step);
        self.told[member] = step;
    }

    /// Whether a member takes part in the present generation.
    pub fn takes_part(&self, member: MemberId) -> bool {
        self.membership.rank(member).is_some()
    }

    /// The member that has the first share: it tells how far the run has come.
    pub fn first_worker(&self) -> MemberId {
        if let Some(first) = self.stands_for(0) {
            return first;
        }
        let Membership { shares, workers, .. } = &self.membership;
        shares.first().or(workers.first()).copied().unwrap_or_default()
    }

    /// The server that chooses where the run stops, if there are servers.
    pub fn chooser(&self) -> Option<MemberId> {
        self.membership.shards.first().map(|shard| shard.primary)
    }

    /// The shares of a worker, in rising order.
    pub fn shares_of(&self, member: MemberId) -> Vec<usize> {
        (0..self.membership.shares.len()).filter(|share| self.membership.shares[*share] == member).collect()
    }

    /// The first generation as a member sees it. In a run that goes on from a checkpoint, backups are handed their copies.
    pub fn first(&mut self, member: MemberId, segment: Segment) -> Generation {
        self.generation = segment.generation;
        self.reached = self.reached.max(segment.from);
        let mut on = Regrouped {
            membership: self.membership.clone(),
            from: segment.from,
            commits: Vec::new(),
            handovers: Vec::new(),
            ahead: Vec::new(),
            work: None,
            dropped: Vec::new(),
        };
        if segment.from > 0 {
            let ranges = self.base.shards();
            let rank = |member| self.membership.rank(member).unwrap_or_default();
            let copies = self.membership.shards.iter().zip(ranges).filter_map(|(shard, range)| {
                let (from, to) = (rank(shard.primary), rank(shard.backup?));
                Some(Handover { from, to, range, optimiser: true, older: None })
            });
            on.handovers = copies.collect();
        }
        self.place(&on, member, segment)
    }

    fn place(&self, on: &Regrouped, member: MemberId, segment: Segment) -> Generation {
        let setup = on.membership.setup(&self.base, 0, Some(on), self.blocks);
        Generation {
            rank: on.membership.rank(member).unwrap_or_default(),
            workers: on.membership.workers.len(),
            servers: on.membership.servers.len(),
            members: on.membership.ranks().collect(),
            hosting: setup.membership.map_or_else(GenerationMembers::default, |members| (*members).clone()),
            segment,
            clock_s: self.clock_s,
        }
    }

    /// The run goes on with a segment after a pause, with the same members.
    pub fn went_on(&mut self, segment: Segment) {
        self.generation = segment.generation;
        self.reached = self.reached.max(segment.from);
    }

    /// Members' processes have ended, all for one reason; whether that changes the members.
    pub fn lost(&mut self, members: &[MemberId], at_s: f64) -> Commands {
        let mut lost = Vec::new();
        for member in members {
            let before = std::mem::replace(&mut self.states[*member], MemberState::Gone);
            self.drained[*member] = false;
            let there =
                matches!(before, MemberState::Active | MemberState::Standing(_) | MemberState::Concluded);
            if self.takes_part(*member) && !self.concluded && there {
                lost.push(*member);
                self.lost_before[*member] = true;
            }
        }
        // One that was to join is missed where the run goes on with too few until it has.
        if lost.is_empty() && !self.has_too_few_scripts() {
            return Vec::new();
        }
        self.begin_change(at_s);
        self.change.iter_mut().for_each(|change| change.lost.extend(&lost));
        self.ask_to_stand()
    }

    /// Whether a member's process has ended, or there never was one.
    pub fn is_gone(&self, member: MemberId) -> bool {
        matches!(self.states[member], MemberState::Gone | MemberState::Absent)
    }

    /// Whether the members of the present generation were asked to stand, and the next one is not decided.
    pub fn is_changing(&self) -> bool {
        self.change.is_some()
    }

    /// Whether all work is done.
    pub fn is_over(&self) -> bool {
        self.concluded
    }

    /// A process of a member was started: it comes back, or is new.
    pub fn started(&mut self, member: MemberId) {
        (self.states[member], self.drained[member]) = (MemberState::Starting, false);
        (self.lost_before[member], self.told[member]) = (false, 0);
        self.addresses[member].clear();
    }

    /// Whether a member's process was started, and was not told yet to take part: the run does not rest on it.
    pub fn is_coming(&self, member: MemberId) -> bool {
        matches!(self.states[member], MemberState::Starting | MemberState::Waiting)
    }

    /// A member that was started listens: it is admitted, if there is room.
    pub fn listens(&mut self, member: MemberId, address: String, at_s: f64) -> Commands {
        self.addresses[member] = address;
        self.states[member] = MemberState::Waiting;
        if self.concluded {
            return vec![(member, RankCommand::Conclude)];
        }
        if self.scripts.is_some() && !self.is_server(member) {
            return self.ask_to_hand_over();
        }
        let room = match self.is_server(member) {
            true => self.membership.servers.len() < self.membership.shards.len(),
            false => self.membership.workers.len() < self.wanted.min(self.base.shares()),
        };
        // One that takes the place that it had needs no room.
        if self.change.is_some() || !room && !self.takes_part(member) {
            return Vec::new();
        }
        self.begin_change(at_s);
        self.ask_to_stand()
    }

    fn is_server(&self, member: MemberId) -> bool {
        (self.base.workers..self.base.world()).contains(&member)
    }

    /// Members are to leave: they end when the run can do without them.
    pub fn drain(&mut self, members: &[MemberId], at_s: f64) -> Commands {
        let leaves = |member: &&MemberId| {
            self.takes_part(**member) && !self.is_gone(**member) && !self.drained[**member]
        };
        let leaving: Vec<MemberId> = members.iter().filter(leaves).copied().collect();
        if self.concluded || leaving.is_empty() {
            return Vec::new();
        }
        leaving.into_iter().for_each(|member| self.drained[member] = true);
        self.begin_change(at_s);
        self.ask_to_stand()
    }

    fn begin_change(&mut self, at_s: f64) {
        self.clock_s = self.clock_s.max(at_s);
        if self.change.is_none() {
            let since = self.resuming.take().map_or_else(Instant::now, |(since, unfinished)| {
                self.changes.push(unfinished);
                since
            });
            // (Ranks and the launcher tell the time apart.)
            self.change = Some(Change { since, at_s: self.clock_s, lost: Vec::new() });
        }
    }

    fn ask_to_stand(&self) -> Commands {
        let asked =
            |member: &MemberId| matches!(self.states[*member], MemberState::Active | MemberState::Concluded);
        let stand = RankCommand::Stand { generation: self.generation };
        self.membership.ranks().filter(asked).map(|member| (member, stand.clone())).collect()
    }

    /// A member says where it stands.
    pub fn stood(
        &mut self,
        member: MemberId,
        generation: u32,
        standing: RankStanding,
        (address, handed): (String, Option<RankState>),
        at_s: f64,
    ) -> Commands {
        if generation != self.generation
            || !self.takes_part(member)
            || self.states[member] == MemberState::Gone
        {
            return Vec::new();
        }
        self.addresses[member] = address;
        self.reached = self.reached.max(standing.at);
        self.is_handed(member, standing.at, handed);
        self.states[member] = MemberState::Standing(standing);
        let first = self.change.is_none();
        self.begin_change(at_s);
        // Whoever it has lost is named when its process ends; the others stop meanwhile.
        if first { self.ask_to_stand() } else { Vec::new() }
    }

    /// Regroups, once every member stands or is gone: the segment that the run goes on with begins at the step that comes
    /// back; `end_of` says where a segment ends, `samples_of` how many samples steps of a share have. If too few are left
    /// and `more` will come, they are waited for.
    pub fn regroup(
        &mut self,
        more: bool,
        end_of: impl Fn(u64) -> u64,
        samples_of: impl Fn(&DroppedSteps) -> usize,
    ) -> Result<Option<(Segment, Commands)>, RegroupEnd> {
        let settled =
            |member: MemberId| !matches!(self.states[member], MemberState::Active | MemberState::Concluded);
        let Some(change) = self.change.take_if(|_| self.membership.ranks().all(settled)) else {
            return Ok(None);
        };
        let survivors = |drained: bool| -> Vec<(MemberId, RankStanding)> {
            let standing = |member: MemberId| match &self.states[member] {
                MemberState::Standing(standing) if drained || !self.drained[member] => {
                    Some((member, standing.clone()))
                }
                _ => None,
            };
            self.membership.ranks().filter_map(standing).collect()
        };
        let waiting = |member: &MemberId| {
            self.states[*member] == MemberState::Waiting && !self.addresses[*member].is_empty()
        };
        let joins = (0..self.states.len()).filter(waiting);
        let (servers, workers): (Vec<_>, Vec<_>) = joins.partition(|member| self.is_server(*member));
        let gone = |member: &MemberId, survivors: &[(MemberId, RankStanding)]| {
            survivors.iter().all(|(survivor, _)| survivor != member)
        };
        let told = |member: MemberId| match &self.states[member] {
            MemberState::Standing(standing) => (member, standing.at),
            _ => (member, self.told[member]),
        };
        let part = |survivors: Vec<(MemberId, RankStanding)>, workers: &[MemberId], least| TakingPart {
            told: self
                .membership
                .workers
                .iter()
                .filter(|member| gone(member, &survivors))
                .map(|m| told(*m))
                .collect(),
            survivors,
            workers: workers.to_vec(),
            servers: servers.clone(),
            least,
            most: self.wanted,
        };
        // Who is to leave stays if the run cannot go on without it.
        let with = |workers: &[MemberId], least: usize| {
            let on = regroup(&self.membership, &part(survivors(false), workers, least), &self.base);
            on.or_else(|_| regroup(&self.membership, &part(survivors(true), workers, least), &self.base))
        };
        let on = match &self.scripts {
            None => with(&workers, self.elastic.least),
            Some(scripts) => scripts.regroup(&workers, self.elastic.least, with),
        };
        let coming = |member: &MemberState| *member == MemberState::Starting;
        let more = more || self.states.iter().any(coming);
        let on = match on {
            Ok(on) => on,
            Err(RegroupEnd::TooFew { .. }) if more => {
                self.change = Some(change);
                return Ok(None);
            }
            Err(end) => return Err(end),
        };
        let samples_dropped = on.dropped.iter().map(samples_of).sum();
        Ok(Some(self.go_on(&on, &change, samples_dropped, end_of)))
    }

    fn go_on(
        &mut self,
        on: &Regrouped,
        change: &Change,
        samples_dropped: usize,
        end_of: impl Fn(u64) -> u64,
    ) -> (Segment, Commands) {
        let before = std::mem::replace(&mut self.membership, on.membership.clone());
        self.generation += 1;
        let segment = Segment { from: on.from, to: end_of(on.from), generation: self.generation };
        let addresses: Vec<String> =
            on.membership.ranks().map(|member| self.addresses[member].clone()).collect();
        self.place_scripts(&before, on);
        let mut commands = Commands::new();
        for member in on.membership.ranks() {
            let (generation, commit) =
                (Box::new(self.place(on, member, segment)), on.commits.contains(&member));
            let addresses = addresses.clone();
            // Who joins knows nobody yet.
            let joins = self.states[member] == MemberState::Waiting;
            commands.push((
                member,
                match joins {
                    false => RankCommand::Regroup { generation, addresses, commit },
                    true => RankCommand::Peers {
                        addresses,
                        interfaces: None,
                        segment,
                        restored: None,
                        generation: Some(generation),
                        script: None,
                        stands_for: self.number_of(member),
                    },
                },
            ));
        }
        // Nobody has to wait while what those who join begin with is on its way to them.
        commands.sort_by_key(|(_, command)| !matches!(command, RankCommand::Peers { .. }));
        let stayed = |member: &MemberId| on.membership.rank(*member).is_some();
        let gone = before.ranks().filter(|member| !stayed(member));
        let stands = |member: &MemberId| matches!(self.states[*member], MemberState::Standing(_));
        let left: Vec<MemberId> = gone.filter(stands).collect();
        for member in &left {
            self.states[*member] = MemberState::Leaving;
            commands.push((*member, RankCommand::Next { segment: None }));
        }
        let joined =
            on.membership.ranks().filter(|m| before.rank(*m).is_none() || change.lost.contains(m)).collect();
        for member in on.membership.ranks() {
            self.states[member] = MemberState::Active;
        }
        let mut took_over = on.membership.took_over(&before);
        // A lost script's share is nobody's from now on.
        took_over.retain(|member| self.scripts.is_none() || self.is_server(*member));
        self.resuming = Some((
            change.since,
            MembershipChange {
                at_s: change.at_s,
                lost: change.lost.clone(),
                left,
                joined,
                took_over,
                workers: on.membership.workers.len(),
                servers: on.membership.servers.len(),
                step: on.from,
                steps_anew: match &on.work {
                    None => u64::from(on.from < self.base.end() && self.reached >= on.from),
                    Some(work) => work.open.len() as u64,
                },
                samples_dropped,
                pause_s: 0.0,
            },
        ));
        // Told before the generation begins: its first step is the one.
        (segment, [self.ask_to_hand_over(), commands].concat())
    }

    /// Samples that the change under way has dropped.
    pub fn dropped_last(&self) -> usize {
        self.resuming.as_ref().map_or(0, |(_, change)| change.samples_dropped)
    }

    /// The first step of a generation begins at somebody's: the changes that led to it and are news. (There are several
    /// where members changed again before a step had begun.)
    pub fn resumed(&mut self, generation: u32) -> &[MembershipChange] {
        let Some((since, change)) = self.resuming.take_if(|_| generation == self.generation) else {
            return &[];
        };
        self.changes.push(MembershipChange { pause_s: since.elapsed().as_secs_f64(), ..change });
        let from = std::mem::replace(&mut self.reported, self.changes.len());
        &self.changes[from..]
    }

    /// A member has done all its work: what to tell once all have.
    pub fn concluded(&mut self, member: MemberId, generation: u32) -> Commands {
        if generation != self.generation || self.change.is_some() {
            return Vec::new();
        }
        self.states[member] = MemberState::Concluded;
        let done = |member: MemberId| self.states[member] == MemberState::Concluded;
        if !self.membership.ranks().all(done) {
            return Vec::new();
        }
        self.concluded = true;
        let waiting = (0..self.states.len()).filter(|member| self.states[*member] == MemberState::Waiting);
        let spares = waiting.map(|member| (member, RankCommand::Conclude));
        self.membership.ranks().map(|member| (member, RankCommand::Conclude)).chain(spares).collect()
    }

    /// Whether the run is over: every member has given its account, or has ended after the last step.
    pub fn complete(&self, gave_account: impl Fn(MemberId) -> bool) -> bool {
        let ended = |member: MemberId| gave_account(member) || self.states[member] == MemberState::Gone;
        self.concluded && self.membership.ranks().all(ended)
    }

    /// Who was lost and did not come back, for the error of a run that cannot go on: not who was asked to leave.
    pub fn gone(&self) -> Vec<MemberId> {
        (0..self.states.len()).filter(|member| self.lost_before[*member]).collect()
    }

    /// What the ranks of the plan would have kept, out of what members keep: a worker that is not there has what the one
    /// with its share has, and the states of their shares (a script's is its own, or the first one's where it was lost);
    /// shards are with their primaries.
    pub fn parts(&self, kept: &[Option<RankState>], state: usize) -> Option<Vec<RankState>> {
        let shares = self.membership.shares.len();
        let mut states: Vec<&[f32]> = vec![&[]; shares];
        for member in self.membership.workers.iter().filter(|_| self.scripts.is_none()) {
            let own = kept[*member].as_ref()?.numbers("state");
            for (share, numbers) in self.shares_of(*member).into_iter().zip(own.chunks(state.max(1))) {
                states[share] = numbers;
            }
        }
        let worker = |rank: usize| {
            let here = || Some(rank).filter(|_| self.membership.workers.contains(&rank));
            let member = if self.scripts.is_some() { self.stands_for(rank) } else { here() };
            let present = member.and_then(|member| kept[member].as_ref());
            if self.scripts.is_some() || !self.is_together() {
                return present.or(kept[*self.membership.workers.first()?].as_ref()).cloned();
            }
            let stands_in = self.membership.shares[*self.base.positions(rank).first()?];
            let own = self.base.positions(rank).into_iter().flat_map(|share| states[share].iter().copied());
            Some(with(present.or(kept[stands_in].as_ref())?, "state", own.collect()))
        };
        let mut parts: Vec<RankState> = (0..self.base.workers).map(worker).collect::<Option<_>>()?;
        for (shard, range) in self.membership.shards.iter().zip(self.base.shards()) {
            let part = kept[shard.primary].as_ref()?;
            parts.push(with(part, "params", part.numbers("params").get(range)?.to_vec()));
        }
        Some(parts)
    }
}

/// A part with other numbers under a name.
fn with(part: &RankState, name: &str, numbers: Vec<f32>) -> RankState {
    let mut part = part.clone();
    if let Some((_, own)) = part.tensors.iter_mut().find(|(known, _)| known == name) {
        *own = numbers;
    }
    part
}
