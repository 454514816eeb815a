//! When a worker may go on: the registry of consistency models. To add one: write its file with its gate, then add its
//! line to [`CONSISTENCIES`]; it then appears in the command line's help, the plan's checks, the simulator, the docs and
//! the conformance suite.

mod adaptive;
mod asp;
mod bsp;
mod dssp;
mod ssp;
mod switch;

use std::fmt;
use std::sync::Arc;

use crate::options::{Kind, Options, Parameter};
use crate::vocabulary::{Rank, Time, WorkerLoad};

/// When a worker may go on: a consistency model with its parameters.
#[derive(Clone)]
pub struct Consistency {
    /// Steps before this one are begun by everybody together.
    pub together_until: u64,
    /// Whether steps before it are asynchronous while a straggler lasts.
    pub greedy: bool,
    /// Whether servers push fresh values to all workers when the slowest has made a step.
    pub eager: bool,
    /// Whether the gate looks at time or load: then shard 0 decides for all shards.
    pub central: bool,
    gate: Arc<dyn Fn(usize) -> Box<dyn Gate> + Send + Sync>,
}

impl Consistency {
    /// Everybody waits for everybody after each step.
    pub fn bsp() -> Self {
        Self { together_until: u64::MAX, ..Self::gated(|_| Box::new(Free)) }
    }

    /// Pushes are applied one by one, and a gate, made for a number of workers, says who may go on.
    pub fn gated(gate: impl Fn(usize) -> Box<dyn Gate> + Send + Sync + 'static) -> Self {
        Self { together_until: 0, greedy: false, eager: false, central: false, gate: Arc::new(gate) }
    }

    /// The gate of a run's asynchronous steps.
    pub fn gate(&self, workers: usize) -> Box<dyn Gate> {
        (self.gate)(workers)
    }

    /// Whether everybody always waits for everybody.
    pub fn is_bsp(&self) -> bool {
        self.together_until == u64::MAX
    }

    /// Whether a run that begins, or goes on, with this step begins it together.
    pub fn together_at(&self, step: u64) -> bool {
        step < self.together_until
    }

    /// Whether every step of a run of so many is synchronous.
    pub fn always_together(&self, steps: u64) -> bool {
        self.together_until >= steps && !self.greedy
    }
}

impl fmt::Debug for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { together_until, greedy, eager, central, .. } = self;
        write!(f, "Consistency {{ {together_until}, {greedy}, {eager}, {central} }}")
    }
}

/// Where everybody is: steps whose push has come to this shard.
#[derive(Clone, Debug)]
pub struct WorkerClocks {
    /// Steps of each worker.
    pub clocks: Vec<u64>,
    /// Workers that have no more work are out of the race.
    pub gone: Vec<bool>,
}

impl WorkerClocks {
    /// Nobody has pushed anything.
    pub fn new(workers: usize) -> Self {
        Self { clocks: vec![0; workers], gone: vec![false; workers] }
    }

    /// Workers that have work left.
    pub fn racing(&self) -> impl Iterator<Item = Rank> + '_ {
        (0..self.clocks.len()).filter(|&w| !self.gone[w])
    }

    /// The least clock.
    pub fn slowest(&self) -> u64 {
        self.racing().map(|w| self.clocks[w]).min().unwrap_or(u64::MAX)
    }

    /// The greatest clock.
    pub fn fastest(&self) -> u64 {
        self.racing().map(|w| self.clocks[w]).max().unwrap_or(0)
    }

    /// Steps that a worker is ahead of the slowest.
    pub fn lead(&self, worker: Rank) -> u64 {
        self.clocks[worker].saturating_sub(self.slowest())
    }
}

/// Decides when a worker may start its next step.
pub trait Gate: Send {
    /// A worker's push is complete; its clock has advanced.
    fn pushed(&mut self, _now: Time, _worker: Rank, _load: WorkerLoad) {}
    /// A worker was let go: its next step begins.
    fn released(&mut self, _now: Time, _worker: Rank) {}
    /// Whether a worker may start its next step now; if so it is let go.
    fn open(&mut self, worker: Rank, race: &WorkerClocks) -> bool;
}

struct Free;

impl Gate for Free {
    fn open(&mut self, _: Rank, _: &WorkerClocks) -> bool {
        true
    }
}

/// A consistency model that users can name.
pub struct ConsistencyModel {
    /// The name on the command line.
    pub name: &'static str,
    /// One line for help texts and tables.
    pub about: &'static str,
    /// What it does, for the docs.
    pub detail: &'static str,
    /// Its parameters.
    pub parameters: &'static [&'static Parameter],
    /// Whether it has steps that are updates of whole global batches.
    pub whole_batches: bool,
    /// The model with its parameters, for a run of so many steps.
    pub make: fn(&Options, u64) -> Consistency,
}

paceline_registry::entries!(ConsistencyModel, CONSISTENCIES);

const STALENESS: Parameter = Parameter {
    name: "staleness",
    about: "steps that a worker may be ahead of the slowest (adaptive: the slowest worker's own bound)",
    default: "3",
    kind: Kind::Count { least: 0 },
};
const BOUNDS: Parameter = Parameter {
    name: "staleness-bounds",
    about: "the least and the greatest lead that are allowed, L,U",
    default: "3,15",
    kind: Kind::Bounds,
};

/// The model that every strategy can be run with.
pub(crate) const BSP: &str = bsp::BSP.name;

/// Every consistency model.
pub static CONSISTENCIES: &[ConsistencyModel] =
    &[bsp::BSP, asp::ASP, ssp::SSP, ssp::ESSP, dssp::DSSP, adaptive::ADAPTIVE, switch::SWITCH];

/// The consistency model of that name.
pub fn find(name: &str) -> Option<&'static ConsistencyModel> {
    CONSISTENCIES.iter().find(|c| c.name == name)
}
