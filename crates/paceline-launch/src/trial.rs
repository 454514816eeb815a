//! One run of a study: a program in a process group of its own, under a keeper.
//!
//! The keeper is this program again (`paceline keeper`). Its standard input is a pipe from the study: when the study
//! is gone, however it went, the pipe ends, and the keeper ends its whole group. A document for the program's standard
//! input comes through the same pipe, before everything else. The study watches the keeper by its
//! pidfd and ends the group when the keeper has ended, so nothing outlives a run.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use paceline_record::process::children_cpu_seconds;
use paceline_record::{FailureKind, ProcessTree, TreeSummary};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::exit::{Exit, out_of_memory_kills};

/// What comes from a run.
#[derive(Debug)]
pub enum TrialEvent {
    /// A line on standard output.
    Line(String),
    /// The program has ended, and nobody of its group is left.
    Ended(Ended),
}

/// Where a run's program is started.
#[derive(Clone, Copy, Debug, Default)]
pub struct TrialPlace<'a> {
    /// The cores that it may use; all that this process may use if none is named.
    pub cores: &'a [usize],
    /// What its process tree takes is sampled into this file.
    pub tree: Option<&'a Path>,
    /// A folder of its own, which is removed when this process is gone, however it went.
    pub scratch: Option<&'a Path>,
    /// Whether it must not see the variables with which an engine numbers its processes: it is none of them.
    pub unnumbered: bool,
}

/// How a run's program ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ended {
    /// How its process ended.
    pub exit: Exit,
    /// CPU seconds of the program and those of its children that it waited for; `None` if it was killed.
    pub cpu_s: Option<f64>,
    /// Wall seconds.
    pub wall_s: f64,
    /// What its process tree took, as far as it was sampled.
    pub tree: Option<TreeSummary>,
    /// The end of what it wrote to standard error.
    pub stderr: String,
}

impl Ended {
    /// Why it gave no figures: its last words, and how it ended.
    pub fn cause(&self) -> String {
        if self.exit.code == Some(0) {
            let wanted = "no figures were found in what it printed; see `metrics` in [command]";
            return format!("{}, but {wanted}", self.exit);
        }
        match self.last_words() {
            Some(words) => format!("{words} ({})", self.exit),
            None => format!("{}, with nothing on standard error", self.exit),
        }
    }

    /// Its record could not be kept: that is how it ended, if it ended well.
    pub(crate) fn not_recorded(&mut self, error: &io::Error) {
        if self.exit.code == Some(0) {
            self.exit.code = Some(FailureKind::Storage.code().into());
            self.stderr = format!("error: the run ended well, but its record could not be kept: {error}");
        }
    }

    /// The last error that it wrote to standard error, or else the last line.
    pub fn last_words(&self) -> Option<&str> {
        let lines = || self.stderr.lines().map(str::trim).filter(|line| !line.is_empty());
        let words = lines().rfind(|line| line.starts_with("error:")).or_else(|| lines().next_back());
        words.map(|words| words.trim_start_matches("error: "))
    }
}

/// What the keeper says last, as a line on standard output.
#[derive(Serialize, Deserialize)]
struct KeeperReport {
    paceline_keeper: String,
    exit: Exit,
    cpu_s: f64,
    tree: TreeSummary,
}

/// Bytes of standard error that are kept.
const KEPT: usize = 4096;

/// Time that streams have to close after the keeper has ended.
const GRACE: Duration = Duration::from_secs(2);

/// A run under way. Dropping it ends it.
pub struct Trial {
    keeper: Child,
    group: Pid,
    /// Closing it tells the keeper to end its group.
    pipe: Option<ChildStdin>,
    heard: Receiver<StreamInput>,
    started: Instant,
    open_streams: usize,
    /// When the keeper had ended.
    gone: Option<Instant>,
    kept: Option<KeeperReport>,
    mark: String,
    stderr: Vec<u8>,
}

enum StreamInput {
    Line(String),
    Error(Vec<u8>),
    Closed,
    Gone,
}

