//! Codecs that need error feedback: each worker encodes a lane of its gradient once and keeps the rest for
//! the next step; the codes are gathered by everybody, decoded and summed in rank order. Encoding sums again
//! on every hop would lose what no residual could bring back.

use std::ops::Range;

use crate::codec::{Coder, Into};
use crate::exchange::Exchange;
use crate::schedule::{Path, Schedule};
use crate::setup::{Setup, pieces};
use crate::stepper::Rounds;
use crate::vocabulary::{Action, Actions, Buf, MsgId, OpId, Rank, Region, Tag, Weigh};

/// What has not been sent yet, laid out like the gradients.
const REST: Buf = Buf::Scratch(0);
/// Everybody's codes: for each lane a slot per rank.
const CODES: Buf = Buf::Scratch(1);

/// Gathers encoded gradients.
pub struct Gather {
    exchange: Exchange,
    lanes: Vec<Range<usize>>,
    coder: Coder,
    rank: Rank,
    workers: usize,
    params: usize,
    step: u64,
}

/// The lanes: short enough that the codes which travel together fit into a message.
fn lanes(setup: &Setup, schedule: &Schedule, coder: Coder) -> Vec<Range<usize>> {
    let fits = |len: &usize| *len <= 1 || coder.words(*len) * schedule.piece <= setup.message;
    let most = (1..).map(|n| setup.message / n).find(fits).unwrap_or(1);
    setup.buckets().iter().flat_map(|bucket| pieces(bucket, most)).collect()
}

impl Gather {
    /// A worker's part along a path.
    pub fn new(setup: &Setup, rank: Rank, path: Path, coder: Coder) -> Self {
        let schedule = (path.gather)(rank, setup.workers);
        let lanes = lanes(setup, &schedule, coder);
        let mut at = 0;
        let slots = lanes.iter().map(|lane| {
            let len = coder.words(lane.len()) * setup.workers;
            at += len;
            Region { buf: CODES, offset: at - len, len }
        });
        let exchange = Exchange::new(setup, schedule, slots.collect(), 0);
        let (workers, params) = (setup.workers, setup.params);
        Self { exchange, lanes, coder, rank, workers, params, step: 0 }
    }

    /// A rank's slot in a lane.
    fn slot(&self, lane: usize, rank: Rank) -> Region {
        let len = self.coder.words(self.lanes[lane].len());
        Region { buf: CODES, offset: self.exchange.region(lane).offset + rank * len, len }
    }

    fn start(&mut self, lane: usize, out: &mut Actions) {
        let [rest, grad] = [REST, Buf::Grad].map(|buf| Region::new(buf, self.lanes[lane].clone()));
        out.push(Action::Reduce { dst: rest, src: grad });
        let dst = self.slot(lane, self.rank);
        out.push(Action::Encode { coder: self.coder, dst, src: rest, feedback: true });
        if self.exchange.start(lane, out) {
            self.apply(lane, out);
        }
    }

    /// All codes are there.
    fn apply(&self, lane: usize, out: &mut Actions) {
        let grad = Region::new(Buf::Grad, self.lanes[lane].clone());
        for rank in 0..self.workers {
            let into = if rank == 0 { Into::Set } else { Into::Add };
            out.push(Action::Decode { coder: self.coder, dst: grad, src: self.slot(lane, rank), into });
        }
        let params = Region { buf: Buf::Param, ..grad };
        out.push(Action::Apply { params, grad, step: self.step, whole: true });
    }
}

impl Rounds for Gather {
    fn weigh(&self) -> Weigh {
        Weigh::Part
    }

    fn begin(&mut self, step: u64, _: &mut Actions) {
        self.step = step;
        self.exchange.begin(step);
    }

    fn gradients(&mut self, from: usize, out: &mut Actions) {
        for lane in 0..self.lanes.len() {
            if self.exchange.idle(lane) {
                if self.lanes[lane].start < from {
                    break;
                }
                self.start(lane, out);
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
        let codes = (0..self.lanes.len()).map(|lane| self.exchange.region(lane).len).sum();
        vec![self.params, codes]
    }
}
