//! Step-wise averaging: each worker starts its next iteration with the average *till that worker*.
//!
//! In a ring all-reduce the weights go round twice, once to form the average and once to spread it. Here the
//! second pass is skipped: the running sum travels the ring from a start worker; the worker at position k
//! adds its own, goes on at once with the mean of the first k + 1 contributions, and forwards the sum.
//!
//! - [`axes`](Axes): where waves start, how they are weighted, when everybody is brought together
//! - `waves`: the participant

mod waves;

use super::{COLLECTIVE, ReplicaAgreement, Strategy, refuse_lossy, ring_links};
use crate::options::{Kind, Options, Parameter};
use crate::setup::{Averages, Refusal, Setup};
use crate::step_driver::StepDriver;
use crate::vocabulary::Rank;
use paceline_random::{Purpose, Stream};

pub(super) const STEPWISE: Strategy = Strategy {
    name: "stepwise",
    about: "each worker goes on with the running average up to that worker: no second pass",
    detail: "The running sum of the weights travels the ring from a start worker; the worker at position \
             i adds its own, continues at once with the mean of the first i + 1 contributions, and \
             forwards the sum. With --path wave, the whole buffer goes in one wave per iteration; \
             iterations follow one another like waves, \
             without a barrier. With --path chunked, there are p chunks whose waves start at different workers: balanced links, but \
             every worker is last for some chunk. With push-sum, position j spreads its mass evenly over the \
             positions behind it, which removes the bias towards early positions; the weights follow from the \
             schedule and cost no bytes. (Our reading: gradients are taken at x/w and move x/w; the \
             weight goes with it.)",
    cost: "wave: α + n/B per hop, pipelined over iterations; chunked: (p−1)(α + n/(p·B))",
    good: "A wave with a fixed start, or one that moves with it (rotate+1), hardly waits at all: at p = \
           64 an iteration costs about its \
           computation, where an exact average waits for 2(p − 1) hops.",
    bad: "The average is poor. With a fixed start the start worker never hears from anybody, and the \
          whole fleet follows its data. What mixes better (random starts) waits longer: mixing is paid \
          for in waiting.",
    loss: "From the next step on, waves travel the ring of the others: with a fixed start, the fleet follows the first \
           one that is left. A wave under way ends at the gap: workers before it have the mean up to their position, and \
           keep it; those behind it keep their own weights, and no running sum is added to again. The lost \
           worker's weights are gone but for what positions behind it had taken over: the mean of all workers' \
           weights jumps by (m − x)/(p − 1), where m is that mean and x what the lost worker had. A full average \
           (--sync-every) counts each of the others 1/(p − 1). What weights count always adds up to 1.",
    parameters: &[&VARIANT, &PATH, &START, &DEBIAS, &SYNC_EVERY],
    averages: &[Averages::Weights, Averages::Gradients],
    presets,
    make: |setup, rank| Box::new(StepDriver::new(setup, rank, waves::Waves::new(setup, rank))),
    links: ring_links,
    check,
    check_members,
    agreement: |setup| match (Axes::new(setup).sync_every, setup.coder, setup.workers) {
        (_, _, 1) | (1, None, _) => ReplicaAgreement::Exact,
        (1, Some(_), _) => ReplicaAgreement::Common,
        _ => ReplicaAgreement::Apart,
    },
    ..COLLECTIVE
};

/// Names of the presets, and what they stand for: path, start, debias, sync-every.
const VARIANTS: &[(&str, [&str; 4])] = &[
    ("naive", ["wave", "fixed", "none", "0"]),
    ("rotate", ["wave", "rotate+1", "none", "0"]),
    ("random-start", ["wave", "random", "none", "0"]),
    ("push-sum", ["wave", "random", "push-sum", "0"]),
    ("periodic", ["wave", "fixed", "none", "8"]),
    ("chunked", ["chunked", "random", "none", "0"]),
];

const VARIANT: Parameter = Parameter {
    name: "variant",
    about: "a preset of the axes below: naive (wave, fixed), rotate (wave, +1), random-start (wave, random), \
            push-sum (random-start + push-sum), periodic (naive + sync every 8), chunked (chunked, random)",
    default: "random-start",
    kind: Kind::Choice(&["naive", "rotate", "random-start", "push-sum", "periodic", "chunked"]),
};
const PATH: Parameter = Parameter {
    name: "path",
    about: "one wave of the whole buffer, or p chunks that start at different workers",
    default: "wave",
    kind: Kind::Choice(&["wave", "chunked"]),
};
const START: Parameter = Parameter {
    name: "start",
    about: "where an iteration's wave starts",
    default: "random",
    kind: Kind::Choice(&["fixed", "rotate+1", "rotate-1", "random"]),
};
const DEBIAS: Parameter = Parameter {
    name: "debias",
    about: "whether early positions count more (none) or everybody the same in the long run (push-sum)",
    default: "none",
    kind: Kind::Choice(&["none", "push-sum"]),
};
const SYNC_EVERY: Parameter = Parameter {
    name: "sync-every",
    about: "steps between two full averages; 0: never",
    default: "0",
    kind: Kind::Count { least: 0 },
};

