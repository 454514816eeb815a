//! What this machine can take: whether a run's ranks fit, before the first one is started.
//!
//! Demands are what a rank needs at least, so that nothing is refused that would have run.

use std::fs;
use std::path::Path;

use paceline_data::Dataset;
use paceline_nn::GraphPart;
use paceline_record::store::{OutOfSpace, scarce};
use paceline_resolve::TypedPlan;
use paceline_train::model;
use rustix::process::{Resource, getrlimit, getuid};

use crate::error::LaunchError;
use crate::exit::control_group;

/// Ranks of a recorded run on each core; with more, some have no turn for so long that they are taken for lost.
const RECORDED_PER_CORE: u64 = 256;
/// The same where nothing is recorded.
const PER_CORE: u64 = 2 * RECORDED_PER_CORE;
/// Files that the launcher has open for each process: two pipes, and what tells of its end.
pub const FILES_PER_RANK: u64 = 3;
/// Files that the launcher opens besides.
pub const FILES: u64 = 8;
/// Threads of a rank besides those that compute, and the launcher's that listens to it.
const THREADS_PER_RANK: u64 = 4;
/// Memory of a process that has neither model nor data yet, in bytes.
const PROCESS_BYTES: u64 = 2 << 20;

/// What the ranks of a run need of one machine, at least.
#[derive(Clone, Debug)]
struct Demand {
    ranks: u64,
    /// Whether ranks are processes; threads of one process otherwise.
    processes: bool,
    recorded: bool,
    /// Of each rank that computes.
    threads: u64,
    bytes: u64,
}

/// What is left of one machine; nothing where there is no limit.
#[derive(Clone, Debug, Default)]
pub struct Room {
    /// Cores that this process may use.
    pub cores: u64,
    /// Files that one process may have open, and those that this one has.
    pub files: Option<(u64, u64)>,
    /// Processes and threads that may be added, and whose limit that is.
    pub tasks: Option<(u64, TaskLimit)>,
    /// Memory in bytes.
    pub bytes: Option<u64>,
}

/// Whose limit of processes and threads it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskLimit {
    /// The user's (`ulimit -u`).
    User,
    /// The control group's (`pids.max`).
    ControlGroup,
}

/// Refuses a run whose ranks on this machine do not fit; with `joined`, other machines take their part of them.
pub fn check(
    plan: &TypedPlan<'_>,
    dataset: Option<&Dataset>,
    recorded: bool,
    joined: bool,
) -> Result<(), LaunchError> {
    let world = plan.workers + plan.servers;
    let ranks = if joined { plan.layout().iter().filter(|host| **host == 0).count() } else { world };
    let thread = plan.alone() && plan.script.is_none();
    let processes = !thread && plan.transport.mesh.is_none();
    let base = if processes { PROCESS_BYTES } else { 0 };
    let mut model = 0;
    if let Some(dataset) = dataset {
        let graph = model::graph(plan, dataset)?;
        let own = if processes { dataset.train.memory_bytes() + dataset.test.memory_bytes() } else { 0 };
        model = own
            + match plan.stage_plan(&graph)? {
                // The smallest stage: at least so much for each.
                Some(stages) => {
                    let bytes = |(part, slots): (&GraphPart, usize)| {
                        let pass = part.pass_memory(&graph).bytes(stages.capacity, slots);
                        pass + 2 * size_of::<f32>() * part.params.len()
                    };
                    let slots = (0..plan.stages).map(|stage| stages.program.slots(stage));
                    stages.parts.iter().zip(slots).map(bytes).min().unwrap_or(0)
                }
                None => {
                    let pass = graph.pass_memory().bytes(plan.batch.div_ceil(plan.micro_batches), 1);
                    pass + 2 * size_of::<f32>() * graph.param_count()
                }
            };
    }
    let demand = Demand {
        ranks: ranks as u64,
        processes,
        recorded,
        threads: plan.threads as u64,
        bytes: base + model as u64,
    };
    demand.check(&Room::here())
}

impl Demand {
    /// Refuses what does not fit, and names what is scarcest.
    fn check(&self, room: &Room) -> Result<(), LaunchError> {
        let fitting = [self.cores(room), self.files(room), self.tasks(room), self.memory(room)];
        match fitting.into_iter().flatten().min_by_key(|(most, ..)| *most) {
            Some((most, limit, remedy)) if most < self.ranks => {
                Err(LaunchError::TooMany { ranks: self.ranks, most, limit, remedy })
            }
            _ => Ok(()),
        }
    }

