//! What a strategy is told about a run, and how it cuts up the flat buffer.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::codec::Coder;
use crate::consistency::Consistency;
use crate::options::Options;
use crate::schedule::SizedPath;
use crate::stages::StageSetup;
use crate::strategies::StrategyProgram;
use crate::topology::Topology;
use crate::vocabulary::{PartStanding, Rank, WorkUnit};

/// What is averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Averages {
    /// Gradients, before the update.
    Gradients,
    /// Weights, after each worker's own update: the same thing for SGD and momentum, which are linear.
    Weights,
}

impl Averages {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gradients => "gradients",
            Self::Weights => "weights",
        }
    }
}

/// A tensor of the model, as a matrix: a vector has one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// First element in the flat buffer.
    pub offset: usize,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

/// What a strategy is told about a run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Number of workers: ranks `0..workers`.
    pub workers: usize,
    /// Number of servers: the ranks behind them.
    pub servers: usize,
    /// Shares of a global batch, where they are not one per worker: each is a position of the strategy, and a rank
    /// hosts one or more positions.
    pub shares: Option<usize>,
    /// The host of each worker; empty if each has one of its own.
    pub hosts: Vec<usize>,
    /// What buckets may take, by their bytes, where the strategy is a choice between paths.
    pub paths: Vec<SizedPath>,
    /// Length of the parameter buffer.
    pub params: usize,
    /// Its tensors, where a strategy looks at them.
    pub tensors: Vec<Tensor>,
    /// Most elements of a fused bucket.
    pub bucket: usize,
    /// Where buckets begin, in rising order from 0, where they are not all of one length.
    pub cuts: Vec<usize>,
    /// Most elements of one message.
    pub message: usize,
    /// The first step: those before it were done by another generation.
    pub from: u64,
    /// Global steps of the run, those before included; none if it goes on until a worker leaves.
    pub steps: Option<u64>,
    /// Consistency.
    pub sync: Consistency,
    /// What is averaged.
    pub averages: Averages,
    /// How messages are made shorter.
    pub coder: Option<Coder>,
    /// The strategy's parameters.
    pub options: Options,
    /// The rounds of a strategy that a file describes.
    pub program: Option<Arc<dyn StrategyProgram>>,
    /// Where the model is cut into stages, one per rank of a replica; then `params` and `tensors` are those of the whole
    /// model, and a rank's buffers hold its stage's range of them ([`Setup::of_stage`]).
    pub stages: Option<Arc<StageSetup>>,
    /// Seed of a strategy's choices.
    pub seed: u64,
    /// Generation of this run's messages.
    pub generation: u32,
    /// Who hosts what, in a run whose members may change.
    pub membership: Option<Arc<GenerationMembers>>,
    /// Whether each server shard has a backup: positions behind the servers.
    pub backups: bool,
    /// The numbers of a server's parts whose update of step `from` is made already.
    pub ahead: Vec<u32>,
    /// Units of a global batch, where workers take them one by one and may be fewer, or others, than the plan has.
    pub batch: Option<usize>,
    /// Where such a run goes on after its members have changed.
    pub work: Option<WorkLeft>,
    /// Whether weights are summed beside the parameters: these are then the worker's own, or averages, at every moment.
    pub sums_apart: bool,
}

/// The work that is left after a change of members, where workers take units one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkLeft {
    /// Units that some part lacks, in rising order: they are handed out first.
    pub open: Vec<u64>,
    /// The first unit behind all that any part has.
    pub next: u64,
    /// Parts that have one of the open units already, with its number: it is not applied to them again.
    pub made: Vec<(u32, u64)>,
}

impl WorkLeft {
    /// Whether nothing is left of a run of so many units.
    pub fn is_done(&self, units: u64) -> bool {
        self.first() >= units
    }

    /// The first unit that some part lacks.
    pub fn first(&self) -> u64 {
        self.open.first().copied().unwrap_or(self.next)
    }

    /// The units that a part lacks.
    pub fn lacking(&self, part: u32) -> Vec<u64> {
        let has = |unit: &u64| self.made.contains(&(part, *unit));
        self.open.iter().copied().filter(|unit| !has(unit)).collect()
    }
}

/// One generation of a run whose members may change: who hosts what, and what is handed over before its first step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GenerationMembers {
    /// The host of each share as the plan has it: paths do not depend on who is there.
    pub seats: Vec<usize>,
    /// The rank of each position: of shares, then of server shards, then of their backups.
    pub placement: Vec<Rank>,
    /// Server shards.
    pub shards: usize,
    /// What ranks are handed before the first step.
    pub handovers: Vec<Handover>,
    /// Of each rank, the parts whose update of the first step is made already.
    pub ahead: Vec<Vec<u32>>,
    /// Of each share, the step from which its worker computes it, where workers have weights of their own: before the
    /// generation's first step, by itself. Empty if all begin together.
    pub begins: Vec<u64>,
    /// Blocks of the optimiser's memory, each as long as the parameters.
    pub blocks: u16,
    /// The work that is left, where workers take units one by one; none before members have changed.
    pub work: Option<WorkLeft>,
}

