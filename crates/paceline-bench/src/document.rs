//! The document of a benchmark of many points: every repeat as it was measured, and what the repeats come to.

use paceline_record::Machine;
use serde::{Deserialize, Serialize};

use crate::channels_document::Channel;
use crate::servers_document::ServersPoint;

/// Channels between processes, measured.
pub type Channels = BenchDocument<Channel>;

pub type Servers = BenchDocument<ServersPoint>;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BenchDocument<P> {
    /// `channels` or `ps`.
    pub bench: String,
    pub version: String,
    /// What it was measured on.
    pub machine: Machine,
    /// Processes that wanted to run before the measurement began, on average over a minute.
    pub load_average: f64,
    /// Pairs of ranks that exchanged messages at the same time, of `channels`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pairs: Option<usize>,
    pub repeats: usize,
    /// Seconds per repeat that were asked for.
    pub seconds: f64,
    /// Seed of the order and of random sizes.
    pub seed: u64,
    /// The model whose tensors are the skewed sizes; of `ps`, also the number of buckets of all schemes.
    pub model: String,
    /// How sizes are distributed.
    pub payloads: Vec<Scheme>,
    /// Combinations that cannot be, and why.
    pub left_out: Vec<String>,
    pub points: Vec<P>,
}

/// A way in which the sizes of messages are distributed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scheme {
    /// Its name.
    pub name: String,
    /// What it is.
    pub about: String,
}