impl Trial {
    /// Starts `command` under `program WORD`. Its standard input is `document`.
    pub fn start(
        program: &Path,
        word: &str,
        place: TrialPlace<'_>,
        command: &[String],
        document: &str,
    ) -> io::Result<Self> {
        let mark = format!("{:x}-{:p}", std::process::id(), &command);
        let mut keeper = Command::new(program);
        keeper.arg(word).arg(&mark);
        keeper.arg(place.cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(","));
        keeper.args([place.tree, place.scratch].map(|path| path.unwrap_or(Path::new(""))));
        keeper.arg(document.len().to_string());
        if place.unnumbered {
            let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
            names.filter(|name| paceline_attach::of_engines(name)).for_each(|name| {
                keeper.env_remove(name);
            });
        }
        keeper.args(command).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut keeper = keeper.process_group(0).spawn()?;
        let group = Pid::from_child(&keeper);
        let (sender, heard) = channel();
        let watched = pidfd_open(group, PidfdFlags::empty())?;
        let (out, err) = (keeper.stdout.take(), keeper.stderr.take());
        let (to_lines, to_errors, to_gone) = (sender.clone(), sender.clone(), sender);
        if let Some(out) = out {
            thread::Builder::new().spawn(move || lines(out, &to_lines))?;
        }
        if let Some(err) = err {
            thread::Builder::new().spawn(move || errors(err, &to_errors))?;
        }
        thread::Builder::new().spawn(move || {
            while poll(&mut [PollFd::new(&watched, PollFlags::IN)], None).is_err() {}
            let _ = to_gone.send(StreamInput::Gone);
        })?;
        let mut pipe = keeper.stdin.take();
        // A keeper that has ended already tells so by its end.
        let _ = pipe.as_mut().map(|pipe| pipe.write_all(document.as_bytes()));
        Ok(Self {
            keeper,
            group,
            pipe,
            heard,
            started: Instant::now(),
            open_streams: 2,
            gone: None,
            kept: None,
            mark,
            stderr: Vec::new(),
        })
    }

    /// The keeper's process.
    pub fn pid(&self) -> u32 {
        self.keeper.id()
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// What comes next; `None` when nothing does within `patience`.
    pub fn hear(&mut self, patience: Duration) -> Option<TrialEvent> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.heard.recv_timeout(left) {
                Ok(StreamInput::Line(line)) => match serde_json::from_str::<KeeperReport>(&line) {
                    Ok(kept) if kept.paceline_keeper == self.mark => self.kept = Some(kept),
                    _ => return Some(TrialEvent::Line(line)),
                },
                Ok(StreamInput::Error(bytes)) => {
                    self.stderr.extend(bytes);
                    let over = self.stderr.len().saturating_sub(KEPT);
                    self.stderr.drain(..over);
                }
                Ok(StreamInput::Closed) => self.open_streams -= 1,
                Ok(StreamInput::Gone) => {
                    self.gone = Some(Instant::now());
                    self.kill();
                }
                Err(RecvTimeoutError::Timeout) if self.deserted() => {}
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => self.open_streams = 0,
            }
            if self.gone.is_some() && (self.open_streams == 0 || self.deserted()) {
                return Some(TrialEvent::Ended(self.ended()));
            }
        }
    }

    /// Whether somebody who left the group still holds a stream open, long after the keeper has ended.
    fn deserted(&self) -> bool {
        self.gone.is_some_and(|gone| gone.elapsed() > GRACE)
    }

    /// Ends the run at once.
    pub fn kill(&mut self) {
        self.pipe = None;
        // The keeper is not reaped yet, so its number still is the group's; an error means that nobody is left.
        let _ = kill_process_group(self.group, Signal::KILL);
    }

    fn ended(&mut self) -> Ended {
        let status: Option<ExitStatus> = self.keeper.wait().ok();
        let kept = self.kept.take();
        Ended {
            exit: kept.as_ref().map_or_else(|| status.map(Exit::from).unwrap_or_default(), |kept| kept.exit),
            cpu_s: kept.as_ref().map(|kept| kept.cpu_s),
            tree: kept.map(|kept| kept.tree).filter(|tree| tree.processes > 0),
            wall_s: self.seconds(),
            stderr: String::from_utf8_lossy(&self.stderr).into_owned(),
        }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if let Ok(None) = self.keeper.try_wait() {
            self.kill();
            let _ = self.keeper.wait();
        }
    }
}

