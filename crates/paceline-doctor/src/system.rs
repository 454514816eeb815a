//! The kernel's abilities, its clocks, and the file system of shared memory.

use std::fs;
use std::path::Path;
use std::time::Instant;

use paceline_memory::Mapping;
use rustix::fs::statvfs;
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::diagnosis::Diagnosis;
use crate::limits::mb;

/// `/dev/shm` that data loaders and NCCL manage with, in bytes. Containers have 64 MB unless asked for more.
const SMALL_SHM: u64 = 512 << 20;
/// Reads of the clock whose mean time is taken.
const CLOCK_READS: u32 = 2000;
/// A clock that takes longer is read through the kernel, in nanoseconds.
const SLOW_CLOCK: f64 = 1000.0;

/// What runs ask of the kernel, tried out.
pub(crate) fn kernel(release: &str) -> Diagnosis {
    let sealed = Mapping::create(4096).and_then(|(_, file)| Mapping::seal_against_writers(&file));
    let tried = [
        ("sealed memory files (memfd_create, kernel 5.1)", "--transport shm and scripts", sealed),
        (
            "pidfds (pidfd_open, kernel 5.3)",
            "every run of several processes",
            pidfd_open(getpid(), PidfdFlags::empty()).map(drop).map_err(Into::into),
        ),
    ];
    let missing: Vec<String> = tried
        .into_iter()
        .filter_map(|(what, needed_by, tried)| Some(format!("{what} for {needed_by}: {}", tried.err()?)))
        .collect();
    if missing.is_empty() {
        return Diagnosis::ok("kernel", format!("{release}: sealed memory files and pidfds work"));
    }
    let mend = "a later kernel, or a container whose seccomp profile lets these calls through";
    Diagnosis::fails("kernel", format!("{release} lacks {}", missing.join("; ")), mend)
}

/// The file system that data loaders of scripts, NCCL and gloo share memory through. Paceline's own transport uses
/// memory files without a name, which only memory limits.
pub(crate) fn shared_memory(folder: &Path) -> Diagnosis {
    let mend = "mount -o remount,size=2G /dev/shm; docker run --shm-size=2g (or --ipc=host)";
    let Ok(found) = statvfs(folder) else {
        let found = format!("there is no {}: data loaders of scripts and NCCL need it", folder.display());
        return Diagnosis::hurts("shared memory", found, mend);
    };
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    let (size, free) = (bytes(found.f_blocks), bytes(found.f_bavail));
    let text = format!("{} has {}, {} free", folder.display(), mb(size), mb(free));
    if free >= SMALL_SHM {
        return Diagnosis::ok("shared memory", text);
    }
    let found = format!("{text}: data loaders of scripts and NCCL end with bus errors when it is full");
    Diagnosis::hurts("shared memory", found, mend)
}

/// The clock that everything is timed with.
pub(crate) fn clocks() -> Diagnosis {
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.map_or("unknown".into(), |text| text.trim().to_owned());
    let begun = Instant::now();
    for _ in 0..CLOCK_READS {
        std::hint::black_box(Instant::now());
    }
    judge_clock(&source, begun.elapsed().as_nanos() as f64 / f64::from(CLOCK_READS))
}

fn judge_clock(source: &str, read_ns: f64) -> Diagnosis {
    let found = format!("clock source {source}, {read_ns:.0} ns to read");
    if read_ns < SLOW_CLOCK {
        return Diagnosis::ok("clocks", found);
    }
    let mend = "choose tsc or kvm-clock in /sys/devices/system/clocksource/clocksource0/current_clocksource if \
                it is available";
    Diagnosis::hurts("clocks", format!("{found}: short times are measured wrongly"), mend)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;

    #[test]
    fn clocks_and_shared_memory_are_judged() {
        assert_eq!(judge_clock("tsc", 25.0).severity, Severity::Ok);
        assert!(judge_clock("hpet", 1500.0).severity.is_problem());
        let none = shared_memory(Path::new("/nonexistent"));
        assert!(none.severity.is_problem() && none.mend.contains("--shm-size"), "{none:?}");
        assert!(kernel("Linux").found.starts_with("Linux"));
    }
}
