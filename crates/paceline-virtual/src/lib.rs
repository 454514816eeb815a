//! Whole runs in virtual time: a plan, a cluster and a calibration become costs, the simulator drives the
//! plan's participants with them, and what comes out is told as a real run would tell it.
//!
//! # Layout
//! - `cluster`: the hosts of a cluster that need not be there, as a file
//! - `calibration`: what things cost on a machine, as a file; the defaults where there is none
//! - `pass`: passes of networks, and how far a calibration knows them
//! - [`calibrate`]: measures a machine, and passes of plans
//! - `price`: a plan's costs, out of the two; `paths`: the averaging paths that cost the least
//! - `changes`: members that change: who is taken away when, as a file, and what comes of it
//! - `learn`: real gradients in the simulated order
//! - [`run`]: a plan from its costs to its result; `rows`: its steps, messages and waits for the record
//! - `script`: a plan whose script was recorded or measured, by what that tells of it; `script_time`: a script in a calibration
//! - `predict`: what a plan will take, and how sure that is; [`compare`]: how right that was
//! - [`words`]: what comes out, for people
//! - [`whatif`]: what a recorded run would take if something were different
//! - `error`: how that fails
//!
//! # Deliberately absent
//! Protocols (they are `paceline-protocol`'s), virtual time itself (`paceline-sim`'s), flags.

#![forbid(unsafe_code)]

pub mod calibrate;
mod calibration;
mod changes;
mod cluster;
pub mod compare;
mod cuts;
mod error;
mod learn;
mod pass;
mod paths;
mod predict;
mod price;
mod rows;
pub mod run;
mod script;
mod script_time;
pub mod whatif;
pub mod words;

pub use calibration::{Calibration, MedianEstimate};
pub use changes::MemberChanges;
pub use cluster::Cluster;
pub use error::VirtualError;
pub use pass::{PassCoverage, PassKey};
pub use predict::{Prediction, predict, reservations};
pub use price::{HardwareModel, Terms};
pub use script::RecordedScript;
pub use script_time::{ScriptTime, TensorReady};
