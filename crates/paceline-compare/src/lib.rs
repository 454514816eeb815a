//! One averaging rule against others: each at its own learning rate, over seeds, on alike data and data split by label,
//! without and behind a link, with few workers in real runs and with many in virtual time.
//!
//! # Layout
//! - `contender`: what is compared; `cell`: where; `request`: one comparison, and the plan of each of its runs
//! - `search`: learning rates, the same number for everybody; `choice`: what follows from the search
//! - `budget`: what fits into the minutes; `execute`: one run; `drive`: all of them, in their order
//! - `journal`: every run, on disk before anybody acts on it
//! - `judge`: differences, paired by seed, and which of them are real; `findings`: the same in sentences
//! - `page`, `tables`: what is written: a function of the journal alone
//!
//! # Deliberately absent
//! Command lines, terminals; training, virtual time and child processes are libraries' of their own.

#![forbid(unsafe_code)]

mod budget;
mod cell;
mod choice;
mod contender;
mod drive;
mod error;
mod execute;
mod findings;
mod journal;
mod judge;
mod page;
mod request;
mod search;
mod tables;

pub use cell::{CellClock, ComparedCell};
pub use contender::{Contender, ContenderVariant, DEFAULT_RIVALS};
pub use drive::{CompareEvent, CompareObserver, drive};
pub use error::CompareFailure;
pub use execute::{CurvePoint, RunFigures};
pub use findings::{ComparisonFindings, SeedMean, Standing};
pub use journal::{ComparedEnd, ComparisonHistory, ComparisonState, RunKey};
pub use judge::{DifferenceVerdict, JudgedDifference, JudgedFigure, PairedSample};
pub use page::{page, write};
pub use request::{ComparisonDocument, ComparisonFlags, StrategyComparison};
