//! Parameter server: every worker ⇄ k server shards.
//!
//! A worker pushes each part of its gradient (a bucket's overlap with a shard) as soon as backward has
//! finished it, and pulls the parameters after its own push. The shard applies the optimiser. Each shard
//! keeps its own clocks: it answers a worker only when the consistency model allows it, so a worker that
//! has heard from every shard may go on. Shard 0 also hands out the work of asynchronous runs, a unit
//! (one share of a global batch) with each answer.

mod server;
mod worker;

use std::ops::Range;

use super::Strategy;
use crate::setup::{Setup, pieces};

pub(super) const PS: Strategy = Strategy {
    name: "ps",
    about: "parameter server: workers push gradients to server shards and pull parameters",
    cost: "2(α + p·n/(k·B)) at a server, n each way at a worker",
    servers: true,
    syncs: &["bsp", "asp", "ssp"],
    make: |setup, rank| {
        if rank < setup.workers {
            Box::new(worker::Worker::new(setup, rank))
        } else {
            Box::new(server::Server::new(setup, rank - setup.workers))
        }
    },
    links: |setup, rank| {
        if rank < setup.workers {
            (setup.workers..setup.world()).collect()
        } else {
            (0..setup.workers).collect()
        }
    },
    schedule: None,
};

/// Kinds of messages.
const PUSH: u16 = 0;
const PULL: u16 = 1;
const BYE: u16 = 2;

/// "No more work" in place of a unit.
const NONE: u64 = u64::MAX;

/// A part of the flat buffer that is pushed and pulled in one message.
#[derive(Clone, Debug)]
struct Part {
    range: Range<usize>,
    shard: usize,
}

/// The parts, in the order in which backward finishes them: the same on every rank.
fn parts(setup: &Setup) -> Vec<Part> {
    let shards = setup.shards();
    let mut parts = Vec::new();
    for bucket in setup.buckets() {
        for (shard, owned) in shards.iter().enumerate().rev() {
            let range = bucket.start.max(owned.start)..bucket.end.min(owned.end);
            if range.start < range.end {
                parts.extend(pieces(&range, setup.message).into_iter().map(|range| Part { range, shard }));
            }
        }
    }
    parts
}
