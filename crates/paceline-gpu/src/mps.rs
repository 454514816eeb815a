//! NVIDIA's multi-process service: kernels of several processes run on one GPU at the same time, instead of in turns.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::ffi::end_with_parent;

/// The program that starts and leads it.
const CONTROL: &str = "nvidia-cuda-mps-control";
/// Where it is looked for by CUDA, if nobody says something else.
const USUAL: &str = "/tmp/nvidia-mps";
const PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
const LOGS: &str = "CUDA_MPS_LOG_DIRECTORY";
/// Time that it has to be there, and to end by itself.
const PATIENCE: Duration = Duration::from_secs(10);
const GRACE: Duration = Duration::from_secs(3);

/// How several workers of a GPU compute on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MpsState {
    /// No GPU has several workers.
    NotNeeded,
    /// The service was started for this run.
    Started,
    /// It ran before.
    Running,
    /// It is not there, for this reason: workers of a GPU take turns.
    Absent(String),
}

impl MpsState {
    /// In a word, as the record has it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NotNeeded => "not-needed",
            Self::Started => "started",
            Self::Running => "running",
            Self::Absent(_) => "absent",
        }
    }
}

/// The service, started for a run. Dropping it ends it.
pub struct Mps {
    child: Child,
    folder: PathBuf,
}

impl Mps {
    /// Starts the service unless it runs already.
    pub fn start() -> (MpsState, Option<Self>) {
        let known = std::env::var_os(PIPES).filter(|folder| !folder.is_empty()).map(PathBuf::from);
        if known.unwrap_or_else(|| USUAL.into()).join("control").exists() {
            return (MpsState::Running, None);
        }
        match Self::begin() {
            Ok(mps) => (MpsState::Started, Some(mps)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                (MpsState::Absent(format!("{CONTROL} is not on PATH")), None)
            }
            Err(error) => (MpsState::Absent(format!("{CONTROL}: {error}")), None),
        }
    }

    fn begin() -> io::Result<Self> {
        // The names of sockets are short.
        let folder = std::env::temp_dir().join(format!("paceline-mps-{}", std::process::id()));
        // One that an earlier process of this number has left is nobody's any more.
        let _ = fs::remove_dir_all(&folder);
        for part in ["pipe", "log"] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder.join(part))?;
        }
        let mut command = Command::new(CONTROL);
        command
            .arg("-f")
            .envs(variables(&folder))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // A group of its own: its servers end with it, and a terminal's Ctrl-C is the launcher's.
        command.process_group(0);
        end_with_parent(&mut command);
        let child = command.spawn().inspect_err(|_| drop(fs::remove_dir_all(&folder)))?;
        let mut mps = Self { child, folder };
        let begun = Instant::now();
        while !mps.folder.join("pipe/control").exists() {
            if let Some(status) = mps.child.try_wait()? {
                return Err(io::Error::other(format!("ended at once with {status}")));
            }
            if begun.elapsed() > PATIENCE {
                return Err(io::Error::other(format!("was not there after {} s", PATIENCE.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(mps)
    }

    /// What processes find in their environment to use it.
    pub fn variables(&self) -> Vec<(String, String)> {
        variables(&self.folder)
    }

    /// The process that leads it.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

fn variables(folder: &Path) -> Vec<(String, String)> {
    let of = |name: &str, part: &str| (name.to_owned(), folder.join(part).display().to_string());
    vec![of(PIPES, "pipe"), of(LOGS, "log"), ("CUDA_DEVICE_ORDER".into(), "PCI_BUS_ID".into())]
}

impl Drop for Mps {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.child);
        // One that has ended already is none.
        let _ = kill_process_group(group, Signal::TERM);
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < GRACE {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
