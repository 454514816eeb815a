//! What measurements say: statistics, the documents that benchmarks write, and charts of them.
//!
//! # Layout
//! - [`statistics`]: medians, quantiles, spreads
//! - [`channels`]: the document of `paceline bench channels`, and its chart
//! - [`servers`]: the document of `paceline bench ps`
//! - [`chart`]: lines on logarithmic axes, as SVG
//!
//! # Deliberately absent
//! Measuring; writing to the store.

#![forbid(unsafe_code)]

pub mod channels;
pub mod chart;
pub mod servers;
pub mod statistics;

pub use channels::{Channel, ChannelRepeat, Channels};
pub use servers::{ServerRepeat, Servers, ServersPoint};
pub use statistics::{Quantiles, Spread};
