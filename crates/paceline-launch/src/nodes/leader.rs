//! All nodes of a study, as the process sees them that leads it.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use paceline_record::process;
use paceline_wire::line::join_listener::{JoinPort, Visit};
use paceline_wire::line::{HeartbeatTiming, Line, LineEvent, Link};

use super::{NodeCommand, NodeEvent, WorkOrder, fit, unpack};
use crate::engine::Invitation;
use crate::error::LaunchError;
use crate::interrupt::Interrupt;
use crate::joining::{self, DOCUMENT, HostCommand, RunEnd, excerpt};
use crate::ranks::left;
use crate::rendezvous::{Listen, TOLD, read_greeting, refuse};
use crate::trial::{self, Ended, TrialEvent};

/// How often a request to stop is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// What became of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub enum NodeChange {
    /// It has come, or come back, and is ready.
    Came { node: String },
    /// It is gone.
    Lost { node: String, cause: String },
    /// Nothing was heard from it for a while (`false`), or it is there again.
    Liveness { node: String, there: bool },
    /// Somebody was turned away: who, and why.
    Refused { cause: String },
}

/// What a node is doing.
enum Duty {
    /// It has come and is not ready yet.
    Coming,
    Idle,
    /// It makes the run of this number.
    Busy(u64, Sender<WorkEvent>),
    /// It is gone, for this cause.
    Gone(String),
}

/// What is heard of a run on a node.
enum WorkEvent {
    Output(Vec<u8>),
    File(String, Vec<u8>),
    Ended(Box<Ended>),
    Lost(String),
}

/// What the duty of a node is, for its line's thread and for whoever gives it work.
type SharedDuty = Arc<Mutex<Duty>>;

fn locked(duty: &SharedDuty) -> MutexGuard<'_, Duty> {
    duty.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A node other than the leader's.
struct Member {
    label: String,
    line: Arc<Line>,
    duty: SharedDuty,
    /// Runs that it was given.
    works: u64,
    /// The machine that it is on, and the cores that it may use there.
    machine: (String, Vec<usize>),
}

enum Incoming {
    Door(Visit),
    Ready { seat: usize, machine: (String, Vec<usize>) },
    Liveness { seat: usize, there: bool },
    Lost { seat: usize, duty: SharedDuty, cause: String },
}

/// All nodes of a study; number 0 is this process. Dropping them ends what they do.
pub struct Nodes {
    /// By number less one.
    seats: Vec<Option<Member>>,
    /// What each is called, those that are gone as well.
    labels: Vec<String>,
    /// The cores of each node, once all are here.
    shares: Vec<Vec<usize>>,
    serve: (PathBuf, bool),
    /// How many were turned away.
    refused: usize,
    heard: Receiver<Incoming>,
    sender: Sender<Incoming>,
    _door: JoinPort,
    // Hosts that were started over ssh have a moment to end by themselves: after their lines.
    _invitation: Invitation,
}

/// A run for a node.
#[derive(Clone, Debug, Default)]
pub struct NodeWork {
    /// The program with its arguments; none for this program as the run that the document describes.
    pub words: Vec<String>,
    /// What it reads, or null.
    pub document: serde_json::Value,
    /// Whether its process tree is sampled.
    pub tree: bool,
}

