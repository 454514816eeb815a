//! Benchmarks of the exchange between ranks, and the documents that they write.
//!
//! # Layout
//! - `exchange`: a measurement ([`Bench`]): all-reduce and point to point; [`play`]: a rank's part of any measurement
//! - `exits`: the tiers of a network with early exits as ranks, and the bytes between them
//! - `explain`: where the time of an all-reduce goes, beside what the machine can do
//! - `end`: one rank's end of its channels
//! - [`channels`]: latency and bandwidth of every transport; [`ps`]: throughput of parameter servers
//! - `document`: what they write; `channels_document` and `servers_document`: its points
//! - [`compute`]: training speed of one worker
//! - [`payload`]: sizes of messages; `sweep`: which points, and in which order; `settings`: as people write them
//!
//! # Deliberately absent
//! Processes and supervision (`paceline-launch`); statistics and charts (`paceline-analyze`).

#![forbid(unsafe_code)]

pub mod channels;
mod channels_document;
pub mod compute;
mod document;
mod end;
mod exchange;
mod exits;
mod explain;
pub mod payload;
pub mod ps;
mod servers_document;
mod settings;
mod sweep;

pub use channels_document::{Channel, ChannelRepeat};
pub use document::{Channels, SizeDistribution};
pub use exchange::{Bench, BenchProgram, Row, Task, play, table};
pub use exits::{DistributedExits, ExitRun, ExitTask, TierTraffic};
pub use explain::{BreakdownRow, ExchangeBreakdown};
pub use settings::{measuring_seconds, message_length};
pub use sweep::{ChannelAxes, Progress, SweepRules};
