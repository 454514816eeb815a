//! A [`Plan`]: one run, fully resolved, immutable, hashed. Two runs of one plan with a deterministic
//! strategy give the same parameters, bit for bit.
//!
//! # Layout
//! - [`plan`]: the plan itself and what makes one impossible
//! - [`hosts`]: where ranks sit, and what lies between their hosts
//!
//! # Deliberately absent
//! Flags and the environment (the binary resolves them), registries (names are checked where they are
//! known), execution.

#![forbid(unsafe_code)]

pub mod hosts;
pub mod plan;

pub use hosts::{Hosts, Network, Placement};
pub use plan::{Plan, PlanError, Straggler, Weights, Work};
