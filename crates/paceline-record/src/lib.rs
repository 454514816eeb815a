//! What a run says about itself: the one event schema, the folder it is kept in, and readings of this
//! process.
//!
//! # Layout
//! - [`event`]: everything that a run reports, ending with its [`event::RunResult`]
//! - [`directory`]: a run's folder in the store
//! - [`process`]: CPU time, memory and host of this process
//!
//! # Deliberately absent
//! Statistics; how a run is executed.

#![forbid(unsafe_code)]

pub mod directory;
pub mod event;
pub mod process;

pub use directory::{RecordError, RunDirectory};
pub use event::{
    Event, Marked, Origin, Rank, Replicas, RunResult, Seconds, Simulated, Simulation, Staleness,
};
