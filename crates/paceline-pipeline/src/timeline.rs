//! When the work of a program is done, with constant times: work begins when its rank is free and what it waits for
//! has arrived.

use crate::check::CheckedProgram;
use paceline_protocol::{Work, WorkKind};

/// What a micro-batch takes in a stage, in units of the caller's: nanoseconds, or counted operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageTimes {
    /// Its forward pass.
    pub forward: u64,
    /// Its backward pass.
    pub backward: u64,
}

impl StageTimes {
    /// Both passes.
    pub fn both(self) -> u64 {
        self.forward + self.backward
    }
}

/// Work and when it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedWork {
    /// The work.
    pub work: Work,
    /// When it begins.
    pub start: u64,
    /// When it ends.
    pub end: u64,
}

/// When each rank does its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineTimeline {
    /// The work of each rank, in order.
    pub ranks: Vec<Vec<TimedWork>>,
    /// When the last work ends.
    pub length: u64,
}

impl CheckedProgram {
    /// When work is done if stages take these times and what goes from rank to rank takes `latency`.
    pub fn timeline(&self, times: &[StageTimes], latency: u64) -> PipelineTimeline {
        let mut ranks: Vec<Vec<TimedWork>> = vec![Vec::new(); self.ranks().len()];
        let mut ends = vec![vec![[0; 2]; self.micro_batches()]; self.stages()];
        for &work in self.order() {
            let rank = self.rank_of(work.stage);
            let arrival = work.waits_for(self.stages()).map_or(0, |other| {
                let end = ends[other.stage][other.micro][other.kind as usize];
                if self.rank_of(other.stage) == rank { end } else { end + latency }
            });
            let free = ranks[rank].last().map_or(0, |last| last.end);
            let time = match work.kind {
                WorkKind::Forward => times[work.stage].forward,
                WorkKind::Backward => times[work.stage].backward,
            };
            let start = free.max(arrival);
            ends[work.stage][work.micro][work.kind as usize] = start + time;
            ranks[rank].push(TimedWork { work, start, end: start + time });
        }
        let length = ranks.iter().filter_map(|rank| rank.last()).map(|last| last.end).max().unwrap_or(0);
        PipelineTimeline { ranks, length }
    }
}

impl PipelineTimeline {
    /// How long a rank has nothing to do.
    pub fn idle(&self, rank: usize) -> u64 {
        self.length - self.ranks[rank].iter().map(|timed| timed.end - timed.start).sum::<u64>()
    }

    /// The idle part of all ranks' time.
    pub fn bubble(&self) -> f64 {
        let idle: u64 = (0..self.ranks.len()).map(|rank| self.idle(rank)).sum();
        idle as f64 / (self.ranks.len() as u64 * self.length).max(1) as f64
    }
}