fn lines(out: impl Read, to: &Sender<StreamInput>) {
    let mut reader = BufReader::new(out);
    let mut line = Vec::new();
    // What is not text is no reason to lose the lines around it.
    while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        if to.send(StreamInput::Line(text)).is_err() {
            return;
        }
        line.clear();
    }
    let _ = to.send(StreamInput::Closed);
}

fn errors(mut err: impl Read, to: &Sender<StreamInput>) {
    let mut buffer = [0; 1024];
    while let Ok(n @ 1..) = err.read(&mut buffer) {
        if to.send(StreamInput::Error(buffer[..n].to_vec())).is_err() {
            return;
        }
    }
    let _ = to.send(StreamInput::Closed);
}

/// The cores that this process may use.
pub fn cores() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

/// Time between two samples of a process tree.
const SAMPLE: Duration = Duration::from_millis(200);

/// Inside the keeper: `MARK CORES TREE SCRATCH LENGTH PROGRAM ARGS…`, and the document on standard input. Returns the
/// exit code.
pub fn keep(words: &[String]) -> io::Result<u8> {
    let needed = || {
        io::Error::new(io::ErrorKind::InvalidInput, "MARK CORES TREE SCRATCH LENGTH PROGRAM ARGS… are needed")
    };
    let [mark, cores, record, scratch, length, program, arguments @ ..] = words else { return Err(needed()) };
    let mut document = vec![0; length.parse().map_err(|_| needed())?];
    io::stdin().read_exact(&mut document)?;
    let mut set = CpuSet::new();
    cores.split(',').filter_map(|core| core.parse().ok()).for_each(|core: usize| set.set(core));
    if set.count() > 0 {
        sched_setaffinity(None, &set)?;
    }
    // Whoever loses its parent stays below this process, and is sampled and ended with the others.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let kills = out_of_memory_kills();
    let input = if document.is_empty() { Stdio::null() } else { Stdio::piped() };
    let child = Command::new(program).args(arguments).stdin(input).spawn();
    let mut child = child.map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
    let (deserted, program, scratch) =
        (Arc::new(AtomicBool::new(false)), Pid::from_child(&child), scratch.clone());
    let ending = Arc::clone(&deserted);
    thread::spawn(move || {
        let mut nothing = [0; 64];
        while let Ok(1..) = io::stdin().read(&mut nothing) {}
        ending.store(true, Ordering::SeqCst);
        if !scratch.is_empty() {
            // Who writes there goes first.
            let _ = kill_process(program, Signal::KILL);
            remove(Path::new(&scratch));
        }
        let _ = kill_process_group(rustix::process::getpgrp(), Signal::KILL);
    });
    if let Some(mut input) = child.stdin.take() {
        // A program that does not read it ends, and says why.
        let _ = input.write_all(&document);
    }
    let (status, tree) = if record.is_empty() {
        (child.wait()?, TreeSummary::default())
    } else {
        let mut tree = ProcessTree::new(std::process::id(), Some(Path::new(record)))?;
        let (over, ended) = channel::<()>();
        let watch = thread::spawn(move || {
            // A full disk ends the samples, not the run.
            while tree.sample().is_ok() {
                if ended.recv_timeout(SAMPLE) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            tree.summary()
        });
        let status = child.wait()?;
        drop(over);
        (status, watch.join().unwrap_or_default())
    };
    while deserted.load(Ordering::SeqCst) {
        // The other thread removes what is left, and ends this process.
        thread::park();
    }
    let out_of_memory = kills.zip(out_of_memory_kills()).is_some_and(|(before, after)| after > before);
    let exit = Exit { out_of_memory, ..status.into() };
    let kept = KeeperReport { paceline_keeper: mark.clone(), exit, cpu_s: children_cpu_seconds(), tree };
    // Its line begins on a line of its own, whatever the program wrote last.
    let text = format!("\n{}\n", serde_json::to_string(&kept).expect("plain data"));
    io::stdout().write_all(text.as_bytes())?;
    Ok(status.code().map_or(1, |code| code as u8))
}

/// Removes a folder that somebody who is about to end may still write to.
fn remove(folder: &Path) {
    for _ in 0..100 {
        if std::fs::remove_dir_all(folder).is_ok() || !folder.exists() {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
}
