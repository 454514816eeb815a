//! Gradients are summed lane by lane, each lane as soon as backward has finished it, and every worker
//! applies the same update.

use super::by_lane::{LaneProtocol, LaneWorker};
use super::regions;
use crate::exchange::{Exchange, lanes};
use crate::schedule::CollectivePath;
use crate::setup::Setup;
use crate::vocabulary::{Action, Actions, Buf, GradientScale, Rank, Region};

/// Sums gradients.
pub struct Sum {
    /// Elements of the scratch buffer for codes.
    outbox: Option<usize>,
}

impl Sum {
    /// A worker's part along a path.
    pub fn along(path: CollectivePath, setup: &Setup, rank: Rank) -> LaneWorker<Self> {
        let mut exchange = Exchange::new(setup, regions(Buf::Grad, lanes(setup, path, rank)), 0);
        let mut outbox = None;
        if let Some(coder) = setup.coder {
            outbox = Some(exchange.outbox_len(coder));
            exchange = exchange.with_hops(coder, Buf::Scratch(0));
        }
        LaneWorker::new(Self { outbox }, exchange)
    }
}

impl LaneProtocol for Sum {
    fn scale(&self) -> GradientScale {
        GradientScale::Part
    }

    fn starts(&self, lane: usize, exchange: &Exchange) -> Option<usize> {
        Some(exchange.region(lane).offset)
    }

    fn settle(&self, lane: usize, step: u64, exchange: &Exchange, out: &mut Actions) {
        let grad = exchange.region(lane);
        let params = Region { buf: Buf::Param, ..grad };
        out.push(Action::Apply { params, grad, step, whole: true });
    }

    fn scratch(&self) -> Vec<usize> {
        self.outbox.into_iter().collect()
    }
}
