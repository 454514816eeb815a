//! The document of `paceline bench ps`: every repeat as it was measured, and what they come to.

use paceline_analyze::chart::{Chart, ChartUnit};
use paceline_analyze::sheet::TableColumn;
use paceline_analyze::{Quantiles, Spread};
use serde::{Deserialize, Serialize};

use crate::channels_document::buffer_words;
use crate::document::{Servers, panel};

/// What distinguishes a configuration from the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServersConfig {
    /// What the ranks talk over.
    pub transport: String,
    /// Bytes of each connection's buffer; what the transport chooses if absent.
    pub buffer_bytes: Option<usize>,
    pub workers: usize,
    pub servers: usize,
    /// Consistency model, with the defaults of its parameters.
    pub sync: String,
    /// How the sizes of buckets are distributed.
    pub payload: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServersPoint {
    #[serde(flatten)]
    pub config: ServersConfig,
    /// Bytes of the model.
    pub bytes: usize,
    /// Sizes of the buckets in the order in which they are pushed.
    pub buckets_bytes: Vec<usize>,
    /// Messages of one push of the whole model, and of one pull.
    pub messages_per_push: usize,
    /// Pushes and pulls of whole models that the servers serve per second, over repeats.
    pub pushes_and_pulls_per_s: Spread,
    /// Messages per second in and out of the servers, over repeats.
    pub messages_per_s: Spread,
    /// Bytes per second in and out of the servers, over repeats.
    pub bytes_per_s: Spread,
    /// A worker's round (push and pull): the median over repeats of each repeat's quantiles.
    pub round_s: Quantiles,
    /// CPU seconds per second of one server, over repeats (waits of under a millisecond keep it busy).
    pub server_cpu: Spread,
    /// CPU seconds of all servers per 10⁹ bytes in and out, over repeats.
    pub server_cpu_s_per_gb: Spread,
    /// Part of a server's time that it did not wait, over repeats.
    pub server_busy: Spread,
    pub repeats: Vec<ServerRepeat>,
}

/// One repeat: processes of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerRepeat {
    /// Its place in the order of all repeats of all points.
    pub order: usize,
    /// Rounds timed, by worker (the first few of each are not).
    pub rounds: Vec<u64>,
    /// A worker's round.
    pub round_s: Quantiles,
    /// From the first timed round's begin to the last one's end: the slowest worker's.
    pub seconds: f64,
    /// What each server did, untimed rounds included.
    pub servers: Vec<ServerUse>,
}

/// What one server did in one repeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerUse {
    /// From its start to the last worker's leave.
    pub seconds: f64,
    /// CPU seconds meanwhile.
    pub cpu_s: f64,
    /// Seconds without anything to do.
    pub wait_s: f64,
    /// Seconds of updating.
    pub apply_s: f64,
    /// Bytes sent, with headers.
    pub sent_bytes: u64,
    /// Bytes received, with headers.
    pub received_bytes: u64,
}

impl ServersPoint {
    /// A point out of its repeats, at least one.
    pub fn new(
        config: ServersConfig,
        buckets_bytes: Vec<usize>,
        messages_per_push: usize,
        repeats: Vec<ServerRepeat>,
    ) -> Self {
        let bytes: usize = buckets_bytes.iter().sum();
        let per_second = |r: &ServerRepeat| 2.0 * r.rounds.iter().sum::<u64>() as f64 / r.seconds;
        let over = |figure: &dyn Fn(&ServerRepeat) -> f64| Spread::of(repeats.iter().map(figure));
        let sum = |r: &ServerRepeat, figure: fn(&ServerUse) -> f64| r.servers.iter().map(figure).sum::<f64>();
        Self {
            config,
            bytes,
            buckets_bytes,
            messages_per_push,
            pushes_and_pulls_per_s: over(&per_second),
            messages_per_s: over(&|r| messages_per_push as f64 * per_second(r)),
            bytes_per_s: over(&|r| bytes as f64 * per_second(r)),
            round_s: Quantiles::medians(repeats.iter().map(|r| r.round_s)),
            server_cpu: over(&|r| sum(r, |s| s.cpu_s) / sum(r, |s| s.seconds)),
            server_cpu_s_per_gb: over(&|r| {
                sum(r, |s| s.cpu_s) / sum(r, |s| (s.sent_bytes + s.received_bytes) as f64 / 1e9)
            }),
            server_busy: over(&|r| 1.0 - sum(r, |s| s.wait_s) / sum(r, |s| s.seconds)),
            repeats,
        }
    }
}

