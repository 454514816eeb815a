//! Runs that somebody else starts: a scheduler or launcher (an *engine*) starts one process per host, all with the same
//! command line, and tells each its number through variables. Process 0 leads, the others join it.
//!
//! - this file: which variables say what ([`EngineTask`])
//! - `node_list`: Slurm's compressed lists of nodes
//! - `meeting`: how the others find the leader and get the key: a file that only their user may read, in a folder that
//!   all share; never an argument or a variable
//! - `ssh`: hosts of a file, started over ssh
//! - `job`: the processes of a run, whoever starts them: leading it, or taking part
//! - `parent`: what happens when the engine itself is gone

mod job;
mod meeting;
mod node_list;
mod parent;
mod ssh;

pub use job::{EngineJob, Invitation};
pub use parent::watch_parent;
pub use ssh::{HostsFile, key_from};

use node_list::node_list;

use crate::address::HostAddress;

/// Engines that can be named, and what each is.
pub const ENGINES: &[(&str, &str)] = &[
    ("auto", "whichever has started this process as one of several; none otherwise"),
    ("none", "this process leads a run of its own, whatever the environment says"),
    ("slurm", "srun: SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST"),
    ("mpi", "mpirun: OMPI_COMM_WORLD_RANK and _SIZE (Open MPI), PMI_RANK and PMI_SIZE (MPICH, Intel)"),
    ("torchrun", "torchrun, or whatever sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"),
];

/// Variables as they are read.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The variables of this process; empty ones are as good as none.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A number from the environment, if it is there.
pub fn number_of(name: &str) -> Result<Option<usize>, String> {
    let wrong = |value: &str| format!("{name}={value}: a number is needed");
    environment(name).map(|value| value.trim().parse().map_err(|_| wrong(&value))).transpose()
}

/// Where MASTER_ADDR and MASTER_PORT say that the leader is.
pub fn leader_address() -> Result<HostAddress, String> {
    let Some(name) = environment("MASTER_ADDR") else {
        return Err("where is the launcher? No ADDR was given, and MASTER_ADDR is not set".into());
    };
    let text = match environment("MASTER_PORT") {
        Some(port) if name.contains(':') => format!("[{name}]:{port}"),
        Some(port) => format!("{name}:{port}"),
        None => name,
    };
    text.parse().map_err(|e| format!("MASTER_ADDR and MASTER_PORT say {text:?}: {e}"))
}

/// An engine that does not say what it must.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum EngineError {
    /// It did not start this process.
    #[error("--engine {engine}: {variable} is not set")]
    Absent { engine: &'static str, variable: &'static str },
    /// A variable makes no sense.
    #[error("--engine {engine}: {variable}={value:?}: {problem}")]
    Bad { engine: &'static str, variable: &'static str, value: String, problem: &'static str },
}

impl EngineError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        let start = |engine: &str| match engine {
            "slurm" => "srun -N3 paceline train …",
            "mpi" => "mpirun -np 3 paceline train …",
            _ => "torchrun --no-python --nnodes 3 --nproc-per-node 1 … paceline train …",
        };
        match self {
            Self::Absent { engine, .. } => {
                format!("start it with `{}`, or leave --engine out", start(engine))
            }
            Self::Bad { .. } => "--engine none leads a run of this process alone".into(),
        }
    }
}

/// One of several processes that an engine has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineTask {
    /// The engine's name.
    pub engine: &'static str,
    /// Which process this is; 0 leads.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
    /// What tells the job from others: the same in all of its processes, and fit for a file's name.
    pub job: String,
    /// Where process 0 is, as far as the engine says: a name or an address.
    pub leader: Option<String>,
    /// Another machine of the job, as far as the engine says.
    pub peer: Option<String>,
    /// Whether all processes are on one machine.
    pub one_machine: bool,
    /// Whether the engine's own process has started this one: its end ends the run.
    pub supervised: bool,
}

