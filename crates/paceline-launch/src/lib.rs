//! A run from the outside: starts its ranks as processes or threads, hands out ranks and addresses, watches over
//! them, gathers what they say into one result, and leaves nothing behind.
//!
//! # Layout
//! - `control`: what the launcher and its ranks say to each other over pipes
//! - [`rank`]: inside a rank's process; `recorder`: its own record, and its way to the launcher
//! - `fault`: faults that tests ask for
//! - `processes`: ranks as processes, watched by pidfd; `exit`: how a process ended; `threads`: ranks as threads
//! - [`run`]: the whole run; `lead`: its ranks, led to the end; `watch`: what is known of it while it is under way
//! - `ranks`: all ranks, on this machine and on those that joined; `hosts`: those machines; `rendezvous`: waiting for them;
//!   [`agent`]: what such a machine does; `joining`: what they say to each other; [`key_file`]: the key that lets them in
//! - `address`: where a machine can be reached
//! - [`capacity`]: whether the ranks fit on this machine; [`devices`]: the GPUs that scripts are given
//! - [`engine`]: processes that a scheduler or launcher has started as one job; hosts over ssh
//! - [`nodes`]: machines that make whole runs of a study
//! - [`elastic`]: the members of an elastic run, and with whom it goes on; `member`: inside one of them;
//!   `revoking`: members that are taken away, and come back, as a file says
//! - [`requests`]: what other processes ask of a run under way: other members
//! - `emulated`: emulated hosts and the links between them
//! - `liveness`: signs of life of the ranks
//! - `interrupt`: requests to stop, by signals
//! - `pauses`: checkpoints, and where a run goes on or stops
//! - [`gather`]: evaluations and results of all ranks put together
//! - `staged`: models that are cut into stages, put together
//! - [`trial`]: one run of a study, under a keeper
//! - `error`: how a run fails
//!
//! # Deliberately absent
//! Training logic.

#![forbid(unsafe_code)]

mod address;
pub mod agent;
pub mod capacity;
mod control;
pub mod devices;
pub mod elastic;
mod emulated;
pub mod engine;
mod error;
mod exit;
mod fault;
pub mod gather;
mod hosts;
mod interrupt;
mod joining;
pub mod key_file;
mod lead;
mod liveness;
mod member;
pub mod nodes;
mod pauses;
mod processes;
pub mod rank;
mod ranks;
mod recorder;
mod rendezvous;
pub mod requests;
mod revoking;
pub mod run;
mod scripts;
mod staged;
mod threads;
pub mod trial;
mod watch;

pub use address::HostAddress;
pub use control::{RankAccount, RankCommand, RankEvent, RankTask};
pub use emulated::EmulatedNetwork;
pub use error::{LaunchError, start_hint};
pub use exit::Exit;
pub use interrupt::Interrupt;
pub use joining::RunEnd;
pub use pauses::CheckpointContext;
pub use processes::{ProcessEvent, RankProcesses};
pub use rendezvous::{Listen, how_to_join};
pub use staged::whole_model;
