//! The attach protocol (`docs/attach.md`): a script of the user's as a rank's compute device, in a process beside.
//!
//! # Layout
//! - `frame`: frames on the socket, in both directions; nothing that a script says is believed
//! - `message`: what the two say to each other
//! - `process`: the script's process: started, listened to, watched, ended with all that it has started
//! - `socket`: the rank's end of the socket
//!
//! # Deliberately absent
//! Strategies, transports, what is done with gradients; any one language's objects.

#![forbid(unsafe_code)]

mod frame;
mod message;
mod process;
mod socket;

pub use message::{
    Attached, DelegatedGroup, Gives, OptimizerGroup, RankMessage, ScriptMessage, ScriptOptimizer,
    ScriptTensor, StepAccount, Takes, Welcome,
};
pub use process::{
    ScriptCommand, ScriptEvent, ScriptFailure, ScriptListener, ScriptPlace, ScriptProcess, end_scripts,
    of_engines,
};
pub use socket::{Arrivals, AttachError, ScriptSocket};

/// The version of the protocol.
pub const PROTOCOL: u32 = 1;
