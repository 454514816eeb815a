//! Every strategy as a pure state machine (sans-IO).
//!
//! A [`Participant`] receives inputs with the time as an argument and answers with actions on regions of
//! buffers. The driver owns memory, sockets and clocks; there are three: real transports
//! (`paceline-train`), virtual time and the deterministic fault tests (both `paceline-sim`).
//!
//! # Layout
//! - `vocabulary`: inputs, actions, regions, tags: what strategies and drivers speak
//! - [`setup`]: what a strategy is told about a run; buckets and shards of the flat buffer
//! - [`options`]: parameters that users can set; [`consistency`]: when a worker may go on
//! - `schedule`: the rounds of a collective as data; [`exchange`]: the one executor of schedules
//! - `topology`: who sits where
//! - `work`: one pass of a micro-batch through a stage; `stages`: a model that is cut into stages: who has which part
//! - `staged`: participants of a run with stages
//! - `hosting`: several positions on one rank; `departure`: how a run ends when a worker leaves
//! - `commit`, `own_weights`, `handover`, `membership`, `regroup`: runs whose members may change: when parameters change,
//!   that of all workers or each one's own, who gets them from whom, who takes part, and how a run goes on after a loss
//! - `step_driver`: what the workers of all serverless strategies have in common
//! - [`collective`]: workers of the exact paths: gradients, weights, codes, factors
//! - `codec`: how messages are made shorter; `linear`: small matrices for PowerSGD
//! - `memory`: the arithmetic of actions, shared by drivers with real numbers
//! - `trace`: what a participant did, comparable between drivers
//! - `strategies`: the registry, one file or folder per strategy
//!
//! # Deliberately absent
//! Sockets, clocks, threads, files, global randomness.

#![forbid(unsafe_code)]

mod codec;
pub mod collective;
mod commit;
pub mod consistency;
mod departure;
pub mod exchange;
mod handover;
mod hosting;
mod linear;
mod membership;
mod memory;
pub mod options;
mod own_weights;
mod regroup;
mod schedule;
pub mod setup;
mod staged;
mod stages;
mod step_driver;
mod strategies;
mod topology;
mod trace;
mod vocabulary;
mod work;

pub use codec::{Accumulate, CODECS, Codec, Coder, Family};
pub use consistency::{CONSISTENCIES, Consistency};
pub use membership::{MemberId, Membership, ServerShard};
pub use memory::{Buffer, Buffers};
pub use options::{Options, Parameter};
pub use regroup::{DroppedSteps, RegroupEnd, Regrouped, TakingPart, place_shares, regroup};
pub use schedule::{CollectiveCall, CollectivePath, Combine, Move, Piece, Schedule, SizedPath};
pub use setup::{Averages, GenerationMembers, Handover, Refusal, Setup, Tensor, WorkLeft};
pub use stages::{BatchLengths, Crossing, Stage, StageSetup};
pub use step_driver::{StepDriver, StepProtocol};
pub use strategies::{
    AUTO, AUTO_PATHS, COLLECTIVE, DELEGATED, FROM_FILE, Protocols, ReplicaAgreement, SINGLE, STRATEGIES,
    Strategy, StrategyProgram, choose_paths, find, ps_messages,
};
pub use topology::Topology;
pub use trace::Trace;
pub use vocabulary::{
    Action, Actions, Buf, GradientScale, Input, Matrix, MessageHead, MsgId, OpId, Outcome, PartStanding,
    Participant, Rank, RankStanding, Region, TAKEN, Tag, Time, Transposed, WorkUnit, WorkerLoad,
};
pub use work::{Work, WorkKind};
