//! The registry of strategies. To add one: write its file, then add its line to [`STRATEGIES`]; it then
//! appears in the command line's help, the plan's checks, the simulator and the conformance suite.

mod ps;
mod ring_allreduce;
mod ring_reduce;

use crate::schedule::Schedule;
use crate::setup::{Refusal, Setup, Sync};
use crate::vocabulary::{Participant, Rank};

/// A strategy that users can name.
pub struct Strategy {
    /// The name on the command line.
    pub name: &'static str,
    /// One line for help texts and tables.
    pub about: &'static str,
    /// Time of one step's communication, with fixed costs and without overlap.
    pub cost: &'static str,
    /// Whether it needs servers.
    pub servers: bool,
    /// Consistency models that it can be run with.
    pub syncs: &'static [&'static str],
    /// The participant of a rank.
    pub make: fn(&Setup, Rank) -> Box<dyn Participant>,
    /// The ranks that a rank exchanges messages with.
    pub links: fn(&Setup, Rank) -> Vec<Rank>,
    /// The moves of a rank, where the strategy is a schedule.
    pub schedule: Option<fn(Rank, usize) -> Schedule>,
}

/// Every strategy.
pub const STRATEGIES: &[Strategy] = &[ring_allreduce::RING_ALLREDUCE, ring_reduce::RING_REDUCE, ps::PS];

/// The strategy of that name.
pub fn find(name: &str) -> Option<&'static Strategy> {
    STRATEGIES.iter().find(|s| s.name == name)
}

impl Strategy {
    /// Whether the strategy can be run with a setup.
    pub fn check(&self, setup: &Setup) -> Result<(), Refusal> {
        let sync = match setup.sync {
            Sync::Bsp => "bsp",
            Sync::Asp => "asp",
            Sync::Ssp(_) => "ssp",
        };
        if !self.syncs.contains(&sync) {
            let valid = self.syncs.join(", ");
            return Err(Refusal::new("--sync", format!("{} has no {sync}; valid: {valid}", self.name)));
        }
        match (self.servers, setup.servers) {
            (true, 0) => Err(Refusal::new("--servers", format!("{} needs at least 1 server", self.name))),
            (false, 1..) => {
                Err(Refusal::new("--servers", format!("{} has no servers: leave it out", self.name)))
            }
            (_, servers) if servers > setup.params => {
                Err(Refusal::new("--servers", format!("at most one server per parameter ({})", setup.params)))
            }
            _ => Ok(()),
        }
    }

    /// Whether a run's result does not depend on timing.
    pub fn deterministic(&self, sync: Sync) -> bool {
        sync == Sync::Bsp
    }
}

/// The two neighbours on the ring.
fn ring_links(setup: &Setup, rank: Rank) -> Vec<Rank> {
    let p = setup.workers;
    let mut links = vec![(rank + p - 1) % p, (rank + 1) % p];
    links.sort_unstable();
    links.dedup();
    links.retain(|&peer| peer != rank);
    links
}
