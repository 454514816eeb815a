//! What a run says about itself: the one event schema, the readings behind it, the store that it is kept in, and
//! exports for other tools.
//!
//! # Layout
//! - [`event`]: everything that a run reports, ending with its [`event::RunResult`]
//! - [`row`]: the dense part of it: steps, samples, traced messages, in batches
//! - [`metric`]: the registry of what is sampled, and the readers
//! - [`recorder`], [`observer`]: recording inside a rank, beside the thread that trains
//! - [`process`], [`machine`]: this process and this machine
//! - [`store`]: the database of runs, and the one writer of each run
//! - [`export`]: one file per format
//!
//! # Deliberately absent
//! Statistics; how a run is executed.

#![forbid(unsafe_code)]

pub mod event;
#[cfg(feature = "store")]
pub mod export;
pub mod machine;
pub mod metric;
pub mod observer;
pub mod process;
pub mod recorder;
pub mod row;
#[cfg(feature = "store")]
pub mod store;
pub mod table;

pub use event::{Event, Rank, Replicas, RunResult, Seconds, Staleness};
pub use observer::Observer;
pub use recorder::{Recorder, Recording};
pub use row::{Batch, StepRow};
#[cfg(feature = "store")]
pub use store::{Record, RecordError, Store};
