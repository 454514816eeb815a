//! How a run fails.

use paceline_plan::PlanError;
use paceline_record::FailureKind;
use paceline_train::TrainError;
use paceline_wire::WireError;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::capacity::counted;
use crate::engine::EngineError;
use crate::key_file::KeyError;

/// A run that did not come to its end.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum LaunchError {
    /// The plan cannot be run.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// This machine has no room for so many ranks.
    #[error("{} on this machine, {most} would: {limit}", do_not_fit(*ranks))]
    TooMany { ranks: u64, most: u64, limit: String, remedy: String },
    /// The disk has no room for what the run leaves.
    #[error(
        "{} has {:.1} MB of free space; the record and {kept} checkpoints of this run need about {:.1} MB",
        store.display(), *free as f64 / 1e6, *needed as f64 / 1e6
    )]
    OutOfSpace { store: std::path::PathBuf, free: u64, kept: u64, needed: u64 },
    /// A process died.
    #[error("{role} {rank} (process {pid}) was lost {when}: {cause}")]
    Lost { role: &'static str, rank: usize, pid: u32, when: String, cause: String },
    /// Too few members of an elastic run are left.
    #[error("after step {step}: {cause}; lost: {gone}")]
    NobodyLeft { step: u64, cause: String, gone: String, saved: Option<u64>, run: String, scripts: bool },
    /// A run has not other members because somebody asks for them.
    #[error("{run} {problem}")]
    Members { run: String, problem: String, hint: &'static str },
    /// A rank gave up by itself.
    #[error("{role} {rank}: {message}")]
    Failed { role: &'static str, rank: usize, message: String, hint: String, kind: FailureKind },
    /// The process of a rank could not be started.
    #[error("{role} {rank} could not be started: {}", not_started(source, ended.as_deref()))]
    Start { role: &'static str, rank: usize, source: std::io::Error, ended: Option<String> },
    /// A process could not be talked to.
    #[error("{what}: {source}")]
    System { what: String, source: std::io::Error },
    /// A rank did not come up in time.
    #[error("{role} {rank} did not {what} within {seconds} s")]
    Late { role: &'static str, rank: usize, what: String, seconds: u64 },
    /// A stop was requested, and the run has saved itself.
    #[error("interrupted after step {step}{}; saved in {}", of_steps(*steps), path.display())]
    Interrupted { step: u64, steps: Option<u64>, path: std::path::PathBuf, run: String },
    /// A stop was requested before there was anything to save, or was requested twice.
    #[error("interrupted {when}; nothing was saved")]
    Abandoned { when: String, run: String },
    /// A checkpoint could not be written or read.
    #[error("the checkpoint could not be kept: {0}")]
    Record(#[from] paceline_record::RecordError),
    /// Training failed in this process.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The port where machines join, or a connection to one, could not be made.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The key file cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Other machines did not come.
    #[error(
        "waited {seconds:.0} s in vain at {address}: {} of {hosts} hosts came ({}){}",
        came.len() + 1, present(came), turned_away(*refused)
    )]
    Missing { hosts: usize, came: Vec<String>, address: String, seconds: f64, refused: usize },
    /// A process that an engine has started cannot be told from others.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The leader of a job left no word of where it is.
    #[error("{task}: nobody has left word of where task 0 is in {} within {seconds:.0} s", path.display())]
    NoLeader { task: String, path: std::path::PathBuf, seconds: f64 },
    /// A host that was started over ssh ended before it had joined.
    #[error("host {host} could not be started over ssh: {how}")]
    HostNotStarted { host: String, how: String },
    /// A node of a study is gone before the study has begun.
    #[error("{node} was lost before the study began: {cause}")]
    NodeLost { node: String, cause: String },
    /// This node of a study was asked to end.
    #[error("node {node} ends before its study does: {cause}")]
    NodeEnded { node: usize, cause: String },
    /// A machine is gone.
    #[error("host {host} with {ranks} was lost {when}: {cause}")]
    HostLost { host: String, ranks: String, when: String, cause: String },
    /// Nobody answers where the launcher should be.
    #[error("nobody answered at {address} within {seconds:.0} s: {source}")]
    Unreachable { address: String, seconds: f64, source: std::io::Error },
    /// The program where the launcher should be holds another key, or is something else.
    #[error("the launcher at {address} and this machine cannot prove themselves to each other: {cause}")]
    Stranger { address: String, cause: String },
    /// The launcher has no use for this machine.
    #[error("the launcher at {address} refuses: {message}")]
    NotAdmitted { address: String, message: String, hint: String },
    /// The launcher is gone.
    #[error("the launcher {launcher} was lost by host {host}, {ranks}: {cause}")]
    LauncherLost { launcher: String, host: usize, ranks: String, cause: String },
    /// The run or study that this machine took part in failed.
    #[error("the {what} led by {launcher} failed: {message}")]
    Elsewhere { what: &'static str, launcher: String, message: String, hint: String, kind: FailureKind },
}

impl LaunchError {
    /// Which kind of failure it is.
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::Start { .. } | Self::System { .. } | Self::Wire(WireError::Listen { .. }) => {
                FailureKind::Other
            }
            Self::Plan(_) | Self::TooMany { .. } | Self::Members { .. } => FailureKind::Plan,
            Self::Engine(_) => FailureKind::Usage,
            Self::NoLeader { .. } | Self::HostNotStarted { .. } | Self::NodeLost { .. } => FailureKind::Lost,
            Self::NodeEnded { .. } => FailureKind::Interrupted,
            Self::Train(error) => error.kind(),
            Self::Interrupted { .. } | Self::Abandoned { .. } => FailureKind::Interrupted,
            Self::Record(_) | Self::OutOfSpace { .. } => FailureKind::Storage,
            Self::NobodyLeft { .. } => FailureKind::Lost,
            Self::Lost { .. } | Self::Late { .. } | Self::Missing { .. } | Self::HostLost { .. } => {
                FailureKind::Lost
            }
            Self::Unreachable { .. } | Self::LauncherLost { .. } => FailureKind::Lost,
            Self::Wire(_) | Self::Key(_) | Self::Stranger { .. } | Self::NotAdmitted { .. } => {
                FailureKind::Protocol
            }
            Self::Failed { kind, .. } | Self::Elsewhere { kind, .. } => *kind,
        }
    }

    /// What to do about it; nothing where nothing can be said.
    pub fn hint(&self) -> String {
        match self {
            Self::Failed { hint, .. } | Self::Elsewhere { hint, .. } | Self::NotAdmitted { hint, .. } => {
                hint.clone()
            }
            Self::OutOfSpace { .. } => {
                "free some space, or choose another place with --store DIR; --no-record keeps nothing".into()
            }
            Self::Members { hint, .. } => (*hint).into(),
            Self::Train(error) => error.hint(),
            Self::Key(error) => error.hint("paceline train --listen"),
            Self::Wire(WireError::Listen { .. }) => {
                "give --listen an address of this machine and another port; port 0 takes any that is free"
                    .into()
            }
            Self::TooMany { remedy, .. } => {
                let remedy = if remedy.is_empty() { String::new() } else { format!("{remedy}; ") };
                format!(
                    "nothing was started; {remedy}--listen spreads ranks over machines, `paceline simulate` needs no \
                     processes"
                )
            }
            Self::Lost { .. } => {
                "the other processes were ended; the system's log may say who ended this one".into()
            }
            Self::NobodyLeft { saved: Some(step), run, .. } => {
                format!("`paceline resume {run}` goes on from its last checkpoint, after step {step}")
            }
            Self::NobodyLeft { saved: None, scripts: true, .. } => {
                "there is no checkpoint: --checkpoint-every N would leave some, a smaller MIN of --elastic and --backup 1 \
                 survive more"
                    .into()
            }
            Self::NobodyLeft { saved: None, .. } => {
                "there is no checkpoint: --checkpoint-every N would leave some, --spare N and --backup 1 survive more".into()
            }
            Self::Late { .. } => "is the machine overloaded, or out of memory?".into(),
            Self::Missing { .. } => {
                "start `paceline join` on the other machines; --join-timeout SECONDS waits longer".into()
            }
            Self::Engine(error) => error.hint(),
            Self::NoLeader { .. } => {
                "the folder must be one that all machines of the job share: --store DIR or PACELINE_STORE; \
                 --join-timeout SECONDS waits longer"
                    .into()
            }
            Self::HostNotStarted { host, .. } => {
                format!(
                    "does `ssh {host}` work without a password, and has that host this program at the same path?"
                )
            }
            Self::HostLost { .. } => {
                "the run was ended everywhere; are that machine and the network to it up?".into()
            }
            Self::Unreachable { .. } => {
                "is `paceline train --listen` running there, and does a firewall let its port through?".into()
            }
            Self::Stranger { .. } => {
                "copy the launcher's key file to this machine again, and name it with --key-file".into()
            }
            Self::LauncherLost { .. } => {
                "this machine's processes were ended; are the launcher and the network to it up?".into()
            }
            Self::Interrupted { run, .. } => format!("`paceline resume {run}` goes on from there"),
            Self::NodeLost { .. } => "nothing was started; start all nodes again once that is mended".into(),
            Self::NodeEnded { .. } => {
                "the study goes on; the run that was under way here is made elsewhere".into()
            }
            Self::Abandoned { run, .. } if run.is_empty() => "nothing was started".into(),
            Self::Abandoned { run, .. } => {
                format!("`paceline resume {run}` goes on from its last checkpoint, or begins again")
            }
            Self::Record(error) => format!("{}; the last checkpoint before is still there", error.hint()),
            Self::Start { ended: Some(_), .. } => {
                "is a limit (`ulimit -a`) or the memory too small for another process?".into()
            }
            Self::Start { source, .. } | Self::System { source, .. } => start_hint(source),
            Self::Plan(_) | Self::Wire(_) => String::new(),
        }
    }
}

/// Scripts need not say how many steps they make.
fn of_steps(steps: Option<u64>) -> String {
    steps.map_or_else(String::new, |steps| format!(" of {steps}"))
}

fn do_not_fit(ranks: u64) -> String {
    let verb = if ranks == 1 { "does" } else { "do" };
    format!("{} {verb} not fit", counted(ranks, "rank"))
}

fn not_started(source: &std::io::Error, ended: Option<&str>) -> String {
    ended.map_or_else(
        || source.to_string(),
        |how| format!("its process ended before it read its order ({how})"),
    )
}

/// What to do about a process or a thread that could not be started; nothing where nothing can be said.
pub fn start_hint(source: &std::io::Error) -> String {
    let limit = |resource| getrlimit(resource).current.map_or("unlimited".into(), |limit| limit.to_string());
    match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => format!(
            "this process may have {} files open: raise the limit with `ulimit -n`, or take fewer ranks",
            limit(Resource::Nofile)
        ),
        Some(Errno::NFILE) => "too many files are open on this machine: end something else first".into(),
        Some(Errno::AGAIN) => format!(
            "this user may have {} processes and threads, a container perhaps fewer: raise the limit with \
             `ulimit -u`, or take fewer ranks",
            limit(Resource::Nproc)
        ),
        Some(Errno::NOMEM) => "there is too little memory for another process: take fewer ranks".into(),
        _ => String::new(),
    }
}

fn present(came: &[String]) -> String {
    if came.is_empty() { "only this one".into() } else { format!("this one, {}", came.join(", ")) }
}

fn turned_away(refused: usize) -> String {
    match refused {
        0 => String::new(),
        1 => "; 1 stranger was turned away".into(),
        n => format!("; {n} strangers were turned away"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_says_of_how_many_steps_where_that_is_known() {
        let said = |steps| {
            let (path, run) = ("there".into(), "r1".into());
            LaunchError::Interrupted { step: 7, steps, path, run }.to_string()
        };
        assert_eq!(said(Some(9)), "interrupted after step 7 of 9; saved in there");
        assert_eq!(said(None), "interrupted after step 7; saved in there");
    }
}