    fn cores(&self, room: &Room) -> Option<(u64, String, String)> {
        let each = if self.recorded { RECORDED_PER_CORE } else { PER_CORE };
        let limit = format!(
            "{}, and with more than {each} processes on each some have no turn for seconds",
            counted(room.cores, "core")
        );
        let more = if self.recorded { "`--no-record` lets in twice as many" } else { "" };
        self.processes.then_some((each * room.cores, limit, more.into()))
    }

    fn files(&self, room: &Room) -> Option<(u64, String, String)> {
        let (limit, open) = room.files.filter(|_| self.processes)?;
        let most = limit.saturating_sub(open + FILES) / FILES_PER_RANK;
        let problem = format!("a process may have {limit} files open, and each rank takes {FILES_PER_RANK}");
        let needed = open + FILES + FILES_PER_RANK * self.ranks;
        Some((most, problem, format!("`ulimit -n {needed}` raises the limit")))
    }

    fn tasks(&self, room: &Room) -> Option<(u64, String, String)> {
        let (left, whose) = room.tasks?;
        let each = if self.processes { THREADS_PER_RANK + self.threads } else { self.threads };
        let (whose, remedy) = match whose {
            TaskLimit::User => ("this user", "`ulimit -u` raises the limit"),
            TaskLimit::ControlGroup => ("this container or service", "pids.max of its control group says so"),
        };
        let problem = format!(
            "{whose} may start {left} more processes and threads, and each rank takes at least {each}"
        );
        Some((left / each, problem, remedy.into()))
    }

    fn memory(&self, room: &Room) -> Option<(u64, String, String)> {
        let free = room.bytes?;
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let problem = format!(
            "{:.0} MB of memory are free, and each takes at least {:.1} MB",
            mb(free),
            mb(self.bytes)
        );
        Some((free / self.bytes.max(1), problem, "a smaller --batch or model takes less".into()))
    }
}

pub(crate) fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

impl Room {
    /// What is left of this machine now.
    pub fn here() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let open = fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64);
        let of_user = tasks_of_user().map(|left| (left, TaskLimit::User));
        let of_group = tasks_of_group(&groups).map(|left| (left, TaskLimit::ControlGroup));
        Self {
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64),
            files: getrlimit(Resource::Nofile).current.map(|limit| (limit, open)),
            tasks: of_user.into_iter().chain(of_group).min(),
            bytes: memory_of_machine().into_iter().chain(memory_of_group(&groups)).min(),
        }
    }
}

/// Processes and threads that this user may add; root may add any number.
fn tasks_of_user() -> Option<u64> {
    let limit = getrlimit(Resource::Nproc).current.filter(|_| !getuid().is_root())?;
    let status = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("status")).ok();
    let all = fs::read_dir("/proc").ok()?.filter_map(|entry| status(entry.ok()?));
    let own = all.filter(|status| field(status, "Uid:") == Some(u64::from(getuid().as_raw())));
    Some(limit.saturating_sub(own.filter_map(|status| field(&status, "Threads:")).sum()))
}

fn tasks_of_group(groups: &str) -> Option<u64> {
    let left = |folder: &String| {
        number(&format!("{folder}/pids.max"))?.checked_sub(number(&format!("{folder}/pids.current"))?)
    };
    folders(groups, "pids").iter().filter_map(left).min()
}

fn memory_of_machine() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let bytes = |name| field(&text, name).map(|kib| kib << 10);
    Some(bytes("MemAvailable:")? + bytes("SwapFree:").unwrap_or(0))
}

/// What a control group has not used, and what it would get back of cached files.
fn memory_of_group(groups: &str) -> Option<u64> {
    let free = |folder: &String| {
        let stat = fs::read_to_string(format!("{folder}/memory.stat")).unwrap_or_default();
        let cached = field(&stat, "inactive_file ").unwrap_or(0) + field(&stat, "active_file ").unwrap_or(0);
        // The names of version 2, or those of version 1.
        let either = |two: &str, one: &str| {
            number(&format!("{folder}/{two}")).or_else(|| number(&format!("{folder}/{one}")))
        };
        let used = either("memory.current", "memory.usage_in_bytes")?.saturating_sub(cached);
        Some(either("memory.max", "memory.limit_in_bytes")?.saturating_sub(used))
    };
    folders(groups, "memory").iter().filter_map(free).min()
}

