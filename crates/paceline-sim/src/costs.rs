//! What things cost in virtual time.

use paceline_protocol::{Rank, Time};
use paceline_random::{Purpose, Stream};

/// Bytes of a frame's header.
pub const HEADER: usize = 72;

/// Constant costs, with a random spread.
#[derive(Clone, Debug)]
pub struct Costs {
    /// Nanoseconds of each worker's forward and backward pass.
    pub compute: Vec<Time>,
    /// Nanoseconds from the end of a transfer to its arrival.
    pub latency: Time,
    /// Nanoseconds per byte of a link.
    pub per_byte: f64,
    /// Bytes of a message besides its body.
    pub header: usize,
    /// Nanoseconds per element that is reduced, copied or applied.
    pub per_element: f64,
    /// Each compute time and latency is stretched by up to this fraction, at random.
    pub spread: f64,
    /// Seed of the spread.
    pub seed: u64,
    /// A worker that is slow for some of its steps.
    pub straggler: Option<Straggler>,
}

/// A worker that is slow for some of its steps.
#[derive(Clone, Debug)]
pub struct Straggler {
    /// Who.
    pub rank: Rank,
    /// Its slow steps.
    pub steps: std::ops::Range<u64>,
    /// How many times as long they take.
    pub factor: f64,
}

impl Costs {
    /// The same constants for every worker.
    pub fn constant(workers: usize, compute: Time, latency: Time, per_byte: f64) -> Self {
        Self {
            compute: vec![compute; workers],
            latency,
            per_byte,
            header: HEADER,
            per_element: 0.0,
            spread: 0.0,
            seed: 0,
            straggler: None,
        }
    }

    /// Number `n` of a rank's random stretches.
    fn stretch(&self, what: u64, rank: Rank, n: u64) -> f64 {
        let draw = Stream::new(self.seed, Purpose::Virtual).fork(what).fork(rank as u64).unit(n);
        1.0 + self.spread * draw
    }

    /// Time of a worker's step.
    pub fn step(&self, rank: Rank, step: u64) -> Time {
        let slow = self.straggler.iter().find(|s| s.rank == rank && s.steps.contains(&step));
        let factor = slow.map_or(1.0, |s| s.factor);
        (self.compute[rank] as f64 * self.stretch(0, rank, step) * factor) as Time
    }

    /// Time on the link, for a body of so many elements.
    pub fn transfer(&self, elements: usize) -> Time {
        (self.per_byte * (self.header + 4 * elements) as f64) as Time
    }

    /// Time from the end of a rank's `n`-th transfer to its arrival.
    pub fn delay(&self, rank: Rank, n: u64) -> Time {
        (self.latency as f64 * self.stretch(1, rank, n)) as Time
    }

    /// Time of a computation on so many elements.
    pub fn elements(&self, n: usize) -> Time {
        (self.per_element * n as f64) as Time
    }
}
