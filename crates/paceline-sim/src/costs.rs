//! What things cost in virtual time.

use std::fmt;
use std::sync::Arc;

use paceline_protocol::{Action, Rank, Time, Transposed, Work, WorkKind};
use paceline_random::{Purpose, Stream};
use paceline_statistics::quantile;

/// Bytes of a frame's header.
pub const HEADER: usize = 72;

/// Parts of a backward pass after which gradients are announced, where nothing else is said.
const ANNOUNCEMENTS: usize = 4;

/// What a run costs. Hosts that are not listed are alike; without a layout every rank is a host of its own.
#[derive(Clone, Debug)]
pub struct Costs {
    /// Nanoseconds of each worker's forward and backward pass.
    pub compute: Vec<Time>,
    /// How a pass is divided; if empty, a third is forward, and backward announces gradients four times.
    pub parts: Vec<PassPart>,
    /// What passes of each worker's stage take, in runs with stages; then `compute` and `parts` mean nothing.
    pub stages: Vec<StageCost>,
    /// How much of a whole pass the step of a position is; none: always all of it.
    pub size: Option<StepFactor>,
    /// How many times as long a worker's step takes because it is slowed down on purpose.
    pub slowness: Option<StepFactor>,
    /// Compute times relative to their median, at equally spaced probabilities; none: always the median.
    pub jitter: Vec<f64>,
    /// Each compute time and latency is stretched by up to this fraction, at random.
    pub spread: f64,
    /// Seed of jitter and spread.
    pub seed: u64,
    /// Nanoseconds that a bit is under way between hosts.
    pub latency: Time,
    /// Nanoseconds that a host's interface needs per byte, in each direction.
    pub per_byte: f64,
    /// Bytes that an interface takes before they can leave.
    pub buffer: usize,
    /// Nanoseconds of a message inside a host.
    pub local_latency: Time,
    /// Bytes of a message besides its body.
    pub header: usize,
    /// Nanoseconds of a rank's own time for sending a message, and for taking one in.
    pub message: Time,
    /// The same, per byte.
    pub byte: f64,
    /// Computations on elements.
    pub work: WorkCost,
    /// The host of each rank; if empty, each its own.
    pub layout: Vec<usize>,
    /// The host whose cores each rank uses; if empty, its own. (Emulated hosts are all on one machine.)
    pub machines: Vec<usize>,
    /// Hosts that differ; those behind the end are as above.
    pub hosts: Vec<Host>,
}

/// A piece of a pass, and the gradients that are final after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassPart {
    /// Its end, as a fraction of the pass.
    pub end: f64,
    /// The first element that is final from then on; none within the forward pass.
    pub announces: Option<usize>,
}

/// What passes through a worker's stage take, of a micro-batch with as many samples as there are at most.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageCost {
    /// Nanoseconds of the forward pass.
    pub forward: Time,
    /// Nanoseconds of the backward pass.
    pub backward: Time,
    /// How the last micro-batch's backward pass is divided; if empty, gradients are final at its end.
    pub parts: Vec<PassPart>,
}

/// A host that is not like the others.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// How fast its ranks handle messages, relative to the costs. (Their passes are in `compute`.)
    pub speed: f64,
    /// How much slower each of 1, 2, … ranks at work is; beyond the last, they share what it had.
    pub slowdown: Vec<f64>,
    /// The same of passes; empty: as everything else. (Passes of large networks are in each other's way at the caches.)
    pub pass_slowdown: Vec<f64>,
    /// Nanoseconds that a bit is under way to or from it; between two hosts the longer counts.
    pub latency: Time,
    /// Nanoseconds that its interface needs per byte, in each direction.
    pub per_byte: f64,
}

/// Nanoseconds per element of each kind of computation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkCost {
    /// Adding.
    pub reduce: f64,
    /// Copying.
    pub copy: f64,
    /// Scaling and mixing.
    pub mix: f64,
    /// Encoding, per element that is encoded.
    pub encode: f64,
    /// Decoding, per element that comes out.
    pub decode: f64,
    /// Updating.
    pub apply: f64,
    /// A multiplication and an addition of a matrix product.
    pub product: f64,
}

impl WorkCost {
    /// The same for everything.
    pub fn uniform(per_element: f64) -> Self {
        let [reduce, copy, mix, encode, decode, apply, product] = [per_element; 7];
        Self { reduce, copy, mix, encode, decode, apply, product }
    }

