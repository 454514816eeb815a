//! The part of a run that another machine leads: joins the launcher, starts the ranks that it is given, and
//! carries word between them and the launcher until the run is over.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use paceline_data::Folders;
use paceline_plan::Plan;
use paceline_record::{FailureKind, Recording, process};
use paceline_wire::Key;
use paceline_wire::line::{HeartbeatTiming, Line, LineEvent, Link, may_come_yet};
use serde_json::json;

use crate::devices::ScriptConditions;
use crate::engine::EngineTask;
use crate::error::LaunchError;
use crate::interrupt::Interrupt;
use crate::joining::{self, Greeting, HostCommand, HostEvent, RunEnd, Version, excerpt};
use crate::nodes::node::Node;
use crate::processes::{ProcessEvent, RankProcesses};
use crate::rank::role;
use crate::ranks::{RankOrders, left};

const REDIAL: Duration = Duration::from_millis(200);
/// How often a request to stop is looked for.
const LOOK: Duration = Duration::from_millis(50);
const ATTEMPT: Duration = Duration::from_secs(5);

/// What joining needs from outside.
pub struct Join {
    /// Where datasets lie on this machine.
    pub folders: Folders,
    /// Which host to be, if it matters.
    pub host: Option<usize>,
    /// How many hosts the run must have, if that is known.
    pub hosts: Option<usize>,
    /// The program, and the word that makes it a rank.
    pub program: (PathBuf, &'static str),
    /// How long to try.
    pub patience: Duration,
    /// The request to stop; it is passed on to the launcher.
    pub interrupt: Arc<Interrupt>,
    /// Who started this process and the launcher as one job, and which of them this is.
    pub task: Option<EngineTask>,
}

impl Join {
    /// What the task of an engine needs.
    pub fn of_task(
        task: &EngineTask,
        folders: Folders,
        patience: Duration,
        interrupt: Arc<Interrupt>,
    ) -> io::Result<Self> {
        let program = (std::env::current_exe()?, "rank");
        let (host, hosts, task) = (Some(task.rank), Some(task.size), Some(task.clone()));
        Ok(Self { folders, host, hosts, program, patience, interrupt, task })
    }
}

/// What came of it.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub enum Joined {
    /// A run has ended well; the ranks that this host had are told in words.
    Run { run: String, host: usize, ranks: String, result: serde_json::Value },
    /// This machine has left a run that goes on without it.
    Left { run: String, host: usize },
    /// A study is over, of which this was a node that made so many runs.
    Study { node: usize, runs: u64 },
}

impl Joined {
    /// For programs.
    pub fn document(&self) -> serde_json::Value {
        match self {
            Self::Run { run, host, result, .. } => {
                json!({ "type": "joined", "run": run, "host": host, "result": result })
            }
            Self::Left { run, host } => json!({ "type": "left", "run": run, "host": host }),
            Self::Study { node, runs } => json!({ "type": "served", "node": node, "runs": runs }),
        }
    }

    /// For people.
    pub fn words(&self) -> String {
        let (run, host, ranks, result) = match self {
            Self::Run { run, host, ranks, result } => (run, host, ranks, result),
            Self::Left { run, host } => {
                return format!("run {run} goes on without this machine, which was host {host}");
            }
            Self::Study { node, runs } => {
                return format!("the study is over; this was node {node}, and made {runs} of its runs");
            }
        };
        let number = |name: &str| result[name].as_f64().unwrap_or(f64::NAN);
        // A script need not report one.
        let accuracy = result["final_accuracy"].as_f64();
        let accuracy =
            accuracy.map_or(String::new(), |accuracy| format!("accuracy {:.2}% after ", 100.0 * accuracy));
        let (samples, steps) = (number("samples"), number("steps"));
        let train_s = result["seconds"]["train"].as_f64().unwrap_or(f64::NAN);
        format!(
            "run {run} ended well: {accuracy}{samples} samples in {steps} steps, {train_s:.2} s of training; this \
             was host {host} {ranks}"
        )
    }
}

