//! The flags of a run that other machines join, and what the user must know to let them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use paceline_data::Folders;
use paceline_launch::agent::Join;
use paceline_launch::engine::{
    ENGINES, EngineJob, EngineTask, HostsFile, Invitation, environment, watch_parent,
};
use paceline_launch::key_file::{self, Temporary};
use paceline_launch::nodes::NodeChange;
use paceline_launch::{HostAddress, Interrupt, LaunchError, Listen, RunEnd, how_to_join, run};
use paceline_plan::{Plan, PlanError};
use paceline_study::{Places, TrialMeeting};
use paceline_wire::line::join_listener::JoinListener;

use crate::failure::Failure;
use crate::flags::{names, registries};
use crate::output::{self, Show};
use paceline_record::FailureKind;

/// The environment's name of the key file.
const KEY_FILE: &str = "PACELINE_KEY_FILE";

/// Flags of runs that other machines join.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Listening {
    /// Where other machines come to: those that `paceline join` a run, until there are as many --hosts (this one included),
    /// or the nodes that an engine or ssh starts; what they say to each other is encrypted (TLS 1.3)
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = |s: &str| s.parse::<HostAddress>())]
    listen: Option<HostAddress>,
    /// File with the key that lets machines join; made if there is none [default: PACELINE_KEY_FILE]. Needed
    /// unless --listen is on loopback, or an engine or ssh starts the others
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Seconds to wait for the other machines [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    join_timeout: Option<f64>,
    /// Who starts this process as one of several: process 0 leads, the others join it; each is a host [default: auto]
    #[arg(long, value_name = "NAME", value_parser = names(ENGINES.iter().copied()))]
    engine: Option<String>,
    /// Start the other hosts over ssh: a file with a host per line, this machine (as the others reach it) first
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "engine"])]
    hosts_file: Option<PathBuf>,
    /// Who starts the processes, once that is known.
    #[arg(skip)]
    job: Option<EngineJob>,
    /// Where the other hosts join, of a run that a study makes on several nodes.
    #[arg(skip)]
    meeting: Option<TrialMeeting>,
}

/// Seconds that the other hosts of a study's run have to join it.
const SOON: f64 = 60.0;
const NO_NODES: &str = "--listen, --key-file and --join-timeout are for nodes, and the nodes of a study are started by an \
                        engine (srun, mpirun, torchrun) or over ssh: give --engine or --hosts-file too";

pub fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|s| *s > 0.0 && *s <= 1e6);
    value.ok_or_else(|| "a number of seconds above 0, at most a million, is needed".into())
}

/// The flag, else the environment.
pub fn key_path(flag: Option<&PathBuf>) -> Option<PathBuf> {
    flag.cloned().or_else(|| std::env::var_os(KEY_FILE).filter(|v| !v.is_empty()).map(PathBuf::from))
}

impl Listening {
    /// Whether other machines are waited for.
    pub fn given(&self) -> bool {
        self.listen.is_some() || self.job.is_some() || self.meeting.is_some()
    }

    /// The words of a command line that wait for other machines as these did.
    pub fn words(&self) -> Vec<String> {
        let address = self.listen.iter().flat_map(|address| ["--listen".to_owned(), address.to_string()]);
        let files = [("key-file", &self.key_file), ("hosts-file", &self.hosts_file)];
        let files =
            files.into_iter().filter_map(|(name, file)| Some(super::train::file_flag(name, file.as_ref()?)));
        address.chain(files.flatten()).collect()
    }

    /// How a run of a study listens, if it does.
    pub fn of_study(meeting: Option<TrialMeeting>) -> Self {
        Self { meeting, join_timeout: Some(SOON), ..Self::default() }
    }

    /// The number of nodes of a study; none if it stays on this machine.
    pub fn nodes(&self, parallel: Option<u32>) -> Result<Option<usize>, Failure> {
        let nodes = self.hosts();
        if nodes.is_none()
            && (self.listen.is_some() || self.key_file.is_some() || self.join_timeout.is_some())
        {
            return Err(Failure::usage(NO_NODES));
        }
        Places::check(nodes, parallel)?;
        Ok(nodes)
    }

    /// Where a study's runs are made, once its nodes are here. `needed`: whether its runs need the folder that it is led from.
    pub fn places(
        &self,
        parallel: Option<u32>,
        needed: bool,
        interrupt: &Interrupt,
        tell: &mut dyn FnMut(NodeChange),
    ) -> Result<Places, Failure> {
        let (key, at) = self.at();
        let gather =
            |job: &EngineJob| job.gather((key.as_deref(), at), self.timeout(), needed, interrupt, tell);
        Ok(Places::new(self.job.as_ref().map(gather).transpose()?, parallel))
    }

    /// Passes an outcome on; one that keeps a study from beginning is told to the other tasks first, which would wait for it.
    pub fn or_dismiss<T>(&self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        outcome.inspect_err(|failure| self.dismiss(failure.run_end()))
    }

    /// Sends the other tasks of the job home.
    pub fn dismiss(&self, over: RunEnd) {
        let (key, at) = self.at();
        self.job.iter().for_each(|job| job.dismiss((key.as_deref(), at), over.clone()));
    }

    /// The file with the key, and the address, as far as they were given.
    fn at(&self) -> (Option<PathBuf>, Option<SocketAddr>) {
        (key_path(self.key_file.as_ref()), self.listen.as_ref().map(|address| address.all[0]))
    }