    /// Nanoseconds of an action.
    pub fn of(&self, action: &Action) -> f64 {
        match *action {
            Action::Reduce { dst, .. } => self.reduce * dst.len as f64,
            Action::Copy { dst, .. } => self.copy * dst.len as f64,
            Action::Mix { dst, .. } | Action::Scale { dst, .. } | Action::Randomise { dst, .. } => {
                self.mix * dst.len as f64
            }
            Action::Encode { src, .. } => self.encode * src.len as f64,
            Action::Decode { dst, .. } => self.decode * dst.len as f64,
            Action::Apply { params, .. } => self.apply * params.len as f64,
            Action::MatMul { dst, a, transposed, .. } => {
                let inner = if transposed == Transposed::First { a.rows } else { a.cols };
                self.product * (dst.rows * dst.cols * inner) as f64
            }
            Action::Orthonormalise(matrix) => self.product * (matrix.region.len * matrix.cols) as f64,
            _ => 0.0,
        }
    }
}

/// A factor of a worker's step.
#[derive(Clone)]
pub struct StepFactor(pub Arc<dyn Fn(Rank, u64) -> f64 + Send + Sync>);

impl fmt::Debug for StepFactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StepFactor(…)")
    }
}

impl Costs {
    /// The same constants for every worker; a rank's own time costs nothing.
    pub fn constant(workers: usize, compute: Time, latency: Time, per_byte: f64) -> Self {
        Self {
            compute: vec![compute; workers],
            parts: Vec::new(),
            stages: Vec::new(),
            size: None,
            slowness: None,
            jitter: Vec::new(),
            spread: 0.0,
            seed: 0,
            latency,
            per_byte,
            buffer: 0,
            local_latency: 0,
            header: HEADER,
            message: 0,
            byte: 0.0,
            work: WorkCost::default(),
            layout: Vec::new(),
            machines: Vec::new(),
            hosts: Vec::new(),
        }
    }

    /// How a pass over so many parameters is divided.
    pub fn division(&self, params: usize) -> Vec<PassPart> {
        if !self.parts.is_empty() {
            return self.parts.clone();
        }
        let part = |i: usize| PassPart {
            end: 1.0 / 3.0 + 2.0 / 3.0 * i as f64 / ANNOUNCEMENTS as f64,
            announces: Some(params - params * i / ANNOUNCEMENTS),
        };
        let mut parts: Vec<PassPart> = (1..=ANNOUNCEMENTS).map(part).collect();
        parts[ANNOUNCEMENTS - 1].end = 1.0;
        parts
    }

    /// The host of a rank.
    pub fn host_of(&self, rank: Rank) -> usize {
        self.layout.get(rank).copied().unwrap_or(rank)
    }

    /// The host whose cores a rank uses.
    pub fn machine_of(&self, rank: Rank) -> usize {
        self.machines.get(rank).copied().unwrap_or_else(|| self.host_of(rank))
    }

    /// A host.
    pub fn host(&self, host: usize) -> Host {
        let alike = || Host {
            speed: 1.0,
            slowdown: Vec::new(),
            pass_slowdown: Vec::new(),
            latency: self.latency,
            per_byte: self.per_byte,
        };
        self.hosts.get(host).cloned().unwrap_or_else(alike)
    }

    /// Number `n` of a rank's random stretches.
    fn segment(&self, what: u64, rank: Rank, n: u64) -> f64 {
        let draw = Stream::new(self.seed, Purpose::Virtual).fork(what).fork(rank as u64).unit(n);
        1.0 + self.spread * draw
    }

    /// Time of a worker's pass over one of its positions (or the only one, `rank` again), without what it is slowed
    /// down by.
    pub fn pass(&self, rank: Rank, position: usize, step: u64) -> Time {
        let mut time = self.compute[rank] as f64;
        if let Some(size) = &self.size {
            time *= (size.0)(position, step);
        }
        if self.spread > 0.0 {
            time *= self.segment(0, position, step);
        }
        if !self.jitter.is_empty() {
            let draw = Stream::new(self.seed, Purpose::Virtual).fork(2).fork(position as u64).unit(step);
            time *= quantile(&self.jitter, draw);
        }
        time as Time
    }

    /// Time of a pass through a worker's stage, of a micro-batch that is this fraction of the largest, without what it is
    /// slowed down by. `n` counts the worker's passes over all steps.
    pub(crate) fn stage_pass(&self, rank: Rank, work: Work, size: f64, n: u64) -> Time {
        let StageCost { forward, backward, .. } = self.stages[rank];
        let mut time = size * if work.kind == WorkKind::Forward { forward } else { backward } as f64;
        if self.spread > 0.0 {
            time *= self.segment(3, rank, n);
        }
        if !self.jitter.is_empty() {
            let draw = Stream::new(self.seed, Purpose::Virtual).fork(4).fork(rank as u64).unit(n);
            time *= quantile(&self.jitter, draw);
        }
        time as Time
    }