pub(crate) enum AgentInput {
    Launcher(LineEvent),
    Rank(ProcessEvent),
}

/// Joins a run and takes part until it is over: at the first of these addresses that answers, with the key that the
/// launcher holds too. `tell` gets lines for people.
pub fn join(
    addresses: &[SocketAddr],
    key: &Key,
    join: &Join,
    tell: &mut dyn FnMut(&str),
) -> Result<Joined, LaunchError> {
    let link = dial(addresses, key, join, tell)?;
    join_over(link, join, tell)
}

/// The same over a connection to the launcher that is there already.
pub fn join_over(mut link: Link, join: &Join, tell: &mut dyn FnMut(&str)) -> Result<Joined, LaunchError> {
    let (host, hosts) = (join.host, join.hosts);
    let greeting = Greeting { version: Version::own(), name: process::host(), host, hosts };
    link.queue(&joining::encode(&greeting, &[]));
    let (sender, heard) = channel();
    let from_launcher = sender.clone();
    let hear = move |heard| drop(from_launcher.send(AgentInput::Launcher(heard)));
    let line = Line::new(link, joining::LARGEST, HeartbeatTiming::default(), hear)?;
    let launcher = line.remote().to_string();
    let mut agent = Agent {
        join,
        line,
        launcher,
        run: String::new(),
        host: 0,
        elastic: false,
        processes: None,
        ranks: String::new(),
        unheard: 0,
        leaving: false,
        sender,
    };
    let done = agent.take_part(&heard, tell);
    if let Some(mut processes) = agent.processes.take() {
        processes.end(if done.is_ok() { Duration::from_secs(2) } else { Duration::ZERO });
    }
    agent.line.close();
    done
}

/// Dials until somebody answers who holds the key.
fn dial(
    addresses: &[SocketAddr],
    key: &Key,
    join: &Join,
    tell: &mut dyn FnMut(&str),
) -> Result<Link, LaunchError> {
    let end = Instant::now() + join.patience;
    let mut told = false;
    loop {
        let mut why = None;
        for &address in addresses {
            match Link::dial(address, key, ATTEMPT.min(left(end).max(REDIAL))) {
                Ok(link) => return Ok(link),
                Err(e) if may_come_yet(&e) => why = why.or(Some((address, e))),
                Err(e) => {
                    return Err(LaunchError::Stranger { address: address.to_string(), cause: e.to_string() });
                }
            }
        }
        let (address, source) =
            why.unwrap_or_else(|| (([0, 0, 0, 0], 0).into(), io::Error::other("no address")));
        if left(end).is_zero() {
            let seconds = join.patience.as_secs_f64();
            return Err(LaunchError::Unreachable { address: address.to_string(), seconds, source });
        }
        if !std::mem::replace(&mut told, true) {
            let seconds = join.patience.as_secs_f64();
            tell(&format!("nobody answers at {address} yet ({source}); trying for {seconds:.0} s"));
        }
        std::thread::sleep(REDIAL.min(left(end)));
    }
}

struct Agent<'a> {
    join: &'a Join,
    line: Line,
    launcher: String,
    run: String,
    host: usize,
    /// Whether members of the run may change.
    elastic: bool,
    processes: Option<RankProcesses>,
    /// The ranks that it has had, in words.
    ranks: String,
    /// Ends of processes, and of what they say, that are still to come.
    unheard: usize,
    /// Whether it goes as soon as its ranks have ended.
    leaving: bool,
    sender: Sender<AgentInput>,
}

