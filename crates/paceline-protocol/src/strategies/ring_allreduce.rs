//! Ring all-reduce.

use super::{Strategy, ring_links};
use crate::collective::Collective;
use crate::schedule;

pub(super) const RING_ALLREDUCE: Strategy = Strategy {
    name: "ring-allreduce",
    about: "reduce-scatter, then all-gather round the ring: the fewest bytes",
    cost: "2(p−1)α + 2·(p−1)/p·n/B",
    servers: false,
    syncs: &["bsp"],
    make: |setup, rank| Box::new(Collective::new(setup, rank, schedule::ring_allreduce(rank, setup.workers))),
    links: ring_links,
    schedule: Some(schedule::ring_allreduce),
};
