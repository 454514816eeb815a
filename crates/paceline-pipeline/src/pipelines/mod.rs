//! The registry of pipelines. To add one: write its file, then add its line to [`PIPELINES`].

mod gpipe;
mod one_forward_one_backward;

use crate::check::CheckedProgram;
use crate::program::{PipelineProgram, ProgramError};
use paceline_protocol::Work;

/// A pipeline that users can name.
pub struct Pipeline {
    /// The name on the command line.
    pub name: &'static str,
    /// One line for help texts and tables.
    pub about: &'static str,
    /// The idle part of each rank's time where all stages take the same time: a formula in s stages and m micro-batches.
    pub bubble: &'static str,
    /// The slots of stage i: a formula.
    pub slots: &'static str,
    /// The work of a rank.
    pub order: fn(PipelinePlace) -> Vec<Work>,
}

paceline_registry::entries!(Pipeline, PIPELINES);

/// A rank's place in a pipeline.
#[derive(Clone, Copy, Debug)]
pub struct PipelinePlace {
    /// The rank.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of micro-batches.
    pub micro_batches: usize,
}

impl Pipeline {
    /// The program of this many ranks and micro-batches.
    pub fn program(&self, ranks: usize, micro_batches: usize) -> Result<CheckedProgram, ProgramError> {
        let order = |rank| (self.order)(PipelinePlace { rank, ranks, micro_batches });
        PipelineProgram::new((0..ranks).map(order)).check(None, Some(micro_batches))
    }
}

/// Every pipeline.
pub static PIPELINES: &[Pipeline] = &[gpipe::PIPELINE, one_forward_one_backward::PIPELINE];
