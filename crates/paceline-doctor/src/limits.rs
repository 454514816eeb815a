//! What this machine, its control groups and the user's limits let a run have.

use paceline_launch::capacity::{FILES, FILES_PER_RANK, Room, TaskLimit};
use paceline_record::metric::cgroup::CgroupReading;
use rustix::process::{Resource, getrlimit};
use rustix::thread::sched_getaffinity;

use crate::diagnosis::Diagnosis;

/// Memory below which models, data and several ranks get narrow, in bytes.
const LITTLE_MEMORY: u64 = 1 << 30;
/// Files that a process should be able to open.
const FEW_FILES: u64 = 1024;
/// Processes and threads that should be possible.
const FEW_TASKS: u64 = 256;
/// A record and its checkpoints may grow to this many bytes.
const SMALL_FILE: u64 = 1 << 30;
/// Part of the time that a group was stopped for having used its quota, above which that is told.
const THROTTLED: f64 = 0.05;

pub(crate) fn mb(bytes: u64) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
}

/// Cores that this process may be scheduled on.
pub(crate) fn affinity() -> usize {
    sched_getaffinity(None).map_or(1, |set| set.count() as usize).max(1)
}

/// Cores, and the control group's quota of them.
pub(crate) fn cores(cores: usize, cgroup: &CgroupReading) -> Diagnosis {
    let plural = if cores == 1 { "core" } else { "cores" };
    let Some(quota) = cgroup.cpu_limit.filter(|quota| *quota < cores as f64) else {
        return Diagnosis::ok("cores", format!("{cores} {plural}, no quota"));
    };
    let found = format!("the control group allows {quota:.2} of {cores} {plural}");
    let mend = "raise cpu.max (version 2) or cpu.cfs_quota_us (version 1) of the control group; docker run \
                --cpus N, a pod's limits.cpu, CPUQuota= of a service";
    if quota < 1.0 {
        let found = format!("{found}: even one rank is stopped for part of every period");
        return Diagnosis::hurts("cores", found, mend);
    }
    let (used, stopped) = (cgroup.cpu_s.unwrap_or(0.0), cgroup.throttled_s.unwrap_or(0.0));
    if stopped > 1.0 && stopped > THROTTLED * used {
        let found = format!("{found}, and was stopped for {stopped:.1} s in {used:.1} s of work");
        return Diagnosis::hurts("cores", found, mend);
    }
    Diagnosis::ok("cores", found)
}

/// Memory that is left, of the machine or of the control group.
pub(crate) fn memory(room: &Room, cgroup: &CgroupReading) -> Diagnosis {
    let Some(free) = room.bytes else {
        return Diagnosis::absent("memory", "the kernel does not say how much is free", "");
    };
    let limit = cgroup
        .memory_limit_bytes
        .map_or(String::new(), |limit| format!(" (the control group may have {})", mb(limit as u64)));
    let found = format!("{} free{limit}", mb(free));
    if free >= LITTLE_MEMORY {
        return Diagnosis::ok("memory", found);
    }
    let mend = "end something else, take a smaller --batch or fewer ranks, or raise memory.max of the control \
                group (docker run --memory)";
    Diagnosis::hurts("memory", format!("{found}: runs that need more are refused or killed"), mend)
}

/// Files that a process may have open.
pub(crate) fn descriptors(room: &Room) -> Diagnosis {
    let Some((limit, open)) = room.files else { return Diagnosis::ok("descriptors", "no limit") };
    let ranks = limit.saturating_sub(open + FILES) / FILES_PER_RANK;
    let found = format!("{limit} files per process, enough for {ranks} ranks on this machine");
    if limit >= FEW_FILES {
        return Diagnosis::ok("descriptors", found);
    }
    let hard = getrlimit(Resource::Nofile).maximum;
    let mend = match hard {
        Some(hard) if hard < FEW_FILES => format!(
            "root raises the hard limit of {hard}: LimitNOFILE= of the service, /etc/security/limits.conf, or \
             docker run --ulimit nofile=4096"
        ),
        _ => format!("ulimit -n {}", 4 * FEW_FILES),
    };
    Diagnosis::hurts("descriptors", found, &mend)
}

/// Processes and threads that may be added.
pub(crate) fn tasks(room: &Room) -> Diagnosis {
    let Some((left, whose)) = room.tasks else { return Diagnosis::ok("processes", "no limit") };
    let (whose, mend) = match whose {
        TaskLimit::User => ("this user", "ulimit -u raises the limit"),
        TaskLimit::ControlGroup => {
            ("this control group", "raise pids.max of the control group (docker run --pids-limit)")
        }
    };
    let found = format!("{whose} may start {left} more processes and threads");
    if left >= FEW_TASKS {
        Diagnosis::ok("processes", found)
    } else {
        Diagnosis::hurts("processes", format!("{found}; a rank takes at least 5"), mend)
    }
}

/// The size that a file may have.
pub(crate) fn file_size() -> Diagnosis {
    judge_file_size(getrlimit(Resource::Fsize).current)
}

fn judge_file_size(limit: Option<u64>) -> Diagnosis {
    match limit {
        None => Diagnosis::ok("file size", "no limit"),
        Some(limit) if limit >= SMALL_FILE => Diagnosis::ok("file size", format!("at most {}", mb(limit))),
        Some(limit) => {
            let found =
                format!("files end at {}: a record or a checkpoint that needs more is lost", mb(limit));
            Diagnosis::hurts("file size", found, "ulimit -f unlimited")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;

    fn quota(cores: f64) -> CgroupReading {
        CgroupReading { cpu_limit: Some(cores), ..CgroupReading::default() }
    }

    #[test]
    fn a_quota_below_one_core_hurts_and_one_that_leaves_whole_cores_does_not() {
        assert_eq!(cores(2, &CgroupReading::default()).severity, Severity::Ok);
        assert_eq!(cores(2, &quota(3.0)).found, "2 cores, no quota");
        let half = cores(2, &quota(0.5));
        assert_eq!(half.severity, Severity::Hurts);
        assert!(half.found.contains("0.50 of 2 cores") && half.mend.contains("cpu.max"), "{half:?}");
        assert_eq!(cores(8, &quota(4.0)).severity, Severity::Ok);
        let stopped = CgroupReading { cpu_s: Some(20.0), throttled_s: Some(5.0), ..quota(4.0) };
        assert!(cores(8, &stopped).found.contains("stopped for 5.0 s"), "{:?}", cores(8, &stopped));
        assert!(affinity() >= 1);
    }

    #[test]
    fn each_limit_is_judged_by_what_a_run_needs() {
        let room = |files, tasks, bytes| Room { cores: 2, files, tasks, bytes };
        let wide = room(None, None, None);
        for found in [descriptors(&wide), tasks(&wide), judge_file_size(None), judge_file_size(Some(1 << 40))]
        {
            assert_eq!(found.severity, Severity::Ok, "{found:?}");
        }
        assert_eq!(memory(&wide, &CgroupReading::default()).severity, Severity::Absent);
        let narrow = room(Some((64, 10)), Some((20, TaskLimit::ControlGroup)), Some(100_000_000));
        let found = descriptors(&narrow);
        assert!(found.severity.is_problem() && found.found.contains("15 ranks"), "{found:?}");
        assert!(tasks(&narrow).mend.contains("pids.max"));
        let found = memory(&narrow, &CgroupReading { memory_limit_bytes: Some(2e8), ..Default::default() });
        assert!(found.found.starts_with("100 MB free (the control group may have 200 MB)"), "{found:?}");
        assert!(judge_file_size(Some(1 << 20)).mend.contains("ulimit -f"));
    }
}