impl GenerationMembers {
    /// Goes on with the same members: everybody has everything by now.
    pub fn settled(&mut self) {
        self.handovers.clear();
        self.ahead.clear();
        self.begins.clear();
        self.work = None;
    }

    /// The first step that a worker computes in a generation that exchanges from `from` on.
    pub fn first_step(&self, rank: Rank, from: u64) -> u64 {
        let own = self.placement.iter().zip(&self.begins).filter(|(host, _)| **host == rank);
        own.map(|(_, begins)| *begins).min().map_or(from, |begins| begins.min(from))
    }
}

/// Parameters, and what the optimiser knows of them, for a rank that does not have them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    /// Who has them.
    pub from: Rank,
    /// Who gets them.
    pub to: Rank,
    /// Which.
    pub range: Range<usize>,
    /// Whether the optimiser's memory goes with them.
    pub optimiser: bool,
    /// Where an older copy stands that the rank has, and keeps until it has all of the new one.
    pub older: Option<PartStanding>,
}

/// Why a strategy cannot be run with a setup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The flag at fault.
    pub flag: String,
    /// Its value.
    pub value: String,
    /// Why, and what would be valid.
    pub problem: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(flag: &str, value: impl ToString, problem: impl Into<String>) -> Self {
        Self { flag: flag.into(), value: value.to_string(), problem: problem.into() }
    }
}

impl Setup {
    /// A synchronous run with everything else left out: one bucket, one message, gradients in full.
    pub fn new(workers: usize, servers: usize, params: usize, steps: u64) -> Self {
        Self {
            workers,
            servers,
            shares: None,
            hosts: Vec::new(),
            paths: Vec::new(),
            params,
            tensors: Vec::new(),
            bucket: params,
            cuts: Vec::new(),
            message: params,
            from: 0,
            steps: Some(steps),
            sync: Consistency::bsp(),
            averages: Averages::Gradients,
            coder: None,
            options: Options::default(),
            program: None,
            stages: None,
            seed: 0,
            generation: 0,
            membership: None,
            backups: false,
            ahead: Vec::new(),
            batch: None,
            work: None,
            sums_apart: false,
        }
    }

    /// The same run with the members of a generation: so many workers and servers.
    pub fn of_members(&self, workers: usize, servers: usize, members: GenerationMembers) -> Self {
        let together = self.sync.is_bsp();
        Self {
            workers,
            servers,
            shares: Some(if together { self.shares() } else { workers }),
            batch: (!together).then(|| self.shares()),
            hosts: Vec::new(),
            membership: Some(Arc::new(members)),
            ..self.clone()
        }
    }

    /// The rank of a server shard.
    pub fn server(&self, shard: usize) -> Rank {
        self.workers + shard
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.workers + self.servers
    }

    /// The step before which the run ends: beyond any other if that is not known.
    pub fn end(&self) -> u64 {
        self.steps.unwrap_or(u64::MAX)
    }

    /// Shares of a global batch.
    pub fn shares(&self) -> usize {
        self.shares.unwrap_or(self.workers)
    }

    /// Whether every rank has one position, for good.
    pub fn one_position_each(&self) -> bool {
        self.membership.is_none() && self.shares() == self.workers
    }

    /// The positions that a rank hosts, in rising order. Servers come behind the shares, then their backups; without a
    /// membership, a server has one position.
    pub fn positions(&self, rank: Rank) -> Vec<usize> {
        if let Some(members) = &self.membership {
            return (0..members.placement.len())
                .filter(|position| members.placement[*position] == rank)
                .collect();
        }
        match rank.checked_sub(self.workers) {
            None => part(&(0..self.shares()), self.workers, rank).collect(),
            Some(shard) => vec![self.shares() + shard],
        }
    }

    /// The rank that hosts a position.
    pub fn host(&self, position: usize) -> Rank {
        if let Some(members) = &self.membership {
            return members.placement[position];
        }
        match position.checked_sub(self.shares()) {
            None => {
                let hosts = |rank: &Rank| part(&(0..self.shares()), self.workers, *rank).contains(&position);
                (0..self.workers).find(hosts).unwrap_or(0)
            }
            Some(shard) => self.server(shard),
        }
    }

    /// Where positions sit.
    pub fn topology(&self) -> Topology {
        if let Some(members) = &self.membership {
            return Topology::of(&members.seats);
        }
        let placed = if self.hosts.is_empty() { 0 } else { self.workers };
        Topology::of_workers(&self.hosts[..placed], self.shares())
    }

    /// The same run as a protocol between positions, with a rank for each, as this rank sees it.
    pub(crate) fn between_positions(&self, rank: Rank) -> Self {
        let topology = self.topology();
        let hosts = (0..self.shares()).map(|position| topology.seat(position).0).collect();
        let mut inner =
            Self { workers: self.shares(), shares: None, hosts, membership: None, ..self.clone() };
        if let Some(members) = &self.membership {
            inner.servers = members.shards;
            inner.backups = self.backups();
            inner.ahead = members.ahead.get(rank).cloned().unwrap_or_default();
            inner.work.clone_from(&members.work);
        }
        inner
    }

