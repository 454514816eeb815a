//! The machines of a run besides the launcher's: which number each has, who comes, and who is gone.

use std::net::SocketAddr;
use std::sync::mpsc::Sender;

use paceline_record::process;
use paceline_wire::Key;
use paceline_wire::line::join_listener::{JoinListener, JoinPort};
use paceline_wire::line::{HeartbeatTiming, Line, Link};

use crate::engine::EngineTask;
use crate::error::LaunchError;
use crate::joining::{self, HostCommand, RunEnd, excerpt};
use crate::ranks::Incoming;
use crate::rendezvous::{read_greeting, refuse};

/// A machine that has joined.
pub(crate) struct Host {
    id: usize,
    pub name: String,
    pub line: Line,
    pub quiet: bool,
    /// Why whoever started it has asked it to end.
    pub ending: Option<String>,
    /// Whether it goes as soon as its ranks have handed over what they have.
    pub leaving: bool,
    /// Whether a rank of it could not begin: it is given no other ones.
    pub unfit: bool,
}

impl Host {
    /// Name and address, for people.
    pub fn label(&self) -> String {
        format!("{} ({})", self.name, self.line.remote().ip())
    }

    /// Whether ranks can be started there.
    pub fn takes_ranks(&self) -> bool {
        !self.quiet && !self.leaving && !self.unfit
    }
}

/// The machines of a run besides this one, and the port where they come. Host 0 is this machine.
pub(crate) struct Hosts {
    run: String,
    /// How many hosts the plan has.
    planned: usize,
    /// How many there may be at a time, once the run is under way.
    most: Option<usize>,
    /// Hosts from 1 up; none where a number is free.
    seats: Vec<Option<Host>>,
    /// Where the others reach this machine, once that is known.
    here: Option<SocketAddr>,
    /// Where they come.
    pub address: SocketAddr,
    door: JoinPort,
    /// Who started all of them as one job, and which of them this is.
    pub task: Option<EngineTask>,
    sender: Sender<Incoming>,
    /// Most bytes of what one may say.
    limit: usize,
    ids: usize,
}

impl Hosts {
    /// Opens the port; whoever comes is told of to `sender`.
    pub fn open(
        (run, planned): (&str, usize),
        (listener, key): (JoinListener, Key),
        task: Option<EngineTask>,
        limit: usize,
        sender: Sender<Incoming>,
    ) -> Result<Self, LaunchError> {
        let address = listener.address();
        let visits = sender.clone();
        let door = listener.attend(key, move |visit| drop(visits.send(Incoming::Door(visit))))?;
        Ok(Self {
            run: run.to_owned(),
            planned,
            most: None,
            seats: (1..planned).map(|_| None).collect(),
            here: (!address.ip().is_unspecified()).then_some(address),
            address,
            door,
            task,
            sender,
            limit,
            ids: 0,
        })
    }

    /// The run begins: from now on at most so many machines can be there at a time, this one included.
    pub fn begin(&mut self, most: usize) {
        self.most = Some(most.max(self.planned));
    }

    /// Whether the run is under way, and machines may still come.
    pub fn under_way(&self) -> bool {
        self.most.is_some()
    }

    /// Hosts that are here, this one included.
    pub fn joined(&self) -> usize {
        1 + self.others().count()
    }

    /// The machines that have joined, with their numbers.
    pub fn others(&self) -> impl Iterator<Item = (usize, &Host)> {
        self.seats.iter().enumerate().filter_map(|(seat, host)| Some((seat + 1, host.as_ref()?)))
    }

    pub fn get(&self, host: usize) -> Option<&Host> {
        self.seats.get(host.checked_sub(1)?)?.as_ref()
    }

    pub fn get_mut(&mut self, host: usize) -> Option<&mut Host> {
        self.seats.get_mut(host.checked_sub(1)?)?.as_mut()
    }

    /// The number of the machine behind a line, as long as it is here.
    pub fn number(&self, id: usize) -> Option<usize> {
        self.others().find(|(_, host)| host.id == id).map(|(number, _)| number)
    }

