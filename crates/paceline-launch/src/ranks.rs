//! All ranks of a run, wherever they are: processes or threads of this machine, and processes of machines that joined.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender};
use std::thread::Scope;
use std::time::{Duration, Instant};

use paceline_record::Recording;
use paceline_train::TrainError;
use paceline_wire::line::join_listener::Visit;
use paceline_wire::line::{LineEvent, Link};
use paceline_wire::{Key, inproc};

use crate::control::{Place, RankCommand, RankEvent};
use crate::devices::ScriptConditions;
use crate::error::LaunchError;
use crate::hosts::{Host, Hosts};
use crate::joining::{self, HostCommand, HostEvent, ProcessSignal, RunEnd};
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
    /// A machine has joined the run under way: its name and address.
    HostJoined { host: usize, name: String },
    /// A machine is to leave: its ranks hand over what they have.
    HostLeaving { host: usize },
    /// Somebody asks on another machine for the run to be saved and stopped.
    Interrupted,
    /// Somebody was turned away where machines join: who, and why.
    Refused { cause: String },
    /// Somebody asks for other members.
    Asked(Asked),
    /// Nothing that concerns the run.
    Nothing,
}

/// The ranks of this machine.
enum LocalRanks {
    Processes(RankProcesses),
    Threads(RankThreads),
}