    /// The same run as a protocol between this generation's workers, each with weights of its own: the ring closes around
    /// those who are not there.
    pub(crate) fn between_workers(&self) -> Self {
        let topology = self.topology();
        let seat = |rank: Rank| self.positions(rank).first().map_or(0, |share| topology.seat(*share).0);
        let hosts = (0..self.workers).map(seat).collect();
        Self { shares: None, hosts, membership: None, sums_apart: true, ..self.clone() }
    }

    /// The shares that a worker computes in a step, in rising order.
    pub fn shares_at(&self, rank: Rank, step: u64) -> Vec<usize> {
        let begins = self.membership.as_ref().map_or(&[][..], |members| &members.begins);
        let due = |share: &usize| begins.get(*share).is_none_or(|begins| *begins <= step);
        self.positions(rank).into_iter().filter(due).collect()
    }

    /// The first step that a worker computes: before that of the others, if it is behind them.
    pub fn first_step(&self, rank: Rank) -> u64 {
        self.membership.as_ref().map_or(self.from, |members| members.first_step(rank, self.from))
    }

    /// Whether server shards have backups: all of them or none.
    pub fn backups(&self) -> bool {
        let members = self.membership.as_ref();
        members.map_or(self.backups, |members| members.placement.len() > self.shares() + members.shards)
    }

    /// The position of a server shard's backup.
    pub(crate) fn backup(&self, shard: usize) -> Rank {
        self.world() + shard
    }

    /// Which of the positions of a rank computes a unit: the number of its gradient buffer.
    pub fn slot(&self, rank: Rank, unit: WorkUnit) -> usize {
        match &self.membership {
            _ if self.one_position_each() || self.batch.is_some() => 0,
            Some(members) => members.placement[..unit.share].iter().filter(|host| **host == rank).count(),
            None => unit.share.saturating_sub(part(&(0..self.shares()), self.workers, rank).start),
        }
    }

    /// The unit with a running number.
    pub fn unit(&self, number: u64) -> WorkUnit {
        let units = self.units();
        WorkUnit { step: number / units, share: (number % units) as usize }
    }

    /// Units of a global batch.
    pub fn units(&self) -> u64 {
        self.batch.unwrap_or(self.workers) as u64
    }

    /// The buckets: ranges of the flat buffer in the order in which backward finishes them, from the end
    /// to the start.
    pub fn buckets(&self) -> Vec<Range<usize>> {
        if !self.cuts.is_empty() {
            let ends = self.cuts[1..].iter().copied().chain([self.params]);
            let mut buckets: Vec<_> = self.cuts.iter().zip(ends).map(|(&start, end)| start..end).collect();
            buckets.reverse();
            return buckets;
        }
        let size = self.bucket.max(1);
        (0..self.params.div_ceil(size))
            .map(|i| {
                let end = self.params - i * size;
                end.saturating_sub(size)..end
            })
            .collect()
    }

    /// The servers' shards: contiguous, balanced to one element, large tensors split.
    pub fn shards(&self) -> Vec<Range<usize>> {
        split(&(0..self.params), self.servers)
    }
}

/// Cuts a range into `n` contiguous parts whose lengths differ by one at most.
pub fn split(range: &Range<usize>, n: usize) -> Vec<Range<usize>> {
    (0..n).map(|i| part(range, n, i)).collect()
}

/// Part `i` of a range cut into `n`.
pub fn part(range: &Range<usize>, n: usize, i: usize) -> Range<usize> {
    let len = range.len();
    range.start + len * i / n..range.start + len * (i + 1) / n
}

/// Cuts a range, from its end, into pieces of at most `most`.
pub fn pieces(range: &Range<usize>, most: usize) -> Vec<Range<usize>> {
    let count = range.len().div_ceil(most.max(1)).max(1);
    let mut pieces = split(range, count);
    pieces.reverse();
    pieces
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_begin_where_they_are_cut() {
        let setup = Setup { cuts: vec![0, 3, 4], ..Setup::new(2, 1, 10, 1) };
        assert_eq!(setup.buckets(), [4..10, 3..4, 0..3]);
    }

    proptest! {
        #[test]
        fn buckets_and_shards_cover_every_element_once(params in 1usize..500, bucket in 1usize..600, servers in 1usize..7) {
            let setup = Setup { bucket, ..Setup::new(2, servers, params, 1) };
            let mut at = params;
            for b in setup.buckets() {
                prop_assert_eq!(b.end, at);
                prop_assert!(b.len() <= bucket && !b.is_empty());
                at = b.start;
            }
            prop_assert_eq!(at, 0);
            let shards = setup.shards();
            prop_assert_eq!(shards.iter().map(ExactSizeIterator::len).sum::<usize>(), params);
            let lens: Vec<usize> = shards.iter().map(ExactSizeIterator::len).collect();
            prop_assert!(lens.iter().max().unwrap() - lens.iter().min().unwrap() <= 1);
        }
    }
}