    /// Where the others reach this machine.
    pub fn here(&self) -> SocketAddr {
        self.here.unwrap_or(self.address)
    }

    /// Frees the number of a machine that is gone, and hangs up.
    pub fn remove(&mut self, host: usize) -> Option<Host> {
        self.seats.get_mut(host.checked_sub(1)?)?.take()
    }

    /// Gives somebody who holds the key a number, or says why not; the number and the label.
    pub fn admit(&mut self, link: Link, greeting: &[u8]) -> Result<(usize, String), String> {
        let failed = |e: std::io::Error| format!("somebody: {e}");
        let (local, remote) = link.addresses().map_err(failed)?;
        let refuse = |link, message: &str, hint: &str| {
            refuse(link, message, hint);
            Err(format!("{remote}: {message}"))
        };
        let hosts = self.most.unwrap_or(self.planned);
        let greeting = match read_greeting(greeting, self.planned) {
            Ok(greeting) => greeting,
            Err((message, hint)) => return refuse(link, &message, hint),
        };
        if let Some(here) = self.here.filter(|here| here.ip() != local.ip()) {
            let message = format!("it came to {local}, but others reach this machine at {here}");
            return refuse(link, &message, &format!("join at {here}"));
        }
        let host = match greeting.host.or_else(|| (1..hosts).find(|host| self.get(*host).is_none())) {
            Some(host) if host == 0 || host >= hosts => {
                let message = format!("host {host}: others than the launcher's are 1 to {}", hosts - 1);
                return refuse(link, &message, "--host (or RANK) chooses");
            }
            Some(host) => host,
            None => return refuse(link, &format!("all {hosts} hosts are here already"), ""),
        };
        if let Some(taken) = self.get(host) {
            let message = format!("host {host} is {} already", taken.label());
            return refuse(link, &message, "--host (or RANK) chooses another; without it any will do");
        }
        self.here = self.here.or(Some(local));
        self.ids += 1;
        let (id, sender) = (self.ids, self.sender.clone());
        let hear = move |heard| drop(sender.send(Incoming::There(id, heard)));
        let line = Line::new(link, self.limit, HeartbeatTiming::default(), hear)
            .map_err(|e| format!("{remote}: {e}"))?;
        let (name, run, under_way) = (process::host(), self.run.clone(), self.most.is_some());
        let hosts = self.planned.max(host + 1);
        line.say(joining::encode(&HostCommand::Welcome { name, run, host, hosts, under_way }, &[]));
        let name = excerpt(&greeting.name);
        let joined = Host { id, name, line, quiet: false, ending: None, leaving: false, unfit: false };
        let label = joined.label();
        self.seats.resize_with(self.seats.len().max(host), || None);
        self.seats[host - 1] = Some(joined);
        Ok((host, label))
    }

    /// What a host is called in results: its name, and its address where several have that name.
    pub fn name(&self, host: usize) -> String {
        let own = (process::host(), self.here().ip());
        let all = || self.others().map(|(_, host)| (host.name.clone(), host.line.remote().ip()));
        let (name, address) =
            self.get(host).map_or_else(|| own.clone(), |host| (host.name.clone(), host.line.remote().ip()));
        let namesakes = std::iter::once(own).chain(all()).filter(|(other, _)| *other == name).count();
        if namesakes > 1 { format!("{name} ({address})") } else { name }
    }

    /// Tells everybody how the run ended, and hangs up. `meanwhile` is done while they hear it.
    pub fn dismiss(self, over: &RunEnd, meanwhile: impl FnOnce()) {
        let document = joining::encode(&HostCommand::RunEnd(over.clone()), &[]);
        let mut lines: Vec<Line> = self.seats.into_iter().flatten().map(|host| host.line).collect();
        for line in &mut lines {
            line.say(document.clone());
            line.hang_up();
        }
        drop(self.door);
        meanwhile();
        lines.into_iter().for_each(Line::close);
    }
}