type Reader = fn(Variables<'_>) -> Result<EngineTask, EngineError>;

/// The order in which `auto` asks: Slurm sets the variables of others too.
const READERS: &[(&str, Reader)] = &[("slurm", slurm), ("mpi", mpi), ("torchrun", torchrun)];

impl EngineTask {
    /// The task that this process is, by the engine that was asked for. None where it is to lead a run of its own:
    /// without an engine, and where there is only one process, so that inherited variables make nobody wait.
    pub fn find(asked: &str, variables: Variables<'_>) -> Result<Option<Self>, EngineError> {
        let several = |task: EngineTask| (task.size > 1).then_some(task);
        match asked {
            "auto" => Ok(READERS.iter().find_map(|(_, read)| several(read(variables).ok()?))),
            _ => match READERS.iter().find(|(name, _)| *name == asked) {
                Some((_, read)) => read(variables).map(several),
                None => Ok(None),
            },
        }
    }

    /// The process in words, for messages.
    pub fn label(&self) -> String {
        format!("task {} of {} ({})", self.rank, self.size, self.engine)
    }
}

fn number(
    engine: &'static str,
    variable: &'static str,
    variables: Variables<'_>,
) -> Result<usize, EngineError> {
    let value = variables(variable).ok_or(EngineError::Absent { engine, variable })?;
    let bad = EngineError::Bad { engine, variable, value: value.clone(), problem: "a number is needed" };
    value.trim().parse().map_err(|_| bad)
}

/// The first of these variables that is set.
fn first(variables: Variables<'_>, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| variables(name))
}

/// A task whose number makes sense; what else the engine says is added to it.
fn task(
    engine: &'static str,
    (variable, rank): (&'static str, usize),
    size: usize,
    job: &str,
) -> Result<EngineTask, EngineError> {
    if rank >= size {
        let problem = "it must be below the number of processes";
        return Err(EngineError::Bad { engine, variable, value: rank.to_string(), problem });
    }
    let fit = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    let job = format!("{engine}-{job}").chars().map(fit).take(200).collect();
    let (leader, peer) = (None, None);
    Ok(EngineTask { engine, rank, size, job, leader, peer, one_machine: false, supervised: true })
}

fn slurm(variables: Variables<'_>) -> Result<EngineTask, EngineError> {
    let engine = "slurm";
    // A batch script has SLURM_PROCID and SLURM_NTASKS too; only srun starts a step.
    let size = number(engine, "SLURM_STEP_NUM_TASKS", variables)?;
    let rank = number(engine, "SLURM_PROCID", variables)?;
    let named = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"];
    let part = |name: &str| variables(name).unwrap_or_else(|| "0".into());
    let job = format!("{}-{}-{}", part("SLURM_JOB_ID"), part("SLURM_STEP_ID"), part("SLURM_RESTART_COUNT"));
    let task = task(engine, ("SLURM_PROCID", rank), size, &job)?;
    let Some((variable, value)) = named.iter().find_map(|name| Some((*name, variables(name)?))) else {
        return Ok(task);
    };
    let problem = "it is no list of nodes";
    let bad = EngineError::Bad { engine, variable, value: value.clone(), problem };
    // Whatever the distribution, task 0 is on the first node.
    let mut nodes = node_list(&value).ok_or(bad)?.into_iter();
    let (leader, peer) = (nodes.next(), nodes.next());
    Ok(EngineTask { one_machine: peer.is_none(), leader, peer, ..task })
}

fn mpi(variables: Variables<'_>) -> Result<EngineTask, EngineError> {
    let engine = "mpi";
    let open = variables("OMPI_COMM_WORLD_SIZE").is_some();
    let [rank, size, local] = match open {
        true => ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"],
        false => ["PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"],
    };
    let count = number(engine, size, variables)?;
    let one_machine = number(engine, local, variables).is_ok_and(|local| local == count);
    // MPICH names no job: two of them at a time need two folders to meet in.
    let job = first(variables, &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "PMI_PORT"]);
    let job = job.unwrap_or_else(|| "job".into());
    let task = task(engine, (rank, number(engine, rank, variables)?), count, &job)?;
    Ok(EngineTask { one_machine, ..task })
}

fn torchrun(variables: Variables<'_>) -> Result<EngineTask, EngineError> {
    let engine = "torchrun";
    let (rank, size) = (number(engine, "RANK", variables)?, number(engine, "WORLD_SIZE", variables)?);
    let leader = variables("MASTER_ADDR").ok_or(EngineError::Absent { engine, variable: "MASTER_ADDR" })?;
    let port = number(engine, "MASTER_PORT", variables)?;
    let one_machine = number(engine, "LOCAL_WORLD_SIZE", variables).is_ok_and(|local| local == size);
    let part = |name: &str| variables(name).unwrap_or_default();
    let job =
        format!("{leader}-{port}-{}-{}", part("TORCHELASTIC_RUN_ID"), part("TORCHELASTIC_RESTART_COUNT"));
    // Variables that were set by hand, or by a container's description, come from nobody whose end would mean something.
    let supervised = variables("TORCHELASTIC_RUN_ID").is_some();
    let task = task(engine, ("RANK", rank), size, &job)?;
    Ok(EngineTask { leader: Some(leader), one_machine, supervised, ..task })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(asked: &str, set: &[(&str, &str)]) -> Result<Option<EngineTask>, EngineError> {
        let get =
            |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
        EngineTask::find(asked, &get)
    }

    const SRUN: &[(&str, &str)] = &[
        ("SLURM_JOB_ID", "77"),
        ("SLURM_STEP_ID", "1"),
        ("SLURM_PROCID", "2"),
        ("SLURM_NTASKS", "3"),
        ("SLURM_STEP_NUM_TASKS", "3"),
        ("SLURM_STEP_NODELIST", "gpu[07-09]"),
        ("PMI_RANK", "2"),
        ("PMI_SIZE", "3"),
    ];
    const MPIRUN: &[(&str, &str)] = &[
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "3"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "3"),
        ("PMIX_NAMESPACE", "prterun-a@1"),
    ];
    const TORCHRUN: &[(&str, &str)] = &[
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_WORLD_SIZE", "1"),
        ("MASTER_ADDR", "10.0.0.1"),
        ("MASTER_PORT", "29500"),
    ];

    #[test]
    fn every_engine_says_which_of_how_many_a_process_is() {
        let slurm = EngineTask {
            engine: "slurm",
            rank: 2,
            size: 3,
            job: "slurm-77-1-0".into(),
            leader: Some("gpu07".into()),
            peer: Some("gpu08".into()),
            one_machine: false,
            supervised: true,
        };
        let mpi = EngineTask {
            engine: "mpi",
            rank: 1,
            job: "mpi-prterun-a_1".into(),
            leader: None,
            peer: None,
            one_machine: true,
            ..slurm.clone()
        };
        let by_hand = EngineTask {
            engine: "torchrun",
            rank: 0,
            size: 2,
            job: "torchrun-10.0.0.1-29500--".into(),
            leader: Some("10.0.0.1".into()),
            one_machine: false,
            supervised: false,
            ..mpi.clone()
        };
        let pmi = EngineTask { rank: 2, job: "mpi-job".into(), one_machine: false, ..mpi.clone() };
        for (asked, set, expected) in [
            ("auto", SRUN, slurm.clone()),
            ("slurm", SRUN, slurm),
            ("mpi", SRUN, pmi),
            ("auto", MPIRUN, mpi),
            ("auto", TORCHRUN, by_hand.clone()),
        ] {
            assert_eq!(find(asked, set), Ok(Some(expected)), "{asked}");
        }
        let torchrun = [TORCHRUN, &[("TORCHELASTIC_RUN_ID", "r")]].concat();
        let job = "torchrun-10.0.0.1-29500-r-".into();
        assert_eq!(find("auto", &torchrun), Ok(Some(EngineTask { job, supervised: true, ..by_hand })));
    }

    #[test]
    fn nobody_waits_because_of_variables_that_were_inherited() {
        let batch: Vec<_> = SRUN[..4].to_vec();
        let alone = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")];
        let one = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
        let torn = [("RANK", "x"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")];
        let no_leader = [("RANK", "0"), ("WORLD_SIZE", "4")];
        for set in [&batch[..], &alone, &one, &torn, &no_leader, &[]] {
            assert_eq!(find("auto", set), Ok(None), "{set:?}");
        }
        assert_eq!(find("none", SRUN), Ok(None));
        assert_eq!(find("mpi", &one), Ok(None), "one process leads a run of its own");
    }

    #[test]
    fn an_engine_that_was_asked_for_must_be_there_and_make_sense() {
        let absent = find("slurm", MPIRUN).unwrap_err();
        assert_eq!(absent.to_string(), "--engine slurm: SLURM_STEP_NUM_TASKS is not set");
        assert!(absent.hint().contains("srun -N3 paceline train"));
        let bad = [("RANK", "5"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")];
        assert!(find("torchrun", &bad).unwrap_err().to_string().contains("RANK=\"5\""));
        let mut nonsense = SRUN.to_vec();
        nonsense[5].1 = "gpu[";
        assert!(find("slurm", &nonsense).unwrap_err().to_string().contains("it is no list of nodes"));
    }

    #[test]
    fn scripts_see_nothing_of_what_is_read_here() {
        for (name, _) in [SRUN, MPIRUN, TORCHRUN].concat() {
            assert!(paceline_attach::of_engines(name), "{name}");
        }
        for name in ["PATH", "HOME", "CUDA_VISIBLE_DEVICES", "RANKS", "OMP_NUM_THREADS", "PACELINE_STORE"] {
            assert!(!paceline_attach::of_engines(name), "{name}");
        }
    }
}
