//! Parameter server: every worker ⇄ k server shards.
//!
//! A worker pushes each part of its gradient (a bucket's overlap with a shard) as soon as backward has
//! finished it, and pulls the parameters after its own push. The shard applies the optimiser.
//!
//! A synchronous push is held until its part is there from everybody, and summed in rank order; the answer
//! goes to all. An asynchronous push is applied on arrival; its worker is answered when its gate opens. Under
//! asp, ssp and essp each shard has its own gate over its own clocks, and a worker goes on when it has heard
//! from every shard. Where a decision depends on time (dssp, adaptive, the greedy switch), shard 0 decides
//! and tells the other shards, which obey. Shard 0 also hands out the work, a unit (one share of a global
//! batch) with each answer, and says with it whether that unit is part of a synchronous step.
//!
//! With backups, under bsp, a shard sends the sum of each part to its backup, which makes the same update, and answers the
//! workers beside. The backup tells the workers when it has a step's sums, and a worker takes a step over when all servers
//! have answered and all backups have said so. So what a worker has, both copies have, and either can go on alone. Where a
//! run goes on after a loss, the step that was not complete is made anew from the same gradients: a copy that has a part's
//! update already ([`Setup::ahead`]) does not make it twice.
//!
//! Elsewhere a shard with a backup forwards every part of a push, in the order in which it applies them to that part, and the
//! backup tells the worker when it has its whole push: so what a copy has of a part is always the beginning of what the other
//! one has, and what a worker was answered both have. After a change of members nobody goes on with what was under way: units
//! that some part lacks ([`Setup::work`]) are handed out again, before new ones, and a part that has such a unit's update does
//! not take it again. Everybody begins with an answer of the servers: with the newest parameters, and equal clocks.

mod backup;
mod server;
mod straggling;
mod worker;

use std::ops::Range;

use super::{COLLECTIVE, ReplicaAgreement, Strategy};
use crate::codec::{Coder, Family};
use crate::setup::{Averages, Refusal, Setup, pieces};
use crate::vocabulary::PartStanding;

pub(super) const PS: Strategy = Strategy {
    name: "ps",
    about: "parameter server: workers push gradients to server shards and pull parameters",
    detail: "The parameters are split evenly over k servers. Each worker sends the servers its gradient and \
             gets parameters back; the optimiser runs on the servers. The only strategy with a choice of \
             consistency: how far workers may be apart.",
    cost: "2(α + p·n/(k·B)) at a server, n each way at a worker",
    good: "Uneven or unreliable workers: with asp nobody waits for a straggler, and a bounded lead \
           absorbs one that passes. Two messages \
           in a row whatever the number of workers.",
    bad: "Many workers on few servers: each server moves p·n/k bytes each way, and its link sets the pace.",
    servers: true,
    gated: true,
    averages: &[Averages::Gradients, Averages::Weights],
    check,
    agreement: |setup| {
        let rounded = setup.coder.is_some_and(|coder| coder.codec.family == Family::PerHop);
        match (setup.sync.always_together(setup.end()), setup.coder) {
            (true, None) => ReplicaAgreement::Exact,
            (true, Some(_)) if !rounded => ReplicaAgreement::Common,
            _ => ReplicaAgreement::Apart,
        }
    },
    make: |setup, rank| {
        if rank < setup.workers {
            Box::new(worker::Worker::new(setup, rank))
        } else if rank < setup.world() {
            Box::new(server::Server::new(setup, rank - setup.workers))
        } else {
            Box::new(backup::Backup::new(setup, rank - setup.world()))
        }
    },
    links: |setup, rank| {
        let first = setup.workers;
        if let Some(shard) = rank.checked_sub(setup.world()) {
            return (0..first).chain([setup.server(shard)]).collect();
        }
        let backups = setup.backup(0)..setup.backup(if setup.backups { setup.servers } else { 0 });
        let backup = (setup.backups && rank >= first).then(|| setup.backup(rank.saturating_sub(first)));
        let others = if setup.sync.central { first + 1..setup.world() } else { 0..0 };
        match rank {
            worker if worker < first => (first..setup.world()).chain(backups).collect(),
            server if server == first => (0..first).chain(others).chain(backup).collect(),
            _ => (0..first).chain(others.start.checked_sub(1)).chain(backup).collect(),
        }
    },
    ..COLLECTIVE
};

