//! What a run says about itself: the one event schema, and readings of this process.
//!
//! # Layout
//! - [`event`]: everything that a run reports, ending with its [`event::RunResult`]
//! - [`process`]: CPU time, memory and host of this process
//!
//! # Deliberately absent
//! Statistics; how a run is executed.

#![forbid(unsafe_code)]

pub mod event;
pub mod process;

pub use event::{Event, Rank, Replicas, RunResult, Seconds, Staleness};
