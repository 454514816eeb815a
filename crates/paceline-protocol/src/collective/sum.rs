//! Gradients are summed lane by lane, each lane as soon as backward has finished it, and every worker
//! applies the same update.

use super::regions;
use crate::exchange::{Exchange, lanes};
use crate::schedule::Path;
use crate::setup::Setup;
use crate::stepper::Rounds;
use crate::vocabulary::{Action, Actions, Buf, MsgId, OpId, Rank, Region, Tag, Weigh};

/// Sums gradients.
pub struct Sum {
    exchange: Exchange,
    /// Elements of the scratch buffer for codes.
    outbox: Option<usize>,
    step: u64,
}

impl Sum {
    /// A worker's part along a path.
    pub fn new(setup: &Setup, rank: Rank, path: Path) -> Self {
        let schedule = (path.reduce)(rank, setup.workers);
        let lanes = regions(Buf::Grad, lanes(setup, &schedule));
        let mut exchange = Exchange::new(setup, schedule, lanes, 0);
        let mut outbox = None;
        if let Some(coder) = setup.coder {
            outbox = Some(exchange.outbox_len(coder));
            exchange = exchange.with_hops(coder, Buf::Scratch(0));
        }
        Self { exchange, outbox, step: 0 }
    }

    fn apply(&self, lane: usize, out: &mut Actions) {
        let grad = self.exchange.region(lane);
        let params = Region { buf: Buf::Param, ..grad };
        out.push(Action::Apply { params, grad, step: self.step, whole: true });
    }
}

impl Rounds for Sum {
    fn weigh(&self) -> Weigh {
        Weigh::Part
    }

    fn begin(&mut self, step: u64, _: &mut Actions) {
        self.step = step;
        self.exchange.begin(step);
    }

    /// Lanes become final in their order.
    fn gradients(&mut self, from: usize, out: &mut Actions) {
        for lane in 0..self.exchange.len() {
            if self.exchange.idle(lane) {
                if self.exchange.region(lane).offset < from {
                    break;
                }
                if self.exchange.start(lane, out) {
                    self.apply(lane, out);
                }
            }
        }
    }

    fn backward_done(&mut self, _: &mut Actions) {}

    fn message(&mut self, _: Rank, tag: Tag, msg: Option<MsgId>, out: &mut Actions) {
        if let Some(lane) = msg.and_then(|msg| self.exchange.message(tag, msg, out)) {
            self.apply(lane, out);
        }
    }

    fn sent(&mut self, op: OpId, out: &mut Actions) {
        if let Some(lane) = self.exchange.sent(op, out) {
            self.apply(lane, out);
        }
    }

    fn over(&self) -> bool {
        self.exchange.over()
    }

    fn waiting_for(&self) -> Option<Rank> {
        self.exchange.waiting_for()
    }

    fn release(&mut self, out: &mut Actions) {
        self.exchange.release(out);
    }

    fn scratch(&self) -> Vec<usize> {
        self.outbox.into_iter().collect()
    }
}
