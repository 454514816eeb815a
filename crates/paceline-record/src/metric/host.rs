//! What is sampled of a machine and of its network interfaces.

use std::fs;

use super::{Metric, counter, field, gauge};

/// A machine at a moment.
#[derive(Clone, Debug, Default)]
pub struct HostReading {
    load: String,
    memory: String,
    stat: String,
}

impl HostReading {
    /// Reads three files under `/proc`.
    pub fn now() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        // Only the first line of /proc/stat counts: all cores together.
        let stat = read("/proc/stat").lines().next().unwrap_or_default().to_owned();
        Self { load: read("/proc/loadavg"), memory: read("/proc/meminfo"), stat }
    }

    fn memory(&self, name: &str) -> Option<f64> {
        field(&self.memory, name).map(|kib: f64| kib * 1024.0)
    }

    /// CPU time in the columns of the first line of `/proc/stat`, in seconds; USER_HZ is 100 on every Linux.
    fn cpu(&self, columns: &[usize]) -> Option<f64> {
        let ticks: Vec<f64> = self.stat.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
        columns.iter().map(|&i| ticks.get(i)).sum::<Option<f64>>().map(|ticks| ticks / 100.0)
    }
}

/// Metrics of a machine.
pub static HOST: &[Metric<HostReading>] = &[
    gauge("load_1m", "threads", "threads that run or want to, mean of a minute")
        .read("/proc/loadavg", |r| r.load.split_whitespace().next()?.parse().ok()),
    counter("cpu_busy_s", "s", "CPU time of everything on the machine, all cores")
        .read("/proc/stat", |r| r.cpu(&[0, 1, 2, 5, 6, 7])),
    counter("cpu_idle_s", "s", "time that cores had nothing to do or waited for disks")
        .read("/proc/stat", |r| r.cpu(&[3, 4])),
    gauge("memory_available_bytes", "bytes", "memory that programs could have")
        .read("/proc/meminfo", |r| r.memory("MemAvailable")),
    gauge("memory_total_bytes", "bytes", "memory of the machine")
        .read("/proc/meminfo", |r| r.memory("MemTotal")),
];

/// A network interface's counters: the columns of `/proc/net/dev`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InterfaceReading(Vec<u64>);

impl InterfaceReading {
    /// All interfaces of this network namespace, by name.
    pub fn all() -> Vec<(String, Self)> {
        Self::parse(&fs::read_to_string("/proc/net/dev").unwrap_or_default())
    }

    fn parse(table: &str) -> Vec<(String, Self)> {
        let row = |line: &str| {
            let (name, columns) = line.split_once(':')?;
            let columns = columns.split_whitespace().map_while(|n| n.parse().ok()).collect();
            Some((name.trim().to_owned(), Self(columns)))
        };
        table.lines().skip(2).filter_map(row).collect()
    }

    fn column(&self, at: usize) -> Option<f64> {
        self.0.get(at).map(|&n| n as f64)
    }
}

/// Metrics of a network interface.
pub static INTERFACE: &[Metric<InterfaceReading>] = &[
    counter("received_bytes", "bytes", "bytes received by everybody on the machine")
        .read("/proc/net/dev", |r| r.column(0)),
    counter("received_packets", "packets", "packets received").read("/proc/net/dev", |r| r.column(1)),
    counter("received_drops", "packets", "packets that came and were dropped")
        .read("/proc/net/dev", |r| r.column(3)),
    counter("sent_bytes", "bytes", "bytes sent by everybody on the machine")
        .read("/proc/net/dev", |r| r.column(8)),
    counter("sent_packets", "packets", "packets sent").read("/proc/net/dev", |r| r.column(9)),
    counter("sent_drops", "packets", "packets that could not be sent")
        .read("/proc/net/dev", |r| r.column(11)),
];

#[cfg(test)]
mod tests {
    use paceline_registry::Registry;

    use super::*;

    #[test]
    fn interfaces_are_read_by_name_and_column() {
        let table = "Inter-|   Receive   |  Transmit\n face |bytes packets ...\n\
                     lo: 100 2 0 1 0 0 0 0 200 4 0 3 0 0 0 0\n  eth0:5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20\n";
        let all = InterfaceReading::parse(table);
        let lo = super::super::values(&Registry::default(), &all[0].1);
        assert_eq!(lo, [100.0, 2.0, 1.0, 200.0, 4.0, 3.0].map(Some));
        assert_eq!(all[1].0, "eth0");
        assert_eq!(super::super::values(&Registry::default(), &all[1].1)[0], Some(5.0));
    }

    #[test]
    fn this_machine_says_how_it_is() {
        let values = super::super::values(&Registry::default(), &HostReading::now());
        assert!(values.iter().all(Option::is_some), "{values:?}");
        assert!(InterfaceReading::all().iter().any(|(name, _)| name == "lo"));
    }
}
