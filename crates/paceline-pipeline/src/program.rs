//! The work of each rank of a pipeline, in order.

use paceline_protocol::Work;

/// The work of each rank, in order. [`PipelineProgram::check`] says whether it can be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineProgram {
    /// The ranks.
    pub ranks: Vec<RankProgram>,
}

/// The work of one rank, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankProgram {
    /// The line of the table that it stands on, from 1.
    pub line: usize,
    /// The work.
    pub work: Vec<Work>,
}

impl PipelineProgram {
    /// A program of these ranks.
    pub fn new(ranks: impl IntoIterator<Item = Vec<Work>>) -> Self {
        let ranks = ranks.into_iter().zip(1..).map(|(work, line)| RankProgram { line, work });
        Self { ranks: ranks.collect() }
    }
}

/// A program that cannot be run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProgramError {
    /// The table cannot be read.
    #[error("{0}")]
    Table(String),
    /// A cell is no work.
    #[error("line {line}, cell {cell}: `{text}`: {problem}")]
    Cell {
        /// The line, from 1.
        line: usize,
        /// The cell, from 1.
        cell: usize,
        /// What it says.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Work that cannot stand where it does.
    #[error("line {line}, {work} (stage {}): {problem}", work.stage)]
    Work {
        /// The line, from 1.
        line: usize,
        /// The work.
        work: Work,
        /// What is wrong with it.
        problem: String,
    },
    /// Work that no rank does.
    #[error("{work} (stage {}) is missing{}", work.stage, line.map_or_else(String::new, |line| format!(" in line {line}")))]
    Missing {
        /// The line that should have it, where the stage has one.
        line: Option<usize>,
        /// The work.
        work: Work,
    },
    /// More passes than a program can have.
    #[error(
        "{stages} stages and {micro_batches} micro-batches are {passes} passes, and a program has at most {most}: \
         give fewer --stages or --micro-batches"
    )]
    Passes {
        /// The stages.
        stages: usize,
        /// The micro-batches.
        micro_batches: usize,
        /// Their passes.
        passes: usize,
        /// As many as there can be.
        most: usize,
    },
    /// Another number of stages or of micro-batches than was asked for.
    #[error("{flag} {asked}: the program has {found}")]
    Size {
        /// The flag.
        flag: &'static str,
        /// Its value.
        asked: usize,
        /// What the program has.
        found: usize,
    },
}
