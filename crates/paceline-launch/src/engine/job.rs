//! The processes of a run on several machines, whoever starts them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use paceline_wire::line::join_listener::JoinListener;

use super::ssh::{HostsFile, SshHosts};
use super::{EngineTask, meeting};
use crate::agent::{self, Join, Joined};
use crate::error::LaunchError;
use crate::interrupt::Interrupt;
use crate::joining::RunEnd;
use crate::key_file::{self, Temporary};
use crate::nodes::{NodeChange, Nodes};
use crate::rendezvous::{Listen, TroubleWatch};

/// Who starts the processes of a run.
#[derive(Clone, Debug)]
pub enum EngineJob {
    /// An engine has started all of them; the folder is one that they share.
    Task(EngineTask, PathBuf),
    /// This process starts the others over ssh.
    Ssh(HostsFile),
}

/// What goes with the run: the file that leads to it, and processes that it has started. Dropping it ends both.
pub struct Invitation {
    _file: Option<Temporary>,
    _ssh: Option<SshHosts>,
}

impl From<Temporary> for Invitation {
    fn from(file: Temporary) -> Self {
        Self { _file: Some(file), _ssh: None }
    }
}

impl EngineJob {
    /// How many processes, each a host of the run.
    pub fn size(&self) -> usize {
        match self {
            Self::Task(task, _) => task.size,
            Self::Ssh(hosts) => hosts.count(),
        }
    }

    /// The task that this process is, if an engine has started it.
    pub fn task(&self) -> Option<&EngineTask> {
        match self {
            Self::Task(task, _) => Some(task),
            Self::Ssh(_) => None,
        }
    }

    /// Opens the port of the run, and leads the others there. `key`: the file with the key, if one was given.
    pub fn invite(
        &self,
        key: Option<&Path>,
        listen: Option<SocketAddr>,
        timeout: Duration,
    ) -> Result<(Listen, Invitation), LaunchError> {
        let key = key.map(key_file::read_or_create).transpose()?.map(|(key, _)| key);
        match self {
            Self::Task(task, folder) => {
                let (join_listener, key, file) = meeting::open(task, folder, key, listen)?;
                let task = Some(task.clone());
                Ok((Listen { join_listener, key, timeout, task, trouble: None, by_hand: false }, file.into()))
            }
            Self::Ssh(hosts) => {
                let key = key.map_or_else(paceline_wire::Key::generate, Ok)?;
                let join_listener = JoinListener::bind(hosts.here)?;
                let program = std::env::current_exe();
                let program =
                    program.map_err(|source| LaunchError::System { what: "the program".into(), source })?;
                let started = SshHosts::start(hosts, &program, join_listener.address(), &key, timeout)?;
                let trouble = Some(Box::new(started.trouble()) as TroubleWatch);
                let invitation = Invitation { _file: None, _ssh: Some(started) };
                Ok((Listen { join_listener, key, timeout, task: None, trouble, by_hand: false }, invitation))
            }
        }
    }
}

/// Time that tasks have to come, of a job that has nothing for them to do.
const DISMISSAL: Duration = Duration::from_secs(20);

impl EngineJob {
    /// Waits for the other processes as nodes of a study. `needed`: whether its runs cannot do without the current folder.
    pub fn gather(
        &self,
        (key, listen): (Option<&Path>, Option<SocketAddr>),
        timeout: Duration,
        needed: bool,
        interrupt: &Interrupt,
        tell: &mut dyn FnMut(NodeChange),
    ) -> Result<Nodes, LaunchError> {
        let folder = std::env::current_dir();
        let folder =
            folder.map_err(|source| LaunchError::System { what: "the current folder".into(), source })?;
        let (listen, invitation) = self.invite(key, listen, timeout)?;
        Nodes::gather(listen, invitation, self.size(), (folder, needed), interrupt, tell)
    }

    /// Sends the other tasks home, those that come within some seconds; hosts that nobody has started need no word.
    pub fn dismiss(&self, at: (Option<&Path>, Option<SocketAddr>), over: RunEnd) {
        let Self::Task(..) = self else { return };
        // Who does not come is told by its own timeout.
        if let Ok(mut nodes) = self.gather(at, DISMISSAL, false, &Interrupt::default(), &mut |_| {}) {
            nodes.end(over);
        }
    }
}

impl EngineTask {
    /// Takes part in the run that task 0 leads, until it is over. `folder` is one that all tasks share.
    pub fn take_part(
        &self,
        folder: &Path,
        key: Option<&Path>,
        join: &Join,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Joined, LaunchError> {
        let link = meeting::find(self, folder, key, join.patience)?;
        agent::join_over(link, join, tell)
    }
}
