//! Every strategy as a pure state machine (sans-IO).
//!
//! A [`Participant`] receives inputs with the time as an argument and answers with actions on regions of
//! buffers. The driver owns memory, sockets and clocks; there are three: real transports
//! (`paceline-train`), virtual time and the deterministic fault tests (both `paceline-sim`).
//!
//! # Layout
//! - [`vocabulary`]: inputs, actions, regions, tags: what strategies and drivers speak
//! - [`setup`]: what a strategy is told about a run; lanes and shards of the flat buffer
//! - [`schedule`]: the rounds of a collective as data
//! - [`collective`]: the one executor of schedules
//! - [`trace`]: what a participant did, comparable between drivers
//! - [`strategies`]: the registry, one file or folder per strategy
//!
//! # Deliberately absent
//! Sockets, clocks, threads, files, global randomness.

#![forbid(unsafe_code)]

pub mod collective;
pub mod schedule;
pub mod setup;
pub mod strategies;
pub mod trace;
pub mod vocabulary;

pub use setup::{Refusal, Setup, Sync};
pub use strategies::{STRATEGIES, Strategy, find};
pub use trace::Trace;
pub use vocabulary::{
    Action, Actions, Buf, Head, Input, MsgId, OpId, Outcome, Participant, Rank, Region, Tag, Time, Unit,
};
