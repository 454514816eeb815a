//! A pipeline as it is asked for: by name or from a file, for a network or for none.

use std::path::{Path, PathBuf};

use paceline_nn::Graph;

use crate::check::CheckedProgram;
use crate::costs::{CutCosts, LayerCost};
use crate::cuts::{CutError, Cuts};
use crate::pipelines::Pipeline;
use crate::program::{PipelineProgram, ProgramError};
use crate::report::{PipelineReport, TimeUnit};

/// A pipeline as it is asked for.
pub struct PipelineRequest<'a> {
    /// Which work is done when.
    pub program: ProgramSource<'a>,
    /// Number of micro-batches; of a file those that it has.
    pub micro_batches: Option<usize>,
    /// Where the network is cut.
    pub cuts: &'a Cuts,
    /// Samples of a batch.
    pub batch: usize,
    /// The nanoseconds that so many samples take in each layer, or why they are not known; where there is nothing to ask,
    /// operations are counted.
    pub measured: Option<&'a MeasuredCosts<'a>>,
}

/// The nanoseconds that so many samples take in each layer, or why they are not known.
pub type MeasuredCosts<'a> = dyn Fn(&Graph, usize) -> Result<Vec<LayerCost>, String> + 'a;

/// Where a program comes from.
pub enum ProgramSource<'a> {
    /// A registered one, for this many stages.
    Named(&'static Pipeline, usize),
    /// A file.
    File(&'a Path),
}

/// A pipeline that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The program of a file.
    #[error("{}: {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        source: ProgramError,
    },
    /// The program of a registered pipeline.
    #[error("--pipeline {name}: {source}")]
    Named {
        /// Its name.
        name: &'static str,
        /// What is wrong with it.
        source: ProgramError,
    },
    /// The cut.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// What layers cost was asked for and is not known.
    #[error("{0}")]
    Costs(String),
    /// More micro-batches than samples.
    #[error("--micro-batches {micro_batches}: must be between 1 and --batch ({batch})")]
    MicroBatches {
        /// The micro-batches.
        micro_batches: usize,
        /// The samples.
        batch: usize,
    },
}

impl PipelineRequest<'_> {
    /// The program, and what is known of it: for a network, or for stages that all take the same.
    pub fn report(&self, graph: Option<&Graph>) -> Result<(CheckedProgram, PipelineReport), PipelineError> {
        let (name, program) = match self.program {
            ProgramSource::Named(pipeline, stages) => {
                let refused = |source| PipelineError::Named { name: pipeline.name, source };
                let program = pipeline.program(stages, self.micro_batches.unwrap_or(1)).map_err(refused)?;
                (pipeline.name.to_owned(), program)
            }
            ProgramSource::File(file) => {
                let refused = |source| PipelineError::File { file: file.into(), source };
                let program = PipelineProgram::read(file)
                    .and_then(|program| program.check(None, self.micro_batches))
                    .map_err(refused)?;
                (file.display().to_string(), program)
            }
        };
        let report = match graph {
            None => PipelineReport::of_equal_stages(&name, &program),
            Some(graph) => {
                let (micro_batches, batch) = (program.micro_batches(), self.batch);
                if micro_batches > batch {
                    return Err(PipelineError::MicroBatches { micro_batches, batch });
                }
                let samples = batch.div_ceil(micro_batches);
                let (unit, costs) = match self.measured {
                    None => (TimeUnit::Operations, CutCosts::counted(graph, samples)),
                    Some(measured) => {
                        let layers = measured(graph, samples).map_err(PipelineError::Costs)?;
                        (TimeUnit::Nanoseconds, CutCosts::measured(graph, samples, layers))
                    }
                };
                let cuts = self.cuts.find(graph, &costs, program.stages())?;
                PipelineReport::of_graph(&name, &program, graph, (unit, &costs.layers), &cuts, samples)
            }
        };
        Ok((program, report))
    }
}
