//! Stale-synchronous: a bounded lead; essp is the same with values that are pushed.

use super::{Consistency, ConsistencyModel, Gate, STALENESS, WorkerClocks};
use crate::options::Options;
use crate::vocabulary::Rank;

pub(super) const SSP: ConsistencyModel = ConsistencyModel {
    name: "ssp",
    about: "a worker may be a few steps ahead of the slowest, not more",
    detail: "A worker may start a step only if it is at most s steps ahead of the slowest. What it reads \
             contains every update up to s + 1 steps back, and its own. Absorbs passing slowness; behind a \
             worker that is always slow, everybody ends up at its pace.",
    parameters: &[&STALENESS],
    whole_batches: false,
    make: |options, _| bounded(options),
};

pub(super) const ESSP: ConsistencyModel = ConsistencyModel {
    name: "essp",
    about: "ssp, with fresh values pushed when the slowest has made a step",
    detail: "The bound of ssp. Whenever the slowest worker has made a step, each shard pushes its \
             values to \
             all workers; one that waits for another shard takes them and starts from fresher parameters. \
             More bytes for less observed staleness.",
    parameters: &[&STALENESS],
    whole_batches: false,
    make: |options, _| Consistency { eager: true, ..bounded(options) },
};

fn bounded(options: &Options) -> Consistency {
    let bound = options.count(&STALENESS);
    Consistency::gated(move |_| Box::new(Bounded(bound)))
}

/// Open up to a lead.
pub(super) struct Bounded(pub(super) u64);

impl Gate for Bounded {
    fn open(&mut self, worker: Rank, race: &WorkerClocks) -> bool {
        race.lead(worker) <= self.0
    }
}
