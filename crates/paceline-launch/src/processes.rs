//! The processes of a run.
//!
//! Each child is watched by its pidfd, told its orders through a pipe on its standard input, and listened
//! to through a pipe on its standard output. The end of the first pipe tells a child that the launcher is
//! gone. Dropping them ends and reaps every child.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use paceline_record::FailureKind;
use paceline_wire::identity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};

use crate::control::{self, RankCommand, RankEvent};
use crate::error::LaunchError;
use crate::exit::Exit;
use crate::interrupt::Blocked;
use crate::joining::ProcessSignal;

/// Time that children have to end by themselves.
const GRACE: Duration = Duration::from_secs(2);

/// What a rank has said that cannot be read.
fn unreadable(error: &io::Error) -> RankEvent {
    RankEvent::Failed {
        message: format!("its launcher cannot read what it said: {error}"),
        hint: "this is a mistake of this program: please tell its authors what was run".into(),
        kind: FailureKind::Protocol,
        lost: None,
    }
}

/// What comes from the ranks.
#[derive(Debug)]
pub enum ProcessEvent {
    /// A rank says something.
    Rank(usize, RankEvent, Vec<f32>),
    /// A rank's pipe is closed: it will say nothing more.
    Closed(usize),
    /// A rank's process has ended.
    Exited(usize),
}

/// Processes, one per rank.
pub struct RankProcesses {
    /// The rank of each child.
    ranks: Vec<usize>,
    children: Vec<Child>,
    orders: Vec<Option<ChildStdin>>,
    /// The process groups of the ranks' scripts: they end with the ranks.
    scripts: Arc<Mutex<HashMap<usize, Pid>>>,
    /// The program and its word, and where what ranks say goes.
    program: (PathBuf, String),
    sender: Sender<ProcessEvent>,
    /// What comes from the ranks.
    pub news: Receiver<ProcessEvent>,
}

impl RankProcesses {
    /// Starts a process of `program WORD` for each order, the ranks counted from 0.
    pub fn start(program: &Path, word: &str, orders: &[RankCommand]) -> Result<Self, LaunchError> {
        Self::start_ranks(program, word, orders.iter().enumerate())
    }

    /// Starts a process of `program WORD` for each rank and its order.
    pub fn start_ranks<O: Borrow<RankCommand>>(
        program: &Path,
        word: &str,
        orders: impl IntoIterator<Item = (usize, O)>,
    ) -> Result<Self, LaunchError> {
        let (sender, news) = channel();
        let (ranks, children, scripts) = (Vec::new(), Vec::new(), Arc::default());
        let program = (program.to_owned(), word.to_owned());
        let mut processes = Self { ranks, children, orders: Vec::new(), scripts, program, sender, news };
        processes.start_more(orders)?;
        Ok(processes)
    }

    /// Ends what a rank that has ended leaves of its script, and of what that has started.
    pub fn end_script(&mut self, rank: usize) {
        let group = self.scripts.lock().unwrap_or_else(PoisonError::into_inner).remove(&rank);
        // An error means that nothing is left.
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
    }

    /// Kills a rank's process, or tells it that it will be killed.
    pub fn signal(&mut self, rank: usize, signal: ProcessSignal) {
        let Ok(index) = self.index(rank) else { return };
        let child = &mut self.children[index];
        match signal {
            // An error means that it has ended already.
            ProcessSignal::Kill => child.kill().unwrap_or_default(),
            ProcessSignal::Notice => {
                // One that has ended, and was waited for, may have left its number to another process.
                if let Ok(None) = child.try_wait() {
                    let _ = kill_process(Pid::from_child(child), Signal::TERM);
                }
            }
        }
    }

    /// Starts other processes in place of ranks' that have ended, or the first ones of ranks that had none.
    pub fn start_more<O: Borrow<RankCommand>>(
        &mut self,
        orders: impl IntoIterator<Item = (usize, O)>,
    ) -> Result<(), LaunchError> {
        let _blocked = Blocked::new();
        let mut watched = Vec::new();
        for (rank, order) in orders {
            let order = order.borrow();
            match self.start_rank(rank, order) {
                Ok(process) => watched.push((rank, process)),
                Err(source) => return Err(self.not_started(rank, order, source)),
            }
        }
        self.watch(watched)
    }

    fn watch(&self, processes: Vec<(usize, OwnedFd)>) -> Result<(), LaunchError> {
        let sender = self.sender.clone();
        let watch = std::thread::Builder::new().spawn(move || watch(processes, &sender));
        let failed = |source| LaunchError::System { what: "watching the processes".into(), source };
        watch.map(drop).map_err(failed)
    }

