//! Pipelines: a network cut into stages, and the order of each stage's work as data.
//!
//! # Layout
//! - [`pipelines`]: the registry, one file per pipeline
//! - `program`: the work of each rank, in order
//! - `check`: what must hold of a program, and what follows from it: slots, an order of all work
//! - `table`: programs as comma-separated values, in PyTorch's form
//! - `timeline`: when the work of a program is done, with constant times
//! - `cuts`: where a graph is cut; `costs`: what its layers cost, counted
//! - `request`: a pipeline as it is asked for; `stage_plan`: the stages of a plan, as strategies are told of them
//! - `memory`: what a rank of each stage needs, known before anything runs
//! - `report`: a program for a network: balance, bubble, memory; `drawing`: as text and as SVG
//!
//! # Deliberately absent
//! Running anything; measuring; messages.

#![forbid(unsafe_code)]

mod check;
mod costs;
mod cuts;
mod drawing;
mod memory;
pub mod pipelines;
mod program;
mod report;
mod request;
mod stage_plan;
mod table;
mod timeline;

pub use check::CheckedProgram;
pub use costs::{CutCosts, LayerCost, counted_costs};
pub use cuts::{CutError, Cuts, better_cuts};
pub use memory::StageMemory;
pub use paceline_protocol::{Work, WorkKind};
pub use pipelines::{PIPELINES, Pipeline};
pub use program::{PipelineProgram, ProgramError, RankProgram};
pub use report::{PipelineReport, StagePart, StageReport, TimeUnit};
pub use request::{MeasuredCosts, PipelineError, PipelineRequest, ProgramSource};
pub use stage_plan::StagePlan;
pub use timeline::{PipelineTimeline, StageTimes, TimedWork};
