//! Changes that whoever can simulate a run is asked about.

use serde::Serialize;

/// A change of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhatIf {
    /// Everybody computes as fast as the others do.
    NoStraggler,
    /// Nobody waits for a straggler.
    LetGo,
    /// Twice as many servers.
    MoreServers,
    /// Workers sum round a ring, without servers.
    Ring,
    /// Ten times the bandwidth.
    Bandwidth,
    /// A tenth of the latency.
    Latency,
    /// Fewer messages one after another.
    FewerHops,
    /// Messages of half the size.
    Half,
    /// Larger buckets.
    Bucket,
    /// Workers exchange every 8 steps.
    Local,
    /// Twice as many workers, each with half of the batch.
    MoreWorkers,
    /// One worker alone.
    OneWorker,
}
