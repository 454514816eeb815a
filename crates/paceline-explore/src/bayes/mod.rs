//! Gaussian processes over mixed and conditional axes, and what is expected of a point that has not been run.
//!
//! - [`gaussian`]: the process: Matérn-5/2 with a length per axis, and noise
//! - [`normal`]: the normal distribution, also far out in its tails

pub mod gaussian;
pub mod normal;
