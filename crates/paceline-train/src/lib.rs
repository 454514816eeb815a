//! The worker's loop: batches, passes, updates, evaluations, and the clock they are measured with.
//!
//! # Layout
//! - [`single`]: one worker, alone
//! - [`worker`], [`server`]: a rank of a distributed run, over any transport
//! - [`engine`]: drives a strategy's participant with a transport, memory and the real clock
//! - [`memory`]: what stands behind a participant's regions
//! - [`meta`]: tags and heads as bytes
//! - [`update`]: optimiser and learning rate
//! - [`model`]: a replica: parameters, gradients, state, optimiser memory, network
//! - [`weights`]: where training starts: safetensors files, frozen layers
//! - [`course`]: where a run pauses and goes on
//! - [`clock`]: the training clock and the phases it is divided into
//! - [`observe`]: what is recorded of steps, links and messages
//! - [`curve`]: accuracy over time: time to accuracy, convergence
//! - [`error`]: how training fails
//!
//! # Deliberately absent
//! Policy (what to train is the plan's), processes; files, but for weights.

#![forbid(unsafe_code)]

pub mod clock;
pub mod course;
pub mod curve;
pub mod engine;
pub mod error;
pub mod memory;
pub mod meta;
pub mod model;
pub mod observe;
pub mod server;
pub mod single;
pub mod update;
pub mod weights;
pub mod worker;

pub use course::{Brake, Course, Pause, Segment};
pub use error::TrainError;
pub use model::Replica;
