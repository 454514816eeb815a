//! Which runs to make: samplers over a space, and what they are told.
//!
//! A sampler is a function of the problem and of the history: the next point after the same history is the same,
//! so a study goes on after an interruption as if nothing had been.
//!
//! # Layout
//! - `problem`: what is asked: a space, objectives, limits on what runs measure; observations, and which is best
//! - [`samplers`]: the registry, one file per sampler
//! - `bayes`: Gaussian processes over mixed and conditional axes, and what is expected of a point
//! - `design`: two-level designs
//! - `table`: a table of runs made by others as the workload; [`regret`]: how soon samplers find its best row
//! - [`schedule`]: the order of a workload's runs: warm-up, controls, baseline, points and their repeats; `workloads`: that
//!   of a study's, which may have several
//!
//! # Deliberately absent
//! How a run is executed; files of the store; what runs say of the axes (`paceline-analyze`).

#![forbid(unsafe_code)]

mod bayes;
mod design;
mod problem;
pub mod regret;
pub mod samplers;
pub mod schedule;
mod table;
mod workloads;

pub use design::{Design, Resolution};
pub use problem::{Joins, Observation, Prior, Problem, Suggestion, TrialOutcome};
pub use samplers::SAMPLERS;
pub use table::{Exploration, ExplorationError, ExplorationRequest, LookupTable};
pub use workloads::StudySchedule;
