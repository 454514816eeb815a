//! Where a process runs, and whether a process is still the one that it was.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::metric::field;
use crate::process;

/// A process and its machine, as they are when a run begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEnvironment {
    pub host: String,
    /// What the kernel calls its life since it was started.
    pub boot_id: String,
    pub pid: u32,
    /// When the process began, in the kernel's ticks since boot: two processes of one number differ in it.
    pub pid_started: u64,
    pub machine: Machine,
    /// Memory of the machine in bytes.
    pub memory_bytes: u64,
    /// Nanoseconds from the zero of `CLOCK_MONOTONIC` to that of the calendar: what clocks of two machines are
    /// compared by.
    pub clock_ns: i64,
}

impl RunEnvironment {
    /// This process and this machine.
    pub fn own() -> Self {
        Self {
            host: process::host(),
            boot_id: boot_id(),
            pid: std::process::id(),
            pid_started: started(std::process::id()).unwrap_or_default(),
            machine: Machine::here(),
            memory_bytes: field::<u64>(&read("/proc/meminfo"), "MemTotal").unwrap_or(0) * 1024,
            clock_ns: process::realtime_ns() as i64 - process::monotonic_ns() as i64,
        }
    }
}

/// Whether a process of this machine still runs; none if it belongs to another machine.
pub fn alive(host: &str, boot: &str, pid: u32, pid_started: u64) -> Option<bool> {
    if boot != boot_id() {
        // The same name in another life of the machine: nothing of that life runs any more.
        return (host == process::host()).then_some(false);
    }
    Some(started(pid) == Some(pid_started))
}

fn boot_id() -> String {
    read("/proc/sys/kernel/random/boot_id").trim().to_owned()
}

/// When a process began; none if there is none, or if it only waits to be reaped.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may hold anything, but it ends with the last bracket.
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    (!["Z", "X"].contains(&state)).then_some(started)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_alive_as_long_as_it_is_the_same_one() {
        let own = RunEnvironment::own();
        let ask = |host: &str, boot: &str, pid, started| alive(host, boot, pid, started);
        assert_eq!(ask(&own.host, &own.boot_id, own.pid, own.pid_started), Some(true));
        assert_eq!(
            ask(&own.host, &own.boot_id, own.pid, own.pid_started + 1),
            Some(false),
            "another process"
        );
        assert_eq!(ask(&own.host, "an earlier life", own.pid, own.pid_started), Some(false));
        assert_eq!(ask("elsewhere", "another life", own.pid, own.pid_started), None);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        let began = started(pid).unwrap_or_default();
        child.wait().unwrap();
        assert_eq!(ask(&own.host, &own.boot_id, pid, began), Some(false), "it has ended");
    }
}
