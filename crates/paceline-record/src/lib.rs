//! What a run says about itself: the one event schema, the folder it is kept in, and readings of this
//! process.
//!
//! # Layout
//! - [`event`]: everything that a run reports, ending with its [`event::RunResult`]
//! - [`directory`]: a run's folder in the store
//! - [`checkpoint`]: where a run can go on
//! - [`machine`]: what the figures of a measurement were measured on
//! - [`process`]: CPU time, memory and host of this process
//!
//! # Deliberately absent
//! Statistics; how a run is executed.

#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod directory;
pub mod event;
pub mod machine;
pub mod process;

pub use checkpoint::{Checkpoint, Checkpoints, Damaged, Part};
pub use directory::{RecordError, RunDirectory};
pub use event::{
    Event, Marked, Origin, Rank, Replicas, RunResult, Seconds, Simulated, Simulation, Staleness,
};
pub use machine::Machine;
