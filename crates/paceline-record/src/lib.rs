//! What a run says about itself: the one event schema, the readings behind it, the store that it is kept in, and
//! exports for other tools.
//!
//! # Layout
//! - [`event`]: everything that a run reports, ending with its [`event::RunResult`]
//! - `words`: the same for people
//! - `row`: the dense part of it: steps, samples, traced messages, in batches
//! - [`figures`]: the registry of figures: name, unit, goal, how it is read, how repeats are joined
//! - [`metric`]: the registry of what is sampled, and the readers
//! - `recorder`, `observer`: recording inside a rank, beside the thread that trains
//! - [`process`], `machine`, `site`: this process, this machine, and both together
//! - `script_record`: what the record says of the scripts of a run
//! - `tree`: what another program and its children take
//! - `table`: the registry of the store's tables
//! - [`store`]: the database of runs, and the one writer of each run
//! - `journal`: entries that survive a crash, for the state of studies
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
mod journal;
mod machine;
pub mod metric;
mod observer;
pub mod process;
mod recorder;
mod row;
mod script_record;
mod site;
pub mod store;
mod table;
mod tree;
mod words;

pub use checkpoint::{Checkpoint, Checkpoints, Damaged, RankState};
pub use event::{
    AssignedGpu, Event, EventLine, HostsUsed, MembershipChange, RankTotals, ReplicaAccuracy, RunOrigin,
    RunResult, Seconds, Simulation, SimulationDetails, Staleness, number,
};
pub use failure::FailureKind;
pub use journal::{Journal, JournalError};
pub use machine::Machine;
pub use observer::Observer;
pub use recorder::{Recorder, Recording, SAMPLE_HZ, Ship, WaitForRoom};
pub use row::{Batch, NOBODY, RankSample, StageRow, StepRow, TraceKind, TraceRow};
pub use script_record::{GpuUse, NOT_OBSERVED, ScriptRecord, ScriptReport, ScriptStaging};
pub use store::{NewRun, Record, RecordError, RunLabels, Store};
pub use table::{Column, Table, VIEWS, tables};
pub use tree::{ProcessTree, TreeSummary};
pub use words::{EventWords, plan_lines, short as short_number};
