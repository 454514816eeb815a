//! What is sampled of a rank's process.

use std::fs;
use std::sync::{Mutex, PoisonError};

use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use super::cgroup::{Cgroup, CgroupReading};
use super::{Metric, counter, field, gauge};
use crate::tree;

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
    /// CPU time in seconds and resident bytes of the scripts beside it, if there are some.
    script: Option<(f64, f64)>,
}

/// The scripts beside this process.
static SCRIPTS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Lets what a script's process takes be sampled with this one.
pub fn sample_script(pid: u32) {
    SCRIPTS.lock().unwrap_or_else(PoisonError::into_inner).push(pid);
}

/// Sums over the scripts: CPU time and memory.
fn scripts() -> Option<(f64, f64)> {
    let pids = SCRIPTS.lock().unwrap_or_else(PoisonError::into_inner);
    let readings = pids.iter().filter_map(|pid| Some(tree::read(*pid)?.0));
    readings.map(|r| (r.cpu_s, r.resident_bytes as f64)).reduce(|a, b| (a.0 + b.0, a.1 + b.1))
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
            script: scripts(),
        }
    }

    fn usage(&self, of: impl Fn(&Usage) -> f64) -> Option<f64> {
        self.usage.as_ref().map(of)
    }
}

/// Metrics of a rank's process.
pub static PROCESS: &[Metric<ProcessReading>] = &[
    counter("cpu_user_s", "s", "CPU time in user mode, all threads")
        .read("getrusage", |r| r.usage(|u| u.user_time().num_microseconds() as f64 * 1e-6)),
    counter("cpu_system_s", "s", "CPU time in the kernel, all threads")
        .read("getrusage", |r| r.usage(|u| u.system_time().num_microseconds() as f64 * 1e-6)),
    gauge("resident_bytes", "bytes", "resident memory")
        .read("/proc/self/status VmRSS", |r| field(&r.status, "VmRSS").map(|kib: f64| kib * 1024.0)),
    gauge("resident_peak_bytes", "bytes", "most resident memory so far")
        .read("/proc/self/status VmHWM", |r| field(&r.status, "VmHWM").map(|kib: f64| kib * 1024.0)),
    counter("script_cpu_s", "s", "CPU time of the script beside the rank, without what it has started")
        .read("/proc/PID/stat", |r| r.script.map(|(cpu_s, _)| cpu_s)),
    gauge("script_resident_bytes", "bytes", "resident memory of the script beside the rank")
        .read("/proc/PID/stat", |r| r.script.map(|(_, bytes)| bytes)),
    counter("minor_faults", "faults", "page faults without reading from a disk")
        .read("getrusage", |r| r.usage(|u| u.minor_page_faults() as f64)),
    counter("major_faults", "faults", "page faults that read from a disk")
        .read("getrusage", |r| r.usage(|u| u.major_page_faults() as f64)),
    counter("voluntary_switches", "switches", "context switches because a thread had to wait")
        .read("getrusage", |r| r.usage(|u| u.voluntary_context_switches() as f64)),
    counter("involuntary_switches", "switches", "context switches because others wanted the core")
        .read("getrusage", |r| r.usage(|u| u.involuntary_context_switches() as f64)),
    counter("disk_read_bytes", "bytes", "read from disks (not from the page cache)")
        .read("/proc/self/io read_bytes", |r| field(&r.io, "read_bytes")),
    counter("disk_write_bytes", "bytes", "written towards disks")
        .read("/proc/self/io write_bytes", |r| field(&r.io, "write_bytes")),
    counter("cgroup_cpu_s", "s", "CPU time of the cgroup")
        .read("v2 cpu.stat, v1 cpuacct.usage", |r| r.cgroup.cpu_s),
    counter("cgroup_throttled_s", "s", "time that the cgroup was kept from running by its quota")
        .read("cpu.stat", |r| r.cgroup.throttled_s),
    gauge("cgroup_cpu_limit", "cores", "the cgroup's quota of CPU time")
        .read("v2 cpu.max, v1 cpu.cfs_quota_us", |r| r.cgroup.cpu_limit),
    gauge("cgroup_memory_bytes", "bytes", "memory of the cgroup, page cache included")
        .read("v2 memory.current, v1 memory.usage_in_bytes", |r| r.cgroup.memory_bytes),
    gauge("cgroup_memory_limit_bytes", "bytes", "the cgroup's limit of memory")
        .read("v2 memory.max, v1 memory.limit_in_bytes", |r| r.cgroup.memory_limit_bytes),
    counter("cgroup_disk_read_bytes", "bytes", "read from disks by the cgroup")
        .read("v2 io.stat, v1 blkio.throttle.io_service_bytes", |r| r.cgroup.disk_read_bytes),
    counter("cgroup_disk_write_bytes", "bytes", "written to disks by the cgroup")
        .read("v2 io.stat, v1 blkio.throttle.io_service_bytes", |r| r.cgroup.disk_write_bytes),
];
