//! The computation of a unit of work, and what is exchanged meanwhile: gradients that are final, and what goes from stage to
//! stage.

use std::time::{Duration, Instant};

use paceline_memory::TensorStorage;
use paceline_nn::Outcome;
use paceline_plan::Straggler;
use paceline_protocol::{Input, OpId, Rank, WorkKind};
use paceline_random::{Purpose, Stream};

use crate::clock::Clock;
use crate::crossings::Crossings;
use crate::engine::{Begin, Engine, StagePass};
use crate::error::TrainError;
use crate::memory::{BackwardMemory, FinishedGradients, Scratch};
use crate::source::{GradientSink, GradientSource};
use crate::update::Update;
use crate::worker::Buffers;

/// Exchanges what a source finishes while it computes.
struct BackwardExchange<'a, 'g> {
    rank: Rank,
    engine: &'a mut Engine,
    update: &'a Update,
    finished: FinishedGradients<'g>,
    others: [&'a mut [TensorStorage]; 2],
    crossings: &'a mut Crossings,
    scratch: &'a mut Scratch,
    failed: Option<TrainError>,
    slowness: &'a Slowness,
    step: u64,
    /// When the pass under way began, and what had been exchanged by then.
    pass_began: (Instant, Duration),
    pass: Option<StagePass>,
    /// Micro-batches between forward and backward now, and at most.
    live: [u64; 2],
    /// Time of all passes, and what was exchanged during them.
    passes: Duration,
    exchanged: Duration,
}

impl BackwardExchange<'_, '_> {
    /// Lets the engine work on what is finished, unless it has failed.
    fn exchange<T>(
        &mut self,
        f: impl FnOnce(&mut Engine, &mut BackwardMemory<'_, '_>) -> Result<T, TrainError>,
    ) -> Option<T> {
        if self.failed.is_some() {
            return None;
        }
        let [before, behind] = &mut self.others;
        let others = [&mut **before, &mut **behind];
        let mut memory = BackwardMemory {
            grads: &mut self.finished,
            others,
            crossings: self.crossings,
            scratch: self.scratch,
        };
        f(self.engine, &mut memory).map_err(|error| self.failed = Some(error)).ok()
    }
}

impl<'g> GradientSink<'g> for BackwardExchange<'_, 'g> {
    fn finished(&mut self, offset: usize, slice: &'g mut [f32]) {
        self.update.quiet(offset, slice);
        let Some(from) = self.finished.push(offset, slice) else { return };
        self.exchange(|engine, memory| {
            engine.input_of_pass(Input::GradReady { from }, memory)?;
            engine.poll(memory)
        });
    }

    fn rate(&mut self, rate: f64) {
        let rank = self.rank;
        self.exchange(|engine, _| engine.tell_rate(rank, rate));
    }

    fn wait(&mut self, wait: Duration) -> bool {
        self.exchange(|engine, memory| engine.wait_beside(wait, memory)).unwrap_or(true)
    }

    fn next_pass(&mut self) -> Option<StagePass> {
        let pass = self.exchange(|engine, memory| engine.next_pass(memory)).flatten();
        self.pass_began = (Instant::now(), self.engine.times.send);
        self.pass = pass;
        if pass.is_some_and(|pass| pass.work.kind == WorkKind::Forward) {
            self.live[0] += 1;
            self.live[1] = self.live[1].max(self.live[0]);
        }
        pass
    }

    fn crossings(&mut self) -> &mut Crossings {
        self.crossings
    }

    fn between_layers(&mut self) {
        self.exchange(|engine, memory| engine.poll(memory));
    }

    fn pass_over(&mut self) -> Duration {
        let (began, sent) = self.pass_began;
        let exchanged = self.engine.times.send - sent;
        let pause = self.slowness.pause(self.step, began.elapsed().saturating_sub(exchanged));
        std::thread::sleep(pause);
        let took = began.elapsed();
        self.passes += took.saturating_sub(exchanged);
        self.exchanged += exchanged;
        if let Some(pass) = self.pass {
            self.live[0] -= u64::from(pass.work.kind == WorkKind::Backward).min(self.live[0]);
            if let Some(watch) = &self.engine.watch {
                watch.pass(self.step, &pass, took);
            }
        }
        exchanged
    }

    fn passed(&mut self, op: OpId) {
        self.exchange(|engine, memory| {
            engine.catch_up(memory)?;
            engine.input_of_pass(Input::Ran(op), memory)
        });
    }
}

/// What came of a unit of work.
pub(crate) struct Computed {
    /// Sums over its samples.
    pub(crate) outcome: Outcome,
    /// Time that the exchange took meanwhile.
    pub(crate) exchanged: Duration,
    /// Time of the passes of a stage.
    pub(crate) passes: Duration,
    /// Most micro-batches of a stage that were between forward and backward at once.
    pub(crate) live_slots: u64,
}

/// Computes a unit's gradient for a position while what is final is exchanged. None if the source has run out of work.
pub(crate) fn compute(
    rank: Rank,
    source: &mut dyn GradientSource,
    engine: &mut Engine,
    buffers: &mut Buffers,
    slowness: &Slowness,
    (begin, slot): (&Begin, usize),
    clock: &mut Clock,
) -> Result<Option<Computed>, TrainError> {
    let Buffers { params, grads, crossings, scratch, update } = buffers;
    let (before, rest) = grads.split_at_mut(slot);
    let (own, behind) = rest.split_first_mut().expect("a buffer for every position");
    let finished = FinishedGradients::of(own.len());
    let sent = engine.times.send;
    let mut sink = BackwardExchange {
        rank,
        engine,
        update,
        finished,
        others: [before, behind],
        crossings,
        scratch,
        failed: None,
        slowness,
        step: begin.step,
        pass_began: (Instant::now(), sent),
        pass: None,
        live: [0; 2],
        passes: Duration::ZERO,
        exchanged: Duration::ZERO,
    };
    let outcome = source.gradient(begin, slot, params, own, &mut sink, clock);
    let BackwardExchange { failed, passes, exchanged, live: [_, live_slots], .. } = sink;
    if let Some(error) = failed {
        return Err(error);
    }
    // Between the passes of a stage, what is exchanged is no part of any.
    let exchanged = if passes.is_zero() { engine.times.send - sent } else { exchanged };
    Ok(outcome?.map(|outcome| Computed { outcome, exchanged, passes, live_slots }))
}

/// Stretches a worker's computation.
pub struct Slowness {
    /// What the plan says.
    pub straggler: Option<Straggler>,
    /// The worker.
    pub rank: Rank,
    /// Number of workers.
    pub workers: usize,
    /// The plan's seed.
    pub seed: u64,
}

impl Slowness {
    /// How many times as long a step takes: at least 1.
    pub fn factor(&self, step: u64) -> f64 {
        let factor: f64 = match self.straggler {
            Some(Straggler::One { rank, factor }) if rank == self.rank => factor,
            Some(Straggler::Moving { factor }) => {
                let slow = Stream::new(self.seed, Purpose::Straggler).below(step, self.workers as u64);
                if slow == self.rank as u64 { factor } else { 1.0 }
            }
            Some(Straggler::Lognormal { sigma }) => {
                let draws = Stream::new(self.seed, Purpose::Straggler).fork(self.rank as u64);
                (sigma * draws.normal(step)).exp()
            }
            _ => 1.0,
        };
        factor.max(1.0)
    }

    pub(crate) fn pause(&self, step: u64, computed: Duration) -> Duration {
        computed.mul_f64(self.factor(step) - 1.0)
    }
}
