//! The virtual-time driver: the same participants as in real runs, with a clock that jumps from event to
//! event. Delays, reorderings across peers and crashes all come from a seed, so every run can be replayed.
//!
//! # Layout
//! - [`driver`]: events, links, faults; what happened
//! - [`costs`]: what things cost in virtual time (constants, with random spread)
//! - [`memory`]: what stands behind regions: nothing, or real numbers
//!
//! # Deliberately absent
//! Its own copy of any protocol.

#![forbid(unsafe_code)]

pub mod costs;
pub mod driver;
pub mod memory;

pub use costs::{Costs, Straggler};
pub use driver::{Arrival, Crash, Report, Started, simulate};
pub use memory::{Memory, Nothing, Numbers};