impl Nodes {
    /// Waits until all nodes have come, `size` of them with this process. `serve`: the folder that the study is led from,
    /// and whether its runs cannot do without.
    pub fn gather(
        mut listen: Listen,
        invitation: Invitation,
        size: usize,
        serve: (PathBuf, bool),
        interrupt: &Interrupt,
        tell: &mut dyn FnMut(NodeChange),
    ) -> Result<Self, LaunchError> {
        let (sender, heard) = channel();
        let (address, end) = (listen.join_listener.address().to_string(), Instant::now() + listen.timeout);
        let at_door = sender.clone();
        let door = listen
            .join_listener
            .attend(listen.key, move |visit| drop(at_door.send(Incoming::Door(visit))))?;
        let seats = (1..size).map(|_| None).collect();
        let labels = (0..size).map(|node| label(node, &process::host())).collect();

        let mut nodes = Self {
            seats,
            labels,
            shares: Vec::new(),
            serve,
            refused: 0,
            heard,
            sender,
            _door: door,
            _invitation: invitation,
        };
        while nodes.present() < size {
            let trouble = listen.trouble.as_mut().and_then(|trouble| trouble());
            let late = || {
                let came = nodes.seats.iter().flatten().map(|member| member.label.clone()).collect();
                let (seconds, refused) = (listen.timeout.as_secs_f64(), nodes.refused);
                LaunchError::Missing { hosts: size, came, address: address.clone(), seconds, refused }
            };
            let asked = || {
                let when = "while waiting for the nodes of the study".to_owned();
                interrupt.requested().then_some(LaunchError::Abandoned { when, run: String::new() })
            };
            if let Some(error) = trouble.or_else(asked).or_else(|| left(end).is_zero().then(late)) {
                nodes.end(RunEnd::failed(&error));
                return Err(error);
            }
            let Some(change) = nodes.next(left(end).min(LOOK)) else { continue };
            if let NodeChange::Lost { node, cause } = change {
                let error = LaunchError::NodeLost { node, cause };
                nodes.end(RunEnd::failed(&error));
                return Err(error);
            }
            tell(change);
        }
        let own = (boot_id(), trial::cores());
        let others = nodes.seats.iter().flatten().map(|member| member.machine.clone());
        nodes.shares = shares(&std::iter::once(own).chain(others).collect::<Vec<_>>());
        Ok(nodes)
    }

    /// How many there are with this process, those that are gone included.
    pub fn size(&self) -> usize {
        self.seats.len() + 1
    }

    /// Nodes that are there and ready, this process included.
    pub fn present(&self) -> usize {
        let there = |member: &&Member| matches!(*locked(&member.duty), Duty::Idle | Duty::Busy(..));
        1 + self.seats.iter().flatten().filter(there).count()
    }

    /// Whether a node other than 0 has nothing to do.
    pub fn idle(&self, node: usize) -> bool {
        self.member(node).is_some_and(|member| matches!(*locked(&member.duty), Duty::Idle))
    }

    fn member(&self, node: usize) -> Option<&Member> {
        self.seats.get(node.checked_sub(1)?)?.as_ref()
    }

    /// A node in words.
    pub fn label(&self, node: usize) -> String {
        self.labels.get(node).cloned().unwrap_or_default()
    }

    /// The cores that a run on a node may use; none named: all that it has.
    pub fn cores(&self, node: usize) -> &[usize] {
        let share = self.shares.get(node).map_or(&[][..], Vec::as_slice);
        // One that has come back may be on another machine.
        let has = |member: &Member| share.iter().all(|core| member.machine.1.contains(core));
        if self.member(node).is_none_or(has) { share } else { &[] }
    }

    /// How many cores a run on a node may use.
    pub fn core_count(&self, node: usize) -> usize {
        let all = || self.member(node).map_or_else(|| trial::cores().len(), |member| member.machine.1.len());
        Some(self.cores(node).len()).filter(|count| *count > 0).unwrap_or_else(all)
    }

    /// Where other nodes reach a node.
    pub fn address(&self, node: usize) -> Option<IpAddr> {
        match node {
            0 => self.seats.iter().flatten().next().map(|member| member.line.local().ip()),
            _ => self.member(node).map(|member| member.line.remote().ip()),
        }
    }