fn check(setup: &Setup) -> Result<(), Refusal> {
    let low_rank = setup.coder.filter(|coder| coder.codec.family == Family::LowRank);
    if let Some(coder) = low_rank {
        let problem = "its factors have to be summed over all workers twice, which a server's push and \
                       pull do not do; use an exact path, e.g. --strategy ring-allreduce";
        return Err(Refusal::new("--compression", coder, problem));
    }
    if setup.sync.greedy && setup.workers < 3 {
        let problem = "of two workers neither can be over median + 3·MAD: at least 3 are needed";
        return Err(Refusal::new("--straggler-policy", "greedy", problem));
    }
    if setup.averages == Averages::Weights {
        if !setup.sync.is_bsp() {
            let problem = "averaging weights needs everybody's at the same step: use --sync bsp";
            return Err(Refusal::new("--averages", "weights", problem));
        }
        return crate::collective::check(setup);
    }
    Ok(())
}

/// How parameters are sent back: in full, unless the codec is good enough for them.
fn back(setup: &Setup) -> Option<Coder> {
    setup.coder.filter(|coder| coder.codec.family == Family::PerHop)
}

/// Kinds of messages: a part of a gradient, a part of the parameters (asked for, or fresh by itself), a
/// worker's and a server's last words, and shard 0's word that a worker may go on.
const PUSH: u32 = 0;
const PULL: u32 = 1;
const FRESH: u32 = 2;
const BYE: u32 = 3;
const FAREWELL: u32 = 4;
const GO: u32 = 5;
/// A part's sum, to the shard's backup (under bsp), or a part of a single push, whose head says in place of a version which
/// worker it is from; without a body if both copies have it. And the backup's word to the workers that it has all of a step.
const FORWARD: u32 = 6;
const ACKNOWLEDGED: u32 = 7;

/// "No more work" in place of a unit.
const NONE: u64 = u64::MAX;

/// A part of the flat buffer that is pushed and pulled in one message.
#[derive(Clone, Debug)]
struct Part {
    range: Range<usize>,
    shard: usize,
}

/// Messages in which a worker pushes its whole gradient, over all shards; as many come back.
pub fn messages(setup: &Setup) -> usize {
    parts(setup).len()
}

/// A shard's parts as they stand when a generation begins, where members may change and units are applied one by one.
fn single_parts(setup: &Setup, shard: usize) -> Vec<PartStanding> {
    if setup.batch.is_none() {
        return Vec::new();
    }
    let standing = |(number, part): (usize, Part)| {
        let part_number = number as u32;
        let (made, lacks) = match &setup.work {
            Some(work) => (work.next, work.lacking(part_number)),
            None => (setup.from * setup.units(), Vec::new()),
        };
        PartStanding { part: part_number, range: part.range, made, lacks }
    };
    parts(setup).into_iter().enumerate().filter(|(_, part)| part.shard == shard).map(standing).collect()
}

/// The parts, in the order in which backward finishes them: the same on every rank.
fn parts(setup: &Setup) -> Vec<Part> {
    let shards = setup.shards();
    // A code may be a little longer than what it stands for: a scale goes with it.
    let longest = setup.coder.map_or(setup.message, |coder| coder.fitting(setup.message, setup.message));
    let mut parts = Vec::new();
    for bucket in setup.buckets() {
        for (shard, owned) in shards.iter().enumerate().rev() {
            let range = bucket.start.max(owned.start)..bucket.end.min(owned.end);
            if range.start < range.end {
                parts.extend(pieces(&range, longest).into_iter().map(|range| Part { range, shard }));
            }
        }
    }
    parts
}
