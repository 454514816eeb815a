//! Codecs that need error feedback: each worker encodes a lane of its gradient once and keeps the rest for
//! the next step; the codes are gathered by everybody, decoded and summed in rank order. Encoding sums again
//! on every hop would lose what no residual could bring back.

use std::ops::Range;
use std::sync::Arc;

use super::by_lane::{LaneProtocol, LaneWorker};
use crate::codec::{Accumulate, Coder};
use crate::exchange::{Exchange, Schedules};
use crate::schedule::{CollectivePath, Schedule};
use crate::setup::{Setup, pieces};
use crate::vocabulary::{Action, Actions, Buf, GradientScale, Rank, Region};

/// What has not been sent yet, laid out like the gradients.
const REST: Buf = Buf::Scratch(0);
/// Everybody's codes: for each lane a slot per rank.
const CODES: Buf = Buf::Scratch(1);

/// Gathers encoded gradients.
pub struct Gather {
    lanes: Vec<Range<usize>>,
    coder: Coder,
    rank: Rank,
    workers: usize,
    params: usize,
}

/// The lanes and how a rank gathers each: short enough that the codes which travel together fit into a message.
fn lanes(
    setup: &Setup,
    path: CollectivePath,
    rank: Rank,
    coder: Coder,
) -> Vec<(Range<usize>, Arc<Schedule>)> {
    let mut schedules = Schedules::new(path.gather, setup, rank);
    let cut = |bucket: Range<usize>| {
        let schedule = schedules.of(bucket.len());
        let most = coder.fitting(setup.message, setup.message / schedule.piece);
        pieces(&bucket, most).into_iter().map(move |lane| (lane, Arc::clone(&schedule)))
    };
    setup.buckets().into_iter().flat_map(cut).collect()
}

impl Gather {
    /// A worker's part along a path.
    pub fn along(path: CollectivePath, setup: &Setup, rank: Rank, coder: Coder) -> LaneWorker<Self> {
        let lanes = lanes(setup, path, rank, coder);
        let mut at = 0;
        let slots = lanes.iter().map(|(lane, schedule)| {
            let len = coder.words(lane.len()) * setup.workers;
            at += len;
            (Region { buf: CODES, offset: at - len, len }, Arc::clone(schedule))
        });
        let exchange = Exchange::new(setup, slots, 0);
        let lanes = lanes.into_iter().map(|(lane, _)| lane).collect();
        let (workers, params) = (setup.workers, setup.params);
        LaneWorker::new(Self { lanes, coder, rank, workers, params }, exchange)
    }

    /// A rank's slot in a lane.
    fn slot(&self, lane: usize, rank: Rank, exchange: &Exchange) -> Region {
        let len = self.coder.words(self.lanes[lane].len());
        Region { buf: CODES, offset: exchange.region(lane).offset + rank * len, len }
    }
}

impl LaneProtocol for Gather {
    fn scale(&self) -> GradientScale {
        GradientScale::Part
    }

    fn starts(&self, lane: usize, _: &Exchange) -> Option<usize> {
        Some(self.lanes[lane].start)
    }

    fn prepare(&self, lane: usize, _: u64, exchange: &Exchange, out: &mut Actions) {
        let [rest, grad] = [REST, Buf::Grad].map(|buf| Region::new(buf, self.lanes[lane].clone()));
        out.push(Action::Reduce { dst: rest, src: grad });
        let dst = self.slot(lane, self.rank, exchange);
        out.push(Action::Encode { coder: self.coder, dst, src: rest, feedback: true });
    }

    fn settle(&self, lane: usize, step: u64, exchange: &Exchange, out: &mut Actions) {
        let grad = Region::new(Buf::Grad, self.lanes[lane].clone());
        for rank in 0..self.workers {
            let into = if rank == 0 { Accumulate::Set } else { Accumulate::Add };
            let src = self.slot(lane, rank, exchange);
            out.push(Action::Decode { coder: self.coder, dst: grad, src, into });
        }
        let params = Region { buf: Buf::Param, ..grad };
        out.push(Action::Apply { params, grad, step, whole: true });
    }

    fn scratch(&self) -> Vec<usize> {
        let codes = self.lanes.iter().map(|lane| self.coder.words(lane.len()) * self.workers).sum();
        vec![self.params, codes]
    }
}