    /// Gives a run to a node other than 0, which must be idle; what the run leaves is put into a folder. None if the node
    /// is gone.
    pub fn start(&mut self, node: usize, work: NodeWork, into: PathBuf) -> Option<NodeTrial> {
        let cores = self.cores(node).to_vec();
        let member = self.seats.get_mut(node.checked_sub(1)?)?.as_mut()?;
        let (sender, heard) = channel();
        let number = member.works;
        {
            let mut duty = locked(&member.duty);
            let Duty::Idle = *duty else { return None };
            *duty = Duty::Busy(number, sender);
        }
        member.works += 1;
        let NodeWork { words, document, tree } = work;
        let order = WorkOrder { work: number, words, document, cores, tree };
        member.line.say(joining::encode(&NodeCommand::Work(order), &[]));
        let line = Arc::clone(&member.line);
        let (started, lines) = (Instant::now(), VecDeque::new());
        let begun = Vec::new();
        Some(NodeTrial { line, work: number, heard, into, started, lines, begun, trouble: None, over: false })
    }

    /// What has become of nodes since this was last asked.
    pub fn changes(&mut self) -> Vec<NodeChange> {
        std::iter::from_fn(|| self.next(Duration::ZERO)).collect()
    }

    fn next(&mut self, wait: Duration) -> Option<NodeChange> {
        let end = Instant::now() + wait;
        loop {
            let news = match self.heard.recv_timeout(left(end)) {
                Ok(news) => news,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            };
            let label = |seat: usize| self.seats[seat].as_ref().map(|member| member.label.clone());
            match news {
                Incoming::Door(visit) => {
                    let refused = match visit {
                        Visit::Refused { cause } => Some(cause),
                        Visit::Arrived { link, greeting } => self.admit(*link, &greeting).err(),
                    };
                    let Some(cause) = refused else { continue };
                    self.refused += 1;
                    if self.refused <= TOLD {
                        return Some(NodeChange::Refused { cause });
                    }
                }
                Incoming::Ready { seat, machine } => {
                    let Some(member) = &mut self.seats[seat] else { continue };
                    member.machine = machine;
                    let mut duty = locked(&member.duty);
                    if let Duty::Coming = *duty {
                        *duty = Duty::Idle;
                        return Some(NodeChange::Came { node: member.label.clone() });
                    }
                }
                Incoming::Liveness { seat, there } => {
                    let Some(node) = label(seat) else { continue };
                    return Some(NodeChange::Liveness { node, there });
                }
                Incoming::Lost { seat, duty, cause } => {
                    // It may have come back meanwhile: then this is about the one before.
                    let same =
                        self.seats[seat].as_ref().is_some_and(|member| Arc::ptr_eq(&member.duty, &duty));
                    let Some(member) = same.then(|| self.seats[seat].take()).flatten() else { continue };
                    return Some(NodeChange::Lost { node: member.label, cause });
                }
            }
        }
    }

    /// Gives somebody who holds the key a seat, or says why not.
    fn admit(&mut self, link: Link, greeting: &[u8]) -> Result<(), String> {
        let (_, remote) = link.addresses().map_err(|e| format!("somebody: {e}"))?;
        let refuse = |link, message: &str, hint: &str| {
            refuse(link, message, hint);
            Err(format!("{remote}: {message}"))
        };
        let hosts = self.size();
        let greeting = match read_greeting(greeting, hosts) {
            Ok(greeting) => greeting,
            Err((message, hint)) => return refuse(link, &message, hint),
        };
        let taken = |seat: &Option<Member>| {
            seat.as_ref().is_some_and(|member| !matches!(*locked(&member.duty), Duty::Gone(_)))
        };
        let free = self.seats.iter().position(|seat| !taken(seat));
        let seat = match (greeting.host, free) {
            (Some(node), _) if node == 0 || node >= hosts => {
                let message = format!("node {node}: others than the leader's are 1 to {}", hosts - 1);
                return refuse(link, &message, "--host (or RANK) chooses");
            }
            (Some(node), _) if taken(&self.seats[node - 1]) => {
                let message = format!("{} is here already", self.label(node));
                return refuse(link, &message, "--host (or RANK) chooses another; without it any will do");
            }
            (Some(node), _) => node - 1,
            (None, Some(seat)) => seat,
            (None, None) => return refuse(link, &format!("all {hosts} nodes are here already"), ""),
        };
        let (duty, to_all) = (Arc::new(Mutex::new(Duty::Coming)), self.sender.clone());
        let own = Arc::clone(&duty);
        let hear = move |event| hear(seat, event, &own, &to_all);
        let line = Line::new(link, DOCUMENT, HeartbeatTiming::default(), hear)
            .map_err(|e| format!("{remote}: {e}"))?;
        let (name, run) = (process::host(), "a study".to_owned());
        line.say(joining::encode(
            &HostCommand::Welcome { name, run, host: seat + 1, hosts, under_way: false },
            &[],
        ));
        let (folder, needed) = self.serve.clone();
        line.say(joining::encode(&HostCommand::Serve { folder, needed }, &[]));
        let (label, line) = (label(seat + 1, &excerpt(&greeting.name)), Arc::new(line));
        self.labels[seat + 1].clone_from(&label);
        self.seats[seat] = Some(Member { label, line, duty, works: 0, machine: (String::new(), Vec::new()) });
        Ok(())
    }

