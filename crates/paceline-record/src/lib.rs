//! What a run says about itself: the one event schema, the readings behind it, the store that it is kept in, and
//! exports for other tools.
//!
//! # Layout
//! - [`event`]: everything that a run reports, ending with its [`event::RunResult`]
//! - [`row`]: the dense part of it: steps, samples, traced messages, in batches
//! - [`figures`]: the registry of figures: name, unit, goal, how it is read, how repeats are joined
//! - [`metric`]: the registry of what is sampled, and the readers
//! - [`recorder`], [`observer`]: recording inside a rank, beside the thread that trains
//! - [`process`], [`machine`], [`site`]: this process, this machine, and both together
//! - [`tree`]: what another program and its children take
//! - [`table`]: the registry of the store's tables
//! - [`store`]: the database of runs, and the one writer of each run
//! - [`journal`]: entries that survive a crash, for the state of studies
//! - [`checkpoint`]: where a run can go on
//! - [`export`]: one file per format
//!
//! # Deliberately absent
//! Statistics; how a run is executed.

#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod event;
pub mod export;
mod failure;
pub mod figures;
pub mod journal;
pub mod machine;
pub mod metric;
pub mod observer;
pub mod process;
pub mod recorder;
pub mod row;
pub mod site;
pub mod store;
pub mod table;
pub mod tree;

pub use checkpoint::{Checkpoint, Checkpoints, Damaged, RankState};
pub use event::{
    Event, Marked, RankTotals, Replicas, RunOrigin, RunResult, Seconds, Simulated, Simulation, Staleness,
};
pub use failure::FailureKind;
pub use journal::{Journal, JournalError};
pub use machine::Machine;
pub use observer::Observer;
pub use recorder::{Recorder, Recording};
pub use row::{Batch, StepRow};
pub use store::{Record, RecordError, Store};