    /// Time that a worker is held up after a pass that took `pass`.
    pub fn pause(&self, rank: Rank, step: u64, pass: Time) -> Time {
        let factor = self.slowness.as_ref().map_or(1.0, |slowness| (slowness.0)(rank, step));
        (pass as f64 * (factor - 1.0).max(0.0)) as Time
    }

    /// Time of a worker's step that nothing interrupts.
    pub fn step(&self, rank: Rank, step: u64) -> Time {
        let pass = self.pass(rank, rank, step);
        pass + self.pause(rank, step, pass)
    }

    /// How many steps behind `first` are alike with those `period` steps later, one after the other, in a run that ends
    /// before `end`.
    pub(crate) fn repeats(&self, workers: usize, first: u64, period: u64, end: u64) -> u64 {
        let cost = |rank: Rank, step: u64| {
            let pass = self.pass(rank, rank, step);
            (pass, self.pause(rank, step, pass))
        };
        let same = |step: u64| (0..workers).all(|rank| cost(rank, step) == cost(rank, step + period));
        (first + 1..).take_while(|step| step + period < end && same(*step)).count() as u64
    }

    /// How many times the usual latency a rank's `n`-th transfer takes.
    pub(crate) fn delay(&self, rank: Rank, n: u64, latency: Time) -> Time {
        if self.spread == 0.0 { latency } else { (latency as f64 * self.segment(1, rank, n)) as Time }
    }

    /// Bytes of a message with a body of so many elements.
    pub(crate) fn bytes(&self, elements: usize) -> usize {
        self.header + 4 * elements
    }

    /// A rank's own time for sending or taking in a message, on a host of this speed.
    pub(crate) fn handling(&self, bytes: usize, speed: f64) -> Time {
        ((self.message as f64 + self.byte * bytes as f64) / speed) as Time
    }
}

impl Host {
    /// Time that the interface needs.
    pub(crate) fn transfer(&self, bytes: usize) -> Time {
        (self.per_byte * bytes as f64) as Time
    }

    /// How much slower each of so many ranks at work is.
    pub(crate) fn shared_by(&self, ranks: usize) -> f64 {
        shared_by(&self.slowdown, ranks)
    }

    /// How much slower the pass of each of so many ranks at work is.
    pub(crate) fn pass_shared_by(&self, ranks: usize) -> f64 {
        shared_by(if self.pass_slowdown.is_empty() { &self.slowdown } else { &self.pass_slowdown }, ranks)
    }

    /// The same host as if nobody shared it.
    pub(crate) fn unshared(self) -> Self {
        Self { slowdown: Vec::new(), pass_slowdown: Vec::new(), ..self }
    }
}

fn shared_by(slowdown: &[f64], ranks: usize) -> f64 {
    match (slowdown.get(ranks.max(1) - 1), slowdown.last()) {
        (Some(factor), _) => *factor,
        (None, Some(last)) => last * ranks as f64 / slowdown.len() as f64,
        (None, None) => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_quantiles() {
        let jitter = vec![0.9, 1.0, 1.0, 1.5];
        let costs = Costs { jitter, ..Costs::constant(2, 1_000_000, 0, 0.0) };
        let all: Vec<Time> = (0..10_000).map(|step| costs.pass(1, 1, step)).collect();
        assert!(all.iter().all(|t| (900_000..=1_500_000).contains(t)));
        let slow = all.iter().filter(|t| **t > 1_250_000).count() as f64 / 10_000.0;
        assert!((slow - 1.0 / 6.0).abs() < 0.02, "{slow}");
        assert_ne!(costs.pass(0, 0, 3), costs.pass(1, 1, 3), "ranks have draws of their own");
    }

    #[test]
    fn beyond_the_measured_number_ranks_share_what_there_is() {
        let host = Host { slowdown: vec![1.0, 1.2], ..Costs::constant(1, 0, 0, 0.0).host(0) };
        assert_eq!([1, 2, 4].map(|n| host.shared_by(n)), [1.0, 1.2, 2.4]);
        assert_eq!([1, 2, 4].map(|n| host.pass_shared_by(n)), [1.0, 1.2, 2.4]);
        let own = Host { pass_slowdown: vec![1.0, 1.5], ..host };
        assert_eq!(([1, 2, 4].map(|n| own.pass_shared_by(n)), own.shared_by(2)), ([1.0, 1.5, 3.0], 1.2));
        assert_eq!(Costs::constant(1, 0, 0, 0.0).host(0).shared_by(9), 1.0);
    }
}