    /// Ends every node with word of how the study ended.
    pub fn end(&mut self, over: RunEnd) {
        let document = joining::encode(&NodeCommand::End(over), &[]);
        let members: Vec<Member> = self.seats.iter_mut().filter_map(Option::take).collect();
        members.iter().for_each(|member| member.line.say(document.clone()));
        // Whoever still has a run on it lets go of its line first.
        members.into_iter().filter_map(|member| Arc::into_inner(member.line)).for_each(Line::close);
    }
}

fn label(node: usize, name: &str) -> String {
    format!("node {node} ({name})")
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// On the thread of a node's line.
fn hear(seat: usize, event: LineEvent, duty: &SharedDuty, to_all: &Sender<Incoming>) {
    let lost = |cause: String| {
        let before = std::mem::replace(&mut *locked(duty), Duty::Gone(cause.clone()));
        // What is told of one that was gone before is no news.
        let Duty::Gone(first) = before else {
            if let Duty::Busy(_, to) = before {
                let _ = to.send(WorkEvent::Lost(cause.clone()));
            }
            let _ = to_all.send(Incoming::Lost { seat, duty: Arc::clone(duty), cause });
            return;
        };
        *locked(duty) = Duty::Gone(first);
    };
    let (said, numbers) = match event {
        LineEvent::Document(document) => match joining::decode::<NodeEvent>(&document) {
            Ok(said) => said,
            Err(cause) => return lost(cause),
        },
        LineEvent::Quiet | LineEvent::Back => {
            let there = matches!(event, LineEvent::Back);
            return drop(to_all.send(Incoming::Liveness { seat, there }));
        }
        LineEvent::Lost { cause } => return lost(cause),
    };
    let to_run = |work: u64, event: WorkEvent| {
        let mut duty = locked(duty);
        let over = matches!(event, WorkEvent::Ended(_));
        if let Duty::Busy(number, to) = &*duty
            && *number == work
        {
            // A run that nobody waits for any more ends unheard.
            let _ = to.send(event);
            if over {
                *duty = Duty::Idle;
            }
        }
    };
    match said {
        NodeEvent::Ready { machine, cores } => {
            drop(to_all.send(Incoming::Ready { seat, machine: (machine, cores) }));
        }
        NodeEvent::Output { work, bytes } => to_run(work, WorkEvent::Output(unpack(&numbers, bytes))),
        NodeEvent::File { work, name, bytes } => to_run(work, WorkEvent::File(name, unpack(&numbers, bytes))),
        NodeEvent::Ended { work, ended } => to_run(work, WorkEvent::Ended(ended)),
        NodeEvent::Leaving { cause } => lost(excerpt(&cause)),
    }
}

/// A run on a node. Dropping it ends it.
pub struct NodeTrial {
    line: Arc<Line>,
    work: u64,
    heard: Receiver<WorkEvent>,
    into: PathBuf,
    started: Instant,
    lines: VecDeque<String>,
    /// The beginning of a line whose end has not come yet.
    begun: Vec<u8>,
    /// Why what the run has left could not be kept.
    trouble: Option<io::Error>,
    over: bool,
}

impl NodeTrial {
    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// The folder with what it has left.
    pub fn left(&self) -> &Path {
        &self.into
    }

    /// Ends it, some time soon.
    pub fn kill(&self) {
        self.line.say(joining::encode(&NodeCommand::Abort { work: self.work }, &[]));
    }

    /// What comes next, or why its node is lost; `None` when nothing comes within `patience`.
    pub fn hear(&mut self, patience: Duration) -> Option<Result<TrialEvent, String>> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(Ok(TrialEvent::Line(line)));
            }
            if self.over {
                return None;
            }
            let lost = || WorkEvent::Lost("its line has ended".into());
            let event = match self.heard.recv_timeout(left(deadline)) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => lost(),
            };
            match event {
                WorkEvent::Output(bytes) => {
                    self.begun.extend(bytes);
                    let whole = self.begun.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                    let lines: Vec<u8> = self.begun.drain(..whole).collect();
                    self.lines.extend(String::from_utf8_lossy(&lines).lines().map(str::to_owned));
                }
                WorkEvent::File(name, bytes) => {
                    if let Err(error) = self.keep(&name, &bytes) {
                        self.trouble = self.trouble.take().or(Some(error));
                    }
                }
                WorkEvent::Ended(mut ended) => {
                    self.over = true;
                    self.trouble.iter().for_each(|error| ended.not_recorded(error));
                    return Some(Ok(TrialEvent::Ended(*ended)));
                }
                WorkEvent::Lost(cause) => {
                    self.over = true;
                    return Some(Err(cause));
                }
            }
        }
    }

    /// Keeps a part of a file that the run has left.
    fn keep(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        if !fit(name) {
            return Err(io::Error::other(format!("{:?} is no file of a run", excerpt(name))));
        }
        let path = self.into.join(name);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        OpenOptions::new().create(true).append(true).open(&path)?.write_all(bytes)
    }
}