    /// Starts the process of one rank; what tells when it has ended.
    fn start_rank(&mut self, rank: usize, order: &RankCommand) -> io::Result<OwnedFd> {
        let (program, word) = &self.program;
        let mut child =
            Command::new(program).arg(word).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let pid = Pid::from_child(&child);
        match self.index(rank) {
            Ok(index) => {
                let mut before = std::mem::replace(&mut self.children[index], child);
                self.orders[index] = stdin;
                // It has ended: nothing is waited for.
                let _ = before.kill();
                let _ = before.wait();
            }
            Err(_) => {
                self.children.push(child);
                self.orders.push(stdin);
                self.ranks.push(rank);
            }
        }
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        self.tell(rank, order, &[])?;
        let sender = self.sender.clone();
        let mut stdout = stdout.expect("standard output is a pipe");
        let scripts = Arc::clone(&self.scripts);
        std::thread::Builder::new().spawn(move || {
            loop {
                let (said, numbers) = match control::read(&mut stdout) {
                    Ok(Some(said)) => said,
                    Ok(None) => break,
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                    Err(error) => {
                        let _ = sender.send(ProcessEvent::Rank(rank, unreadable(&error), Vec::new()));
                        break;
                    }
                };
                if let RankEvent::Script { pid } = said {
                    let mut scripts = scripts.lock().unwrap_or_else(PoisonError::into_inner);
                    match Pid::from_raw(pid as i32) {
                        Some(group) => scripts.insert(rank, group),
                        None => scripts.remove(&rank),
                    };
                }
                if sender.send(ProcessEvent::Rank(rank, said, numbers)).is_err() {
                    return;
                }
            }
            let _ = sender.send(ProcessEvent::Closed(rank));
        })?;
        Ok(process)
    }

    /// Why the process of a rank could not be started, or ended before it had read its order.
    fn not_started(&mut self, rank: usize, order: &RankCommand, source: io::Error) -> LaunchError {
        let workers = match order {
            RankCommand::Config { plan, .. } => plan.workers,
            RankCommand::Task { task, .. } => task.workers,
            _ => usize::MAX,
        };
        let ended = (source.kind() == io::ErrorKind::BrokenPipe).then(|| {
            let begun = Instant::now();
            while self.status(rank).is_none() && begun.elapsed() < GRACE {
                std::thread::sleep(Duration::from_millis(2));
            }
            self.status(rank).map_or("it closed its standard input".into(), |exit| exit.to_string())
        });
        LaunchError::Start { role: identity::role(workers, rank), rank, source, ended }
    }

    /// What comes from the ranks from now on, for somebody who listens to more than that.
    pub fn take_news(&mut self) -> Receiver<ProcessEvent> {
        std::mem::replace(&mut self.news, channel().1)
    }

    fn index(&self, rank: usize) -> io::Result<usize> {
        let index = self.ranks.iter().position(|&other| other == rank);
        index.ok_or_else(|| io::Error::other(format!("rank {rank} is not here")))
    }

    /// Gives a rank an order.
    pub fn tell(&mut self, rank: usize, order: &RankCommand, numbers: &[f32]) -> io::Result<()> {
        let index = self.index(rank)?;
        let pipe = self.orders[index].as_mut().expect("orders go out before the end");
        control::write(pipe, order, numbers)
    }

    /// A rank's process.
    pub fn pid(&self, rank: usize) -> u32 {
        self.index(rank).map_or(0, |index| self.children[index].id())
    }

    /// How a rank's process ended, if it has.
    pub fn status(&mut self, rank: usize) -> Option<Exit> {
        let index = self.index(rank).ok()?;
        self.children[index].try_wait().ok().flatten().map(Exit::from)
    }

    /// Ends every child that has not ended by itself within `grace`, and reaps all.
    pub fn end(&mut self, grace: Duration) {
        // Closing their standard input tells children to end.
        self.orders.iter_mut().for_each(|pipe| *pipe = None);
        let start = Instant::now();
        while start.elapsed() < grace && self.children.iter_mut().any(|c| matches!(c.try_wait(), Ok(None))) {
            std::thread::sleep(Duration::from_millis(2));
        }
        for child in &mut self.children {
            // An error means that it has ended already.
            let _ = child.kill();
        }
        for (_, group) in self.scripts.lock().unwrap_or_else(PoisonError::into_inner).drain() {
            // A rank that was killed leaves its script behind, and what that has started.
            let _ = kill_process_group(group, Signal::KILL);
        }
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

impl Drop for RankProcesses {
    fn drop(&mut self) {
        self.end(GRACE);
    }
}

/// Tells of each process's end.
fn watch(mut open: Vec<(usize, OwnedFd)>, sender: &Sender<ProcessEvent>) {
    while !open.is_empty() {
        let mut polled: Vec<PollFd<'_>> = open.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
        if poll(&mut polled, Some(&timeout)).is_err() {
            continue;
        }
        let ended: Vec<bool> = polled.iter().map(|p| !p.revents().is_empty()).collect();
        drop(polled);
        let mut flags = ended.into_iter();
        let mut told = true;
        open.retain(|(rank, _)| {
            let over = flags.next().unwrap_or(false);
            told &= !over || sender.send(ProcessEvent::Exited(*rank)).is_ok();
            !over
        });
        if !told {
            return;
        }
    }
}
