//! What is sampled of a rank's process.

use std::fs;

use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use super::cgroup::{Cgroup, CgroupReading};
use super::{Metric, MetricKind, field};

/// What the kernel says of this process at a moment.
#[derive(Clone, Debug, Default)]
pub struct ProcessReading {
    usage: Option<Usage>,
    /// `/proc/self/status`.
    status: String,
    /// `/proc/self/io`, where the process may read it.
    io: String,
    /// Its cgroup.
    pub cgroup: CgroupReading,
}

impl ProcessReading {
    /// Reads this process: one system call and a few short files.
    pub fn now(cgroup: &Cgroup) -> Self {
        Self {
            usage: getrusage(UsageWho::RUSAGE_SELF).ok(),
            // The peak that getrusage knows can be that of the process which started this one.
            status: fs::read_to_string("/proc/self/status").unwrap_or_default(),
            io: fs::read_to_string("/proc/self/io").unwrap_or_default(),
            cgroup: cgroup.now(),
        }
    }

    fn usage(&self, of: impl Fn(&Usage) -> f64) -> Option<f64> {
        self.usage.as_ref().map(of)
    }
}

/// Metrics of a rank's process.
pub static PROCESS: &[Metric<ProcessReading>] = &[
    Metric {
        name: "cpu_user_s",
        unit: "s",
        kind: MetricKind::Counter,
        about: "CPU time in user mode, all threads",
        source: "getrusage",
        read: |r| r.usage(|u| u.user_time().num_microseconds() as f64 * 1e-6),
    },
    Metric {
        name: "cpu_system_s",
        unit: "s",
        kind: MetricKind::Counter,
        about: "CPU time in the kernel, all threads",
        source: "getrusage",
        read: |r| r.usage(|u| u.system_time().num_microseconds() as f64 * 1e-6),
    },
    Metric {
        name: "resident_bytes",
        unit: "bytes",
        kind: MetricKind::Gauge,
        about: "resident memory",
        source: "/proc/self/status VmRSS",
        read: |r| field(&r.status, "VmRSS").map(|kib| kib * 1024.0),
    },
    Metric {
        name: "resident_peak_bytes",
        unit: "bytes",
        kind: MetricKind::Gauge,
        about: "most resident memory so far",
        source: "/proc/self/status VmHWM",
        read: |r| field(&r.status, "VmHWM").map(|kib| kib * 1024.0),
    },
    Metric {
        name: "minor_faults",
        unit: "faults",
        kind: MetricKind::Counter,
        about: "page faults without reading from a disk",
        source: "getrusage",
        read: |r| r.usage(|u| u.minor_page_faults() as f64),
    },
    Metric {
        name: "major_faults",
        unit: "faults",
        kind: MetricKind::Counter,
        about: "page faults that read from a disk",
        source: "getrusage",
        read: |r| r.usage(|u| u.major_page_faults() as f64),
    },
    Metric {
        name: "voluntary_switches",
        unit: "switches",
        kind: MetricKind::Counter,
        about: "context switches because a thread had to wait",
        source: "getrusage",
        read: |r| r.usage(|u| u.voluntary_context_switches() as f64),
    },
    Metric {
        name: "involuntary_switches",
        unit: "switches",
        kind: MetricKind::Counter,
        about: "context switches because others wanted the core",
        source: "getrusage",
        read: |r| r.usage(|u| u.involuntary_context_switches() as f64),
    },
    Metric {
        name: "disk_read_bytes",
        unit: "bytes",
        kind: MetricKind::Counter,
        about: "read from disks (not from the page cache)",
        source: "/proc/self/io read_bytes",
        read: |r| field(&r.io, "read_bytes"),
    },
    Metric {
        name: "disk_write_bytes",
        unit: "bytes",
        kind: MetricKind::Counter,
        about: "written towards disks",
        source: "/proc/self/io write_bytes",
        read: |r| field(&r.io, "write_bytes"),
    },
    Metric {
        name: "cgroup_cpu_s",
        unit: "s",
        kind: MetricKind::Counter,
        about: "CPU time of the cgroup",
        source: "v2 cpu.stat, v1 cpuacct.usage",
        read: |r| r.cgroup.cpu_s,
    },
    Metric {
        name: "cgroup_throttled_s",
        unit: "s",
        kind: MetricKind::Counter,
        about: "time that the cgroup was kept from running by its quota",
        source: "cpu.stat",
        read: |r| r.cgroup.throttled_s,
    },
    Metric {
        name: "cgroup_cpu_limit",
        unit: "cores",
        kind: MetricKind::Gauge,
        about: "the cgroup's quota of CPU time",
        source: "v2 cpu.max, v1 cpu.cfs_quota_us",
        read: |r| r.cgroup.cpu_limit,
    },
    Metric {
        name: "cgroup_memory_bytes",
        unit: "bytes",
        kind: MetricKind::Gauge,
        about: "memory of the cgroup, page cache included",
        source: "v2 memory.current, v1 memory.usage_in_bytes",
        read: |r| r.cgroup.memory_bytes,
    },
    Metric {
        name: "cgroup_memory_limit_bytes",
        unit: "bytes",
        kind: MetricKind::Gauge,
        about: "the cgroup's limit of memory",
        source: "v2 memory.max, v1 memory.limit_in_bytes",
        read: |r| r.cgroup.memory_limit_bytes,
    },
    Metric {
        name: "cgroup_disk_read_bytes",
        unit: "bytes",
        kind: MetricKind::Counter,
        about: "read from disks by the cgroup",
        source: "v2 io.stat, v1 blkio.throttle.io_service_bytes",
        read: |r| r.cgroup.disk_read_bytes,
    },
    Metric {
        name: "cgroup_disk_write_bytes",
        unit: "bytes",
        kind: MetricKind::Counter,
        about: "written to disks by the cgroup",
        source: "v2 io.stat, v1 blkio.throttle.io_service_bytes",
        read: |r| r.cgroup.disk_write_bytes,
    },
];