/// Every rank of a run.
pub struct Ranks {
    local: LocalRanks,
    /// The host of each rank; none of one that had no process yet, or whose machine is gone.
    layout: Vec<Option<usize>>,
    /// Most ranks that the plan gives to one machine.
    share: usize,
    hosts: Option<Hosts>,
    heard: Receiver<Incoming>,
    /// Processes elsewhere that have ended: which, and how.
    ends: Vec<Option<(u32, String)>>,
    /// What a rank's process is told first, where one may be started later.
    orders: Option<RankOrders>,
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
        // Spares wait with the launcher: they are lost only with the run.
        let mut layout = if hosts.is_some() { plan.layout() } else { vec![0; world] };
        layout.resize(world, 0);
        let share = (0..world).map(|of| layout.iter().filter(|host| **host == layout[of]).count()).max();
        let mut layout: Vec<Option<usize>> = layout.into_iter().map(Some).collect();
        layout.resize(members, None);
        let ends = vec![None; members];
        let share = share.unwrap_or(1);
        // A script is a process already, and ends with its rank's.
        let thread = plan.alone() && plan.script.is_none();
        let alone = thread.then_some(inproc::KIND.mesh).flatten();
        if let Some(mesh) = alone.or(plan.transport.mesh) {
            let local = LocalRanks::Threads(RankThreads::start(scope, launch, mesh(world), sender));
            return Ok(Self { local, layout, share, hosts, heard, ends, refused: 0, orders: None });
        }
        let orders = RankOrders {
            plan: Box::new(plan.document.clone()),
            run: launch.run.to_owned(),
            key: *Key::generate().map_err(TrainError::from)?.as_bytes(),
            folders: launch.folders.0.clone(),
            address: hosts.as_ref().map(|hosts| hosts.here().ip()),
            recording: launch.recording,
            conditions: launch.conditions.clone(),
        };
        let of =
            |host: usize| -> Vec<usize> { (0..world).filter(|&rank| layout[rank] == Some(host)).collect() };
        let own = of(0);
        let mut processes =
            RankProcesses::start_ranks(&launch.program.0, launch.program.1, orders.of(&own, &own))?;
        let news = processes.take_news();
        std::thread::spawn(move || {
            // Until nobody listens any more, or the last process has ended.
            news.into_iter().all(|news| sender.send(Incoming::Here(news)).is_ok());
        });
        for (number, host) in hosts.iter().flat_map(Hosts::others) {
            let ranks = of(number);
            host.line.say(joining::encode(&orders.start(ranks.clone(), ranks), &[]));
        }
        let local = LocalRanks::Processes(processes);
        let mut ranks = Self { local, layout, share, hosts, heard, ends, refused: 0, orders: Some(orders) };
        if let (Some(_), Some(hosts)) = (plan.elastic, &mut ranks.hosts) {
            hosts.begin(plan.host_count() + members);
        }
        Ok(ranks)
    }

    /// What is heard next, if something is within a time.
    pub fn next(&mut self, wait: Duration) -> Option<RanksEvent> {
        Some(match self.heard.recv_timeout(wait).ok()? {
            Incoming::Here(news) => RanksEvent::Rank(news),
            Incoming::There(id, heard) => self.hear_host(id, heard),
            Incoming::Asked(asked) => RanksEvent::Asked(asked),
            Incoming::Door(Visit::Refused { cause }) => self.refused(cause),
            Incoming::Door(Visit::Arrived { link, greeting }) => self.arrived(*link, &greeting),
        })
    }

    /// Somebody who holds the key comes to the run under way.
    fn arrived(&mut self, link: Link, greeting: &[u8]) -> RanksEvent {
        if let Some(hosts) = self.hosts.as_mut().filter(|hosts| hosts.under_way()) {
            return match hosts.admit(link, greeting) {
                Ok((host, name)) => RanksEvent::HostJoined { host, name },
                Err(cause) => self.refused(cause),
            };
        }
        let who = link.addresses().map_or_else(|_| "somebody".into(), |(_, who)| who.to_string());
        let name = rendezvous::name(greeting);
        rendezvous::refuse(link, "the run has begun already, with all its hosts", "");
        self.refused(format!("{who}: {name} came after the run had begun"))
    }

    fn refused(&mut self, cause: String) -> RanksEvent {
        self.refused += 1;
        if self.refused <= rendezvous::TOLD { RanksEvent::Refused { cause } } else { RanksEvent::Nothing }
    }

    fn hear_host(&mut self, id: usize, heard: LineEvent) -> RanksEvent {
        let Some(hosts) = &mut self.hosts else { return RanksEvent::Nothing };
        // Nothing counts that comes from a machine which was given up.
        let Some(host) = hosts.number(id) else { return RanksEvent::Nothing };
        let Some(there) = hosts.get_mut(host) else { return RanksEvent::Nothing };
        match heard {
            LineEvent::Document(document) => match joining::decode(&document) {
                Ok((said, numbers)) => self.understand(host, said, numbers),
                Err(cause) => RanksEvent::HostLost { host, cause },
            },
            LineEvent::Quiet | LineEvent::Back => {
                there.quiet = matches!(heard, LineEvent::Quiet);
                RanksEvent::HostLiveness { host, there: !there.quiet }
            }
            LineEvent::Lost { cause } => {
                let ending = there.ending.take().map_or(String::new(), |ending| format!("{ending}; "));
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
                if let Some(there) = self.there(host) {
                    there.ending = Some(cause.clone());
                }
                return RanksEvent::HostEnding { host, cause };
            }
            HostEvent::Interrupted => return RanksEvent::Interrupted,
            HostEvent::Leaving => {
                if let Some(there) = self.there(host) {
                    there.leaving = true;
                }
                return RanksEvent::HostLeaving { host };
            }
            HostEvent::Failed { message } => {
                return RanksEvent::HostLost { host, cause: joining::excerpt(message) };
            }
        };
        if self.layout.get(rank) != Some(&Some(host)) {
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
            HostEvent::Failed { .. }
            | HostEvent::Ending { .. }
            | HostEvent::Interrupted
            | HostEvent::Leaving => unreachable!("they were looked at above"),
        })
    }

    fn there(&mut self, host: usize) -> Option<&mut Host> {
        self.hosts.as_mut()?.get_mut(host)
    }

    /// Tells a rank something. One that has died meanwhile is told of by its end.
    pub fn tell(&mut self, rank: usize, order: RankCommand, numbers: &[f32]) {
        if let Some(host) = self.elsewhere(rank) {
            let tell = HostCommand::Tell { rank, order: Box::new(order) };
            return host.line.say(joining::encode(&tell, numbers));
        }
        match &mut self.local {
            LocalRanks::Processes(processes) => drop(processes.tell(rank, &order, numbers)),
            LocalRanks::Threads(threads) => threads.tell(rank, order, numbers),
        }
    }

    /// Tells every rank the same.
    pub fn tell_all(&mut self, order: &RankCommand) {
        (0..self.layout.len()).for_each(|rank| self.tell(rank, order.clone(), &[]));
    }

    /// Kills a rank's process, or tells it that it will be killed.
    pub fn signal(&mut self, rank: usize, signal: ProcessSignal) {
        if let Some(host) = self.elsewhere(rank) {
            return host.line.say(joining::encode(&HostCommand::Signal { rank, signal }, &[]));
        }
        if let LocalRanks::Processes(processes) = &mut self.local {
            processes.signal(rank, signal);
        }
    }

    /// Ends what is left of the script of a rank of this machine whose process has ended.
    pub fn end_script(&mut self, rank: usize) {
        if let LocalRanks::Processes(processes) = &mut self.local {
            processes.end_script(rank);
        }
    }

    /// Starts processes on a machine: in place of ranks' that have ended, or the first ones of ranks that had none.
    pub fn start_on(&mut self, host: usize, begin: &[usize]) -> Result<(), LaunchError> {
        for rank in begin {
            (self.layout[*rank], self.ends[*rank]) = (Some(host), None);
        }
        let ranks = self.of(host);
        let Some(orders) = &self.orders else {
            let source = std::io::Error::other("it is no process");
            return Err(LaunchError::Start { role: "rank", rank: begin[0], source, ended: None });
        };
        match (self.hosts.as_ref().and_then(|hosts| hosts.get(host)), &mut self.local) {
            (Some(there), _) => {
                there.line.say(joining::encode(&orders.start(ranks, begin.to_vec()), &[]));
                Ok(())
            }
            (None, LocalRanks::Processes(processes)) => processes.start_more(orders.of(&ranks, begin)),
            (None, LocalRanks::Threads(_)) => Ok(()),
        }
    }

    /// Where a rank's process is started: on the machine that it had, else on the one that has the fewest ranks.
    pub fn host_for(&self, rank: usize) -> usize {
        let others = self.hosts.iter().flat_map(Hosts::others).filter(|(_, host)| host.takes_ranks());
        let hosts: Vec<usize> = std::iter::once(0).chain(others.map(|(host, _)| host)).collect();
        let before = self.layout[rank].filter(|host| hosts.contains(host));
        before.or_else(|| hosts.into_iter().min_by_key(|host| self.of(*host).len())).unwrap_or(0)
    }

    /// The host of a rank.
    pub fn host_of(&self, rank: usize) -> usize {
        self.layout[rank].unwrap_or_default()
    }

    /// A machine that has no ranks: it waits until it is needed.
    pub fn idle(&self) -> Option<usize> {
        let idle =
            |(number, host): &(usize, &Host)| host.takes_ranks() && !self.layout.contains(&Some(*number));
        self.hosts.iter().flat_map(Hosts::others).find(idle).map(|(host, _)| host)
    }

    /// A rank could not begin: its machine is given no other ones.
    pub fn unfit(&mut self, rank: usize) {
        if let Some(there) = self.layout[rank].and_then(|host| self.there(host)) {
            there.unfit = true;
        }
    }

    /// Machines that are to leave.
    pub fn leaving(&self) -> Vec<usize> {
        let others = self.hosts.iter().flat_map(Hosts::others);
        others.filter(|(_, host)| host.leaving).map(|(host, _)| host).collect()
    }

    /// Whether the machine of a rank is to leave.
    pub fn is_leaving(&self, rank: usize) -> bool {
        self.elsewhere(rank).is_some_and(|host| host.leaving)
    }

    /// Most ranks that a machine of the plan has.
    pub fn share(&self) -> usize {
        self.share
    }

    /// A machine is gone: its ranks have none any more.
    pub fn lose(&mut self, host: usize, cause: &str) {
        let (label, ranks) = self.host(host);
        for rank in ranks {
            self.layout[rank] = None;
            self.ends[rank] = Some((0, format!("host {host}, {label}, was lost: {cause}")));
        }
        self.hosts.as_mut().and_then(|hosts| hosts.remove(host));
    }

    /// The ranks of a host, in rising order.
    fn of(&self, host: usize) -> Vec<usize> {
        (0..self.layout.len()).filter(|&rank| self.layout[rank] == Some(host)).collect()
    }

    /// The machine of a rank, if it is not this one.
    fn elsewhere(&self, rank: usize) -> Option<&Host> {
        self.hosts.as_ref()?.get(self.layout[rank]?)
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
        let there = self.hosts.as_ref().and_then(|hosts| hosts.get(host));
        (there.map(Host::label).unwrap_or_default(), self.of(host))
    }

    fn host_name(&self, host: usize) -> String {
        self.hosts.as_ref().map_or_else(String::new, |hosts| hosts.name(host))
    }

    /// This machine's name and why it stops (`cause`, unless it was simply asked to), where it was started as a task of a
    /// job and no other has been asked to end.
    pub fn own_ending(&self, cause: Option<&str>) -> Option<(String, String)> {
        let hosts = self.hosts.as_ref()?;
        let asked = hosts.others().any(|(_, host)| host.ending.is_some());
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
        match self.hosts.take() {
            None => processes.end(grace),
            Some(hosts) => hosts.dismiss(&over, || processes.end(grace)),
        }
    }
}

