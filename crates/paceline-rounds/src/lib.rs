//! Strategies from files: the rounds of an averaging rule as data (docs/own-strategy.md).
//!
//! A [`Program`] is a file that was read. [`Program::check`] says what is wrong with it for a number of workers; a
//! run's setup carries it as its `program`, and it makes a participant like any other.
//!
//! # Layout
//! - `file`: the TOML and its mistakes, with lines; `statement`: what a round can say
//! - `scope`: what expressions can name
//! - `compile`: one iteration for all workers: each one's operations, and what its registers hold then
//! - `values`: what a register holds, as weights of what all workers began with
//! - `worker`: the participant
//! - `program`: a file as a strategy's program: compiled once, shared by ranks
//! - `check`: what is refused before anything starts
//! - `analysis`, `matrix`: mixing matrices, contraction, stationary weights
//! - `report`: what `paceline strategy check` knows; `words`: how it says that; `timing`: periods and losses in virtual time; `listing`, `drawing`: the
//!   rounds in words and as a picture
//!
//! # Deliberately absent
//! Reading files from disk, command lines, the strategies of the registry.

#![forbid(unsafe_code)]

mod analysis;
mod check;
mod compile;
mod drawing;
mod file;
mod listing;
mod matrix;
mod program;
mod report;
mod scope;
mod statement;
mod timing;
mod values;
mod words;
mod worker;

pub use analysis::{Contraction, MixingReport};
pub use check::{CheckedSteps, MOST_CHECKED};
pub use compile::{MOST_CHUNKS, MOST_STATEMENTS};
pub use drawing::rounds_svg;
pub use file::StrategyFileError;
pub use listing::WorkerRounds;
pub use matrix::SquareMatrix;
pub use program::{Program, TEMPLATE};
pub use report::{LinkConditions, StrategyReport, WorkerTraffic};
pub use timing::VirtualRuns;
pub use words::{report_text, worker_counts};
