//! Weights are averaged along an exact path after each worker's own update: every step, or every H steps
//! (local SGD), with an optional outer optimiser that treats what the average has moved as a gradient.

use super::by_lane::{LaneProtocol, LaneWorker};
use super::regions;
use crate::exchange::{Exchange, lanes};
use crate::schedule::CollectivePath;
use crate::setup::Setup;
use crate::vocabulary::{Action, Actions, Buf, GradientScale, Rank, Region};

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
    workers: usize,
    /// Whether they are summed beside the parameters.
    apart: bool,
    every: u64,
    outer: Option<Outer>,
    scratch: Vec<usize>,
}

impl Average {
    /// A worker's part along a path.
    pub fn along(
        path: CollectivePath,
        setup: &Setup,
        rank: Rank,
        every: u64,
        outer: Option<Outer>,
    ) -> LaneWorker<Self> {
        let mut scratch = Vec::new();
        if outer.is_some() {
            scratch.extend([setup.params; 2]);
        }
        let mut summed = Buf::Param;
        if setup.sums_apart {
            summed = Buf::Scratch(scratch.len() as u16);
            scratch.push(setup.params);
        }
        let lanes = regions(summed, lanes(setup, path, rank));
        let mut exchange = Exchange::new(setup, lanes, 0).patient();
        if let Some(coder) = setup.coder {
            let outbox = Buf::Scratch(scratch.len() as u16);
            scratch.push(exchange.outbox_len(coder));
            exchange = exchange.with_hops(coder, outbox);
        }
        LaneWorker::new(
            Self { workers: setup.workers, apart: setup.sums_apart, every, outer, scratch },
            exchange,
        )
    }
}

/// Where a lane's parameters lie.
fn params(exchange: &Exchange, lane: usize) -> Region {
    Region { buf: Buf::Param, ..exchange.region(lane) }
}

impl LaneProtocol for Average {
    fn scale(&self) -> GradientScale {
        GradientScale::Even
    }

    fn begin(&self, step: u64, exchange: &Exchange, out: &mut Actions) {
        if self.outer.is_some() && step == 0 {
            for lane in 0..exchange.len() {
                let src = params(exchange, lane);
                out.push(Action::Copy { dst: Region { buf: Buf::Scratch(0), ..src }, src });
            }
        }
    }

    /// Weights are averaged once they are updated.
    fn starts(&self, _: usize, _: &Exchange) -> Option<usize> {
        None
    }

    fn prepare(&self, lane: usize, step: u64, exchange: &Exchange, out: &mut Actions) {
        let params = params(exchange, lane);
        let grad = Region { buf: Buf::Grad, ..params };
        out.push(Action::Apply { params, grad, step, whole: true });
        if self.apart && self.due(step) {
            out.push(Action::Copy { dst: exchange.region(lane), src: params });
        }
    }

    fn due(&self, step: u64) -> bool {
        (step + 1).is_multiple_of(self.every)
    }

    /// The sum is there: makes it the mean, or what the outer optimiser makes of it.
    fn settle(&self, lane: usize, _: u64, exchange: &Exchange, out: &mut Actions) {
        let (params, sum) = (params(exchange, lane), exchange.region(lane));
        if self.workers > 1 {
            out.push(Action::Scale { dst: sum, by: 1.0 / self.workers as f32 });
        }
        if self.apart {
            out.push(Action::Copy { dst: params, src: sum });
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

    fn scratch(&self) -> Vec<usize> {
        self.scratch.clone()
    }
}