fn presets(options: &mut Options) {
    let chosen = options.text(&VARIANT).to_owned();
    if let Some((_, values)) = VARIANTS.iter().find(|(name, _)| *name == chosen) {
        for (parameter, value) in [PATH, START, DEBIAS, SYNC_EVERY].iter().zip(values) {
            options.fill(parameter.name, value);
        }
    }
}

fn check(setup: &Setup) -> Result<(), Refusal> {
    let axes = Axes::new(setup);
    if setup.averages == Averages::Gradients && axes.sync_every == 0 {
        return Err(Refusal::new(
            "--averages",
            "gradients",
            "nothing would ever contract the weights, and replicas would drift apart for ever; use \
             --averages weights, or --sync-every H",
        ));
    }
    if axes.push_sum && matches!(axes.start, Start::Fixed | Start::Rotate(1)) && axes.sync_every == 0 {
        return Err(Refusal::new(
            "--debias",
            "push-sum",
            "with this --start some workers' weights become as good as zero, and dividing by them means nothing; use --start random or rotate-1, or --sync-every H",
        ));
    }
    if setup.averages == Averages::Gradients && axes.push_sum {
        return Err(Refusal::new("--debias", "push-sum", "is about weights; use --averages weights"));
    }
    refuse_lossy(setup, "stepwise")
}

/// What is lost with a worker must be its own weights and no more.
fn check_members(setup: &Setup) -> Result<(), Refusal> {
    if setup.averages == Averages::Gradients {
        return Err(Refusal::new(
            "--averages",
            "gradients",
            "an update waits for the sum of others, piece by piece: a loss would leave half of one; members can change \
             with --averages weights",
        ));
    }
    if Axes::new(setup).push_sum {
        return Err(Refusal::new(
            "--debias",
            "push-sum",
            "what a worker has spread and what it keeps add up over all workers only: a loss would take a part of the sum \
             away, and the weights would not follow from the schedule; members can change with --debias none",
        ));
    }
    Ok(())
}

/// The axes of the strategy.
#[derive(Clone, Copy, Debug)]
pub struct Axes {
    workers: usize,
    /// Chunks of a lane, each with its own wave.
    chunks: usize,
    start: Start,
    push_sum: bool,
    /// Steps between two full averages; 0 means never.
    sync_every: u64,
    stream: Stream,
}

#[derive(Clone, Copy, Debug)]
enum Start {
    Fixed,
    Rotate(i64),
    Random,
}

impl Axes {
    fn new(setup: &Setup) -> Self {
        let options = &setup.options;
        Self {
            workers: setup.workers,
            chunks: if options.text(&PATH) == "chunked" { setup.workers } else { 1 },
            start: match options.text(&START) {
                "fixed" => Start::Fixed,
                "rotate+1" => Start::Rotate(1),
                "rotate-1" => Start::Rotate(-1),
                _ => Start::Random,
            },
            push_sum: options.text(&DEBIAS) == "push-sum",
            sync_every: options.count(&SYNC_EVERY),
            stream: Stream::new(setup.seed, Purpose::Protocol),
        }
    }

    /// The worker at which a step's wave of a chunk starts.
    fn start(&self, step: u64, chunk: usize) -> Rank {
        let p = self.workers;
        let first = match self.start {
            Start::Fixed => 0,
            Start::Rotate(by) => (step as i64 * by).rem_euclid(p as i64) as usize,
            Start::Random => self.stream.below(step, p as u64) as usize,
        };
        (first + chunk) % p
    }

    /// A worker's position in a step's wave of a chunk.
    fn position(&self, step: u64, chunk: usize, rank: Rank) -> usize {
        (rank + self.workers - self.start(step, chunk)) % self.workers
    }

    /// Whether a step ends with a full average.
    fn brings_together(&self, step: u64) -> bool {
        self.sync_every > 0 && (step + 1).is_multiple_of(self.sync_every)
    }

    /// What a contribution at a position is multiplied by.
    fn share(&self, position: usize) -> f64 {
        if self.push_sum { 1.0 / (self.workers - position) as f64 } else { 1.0 }
    }
}
