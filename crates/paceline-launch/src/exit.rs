//! How a process ended: its exit status or the signal that ended it, and whether memory ran out.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use serde::{Deserialize, Serialize};

/// How a process ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exit {
    /// Its exit status, if it ended by itself.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether the kernel counted a kill for want of memory while it ran.
    pub out_of_memory: bool,
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        Self { code: status.code(), signal: status.signal(), out_of_memory: false }
    }
}

/// For people: what the kernel does, what a program does to itself, and what others do to it are told apart as far as
/// that is known.
impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(101), _) => write!(f, "it panicked (exit status 101)"),
            (Some(code @ 129..=159), _) => {
                let command = Self { code: None, signal: Some(code - 128), ..*self };
                write!(f, "exit status {code}, as a shell's whose command was {command}")
            }
            (Some(code), _) => write!(f, "exit status {code}"),
            (None, Some(signal)) => {
                // The standard library knows the names.
                let status = ExitStatus::from_raw(signal).to_string().replacen(": ", " ", 1);
                match signal {
                    6 => write!(f, "aborted ({status}), perhaps for want of memory"),
                    9 if self.out_of_memory => write!(f, "killed by {status} for want of memory"),
                    9 => write!(f, "killed by {status}: by somebody, or for want of memory"),
                    _ => write!(f, "killed by {status}"),
                }
            }
            (None, None) => write!(f, "nobody saw how it ended"),
        }
    }
}

/// Processes that the kernel has killed for want of memory so far: in the control group of this process, or on the
/// whole machine where the group does not say.
pub fn out_of_memory_kills() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let in_group = |line: &str| kills(&read(&events_file(line)?));
    read("/proc/self/cgroup").lines().find_map(in_group).or_else(|| kills(&read("/proc/vmstat")))
}

/// The file that counts a control group's kills, if this line of `/proc/PID/cgroup` is about memory.
fn events_file(line: &str) -> Option<String> {
    let (root, group) = control_group(line, "memory")?;
    let file = if root == "/sys/fs/cgroup" { "memory.events" } else { "memory.oom_control" };
    Some(format!("{root}{group}/{file}"))
}

/// Where the control groups of a controller are, and this one among them, if this line of `/proc/PID/cgroup` is about
/// it.
pub(crate) fn control_group<'a>(line: &'a str, controller: &str) -> Option<(String, &'a str)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, group) = (parts.next()?, parts.next()?.trim_end_matches('/'));
    match controllers {
        // Version 2 has one hierarchy for all controllers.
        "" => Some(("/sys/fs/cgroup".into(), group)),
        _ if controllers.split(',').any(|name| name == controller) => {
            Some((format!("/sys/fs/cgroup/{controller}"), group))
        }
        _ => None,
    }
}

fn kills(events: &str) -> Option<u64> {
    events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses_signals_and_want_of_memory_are_told_apart() {
        let code = |code| Exit { code: Some(code), ..Exit::default() }.to_string();
        let signal = |signal| Exit { signal: Some(signal), ..Exit::default() };
        assert_eq!(code(3), "exit status 3");
        assert_eq!(signal(9).to_string(), "killed by signal 9 (SIGKILL): by somebody, or for want of memory");
        let starved = Exit { out_of_memory: true, ..signal(9) };
        assert_eq!(starved.to_string(), "killed by signal 9 (SIGKILL) for want of memory");
        assert_eq!(signal(11).to_string(), "killed by signal 11 (SIGSEGV)");
        assert_eq!(signal(6).to_string(), "aborted (signal 6 (SIGABRT)), perhaps for want of memory");
        assert!(code(143).ends_with("whose command was killed by signal 15 (SIGTERM)"), "{}", code(143));
    }

    #[test]
    fn kills_are_read_of_both_versions_of_control_groups() {
        let file = |line| events_file(line).unwrap_or_default();
        assert_eq!(file("0::/a.slice/b"), "/sys/fs/cgroup/a.slice/b/memory.events");
        assert_eq!(file("0::/"), "/sys/fs/cgroup/memory.events");
        assert_eq!(file("9:cpu,memory:/docker/x"), "/sys/fs/cgroup/memory/docker/x/memory.oom_control");
        assert_eq!(file("4:devices:/docker/x"), "");
        assert_eq!(kills("low 0\noom 2\noom_kill 1\noom_group_kill 0\n"), Some(1));
        assert_eq!(kills("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"), Some(4));
        assert_eq!(kills(""), None);
    }

    #[test]
    fn an_exit_of_an_older_version_can_be_read() {
        assert_eq!(serde_json::from_str::<Exit>("{\"code\":3}").unwrap().code, Some(3));
    }
}