impl Drop for NodeTrial {
    fn drop(&mut self) {
        if !self.over {
            self.kill();
        }
    }
}

/// The cores of each node: nodes of one machine that may use the same cores share them evenly, where there are enough of
/// them. None named: all that it has.
fn shares(nodes: &[(String, Vec<usize>)]) -> Vec<Vec<usize>> {
    let share = |(i, own): (usize, &(String, Vec<usize>))| {
        let alike: Vec<usize> = (0..nodes.len()).filter(|other| nodes[*other] == *own).collect();
        let each = own.1.len() / alike.len();
        if alike.len() < 2 || each == 0 {
            return Vec::new();
        }
        let at = alike.iter().position(|other| *other == i).unwrap_or(0);
        own.1[at * each..(at + 1) * each].to_vec()
    };
    nodes.iter().enumerate().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_one_machine_share_its_cores_and_others_have_their_own() {
        let node = |machine: &str, cores: std::ops::Range<usize>| (machine.to_owned(), cores.collect());
        let all = vec![Vec::<usize>::new(); 2];
        assert_eq!(shares(&[node("a", 0..4), node("b", 0..4)]), all);
        let three = [node("a", 0..8), node("b", 0..4), node("a", 0..8), node("a", 0..8)];
        assert_eq!(shares(&three), [vec![0, 1], vec![], vec![2, 3], vec![4, 5]]);
        // An engine has given each its own already; or there are too few to share.
        assert_eq!(shares(&[node("a", 0..2), node("a", 2..4)]), all);
        assert_eq!(shares(&[node("a", 0..1), node("a", 0..1)]), all);
    }
}
