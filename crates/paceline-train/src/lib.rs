//! The worker's loop: batches, passes, updates, evaluations, and the clock they are measured with.
//!
//! # Layout
//! - [`single`]: one worker, alone
//! - [`model`]: a replica: parameters, gradients, state, optimiser memory, network
//! - [`clock`]: the training clock and the phases it is divided into
//! - [`curve`]: accuracy over time: time to accuracy, convergence
//! - [`error`]: how training fails
//!
//! # Deliberately absent
//! Policy (what to train is the plan's), processes, files.

#![forbid(unsafe_code)]

pub mod clock;
pub mod curve;
pub mod error;
pub mod model;
pub mod single;

pub use error::TrainError;
pub use model::Replica;