    /// Refuses to listen at all.
    pub fn refuse(&self, problem: &str) -> Result<(), PlanError> {
        let listen = self.listen.as_ref().map(|address| ("--listen", address.to_string()));
        let engine = || self.engine.as_ref().map(|engine| ("--engine", engine.clone()));
        let hosts = || self.hosts_file.as_ref().map(|file| ("--hosts-file", file.display().to_string()));
        let Some((flag, value)) = listen.or_else(engine).or_else(hosts) else { return Ok(()) };
        Err(PlanError::new(flag, value, problem))
    }

    /// The same, with who starts the processes: looked up in the environment and in the file of hosts. `store` is where
    /// the processes of an engine meet.
    pub fn with_job(&self, store: &Path) -> Result<Self, Failure> {
        let asked = self.engine.as_deref().unwrap_or(if self.listen.is_some() { "none" } else { "auto" });
        let job = match &self.hosts_file {
            Some(file) => Some(EngineJob::Ssh(HostsFile::read(file)?)),
            None => EngineTask::find(asked, &environment)
                .map_err(LaunchError::from)?
                .map(|task| EngineJob::Task(task, store.to_owned())),
        };
        Ok(Self { job, ..self.clone() })
    }

    /// How many hosts there are, where an engine or a file says so.
    pub fn hosts(&self) -> Option<usize> {
        self.job.as_ref().map(EngineJob::size)
    }

    /// The task of an engine that this process is.
    pub fn task(&self) -> Option<&EngineTask> {
        self.job.as_ref().and_then(EngineJob::task)
    }

    /// Takes part in the run of task 0, if this process is another task of its job; whether it was.
    pub fn take_part(&self, folders: Folders, show: Show) -> Result<bool, Failure> {
        let Some(EngineJob::Task(task, folder)) = &self.job else { return Ok(false) };
        if task.rank == 0 {
            return Ok(false);
        }
        let (interrupt, key) = (Interrupt::on_signals()?, key_path(self.key_file.as_ref()));
        watch_parent(task, Arc::clone(&interrupt), |line| output::note(&line));
        let join = Join::of_task(task, folders, self.timeout(), interrupt)?;
        task.take_part(folder, key.as_deref(), &join, &mut |line| show.detail(|| line.into()))?;
        Ok(true)
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.join_timeout.unwrap_or(300.0))
    }

    /// Refuses what cannot be, before anything is loaded or made.
    pub fn check(&self, plan: &Plan, single: bool) -> Result<(), Failure> {
        run::check_processes(plan)?;
        let transports = &registries().runs().transports;
        if let Some(size) = self.hosts() {
            if single || plan.host_count() != size {
                let problem =
                    format!("{size} processes were started, and each is a host with at least one rank");
                return Err(PlanError::new("--hosts", plan.host_count(), problem).into());
            }
            return Ok(run::check_hosts(plan, transports, true)?);
        }
        let Some(address) = &self.listen else {
            if self.key_file.is_some() || self.join_timeout.is_some() {
                let problem = "--key-file and --join-timeout are for machines that join";
                return Err(Failure::usage(format!(
                    "{problem}: give --listen, --engine or --hosts-file too"
                )));
            }
            return if single { Ok(()) } else { Ok(run::check_hosts(plan, transports, false)?) };
        };
        if single {
            let problem = "one worker alone runs on one machine; give more --workers, and --hosts".into();
            return Err(PlanError { flag: "--listen".into(), value: address.to_string(), problem }.into());
        }
        run::check_hosts(plan, transports, true)?;
        if !address.all[0].ip().is_loopback() && key_path(self.key_file.as_ref()).is_none() {
            let message = format!(
                "other machines can reach {}: without a key this would let anybody in",
                address.all[0]
            );
            let hint = "give --key-file FILE (it is made if there is none), or listen at 127.0.0.1";
            return Err(Failure::new(FailureKind::Protocol, message, hint));
        }
        Ok(())
    }

    /// Listens, with the user's key or with one that goes with the run in `folder`; tells how to join.
    pub fn open(
        &self,
        plan: &Plan,
        folder: &Path,
        show: Show,
    ) -> Result<(Option<Listen>, Option<Invitation>), Failure> {
        if let Some(TrialMeeting { address, key }) = self.meeting.clone() {
            let join_listener = JoinListener::bind(address).map_err(LaunchError::from)?;
            let (key, timeout) = (key.into(), self.timeout());
            let listen = Listen { join_listener, key, timeout, task: None, trouble: None, by_hand: false };
            return Ok((Some(listen), None));
        }
        let given = key_path(self.key_file.as_ref());
        if let Some(job) = &self.job {
            let at = self.listen.as_ref().map(|address| address.all[0]);
            let (listen, invitation) = job.invite(given.as_deref(), at, self.timeout())?;
            return Ok((Some(listen), Some(invitation)));
        }
        let Some(address) = &self.listen else { return Ok((None, None)) };
        let path = given.clone().unwrap_or_else(|| folder.join("join.key"));
        if given.is_none() {
            std::fs::create_dir_all(folder).map_err(|e| Failure::file(folder, &e))?;
        }
        let (key, made) = key_file::read_or_create(&path).map_err(LaunchError::from)?;
        let temporary = given.is_none().then(|| Temporary(path.clone()).into());
        let join_listener = JoinListener::bind(address.all[0]).map_err(LaunchError::from)?;
        show.note(&how_to_join(&join_listener, plan.host_count() - 1, &path, made && given.is_some()));
        let listen =
            Listen { join_listener, key, timeout: self.timeout(), task: None, trouble: None, by_hand: true };
        Ok((Some(listen), temporary))
    }
}