/// What a machine needs to know to tell its ranks what to do.
pub(crate) struct RankOrders {
    pub plan: Box<paceline_plan::Plan>,
    pub run: String,
    /// The run's own.
    pub key: [u8; 32],
    pub folders: Vec<PathBuf>,
    /// Where the other machines reach this one, if there are some.
    pub address: Option<IpAddr>,
    pub recording: Option<Recording>,
    pub conditions: ScriptConditions,
}

impl RankOrders {
    /// What those of a machine's ranks are told first whose processes are started now.
    pub fn of(&self, ranks: &[usize], begin: &[usize]) -> Vec<(usize, RankCommand)> {
        let order = |(index, &rank): (usize, &usize)| {
            let place = self.address.map(|address| Place { address, index, ranks: ranks.len() });
            // Of several ranks on one machine, one tells of it.
            let recording = self.recording.map(|recording| {
                let host = index == 0;
                Recording { host, devices: host && self.plan.script.is_some(), ..recording }
            });
            let (plan, run, folders) = (self.plan.clone(), self.run.clone(), self.folders.clone());
            let (key, conditions) = (self.key, self.conditions.clone());
            (rank, RankCommand::Config { plan, run, rank, key, folders, place, recording, conditions })
        };
        ranks.iter().enumerate().filter(|(_, rank)| begin.contains(rank)).map(order).collect()
    }

    /// The same for another machine.
    fn start(&self, ranks: Vec<usize>, begin: Vec<usize>) -> HostCommand {
        let (plan, key, recording) = (self.plan.clone(), self.key, self.recording);
        HostCommand::Start { plan, ranks, begin, key, recording }
    }
}

pub(crate) fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}
