//! Readings of this process, from the kernel.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::time::{ClockId, clock_gettime};

use crate::metric::field;

/// CPU time of this process so far, all threads, in seconds.
pub fn cpu_seconds() -> f64 {
    clock_ns(ClockId::ProcessCPUTime) as f64 * 1e-9
}

/// CPU time of the calling thread so far, in seconds.
pub fn thread_cpu_seconds() -> f64 {
    clock_ns(ClockId::ThreadCPUTime) as f64 * 1e-9
}

/// How long the thread that made it has been ready to run without having a core.
#[derive(Debug)]
pub struct CoreWait(Option<File>);

impl CoreWait {
    /// Of the calling thread.
    pub fn of_this_thread() -> Self {
        Self(File::open("/proc/thread-self/schedstat").ok())
    }

    /// Nanoseconds so far; none where the kernel does not say.
    pub fn ns(&self) -> Option<u64> {
        // Time on a core, time without one, number of turns.
        let mut text = [0; 64];
        let read = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        std::str::from_utf8(&text[..read]).ok()?.split_whitespace().nth(1)?.parse().ok()
    }
}

/// CPU time of all processes that this one has started and reaped, and of theirs, in seconds.
pub fn children_cpu_seconds() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok();
    let both = usage.map(|u| u.user_time().num_microseconds() + u.system_time().num_microseconds());
    both.unwrap_or(0) as f64 * 1e-6
}

/// The clock that all processes of one machine share, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    clock_ns(ClockId::Monotonic)
}

/// The calendar, in nanoseconds since 1970.
pub fn realtime_ns() -> u64 {
    clock_ns(ClockId::Realtime)
}

fn clock_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Peak resident memory of this process in bytes; 0 where the kernel does not say.
pub fn peak_memory_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    field::<u64>(&status, "VmHWM").unwrap_or(0) * 1024
}

/// How many processes wanted to run on this machine, on average over the last minute; 0 where the kernel does
/// not say.
pub fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// The machine's name.
pub fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".into() } else { name.trim().into() }
}

/// A run id that sorts by time and differs between processes that start at once.
pub fn new_run_id() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("r{:x}-{:x}", now.as_millis(), std::process::id())
}

/// When this process began, to within the time that the kernel needs to start it.
#[derive(Clone, Copy, Debug)]
pub struct Started(Instant);

impl Started {
    /// To be called first thing in `main`.
    pub fn now() -> Self {
        Self(Instant::now())
    }

    /// Seconds since.
    pub fn seconds(self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}
