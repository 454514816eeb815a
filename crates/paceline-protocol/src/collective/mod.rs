//! Workers of the exact paths. Which path is a schedule; what is sent along it is one of:
//!
//! - [`sum`]: gradients, summed while backward goes on, then one common update
//! - [`average`]: weights, after each worker's own update, every step or every H steps
//! - [`gather`]: encoded gradients, gathered from everybody, decoded and summed by each
//! - [`by_lane`]: what these three have in common
//! - [`low_rank`]: factors of gradient matrices, summed in two small all-reduces

pub mod average;
pub mod by_lane;
pub mod gather;
pub mod low_rank;
pub mod sum;

use std::ops::Range;
use std::sync::Arc;

use crate::codec::Family;
use crate::schedule::{CollectivePath, Schedule};
use crate::setup::{Averages, Refusal, Setup};
use crate::step_driver::StepDriver;
use crate::strategies::ReplicaAgreement;
use crate::vocabulary::{Buf, Participant, Rank, Region};

/// The worker of an exact path.
pub fn make(path: CollectivePath, setup: &Setup, rank: Rank) -> Box<dyn Participant> {
    match (setup.averages, setup.coder.map(|coder| (coder, coder.codec.family))) {
        (Averages::Weights, _) => {
            Box::new(StepDriver::new(setup, rank, average::Average::along(path, setup, rank, 1, None)))
        }
        (_, Some((coder, Family::Gathered))) => {
            Box::new(StepDriver::new(setup, rank, gather::Gather::along(path, setup, rank, coder)))
        }
        (_, Some((coder, Family::LowRank))) => {
            Box::new(StepDriver::new(setup, rank, low_rank::LowRank::new(setup, rank, path, coder)))
        }
        (_, None | Some((_, Family::PerHop))) => {
            Box::new(StepDriver::new(setup, rank, sum::Sum::along(path, setup, rank)))
        }
    }
}

/// What an exact path refuses.
pub fn check(setup: &Setup) -> Result<(), Refusal> {
    let lossy = setup.coder.filter(|coder| coder.codec.family != Family::PerHop);
    match (setup.averages, lossy) {
        (Averages::Weights, Some(coder)) => Err(Refusal::new(
            "--compression",
            coder,
            "this codec is for gradients: weights that lose this much do not come back; fp16 is valid for \
             weights, and every codec with --averages gradients where the strategy has it",
        )),
        _ => Ok(()),
    }
}

/// Without a codec, an exact path is exact; with one, everybody still gets the same.
pub fn agreement(setup: &Setup) -> ReplicaAgreement {
    if setup.coder.is_none() { ReplicaAgreement::Exact } else { ReplicaAgreement::Common }
}

/// Lanes as regions of a buffer.
fn regions(
    buf: Buf,
    lanes: impl IntoIterator<Item = (Range<usize>, Arc<Schedule>)>,
) -> impl Iterator<Item = (Region, Arc<Schedule>)> {
    lanes.into_iter().map(move |(range, schedule)| (Region::new(buf, range), schedule))
}
