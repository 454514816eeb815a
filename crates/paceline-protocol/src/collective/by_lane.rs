//! What sums, averages and gathers have in common: each lane is prepared, exchanged along the path, and
//! settled by itself.

use crate::exchange::Exchange;
use crate::step_driver::StepProtocol;
use crate::vocabulary::{Actions, GradientScale, MsgId, OpId, Rank, Tag};

/// What is done with a lane before and after its exchange.
pub trait LaneProtocol: Send {
    /// How the gradient is weighted.
    fn scale(&self) -> GradientScale;
    /// A step begins.
    fn begin(&self, _step: u64, _exchange: &Exchange, _out: &mut Actions) {}
    /// The first element of a lane's gradient if the lane can be exchanged while backward goes on; none if
    /// it has to wait until that is over.
    fn starts(&self, lane: usize, exchange: &Exchange) -> Option<usize>;
    /// What comes before the exchange.
    fn prepare(&self, _lane: usize, _step: u64, _exchange: &Exchange, _out: &mut Actions) {}
    /// Whether there is an exchange in a step.
    fn due(&self, _step: u64) -> bool {
        true
    }
    /// What comes after it.
    fn settle(&self, lane: usize, step: u64, exchange: &Exchange, out: &mut Actions);
    /// Lengths of the scratch buffers.
    fn scratch(&self) -> Vec<usize>;
}

/// A worker that goes lane by lane.
pub struct LaneWorker<L> {
    lanes: L,
    exchange: Exchange,
    step: u64,
    /// Lanes that are prepared, always the first ones.
    prepared: usize,
}

impl<L: LaneProtocol> LaneWorker<L> {
    /// Lanes, and the exchange that they go through.
    pub fn new(lanes: L, exchange: Exchange) -> Self {
        Self { lanes, exchange, step: 0, prepared: 0 }
    }

    fn start(&mut self, out: &mut Actions) {
        let lane = self.prepared;
        self.prepared += 1;
        self.lanes.prepare(lane, self.step, &self.exchange, out);
        if self.lanes.due(self.step) && self.exchange.start(lane, out) {
            self.settle(Some(lane), out);
        }
    }

    fn settle(&self, ended: Option<usize>, out: &mut Actions) {
        if let Some(lane) = ended {
            self.lanes.settle(lane, self.step, &self.exchange, out);
        }
    }
}

impl<L: LaneProtocol> StepProtocol for LaneWorker<L> {
    fn scale(&self) -> GradientScale {
        self.lanes.scale()
    }

    fn begin(&mut self, step: u64, out: &mut Actions) {
        (self.step, self.prepared) = (step, 0);
        self.lanes.begin(step, &self.exchange, out);
        if self.lanes.due(step) {
            self.exchange.begin(step);
        }
    }

    /// Lanes become final in their order.
    fn gradients(&mut self, from: usize, out: &mut Actions) {
        while self.prepared < self.exchange.len()
            && self.lanes.starts(self.prepared, &self.exchange).is_some_and(|start| start >= from)
        {
            self.start(out);
        }
    }

    fn backward_done(&mut self, out: &mut Actions) {
        while self.prepared < self.exchange.len() {
            self.start(out);
        }
    }

    fn message(&mut self, _: Rank, tag: Tag, msg: Option<MsgId>, out: &mut Actions) {
        let ended = msg.and_then(|msg| self.exchange.message(tag, msg, out));
        self.settle(ended, out);
    }

    fn sent(&mut self, op: OpId, out: &mut Actions) {
        let ended = self.exchange.sent(op, out);
        self.settle(ended, out);
    }

    fn over(&self) -> bool {
        !self.lanes.due(self.step) || self.exchange.over()
    }

    fn waiting_for(&self) -> Option<Rank> {
        self.exchange.waiting_for()
    }

    fn release(&mut self, out: &mut Actions) {
        self.exchange.release(out);
    }

    fn scratch(&self) -> Vec<usize> {
        self.lanes.scratch()
    }
}
