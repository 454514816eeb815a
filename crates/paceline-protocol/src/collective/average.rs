//! Weights are averaged along an exact path after each worker's own update: every step, or every H steps
//! (local SGD), with an optional outer optimiser that treats what the average has moved as a gradient.

use super::regions;
use crate::exchange::{Exchange, lanes};
use crate::schedule::Path;
use crate::setup::Setup;
use crate::stepper::Rounds;
use crate::vocabulary::{Action, Actions, Buf, MsgId, OpId, Rank, Region, Tag, Weigh};

/// Nesterov's momentum on the averages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outer {
    /// Its learning rate.
    pub lr: f32,
    /// Its momentum.
    pub momentum: f32,
}

/// Averages weights.
pub struct Average {
    exchange: Exchange,
    workers: usize,
    /// Steps between two averages.
    every: u64,
    outer: Option<Outer>,
    scratch: Vec<usize>,
    step: u64,
}

impl Average {
    /// A worker's part along a path.
    pub fn new(setup: &Setup, rank: Rank, path: Path, every: u64, outer: Option<Outer>) -> Self {
        let schedule = (path.reduce)(rank, setup.workers);
        let lanes = regions(Buf::Param, lanes(setup, &schedule));
        let mut exchange = Exchange::new(setup, schedule, lanes, 0).patient();
        let mut scratch = Vec::new();
        if outer.is_some() {
            scratch.extend([setup.params; 2]);
        }
        if let Some(coder) = setup.coder {
            let outbox = Buf::Scratch(scratch.len() as u16);
            scratch.push(exchange.outbox_len(coder));
            exchange = exchange.with_hops(coder, outbox);
        }
        Self { exchange, workers: setup.workers, every, outer, scratch, step: 0 }
    }

    /// Whether the weights are averaged after the present step.
    fn due(&self) -> bool {
        (self.step + 1).is_multiple_of(self.every)
    }

    /// The sum is there: makes it the mean, or what the outer optimiser makes of it.
    fn settle(&self, lane: usize, out: &mut Actions) {
        let params = self.exchange.region(lane);
        if self.workers > 1 {
            out.push(Action::Scale { dst: params, by: 1.0 / self.workers as f32 });
        }
        let Some(Outer { lr, momentum }) = self.outer else { return };
        let [anchor, velocity] = [0, 1].map(|n| Region { buf: Buf::Scratch(n), ..params });
        // What the workers have moved since the last average, from where they all were.
        out.push(Action::Mix { dst: params, keep: 1.0, src: anchor, add: -1.0 });
        out.push(Action::Mix { dst: velocity, keep: momentum, src: params, add: 1.0 });
        out.push(Action::Mix { dst: anchor, keep: 1.0, src: params, add: lr });
        out.push(Action::Mix { dst: anchor, keep: 1.0, src: velocity, add: lr * momentum });
        out.push(Action::Copy { dst: params, src: anchor });
    }
}

impl Rounds for Average {
    fn weigh(&self) -> Weigh {
        Weigh::Even
    }

    fn begin(&mut self, step: u64, out: &mut Actions) {
        self.step = step;
        if self.outer.is_some() && step == 0 {
            for lane in 0..self.exchange.len() {
                let src = self.exchange.region(lane);
                out.push(Action::Copy { dst: Region { buf: Buf::Scratch(0), ..src }, src });
            }
        }
        if self.due() {
            self.exchange.begin(step);
        }
    }

    fn gradients(&mut self, _: usize, _: &mut Actions) {}

    fn backward_done(&mut self, out: &mut Actions) {
        for lane in 0..self.exchange.len() {
            let params = self.exchange.region(lane);
            let grad = Region { buf: Buf::Grad, ..params };
            out.push(Action::Apply { params, grad, step: self.step, whole: true });
            if self.due() && self.exchange.start(lane, out) {
                self.settle(lane, out);
            }
        }
    }

    fn message(&mut self, _: Rank, tag: Tag, msg: Option<MsgId>, out: &mut Actions) {
        if let Some(lane) = msg.and_then(|msg| self.exchange.message(tag, msg, out)) {
            self.settle(lane, out);
        }
    }

    fn sent(&mut self, op: OpId, out: &mut Actions) {
        if let Some(lane) = self.exchange.sent(op, out) {
            self.settle(lane, out);
        }
    }

    fn over(&self) -> bool {
        !self.due() || self.exchange.over()
    }

    fn waiting_for(&self) -> Option<Rank> {
        self.exchange.waiting_for()
    }

    fn release(&mut self, out: &mut Actions) {
        self.exchange.release(out);
    }

    fn scratch(&self) -> Vec<usize> {
        self.scratch.clone()
    }
}
