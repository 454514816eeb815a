//! Ring reduce.

use super::{Strategy, ring_links};
use crate::collective::Collective;
use crate::schedule;

pub(super) const RING_REDUCE: Strategy = Strategy {
    name: "ring-reduce",
    about: "the whole buffer travels the ring to the root, the result travels back round",
    cost: "2(p−1)(α + n/B)",
    servers: false,
    syncs: &["bsp"],
    make: |setup, rank| Box::new(Collective::new(setup, rank, schedule::ring_reduce(rank, setup.workers))),
    links: ring_links,
    schedule: Some(schedule::ring_reduce),
};