impl Servers {
    pub fn text(&self) -> String {
        let seconds = |value: f64| ChartUnit::Seconds.show(value);
        let columns: [TableColumn<'_, ServersPoint>; 17] = [
            ("transport", &|point| point.config.transport.clone()),
            ("buffer", &|point| buffer_words(point.config.buffer_bytes)),
            ("payload", &|point| point.config.payload.clone()),
            ("sync", &|point| point.config.sync.clone()),
            ("model", &|point| ChartUnit::Bytes.show(point.bytes as f64)),
            ("workers", &|point| point.config.workers.to_string()),
            ("servers", &|point| point.config.servers.to_string()),
            ("round", &|point| seconds(point.round_s.median)),
            ("p5", &|point| seconds(point.round_s.p5)),
            ("p95", &|point| seconds(point.round_s.p95)),
            ("ops/s", &|point| format!("{:.0}", point.pushes_and_pulls_per_s.median)),
            ("±", &|point| point.pushes_and_pulls_per_s.percent()),
            ("messages/s", &|point| format!("{:.0}", point.messages_per_s.median)),
            ("served", &|point| ChartUnit::BytesPerSecond.show(point.bytes_per_s.median)),
            ("CPU", &|point| format!("{:.2}", point.server_cpu.median)),
            ("CPU s/GB", &|point| format!("{:.2}", point.server_cpu_s_per_gb.median)),
            ("busy", &|point| format!("{:.0}%", 100.0 * point.server_busy.median)),
        ];
        self.table("", &columns, 4)
    }

    /// Bytes served and rounds by the number of workers, a line per transport and number of servers, with all
    /// else as at one point.
    pub fn chart(&self, as_at: &ServersPoint) -> Chart {
        let all_else = |ServersPoint { config: of, bytes, .. }: &ServersPoint| {
            (of.buffer_bytes, of.payload.clone(), of.sync.clone(), *bytes)
        };
        let alike = |point: &&ServersPoint| all_else(point) == all_else(as_at);
        let points: Vec<_> = self.points.iter().filter(alike).collect();
        let panel = |title: &str, what: (&str, ChartUnit), figure: fn(&ServersPoint) -> Spread| {
            let dot = |point: &&ServersPoint| {
                let ServersConfig { transport, servers, workers, .. } = &point.config;
                let plural = if *servers == 1 { "" } else { "s" };
                (format!("{transport}, {servers} server{plural}"), *workers as f64, figure(point))
            };
            panel(title, ("workers", ChartUnit::Count), what, points.iter().map(dot).collect())
        };
        let rounds =
            |point: &ServersPoint| Spread::of(point.repeats.iter().map(|repeat| repeat.round_s.median));
        let served = ("bytes served", ChartUnit::BytesPerSecond);
        let panels = vec![
            panel("Bytes in and out of all servers", served, |point| point.bytes_per_s),
            panel("A worker's round (push and pull)", ("round", ChartUnit::Seconds), rounds),
        ];
        let (ServersConfig { sync, payload, .. }, model) =
            (&as_at.config, ChartUnit::Bytes.show(as_at.bytes as f64));
        let title = format!("Parameter servers, {sync} and {model} of parameters, {payload} payload");
        self.drawn("servers", title, "", panels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_counts_pushes_and_pulls_of_all_workers() {
        let server = ServerUse {
            seconds: 4.0,
            cpu_s: 2.0,
            wait_s: 1.0,
            apply_s: 0.5,
            sent_bytes: 500_000_000,
            received_bytes: 500_000_000,
        };
        let repeat = ServerRepeat {
            order: 0,
            rounds: vec![10, 30],
            round_s: Quantiles { p5: 1.0, median: 2.0, p95: 3.0 },
            seconds: 2.0,
            servers: vec![server.clone(), server],
        };
        let of = ServersConfig {
            transport: "tcp".into(),
            buffer_bytes: None,
            workers: 2,
            servers: 2,
            sync: "asp".into(),
            payload: "uniform".into(),
        };
        let point = ServersPoint::new(of, vec![600, 400], 3, vec![repeat]);
        assert_eq!(point.pushes_and_pulls_per_s.median, 40.0);
        assert_eq!((point.messages_per_s.median, point.bytes_per_s.median), (120.0, 40_000.0));
        assert_eq!((point.server_cpu.median, point.server_busy.median), (0.5, 0.75));
        assert_eq!(point.server_cpu_s_per_gb.median, 2.0);
    }
}