/// The folder of this process's control group for a controller, and those around it.
fn folders(groups: &str, controller: &str) -> Vec<String> {
    let Some((root, group)) = groups.lines().find_map(|line| control_group(line, controller)) else {
        return Vec::new();
    };
    let ends = group.match_indices('/').map(|(at, _)| at).chain([group.len()]);
    ends.map(|end| format!("{root}{}", &group[..end])).collect()
}

/// The one number of a file; `max` is none.
fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The first number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

/// Refuses a run whose record and checkpoints the disk has no room for, before anything starts.
pub fn check_space(plan: &TypedPlan<'_>, dataset: &Dataset, store: &Path) -> Result<(), LaunchError> {
    // Parameters and what an optimiser remembers of each, at most twice as much; servers share one model.
    let model = 3 * size_of::<f32>() as u64 * model::graph(plan, dataset)?.param_count() as u64;
    let checkpoint = model * (plan.replicas() as u64 + u64::from(plan.servers > 0));
    // One is written before the oldest goes; without any, an interrupt may ask for one.
    let kept = plan.checkpoint_every.map_or(1, |_| plan.keep as u64 + 1);
    let Some(OutOfSpace { needed, free }) = scarce(store, kept, checkpoint) else { return Ok(()) };
    Err(LaunchError::OutOfSpace { store: store.to_owned(), free, kept, needed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thousand() -> Demand {
        Demand { ranks: 1000, processes: true, recorded: true, threads: 1, bytes: 3_000_000 }
    }

    fn wide() -> Room {
        Room { cores: 64, ..Room::default() }
    }

    fn refused(demand: &Demand, room: &Room) -> (String, String) {
        let error = demand.check(room).unwrap_err();
        (error.to_string(), error.hint())
    }

    #[test]
    fn a_thousand_workers_on_two_cores_are_refused_beforehand() {
        let (error, hint) = refused(&thousand(), &Room { cores: 2, ..wide() });
        let limit = "2 cores, and with more than 256 processes on each some have no turn for seconds";
        assert_eq!(error, format!("1000 ranks do not fit on this machine, 512 would: {limit}"));
        assert!(hint.contains("nothing was started") && hint.contains("paceline simulate"), "{hint}");
        assert!(thousand().check(&wide()).is_ok());
        let unrecorded = Demand { recorded: false, ..thousand() };
        assert!(unrecorded.check(&Room { cores: 2, ..wide() }).is_ok());
    }

    #[test]
    fn the_scarcest_limit_is_named_with_what_to_do() {
        let room = Room { files: Some((1024, 10)), tasks: Some((6000, TaskLimit::User)), ..wide() };
        let (error, hint) = refused(&thousand(), &room);
        assert!(error.contains("335 would: a process may have 1024 files open"), "{error}");
        assert!(hint.contains("ulimit -n 3018"), "{hint}");
        let room = Room { tasks: Some((500, TaskLimit::ControlGroup)), ..room };
        let (error, hint) = refused(&thousand(), &room);
        assert!(error.contains("100 would: this container or service may start 500 more"), "{error}");
        assert!(hint.contains("pids.max"), "{hint}");
        let (error, hint) = refused(&thousand(), &Room { bytes: Some(30_000_000), ..room });
        assert!(error.contains("10 would: 30 MB of memory are free"), "{error}");
        assert!(hint.contains("smaller --batch"), "{hint}");
    }

    #[test]
    fn threads_take_neither_files_nor_turns() {
        let threads = Demand { processes: false, ..thousand() };
        let room = Room { cores: 1, files: Some((64, 10)), tasks: Some((1000, TaskLimit::User)), ..wide() };
        assert!(threads.check(&room).is_ok());
    }

    #[test]
    fn control_groups_limit_what_lies_within_them() {
        assert_eq!(folders("0::/", "pids"), ["/sys/fs/cgroup"]);
        let inner = ["/sys/fs/cgroup", "/sys/fs/cgroup/a", "/sys/fs/cgroup/a/b"];
        assert_eq!(folders("0::/a/b\n", "memory"), inner);
        assert_eq!(folders("4:pids:/x", "pids"), ["/sys/fs/cgroup/pids", "/sys/fs/cgroup/pids/x"]);
        assert!(folders("4:devices:/x", "pids").is_empty());
    }

    #[test]
    fn this_machine_says_what_it_has() {
        let here = Room::here();
        assert!(here.cores > 0 && here.bytes.is_some_and(|bytes| bytes > 1 << 20), "{here:?}");
    }
}
