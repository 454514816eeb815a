//! All ranks of a run, wherever they are: processes or threads of this machine, and processes of machines that joined.

use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender};
use std::thread::Scope;
use std::time::{Duration, Instant};

use paceline_record::Recording;
use paceline_train::TrainError;
use paceline_wire::line::join_listener::{JoinPort, Visit};
use paceline_wire::line::{Line, LineEvent};
use paceline_wire::{Key, inproc};

use crate::control::{Place, RankCommand, RankEvent};
use crate::devices::ScriptConditions;
use crate::engine::EngineTask;
use crate::error::LaunchError;
use crate::joining::{self, HostCommand, HostEvent, RunEnd};
use crate::processes::{ProcessEvent, RankProcesses};
use crate::rendezvous;
use crate::requests::Asked;
use crate::run::Launch;
use crate::threads::RankThreads;

/// Time that this machine's processes have to end by themselves after a run that ended well.
const GRACE: Duration = Duration::from_secs(2);

/// An event as it comes in, before its sender is checked.
pub(crate) enum Incoming {
    /// From a process of this machine.
    Here(ProcessEvent),
    /// From a machine that joined.
    There(usize, LineEvent),
    /// At the port where machines join.
    Door(Visit),
    /// At the socket in the run's folder.
    Asked(Asked),
}

/// An event that concerns a rank or a machine of the run.
#[derive(Debug)]
pub enum RanksEvent {
    /// A rank reports something, or has ended.
    Rank(ProcessEvent),
    /// A machine is gone, with all its ranks.
    HostLost { host: usize, cause: String },
    /// A machine is under suspicion (`false`), or there again.
    HostLiveness { host: usize, there: bool },
    /// A machine was asked to end by whoever started it.
    HostEnding { host: usize, cause: String },
    /// Somebody was turned away where machines join: who, and why.
    Refused { cause: String },
    /// Somebody asks for other members.
    Asked(Asked),
    /// Nothing that concerns the run.
    Nothing,
}

pub(crate) struct Host {
    pub id: usize,
    pub name: String,
    pub line: Line,
    pub quiet: bool,
    /// Why whoever started it has asked it to end.
    pub ending: Option<String>,
}

impl Host {
    /// Name and address, for people.
    pub fn label(&self) -> String {
        format!("{} ({})", self.name, self.line.remote().ip())
    }
}

/// The machines of a run besides this one, all here.
pub(crate) struct Hosts {
    /// Hosts from 1 up.
    pub others: Vec<Host>,
    /// Where the others reach this machine.
    pub here: SocketAddr,
    pub door: JoinPort,
    /// Who started all of them as one job, and which of them this is.
    pub task: Option<EngineTask>,
}

/// The ranks of this machine.
enum LocalRanks {
    Processes(RankProcesses),
    Threads(RankThreads),
}

/// Every rank of a run.
pub struct Ranks {
    local: LocalRanks,
    /// The host of each rank.
    layout: Vec<usize>,
    hosts: Option<Hosts>,
    heard: Receiver<Incoming>,
    /// Processes elsewhere that have ended: which, and how.
    ends: Vec<Option<(u32, String)>>,
    /// What each member's process is told first, where one may be started later.
    orders: Vec<(usize, RankCommand)>,
    /// How many were turned away where machines join.
    refused: usize,
}

