//! The members of a run whose members may change: who takes part in a generation, and what its strategy is told.

use std::collections::{BTreeMap, BTreeSet};

use crate::regroup::Regrouped;
use crate::setup::{GenerationMembers, Setup, WorkLeft};
use crate::vocabulary::{PartStanding, Rank, RankStanding};

/// A process, whatever rank it has in a generation.
pub type MemberId = usize;

/// Who holds a server shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerShard {
    /// Who serves it.
    pub primary: MemberId,
    /// Who has a copy.
    pub backup: Option<MemberId>,
}

/// The members of one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The workers, by rank.
    pub workers: Vec<MemberId>,
    /// The servers, by rank behind the workers.
    pub servers: Vec<MemberId>,
    /// Who computes each share; empty where workers take units one by one.
    pub shares: Vec<MemberId>,
    /// Where workers have weights of their own: the step from which each share is computed by its worker.
    pub begins: Vec<u64>,
    /// Who holds each shard.
    pub shards: Vec<ServerShard>,
    /// Whether shards have backups, where there are servers for it.
    pub backups: bool,
}

impl Membership {
    /// The members that a run begins with: their numbers are their ranks. The backup of each shard is the next server.
    pub fn first(setup: &Setup, backups: bool) -> Self {
        let servers: Vec<_> = (setup.workers..setup.world()).collect();
        let backups = backups && servers.len() > 1;
        let next = |shard: usize| servers[(shard + 1) % servers.len()];
        let shard =
            |shard: usize| ServerShard { primary: servers[shard], backup: backups.then(|| next(shard)) };
        let shares = if setup.sync.is_bsp() { setup.shares() } else { 0 };
        Self {
            workers: (0..setup.workers).collect(),
            shares: (0..shares).map(|position| setup.host(position)).collect(),
            begins: Vec::new(),
            shards: (0..servers.len()).map(shard).collect(),
            servers,
            backups,
        }
    }

    /// All members, by rank.
    pub fn ranks(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.workers.iter().chain(&self.servers).copied()
    }

    /// The rank of a member.
    pub fn rank(&self, member: MemberId) -> Option<Rank> {
        self.ranks().position(|other| other == member)
    }

    /// The members that have shares or server shards which others had before, in rising order.
    pub fn took_over(&self, before: &Self) -> Vec<MemberId> {
        let shares = self.shares.iter().zip(&before.shares);
        let shards = self.shards.iter().zip(&before.shards).map(|(now, then)| (&now.primary, &then.primary));
        let mut members: Vec<_> =
            shares.chain(shards).filter(|(now, then)| now != then).map(|(now, _)| *now).collect();
        members.sort_unstable();
        members.dedup();
        members
    }

    /// What the strategy is told in this generation of a run. `base` is the run with the members that it begins with;
    /// `blocks` counts the optimiser's.
    pub fn setup(&self, base: &Setup, generation: u32, going_on: Option<&Regrouped>, blocks: u16) -> Setup {
        let topology = base.topology();
        let rank = |member: &MemberId| self.rank(*member).unwrap_or_default();
        let copies = self.shards.iter().filter_map(|shard| shard.backup.as_ref());
        // Who takes units one by one has one position.
        let positions = if base.sync.is_bsp() { &self.shares } else { &self.workers };
        let hosts = positions.iter().chain(self.shards.iter().map(|shard| &shard.primary)).chain(copies);
        let members = GenerationMembers {
            seats: (0..positions.len()).map(|position| topology.seat(position).0).collect(),
            placement: hosts.map(rank).collect(),
            shards: self.shards.len(),
            handovers: going_on.map_or_else(Vec::new, |on| on.handovers.clone()),
            ahead: going_on.map_or_else(Vec::new, |on| on.ahead.clone()),
            begins: self.begins.clone(),
            blocks,
            work: going_on.and_then(|on| on.work.clone()),
        };
        Setup {
            from: going_on.map_or(base.from, |on| on.from),
            generation: base.generation + generation,
            ..base.of_members(self.workers.len(), self.servers.len(), members)
        }
    }

    /// Steps of which every part of the servers' parameters has all units, where workers take units one by one: as far as
    /// these members' copies have them.
    pub fn steps_done(&self, survivors: &[(MemberId, RankStanding)], base: &Setup) -> u64 {
        let parts = survivors.iter().flat_map(|(_, standing)| &standing.parts);
        WorkLeft::of(parts).first() / base.shares() as u64
    }
}

impl WorkLeft {
    /// What the furthest of these copies of all parts lack.
    pub(crate) fn of<'p>(copies: impl IntoIterator<Item = &'p PartStanding>) -> Self {
        let mut parts: BTreeMap<u32, &PartStanding> = BTreeMap::new();
        for copy in copies {
            let furthest = parts.entry(copy.part).or_insert(copy);
            if copy.updates() > furthest.updates() {
                *furthest = copy;
            }
        }
        let next = parts.values().map(|part| part.made).max().unwrap_or(0);
        let lacked = parts.values().flat_map(|part| part.lacks.iter().copied().chain(part.made..next));
        let open: BTreeSet<u64> = lacked.collect();
        let made = parts.values().flat_map(|part| {
            let has = open.iter().filter(|unit| part.has(**unit));
            has.map(|unit| (part.part, *unit)).collect::<Vec<_>>()
        });
        Self { made: made.collect(), open: open.into_iter().collect(), next }
    }
}
