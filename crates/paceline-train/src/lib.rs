//! The worker's loop: batches, passes, updates, evaluations, and the clock they are measured with.
//!
//! # Layout
//! - [`worker`], [`server`]: a rank of a run, over any transport; one worker alone is a run of one rank
//! - `engine`: drives a strategy's participant with a transport, memory and the real clock
//! - [`memory`]: what stands behind a participant's regions
//! - `meta`: tags and heads as bytes
//! - `unit`: the computation of a unit of work, and what is exchanged meanwhile
//! - `update`: optimiser and learning rate
//! - `source`: what computes gradients, as a worker sees it; [`native`]: a network of this process; `stage`: a stage of one, and
//!   `crossings`: what goes from stage to stage
//! - [`model`]: a network with its memory and the readers of its samples
//! - `inference`: how long a network takes to answer
//! - `exits`: what the tiers of a network with early exits answer; `exit_report`: how often they are right
//! - [`weights`]: where training starts: safetensors files, frozen layers
//! - `segment`: where a run pauses and goes on; `recut`: with other stages
//! - `clock`: the training clock and the phases it is divided into
//! - `observe`: what is recorded of steps, links and messages
//! - `curve`: accuracy over time: time to accuracy, convergence
//! - `error`: how training fails
//!
//! # Deliberately absent
//! Policy (what to train is the plan's), processes; files, but for weights.

#![forbid(unsafe_code)]

mod clock;
mod crossings;
mod curve;
mod engine;
mod error;
mod exit_report;
mod exits;
mod inference;
mod members;
pub mod memory;
mod meta;
pub mod model;
pub mod native;
mod observe;
mod recut;
mod script;
mod segment;
pub mod server;
mod source;
mod stage;
mod unit;
mod update;
pub mod weights;
pub mod worker;

pub use clock::Clock;
pub use crossings::Crossings;
pub use curve::Curve;
pub use engine::{Begin, Engine, StagePass, Times};
pub use error::TrainError;
pub use exit_report::{ExitBytes, ExitFigures, ExitRequest, ExitsReport, LostDevice};
pub use exits::{ExitAnswer, ExitAnswers, ExitModel, TierNetwork, ViewCutter, pack_signs, unpack_signs};
pub use inference::InferRequest;
pub use members::{Generation, MemberControl, NextGeneration};
pub use model::Replica;
pub use native::NativeSource;
pub use recut::{PartRanges, recut};
pub use script::{ScriptRequest, ScriptSource, USED_TENSORS, script_exchange, script_failed, script_layout};
pub use segment::{Pause, Segment, SegmentControl, StagePlace, StepGate, VERDICT};
pub use source::{
    AfterStep, Announce, GradientSink, GradientSource, Layout, SourceCosts, SourceReport, TensorLayout,
};
pub use stage::{PassSink, StagePasses, StageSource};
pub use update::{GroupOptimiser, Update};