impl Ranks {
    /// Starts every rank: here, and on the machines that joined.
    pub(crate) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        launch: &'scope Launch<'scope>,
        hosts: Option<Hosts>,
        (sender, heard): (Sender<Incoming>, Receiver<Incoming>),
    ) -> Result<Self, LaunchError> {
        let plan = launch.plan;
        let (world, members) = (plan.processes(), plan.members());
        let layout = if hosts.is_some() { plan.layout() } else { vec![0; members] };
        let ends = vec![None; members];
        // A script is a process already, and ends with its rank's.
        let thread = plan.alone() && plan.script.is_none();
        let alone = thread.then_some(inproc::KIND.mesh).flatten();
        if let Some(mesh) = alone.or(plan.transport.mesh) {
            let local = LocalRanks::Threads(RankThreads::start(scope, launch, mesh(world), sender));
            return Ok(Self { local, layout, hosts, heard, ends, refused: 0, orders: Vec::new() });
        }
        let key = *Key::generate().map_err(TrainError::from)?.as_bytes();
        let of = |host: usize| -> Vec<usize> { (0..world).filter(|&rank| layout[rank] == host).collect() };
        let here = hosts.as_ref().map(|hosts| hosts.here.ip());
        let elastic = plan.elastic.is_some() && hosts.is_none();
        let mut orders = orders(
            plan,
            launch.run,
            key,
            &launch.folders.0,
            &if elastic { (0..members).collect() } else { of(0) },
            here,
            launch.recording,
            launch.conditions,
        );
        let begin = orders.iter().filter(|(rank, _)| *rank < world).map(|(rank, order)| (*rank, order));
        let mut processes = RankProcesses::start_ranks(&launch.program.0, launch.program.1, begin)?;
        if !elastic {
            orders.clear();
        }
        let news = processes.take_news();
        std::thread::spawn(move || {
            // Until nobody listens any more, or the last process has ended.
            news.into_iter().all(|news| sender.send(Incoming::Here(news)).is_ok());
        });
        for (i, host) in hosts.iter().flat_map(|hosts| hosts.others.iter().enumerate()) {
            let start = HostCommand::Start {
                plan: Box::new(plan.document.clone()),
                ranks: of(i + 1),
                key,
                recording: launch.recording,
            };
            host.line.say(joining::encode(&start, &[]));
        }
        let local = LocalRanks::Processes(processes);
        Ok(Self { local, layout, hosts, heard, ends, refused: 0, orders })
    }

    /// What is heard next, if something is within a time.
    pub fn next(&mut self, wait: Duration) -> Option<RanksEvent> {
        Some(match self.heard.recv_timeout(wait).ok()? {
            Incoming::Here(news) => RanksEvent::Rank(news),
            Incoming::There(id, heard) => self.hear_host(id, heard),
            Incoming::Asked(asked) => RanksEvent::Asked(asked),
            Incoming::Door(Visit::Refused { cause }) => self.refused(cause),
            Incoming::Door(Visit::Arrived { link, greeting }) => {
                let who = link.addresses().map_or_else(|_| "somebody".into(), |(_, who)| who.to_string());
                let name = rendezvous::name(&greeting);
                rendezvous::refuse(*link, "the run has begun already, with all its hosts", "");
                self.refused(format!("{who}: {name} came after the run had begun"))
            }
        })
    }

    fn refused(&mut self, cause: String) -> RanksEvent {
        self.refused += 1;
        if self.refused <= rendezvous::TOLD { RanksEvent::Refused { cause } } else { RanksEvent::Nothing }
    }

    fn hear_host(&mut self, id: usize, heard: LineEvent) -> RanksEvent {
        let others = self.hosts.as_mut().map_or(&mut [][..], |hosts| &mut hosts.others);
        let Some(at) = others.iter().position(|host| host.id == id) else { return RanksEvent::Nothing };
        let host = at + 1;
        match heard {
            LineEvent::Document(document) => match joining::decode(&document) {
                Ok((said, numbers)) => self.understand(host, said, numbers),
                Err(cause) => RanksEvent::HostLost { host, cause },
            },
            LineEvent::Quiet | LineEvent::Back => {
                let there = matches!(heard, LineEvent::Back);
                others[at].quiet = !there;
                RanksEvent::HostLiveness { host, there }
            }
            LineEvent::Lost { cause } => {
                let ending = others[at].ending.take().map_or(String::new(), |ending| format!("{ending}; "));
                RanksEvent::HostLost { host, cause: ending + &cause }
            }
        }
    }

    fn understand(&mut self, host: usize, said: HostEvent, numbers: Vec<f32>) -> RanksEvent {
        let rank = match &said {
            HostEvent::Rank { rank, .. } | HostEvent::Closed { rank } | HostEvent::Exited { rank, .. } => {
                *rank
            }
            HostEvent::Ending { cause } => {
                let cause = joining::excerpt(cause);
                if let Some(hosts) = &mut self.hosts {
                    hosts.others[host - 1].ending = Some(cause.clone());
                }
                return RanksEvent::HostEnding { host, cause };
            }
            HostEvent::Failed { message } => {
                return RanksEvent::HostLost { host, cause: joining::excerpt(message) };
            }
        };
        if self.layout.get(rank) != Some(&host) {
            return RanksEvent::HostLost {
                host,
                cause: format!("it spoke for rank {rank}, which is not its own"),
            };
        }
        RanksEvent::Rank(match said {
            HostEvent::Rank { said: RankEvent::Done(mut account), .. } => {
                account.host = self.host_name(host);
                ProcessEvent::Rank(rank, RankEvent::Done(account), numbers)
            }
            HostEvent::Rank { said: RankEvent::Recorded(mut batch), .. } => {
                batch.site.iter_mut().for_each(|site| site.host = self.host_name(host));
                ProcessEvent::Rank(rank, RankEvent::Recorded(batch), numbers)
            }
            HostEvent::Rank { said, .. } => ProcessEvent::Rank(rank, said, numbers),
            HostEvent::Closed { .. } => ProcessEvent::Closed(rank),
            HostEvent::Exited { pid, status, .. } => {
                self.ends[rank] = Some((pid, joining::excerpt(&status)));
                ProcessEvent::Exited(rank)
            }
            HostEvent::Failed { .. } | HostEvent::Ending { .. } => unreachable!("they were looked at above"),
        })
    }

    /// Tells a rank something. One that has died meanwhile is told of by its end.
    pub fn tell(&mut self, rank: usize, order: RankCommand, numbers: &[f32]) {
        match self.elsewhere(rank) {
            Some(host) => {
                let tell = HostCommand::Tell { rank, order: Box::new(order) };
                host.line.say(joining::encode(&tell, numbers));
            }
            None => match &mut self.local {
                LocalRanks::Processes(processes) => drop(processes.tell(rank, &order, numbers)),
                LocalRanks::Threads(threads) => threads.tell(rank, order, numbers),
            },
        }
    }

    /// Tells every rank the same.
    pub fn tell_all(&mut self, order: &RankCommand) {
        (0..self.layout.len()).for_each(|rank| self.tell(rank, order.clone(), &[]));
    }

    /// Kills a rank's process on this machine.
    pub fn kill(&mut self, rank: usize) {
        if let LocalRanks::Processes(processes) = &mut self.local {
            processes.kill(rank);
        }
    }

    /// Ends what is left of the script of a rank of this machine whose process has ended.
    pub fn end_script(&mut self, rank: usize) {
        if let LocalRanks::Processes(processes) = &mut self.local {
            processes.end_script(rank);
        }
    }

    /// Tells a rank's process on this machine that it will be killed.
    pub fn notice(&mut self, rank: usize) {
        if let LocalRanks::Processes(processes) = &mut self.local {
            processes.notice(rank);
        }
    }

    /// Starts another process in place of a rank's that has ended, or the first one of a rank that had none.
    pub fn start_again(&mut self, rank: usize) -> Result<(), LaunchError> {
        let order = self.orders.iter().find(|(other, _)| *other == rank);
        let (LocalRanks::Processes(processes), Some((_, order))) = (&mut self.local, order) else {
            let source = std::io::Error::other("it is not a process of this machine");
            return Err(LaunchError::Start { role: "rank", rank, source, ended: None });
        };
        processes.start_again(rank, order)
    }

    /// The machine of a rank, if it is not this one.
    fn elsewhere(&self, rank: usize) -> Option<&Host> {
        self.hosts.as_ref()?.others.get(self.layout[rank].checked_sub(1)?)
    }

    /// The name and address of a rank's machine, if it is not this one.
    pub fn place(&self, rank: usize) -> Option<String> {
        self.elsewhere(rank).map(Host::label)
    }

    /// Whether nothing has been heard of a rank's machine for a while.
    pub fn quiet(&self, rank: usize) -> bool {
        self.elsewhere(rank).is_some_and(|host| host.quiet)
    }

    /// The name and address of a host that joined, and its ranks.
    pub fn host(&self, host: usize) -> (String, Vec<usize>) {
        let others = self.hosts.as_ref().map_or(&[][..], |hosts| &hosts.others);
        let label = others.get(host - 1).map(Host::label).unwrap_or_default();
        (label, (0..self.layout.len()).filter(|&rank| self.layout[rank] == host).collect())
    }

    /// What a host is called in results: its name, and its address where several have that name.
    fn host_name(&self, host: usize) -> String {
        let Some(hosts) = &self.hosts else { return String::new() };
        let own = paceline_record::process::host();
        let all = || hosts.others.iter().map(|host| (&host.name, host.line.remote().ip()));
        let (name, address) =
            [(&own, hosts.here.ip())].into_iter().chain(all()).nth(host).unwrap_or((&own, hosts.here.ip()));
        let namesakes = all().filter(|other| other.0 == name).count() + usize::from(*name == own);
        if namesakes > 1 { format!("{name} ({address})") } else { name.clone() }
    }

    /// This machine's name and why it stops (`cause`, unless it was simply asked to), where it was started as a task of a
    /// job and no other has been asked to end.
    pub fn own_ending(&self, cause: Option<&str>) -> Option<(String, String)> {
        let hosts = self.hosts.as_ref()?;
        let asked = hosts.others.iter().any(|host| host.ending.is_some());
        let task = hosts.task.as_ref().filter(|_| !asked)?;
        let cause = cause.map_or_else(|| format!("{} was asked to end", task.label()), str::to_owned);
        Some((self.host_name(0), cause))
    }

    /// What this host is called in results, if there are others.
    pub fn own_name(&self) -> Option<String> {
        self.hosts.as_ref().map(|_| self.host_name(0))
    }

    pub fn pid(&self, rank: usize) -> u32 {
        match &self.ends[rank] {
            Some((pid, _)) => *pid,
            None => match &self.local {
                LocalRanks::Processes(processes) => processes.pid(rank),
                LocalRanks::Threads(_) => std::process::id(),
            },
        }
    }

    /// How a rank's process ended, if it has.
    pub fn status(&mut self, rank: usize) -> Option<String> {
        match &self.ends[rank] {
            Some((_, status)) => Some(status.clone()),
            None => match &mut self.local {
                LocalRanks::Processes(processes) => processes.status(rank).map(|exit| exit.to_string()),
                LocalRanks::Threads(_) => Some("its thread has ended".into()),
            },
        }
    }

    /// Whether ranks say all the time that they live: threads live as long as this process.
    pub fn say_that_they_live(&self) -> bool {
        matches!(self.local, LocalRanks::Processes(_))
    }

    /// Ends it all: the machines that joined are told how the run ended.
    pub(crate) fn dismiss(mut self, over: RunEnd) {
        let grace = if over.failure.is_none() { GRACE } else { Duration::ZERO };
        let LocalRanks::Processes(mut processes) = self.local else { return };
        let Some(Hosts { others, door, .. }) = self.hosts.take() else { return processes.end(grace) };
        let document = joining::encode(&HostCommand::RunEnd(over), &[]);
        let mut lines: Vec<Line> = others.into_iter().map(|host| host.line).collect();
        for line in &mut lines {
            line.say(document.clone());
            line.hang_up();
        }
        drop(door);
        processes.end(grace);
        lines.into_iter().for_each(Line::close);
    }
}

/// The orders of a machine's ranks.
#[allow(clippy::too_many_arguments, reason = "an order holds all that a rank needs to know")]
pub(crate) fn orders(
    plan: &paceline_plan::Plan,
    run: &str,
    key: [u8; 32],
    folders: &[std::path::PathBuf],
    ranks: &[usize],
    address: Option<IpAddr>,
    recording: Option<Recording>,
    conditions: &ScriptConditions,
) -> Vec<(usize, RankCommand)> {
    let order = |(index, &rank): (usize, &usize)| {
        let place = address.map(|address| Place { address, index, ranks: ranks.len() });
        let (plan, run, folders) = (Box::new(plan.clone()), run.to_owned(), folders.to_vec());
        // Of several ranks on one machine, one tells of it.
        let recording = recording.map(|recording| {
            let host = index == 0;
            Recording { host, devices: host && plan.script.is_some(), ..recording }
        });
        let conditions = conditions.clone();
        (rank, RankCommand::Config { plan, run, rank, key, folders, place, recording, conditions })
    };
    ranks.iter().enumerate().map(order).collect()
}

pub(crate) fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}
