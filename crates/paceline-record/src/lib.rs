//! What a run says about itself: the one event schema, the folder it is kept in, and readings of this
//! process.
//!
//! # Layout
//! - [`event`]: everything that a run reports, ending with its [`event::RunResult`]
//! - [`directory`]: a run's folder in the store
//! - [`figures`]: what can be wanted of a run
//! - [`journal`]: entries that survive a crash, for the state of studies
//! - [`checkpoint`]: where a run can go on
//! - [`machine`]: what the figures of a measurement were measured on
//! - [`process`]: CPU time, memory and host of this process
//! - [`tree`]: what another program and its children take
//!
//! # Deliberately absent
//! Statistics; how a run is executed.

#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod directory;
pub mod event;
pub mod figures;
pub mod journal;
pub mod machine;
pub mod process;
pub mod tree;

pub use checkpoint::{Checkpoint, Checkpoints, Damaged, Part};
pub use directory::{RecordError, RunDirectory};
pub use event::{Event, Rank, Replicas, RunResult, Seconds, Staleness};
pub use journal::{Journal, JournalError};
pub use machine::Machine;