impl Agent<'_> {
    fn take_part(
        &mut self,
        heard_of: &Receiver<AgentInput>,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Joined, LaunchError> {
        let mut passed_on = false;
        // The line tells when the launcher is lost, so this does not wait forever.
        loop {
            if self.join.interrupt.requested() && !std::mem::replace(&mut passed_on, true) {
                self.interrupted(tell);
            }
            if self.leaving && self.unheard == 0 {
                return Ok(Joined::Left { run: self.run.clone(), host: self.host });
            }
            let heard = match heard_of.recv_timeout(LOOK) {
                Ok(heard) => heard,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.lost("this end stopped listening".into()));
                }
            };
            match heard {
                AgentInput::Launcher(LineEvent::Document(document)) => {
                    let (said, numbers) = joining::decode(&document).map_err(|cause| self.lost(cause))?;
                    if let HostCommand::Serve { folder, needed } = said {
                        return self.serve((&folder, needed), heard_of, tell);
                    }
                    if let Some(over) = self.obey(said, &numbers, tell)? {
                        return self.over(over);
                    }
                }
                AgentInput::Launcher(LineEvent::Quiet) => {
                    tell(&format!("nothing heard from the launcher at {} for 2 s", self.launcher));
                }
                AgentInput::Launcher(LineEvent::Back) => tell("the launcher is there again"),
                AgentInput::Launcher(LineEvent::Lost { cause }) => return Err(self.lost(cause)),
                AgentInput::Rank(news) => self.pass_on(news),
            }
        }
    }

    /// Makes runs of a study until that is over.
    fn serve(
        &self,
        folder: (&Path, bool),
        heard: &Receiver<AgentInput>,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Joined, LaunchError> {
        let node = Node { line: &self.line, join: self.join, number: self.host, leader: &self.launcher };
        let (over, runs) = node.serve(folder, heard, tell)?;
        match over.failure {
            None => Ok(Joined::Study { node: self.host, runs }),
            Some(kind) => {
                let (launcher, RunEnd { message, hint, .. }) = (self.launcher.clone(), over);
                Err(LaunchError::Elsewhere { what: "study", launcher, message, hint, kind })
            }
        }
    }

    /// Does what the launcher says; how the run ended, if it has.
    fn obey(
        &mut self,
        said: HostCommand,
        numbers: &[f32],
        tell: &mut dyn FnMut(&str),
    ) -> Result<Option<RunEnd>, LaunchError> {
        match said {
            HostCommand::Refused { message, hint } => {
                let address = self.launcher.clone();
                return Err(LaunchError::NotAdmitted { address, message, hint });
            }
            HostCommand::Welcome { name, run, host, hosts, under_way } => {
                self.launcher = format!("{} ({})", excerpt(&name), self.launcher);
                let waits = if under_way { ", which is under way: waits until it is needed" } else { "" };
                tell(&format!(
                    "joined {} as host {host} of {hosts} (0 to {}), run {}{waits}",
                    self.launcher,
                    hosts - 1,
                    excerpt(&run)
                ));
                (self.run, self.host) = (run, host);
            }
            HostCommand::Start { plan, ranks, begin, key, recording } => {
                self.elastic = plan.elastic.is_some();
                self.ranks = format!("with {}", words(&plan, &ranks));
                let here = words(&plan, &begin);
                match self.start(plan, (&ranks, &begin), key, recording) {
                    Ok(()) => {
                        self.join.interrupt.arm();
                        tell(&format!("runs {here} here"));
                    }
                    Err(e) => {
                        let message = format!("{e}; {}", e.hint());
                        self.line.say(joining::encode(&HostEvent::Failed { message }, &[]));
                    }
                }
            }
            HostCommand::Tell { rank, order } => {
                if let Some(processes) = &mut self.processes {
                    // A rank that has died meanwhile is told of by its process's end.
                    let _ = processes.tell(rank, &order, numbers);
                }
            }
            HostCommand::Signal { rank, signal } => {
                self.processes.iter_mut().for_each(|processes| processes.signal(rank, signal));
            }
            HostCommand::RunEnd(over) => return Ok(Some(over)),
            HostCommand::Serve { .. } => unreachable!("the caller has looked at it"),
        }
        Ok(None)
    }

    /// Starts those of this machine's ranks that begin now.
    fn start(
        &mut self,
        plan: Box<Plan>,
        (ranks, begin): (&[usize], &[usize]),
        key: [u8; 32],
        recording: Option<Recording>,
    ) -> Result<(), LaunchError> {
        let orders = RankOrders {
            plan,
            run: self.run.clone(),
            key,
            folders: self.join.folders.0.clone(),
            address: Some(self.line.local().ip()),
            recording,
            conditions: ScriptConditions::default(),
        };
        let orders = orders.of(ranks, begin);
        self.unheard += 2 * orders.len();
        if let Some(processes) = &mut self.processes {
            return processes.start_more(orders);
        }
        let (program, word) = &self.join.program;
        let mut processes = RankProcesses::start_ranks(program, word, orders)?;
        let (news, sender) = (processes.take_news(), self.sender.clone());
        std::thread::spawn(move || {
            // Until nobody listens any more, or the last process has ended.
            news.into_iter().all(|news| sender.send(AgentInput::Rank(news)).is_ok());
        });
        self.processes = Some(processes);
        Ok(())
    }

    /// Somebody asks this machine to end. The launcher saves the run and stops; an elastic run goes on without this machine
    /// if that was asked for by SIGTERM.
    fn interrupted(&mut self, tell: &mut dyn FnMut(&str)) {
        if self.elastic && self.join.interrupt.is_notice() {
            tell("asked to end: waits until its ranks have handed over what they have");
            self.leaving = true;
            return self.line.say(joining::encode(&HostEvent::Leaving, &[]));
        }
        if let Some(task) = &self.join.task {
            let asked = || format!("{} was asked to end", task.label());
            let cause = self.join.interrupt.cause().map_or_else(asked, str::to_owned);
            self.line.say(joining::encode(&HostEvent::Ending { cause }, &[]));
        }
        self.line.say(joining::encode(&HostEvent::Interrupted, &[]));
    }

    fn pass_on(&mut self, news: ProcessEvent) {
        let document = match news {
            ProcessEvent::Rank(rank, said, numbers) => {
                joining::encode(&HostEvent::Rank { rank, said }, &numbers)
            }
            ProcessEvent::Closed(rank) => {
                self.unheard -= 1;
                joining::encode(&HostEvent::Closed { rank }, &[])
            }
            ProcessEvent::Exited(rank) => {
                self.unheard -= 1;
                let Some(processes) = &mut self.processes else { return };
                let status =
                    processes.status(rank).map_or("its process has ended".into(), |exit| exit.to_string());
                joining::encode(&HostEvent::Exited { rank, pid: processes.pid(rank), status }, &[])
            }
        };
        self.line.say(document);
    }

    fn over(&self, over: RunEnd) -> Result<Joined, LaunchError> {
        let RunEnd { failure, message, hint, result } = over;
        match result {
            Some(result) if failure.is_none() => {
                let ranks = if self.ranks.is_empty() { "without a rank" } else { &self.ranks };
                Ok(Joined::Run { run: self.run.clone(), host: self.host, ranks: ranks.to_owned(), result })
            }
            _ => {
                let (launcher, kind) = (self.launcher.clone(), failure.unwrap_or(FailureKind::Other));
                Err(LaunchError::Elsewhere { what: "run", launcher, message, hint, kind })
            }
        }
    }

    fn lost(&self, cause: String) -> LaunchError {
        let before = || "before it started anything".to_owned();
        let ranks = Some(self.ranks.clone()).filter(|ranks| !ranks.is_empty()).unwrap_or_else(before);
        LaunchError::LauncherLost { launcher: self.launcher.clone(), host: self.host, ranks, cause }
    }
}

/// Ranks and what they do, for people.
pub(crate) fn words(plan: &Plan, ranks: &[usize]) -> String {
    let one = |&rank: &usize| format!("{} {rank}", role(plan, rank));
    ranks.iter().map(one).collect::<Vec<_>>().join(", ")
}
