//! The registry of metrics: what is sampled while a run goes on, in which unit, and where it comes from.
//!
//! Adding a metric is one line in the slice of what it is read of. The store's tables, the exports and the page
//! in `docs/` follow it; a store that was made before gets the column when it is next written to.
//!
//! - [`process`]: a rank's process and the cgroup that it runs in
//! - [`link`]: what a rank exchanges with one peer
//! - [`host`]: the machine, and its network interfaces; [`gpu`]: its GPUs

pub mod cgroup;
pub mod gpu;
pub mod host;
pub mod link;
pub mod process;

pub use gpu::{GPU, GpuReading};
pub use host::{HOST, HostReading, INTERFACE, InterfaceReading};
pub use link::{LINK, LinkReading, TcpReading};
pub use process::{PROCESS, ProcessReading, sample_script};

use std::str::FromStr;

use paceline_registry::{Entry, Registry};

/// How a metric behaves over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Counts up from the start of what it belongs to: the difference between two samples is what happened
    /// between them.
    Counter,
    /// A state at a moment.
    Gauge,
}

impl MetricKind {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// One metric, read out of `R`.
pub struct Metric<R: 'static> {
    /// Name of the column.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Counter or gauge.
    pub kind: MetricKind,
    /// What it is.
    pub about: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// Its value; none where the system does not say.
    pub read: fn(&R) -> Option<f64>,
}

/// A metric without its reader: what tables and pages need.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// Name of the column.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Counter or gauge.
    pub kind: MetricKind,
    /// What it is.
    pub about: &'static str,
    /// Where it comes from.
    pub source: &'static str,
}

type Text = &'static str;

/// A metric that counts up, before its source and its reader are given.
pub const fn counter(name: Text, unit: Text, about: Text) -> About {
    About { name, unit, kind: MetricKind::Counter, about, source: "" }
}

/// A metric that is a state at a moment, before its source and its reader are given.
pub const fn gauge(name: Text, unit: Text, about: Text) -> About {
    About { kind: MetricKind::Gauge, ..counter(name, unit, about) }
}

impl About {
    /// The metric that is read from this source.
    pub const fn read<R>(self, source: Text, read: fn(&R) -> Option<f64>) -> Metric<R> {
        let Self { name, unit, kind, about, .. } = self;
        Metric { name, unit, kind, about, source, read }
    }
}

paceline_registry::entries!(Metric<ProcessReading>, PROCESS);
paceline_registry::entries!(Metric<LinkReading>, LINK);
paceline_registry::entries!(Metric<HostReading>, HOST);
paceline_registry::entries!(Metric<InterfaceReading>, INTERFACE);
paceline_registry::entries!(Metric<GpuReading>, GPU);

/// The values of a reading, in the order of its registry.
pub fn values<R>(metrics: &Registry<Metric<R>>, reading: &R) -> Vec<Option<f64>>
where
    Metric<R>: Entry,
{
    metrics.iter().map(|metric| (metric.read)(reading).filter(|value| value.is_finite())).collect()
}

/// What is sampled. [`Default`] has what the program reads.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Of a rank's process.
    pub process: Registry<Metric<ProcessReading>>,
    /// Of what a rank exchanges with one peer.
    pub link: Registry<Metric<LinkReading>>,
    /// Of a machine.
    pub host: Registry<Metric<HostReading>>,
    /// Of a network interface.
    pub interface: Registry<Metric<InterfaceReading>>,
    /// Of a GPU.
    pub gpu: Registry<Metric<GpuReading>>,
}

impl Metrics {
    /// Every sampled table and its metrics.
    pub fn tables(&self) -> [(&'static str, Vec<About>); 5] {
        [
            ("samples", about(&self.process)),
            ("links", about(&self.link)),
            ("host_samples", about(&self.host)),
            ("interfaces", about(&self.interface)),
            ("gpus", about(&self.gpu)),
        ]
    }
}

fn about<R>(metrics: &Registry<Metric<R>>) -> Vec<About>
where
    Metric<R>: Entry,
{
    let one =
        |m: &Metric<R>| About { name: m.name, unit: m.unit, kind: m.kind, about: m.about, source: m.source };
    metrics.iter().map(one).collect()
}

/// The first number behind a word at the start of a line, as in most files under `/proc`.
pub(crate) fn field<N: FromStr>(text: &str, name: &str) -> Option<N> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim_start_matches([':', ' ', '\t']).split_whitespace().next()?.parse().ok()
}

/// A file that holds one number.
fn number(path: &std::path::Path) -> Option<f64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_columns_and_every_metric_says_its_unit_and_source() {
        for (table, metrics) in Metrics::default().tables() {
            for (i, m) in metrics.iter().enumerate() {
                let plain = m.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_' || b.is_ascii_digit());
                assert!(plain && !m.unit.is_empty() && !m.source.is_empty(), "{table}.{}", m.name);
                assert!(metrics[..i].iter().all(|other| other.name != m.name), "{table}.{} twice", m.name);
            }
        }
    }

    #[test]
    fn fields_of_proc_files_are_found_by_their_whole_name() {
        let text = "VmPeak:\t  10 kB\nVmRSS:\t     7 kB\nread_bytes: 4096\n";
        assert_eq!(field(text, "VmRSS"), Some(7.0));
        assert_eq!(field(text, "read_bytes"), Some(4096.0));
        assert_eq!(field::<u64>(text, "Swap"), None);
    }
}
