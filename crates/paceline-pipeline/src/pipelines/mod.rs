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

/// Most passes of a program: half a gigabyte with all that is known of it.
const MOST_PASSES: usize = 2 << 20;

impl Pipeline {
    /// The program of this many ranks and micro-batches.
    pub fn program(&self, ranks: usize, micro_batches: usize) -> Result<CheckedProgram, ProgramError> {
        let passes = 2_usize.saturating_mul(ranks).saturating_mul(micro_batches);
        if passes > MOST_PASSES {
            return Err(ProgramError::Passes { stages: ranks, micro_batches, passes, most: MOST_PASSES });
        }
        let order = |rank| (self.order)(PipelinePlace { rank, ranks, micro_batches });
        PipelineProgram::new((0..ranks).map(order)).check(None, Some(micro_batches))
    }
}

/// Every pipeline.
pub static PIPELINES: &[Pipeline] = &[gpipe::PIPELINE, one_forward_one_backward::PIPELINE];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_too_many_passes_is_refused_before_it_is_made() {
        for pipeline in PIPELINES {
            assert_eq!(pipeline.program(2, 512).unwrap().order().len(), 2 * 2 * 512);
            let most = MOST_PASSES / 2 / 16;
            for (stages, micro_batches) in [(16, most + 1), (1024, 65536), (usize::MAX, usize::MAX)] {
                let refused = pipeline.program(stages, micro_batches).unwrap_err().to_string();
                assert!(
                    refused.starts_with(&format!("{stages} stages and {micro_batches} micro-batches are "))
                );
                assert!(
                    refused.contains("at most 2097152: give fewer --stages or --micro-batches"),
                    "{refused}"
                );
            }
        }
    }
}
