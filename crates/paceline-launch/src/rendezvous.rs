//! Waiting until every machine of a run has come.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use paceline_record::{Event, FailureKind, process};
use paceline_wire::Key;
use paceline_wire::line::join_listener::{JoinListener, Visit};
use paceline_wire::line::{HeartbeatTiming, Line, LineEvent, Link};

use crate::engine::EngineTask;
use crate::error::LaunchError;
use crate::joining::{self, Greeting, HostCommand, Version, excerpt};
use crate::ranks::{Host, Hosts, Incoming, left};
use crate::run::Launch;

/// Refusals that are told of one by one, before the run and during it: a flood must not fill the disk.
pub(crate) const TOLD: usize = 1000;

/// How often a request to stop is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// Why somebody who is waited for will not come, once that is known.
pub type TroubleWatch = Box<dyn FnMut() -> Option<LaunchError> + Send>;

/// How other machines come to a run.
pub struct Listen {
    /// Where.
    pub join_listener: JoinListener,
    /// What they must hold.
    pub key: Key,
    /// How long to wait for them.
    pub timeout: Duration,
    /// Who started this process and the others as one job, and which of them this is.
    pub task: Option<EngineTask>,
    /// Why somebody will not come, once that is known.
    pub trouble: Option<TroubleWatch>,
}

/// Those who are here so far.
struct Rendezvous<'a> {
    launch: &'a Launch<'a>,
    /// By host number less one.
    members: Vec<Option<Host>>,
    /// Where this machine is reached.
    here: Option<SocketAddr>,
    sender: Sender<Incoming>,
    limit: usize,
    ids: usize,
}

/// Waits for all machines that the plan counts besides this one. `limit`: most bytes of what one may say.
pub(crate) fn rendezvous(
    launch: &Launch<'_>,
    mut listen: Listen,
    limit: usize,
    sender: Sender<Incoming>,
    heard: &Receiver<Incoming>,
    report: &mut dyn FnMut(Event<'_>),
) -> Result<Hosts, LaunchError> {
    let hosts = launch.plan.host_count();
    let address = listen.join_listener.address();
    let given = (!address.ip().is_unspecified()).then_some(address);
    let members = (1..hosts).map(|_| None).collect();
    let mut rendezvous = Rendezvous { launch, members, here: given, sender: sender.clone(), limit, ids: 0 };
    let door =
        listen.join_listener.attend(listen.key, move |visit| drop(sender.send(Incoming::Door(visit))))?;
    let (end, mut trouble) = (Instant::now() + listen.timeout, listen.trouble.take());
    let text = address.to_string();
    report(Event::Waiting { hosts, joined: 1, address: &text });
    let mut refused = 0;
    while rendezvous.joined() < hosts {
        let mut turned_away = |cause: &str| {
            refused += 1;
            if refused <= TOLD {
                report(Event::Refused { rank: None, cause });
            }
        };
        if launch.checkpointing.interrupt.requested() {
            rendezvous.send_home("the run was interrupted", FailureKind::Interrupted);
            let (when, run) = ("while waiting for other machines".into(), launch.run.to_owned());
            return Err(LaunchError::Abandoned { when, run });
        }
        if let Some(error) = trouble.as_mut().and_then(|trouble| trouble()) {
            rendezvous.send_home(&error.to_string(), error.kind());
            return Err(error);
        }
        match heard.recv_timeout(left(end).min(LOOK)) {
            Ok(Incoming::Door(Visit::Refused { cause })) => turned_away(&cause),
            Ok(Incoming::Door(Visit::Arrived { link, greeting })) => match rendezvous.admit(*link, &greeting)
            {
                Err(cause) => turned_away(&cause),
                Ok((host, name)) => {
                    report(Event::Host { host, name: &name, state: "joined" });
                    report(Event::Waiting { hosts, joined: rendezvous.joined(), address: &text });
                }
            },
            Ok(Incoming::There(id, LineEvent::Lost { cause })) => {
                if let Some((host, name)) = rendezvous.left(id) {
                    report(Event::Host { host, name: &format!("{name}: {cause}"), state: "left" });
                    report(Event::Waiting { hosts, joined: rendezvous.joined(), address: &text });
                }
            }
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) if !left(end).is_zero() => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let came = rendezvous.members.iter().flatten().map(Host::label).collect();
                rendezvous.send_home("not all hosts came in time", FailureKind::Lost);
                let seconds = listen.timeout.as_secs_f64();
                return Err(LaunchError::Missing { hosts, came, address: text, seconds, refused });
            }
        }
    }
    let here = rendezvous.here.unwrap_or(address);
    let others = rendezvous.members.into_iter().flatten().collect();
    Ok(Hosts { others, here, door, task: listen.task })
}

impl Rendezvous<'_> {
    /// Hosts that are here, this one included.
    fn joined(&self) -> usize {
        1 + self.members.iter().flatten().count()
    }

    /// Gives somebody who holds the key a seat, or says why not; the host's number and label.
    fn admit(&mut self, link: Link, greeting: &[u8]) -> Result<(usize, String), String> {
        let failed = |e: std::io::Error| format!("somebody: {e}");
        let (local, remote) = link.addresses().map_err(failed)?;
        let refuse = |link, message: &str, hint: &str| {
            refuse(link, message, hint);
            Err(format!("{remote}: {message}"))
        };
        let hosts = self.members.len() + 1;
        let greeting = match read_greeting(greeting, hosts) {
            Ok(greeting) => greeting,
            Err((message, hint)) => return refuse(link, &message, hint),
        };
        if let Some(here) = self.here.filter(|here| here.ip() != local.ip()) {
            let message = format!("it came to {local}, but others reach this machine at {here}");
            return refuse(link, &message, &format!("join at {here}"));
        }
        let free = self.members.iter().position(Option::is_none);
        let context = match (greeting.host, free) {
            (Some(host), _) if host == 0 || host >= hosts => {
                let message = format!("host {host}: others than the launcher's are 1 to {}", hosts - 1);
                return refuse(link, &message, "--host (or RANK) chooses");
            }
            (Some(host), _) if self.members[host - 1].is_some() => {
                let message = format!("host {host} is {} already", self.label(host));
                return refuse(link, &message, "--host (or RANK) chooses another; without it any will do");
            }
            (Some(host), _) => host - 1,
            (None, Some(context)) => context,
            (None, None) => return refuse(link, &format!("all {hosts} hosts are here already"), ""),
        };
        self.here = self.here.or(Some(local));
        self.ids += 1;
        let (id, sender) = (self.ids, self.sender.clone());
        let hear = move |heard| drop(sender.send(Incoming::There(id, heard)));
        let line = Line::new(link, self.limit, HeartbeatTiming::default(), hear)
            .map_err(|e| format!("{remote}: {e}"))?;
        let (name, run) = (process::host(), self.launch.run.to_owned());
        line.say(joining::encode(&HostCommand::Welcome { name, run, host: context + 1, hosts }, &[]));
        let host = Host { id, name: excerpt(&greeting.name), line, quiet: false, ending: None };
        let label = host.label();
        self.members[context] = Some(host);
        Ok((context + 1, label))
    }

    fn label(&self, host: usize) -> String {
        self.members[host - 1].as_ref().map(Host::label).unwrap_or_default()
    }

    /// Frees the seat of somebody who left.
    fn left(&mut self, id: usize) -> Option<(usize, String)> {
        let context =
            self.members.iter().position(|context| context.as_ref().is_some_and(|host| host.id == id))?;
        let label = self.members[context].take()?.label();
        Some((context + 1, label))
    }

    /// Tells those who came why the run does not begin.
    fn send_home(self, message: &str, kind: FailureKind) {
        let over = joining::RunEnd {
            failure: Some(kind),
            message: message.to_owned(),
            ..joining::RunEnd::default()
        };
        let document = joining::encode(&HostCommand::RunEnd(over), &[]);
        for host in self.members.into_iter().flatten() {
            host.line.say(document.clone());
            host.line.close();
        }
    }
}

/// What a machine says of itself, if it fits a job of so many hosts; why it does not, and what to do, otherwise.
pub(crate) fn read_greeting(greeting: &[u8], hosts: usize) -> Result<Greeting, (String, &'static str)> {
    let (greeting, _) =
        joining::decode::<Greeting>(greeting).map_err(|cause| (format!("the greeting: {cause}"), ""))?;
    let (ours, theirs) = (Version::own(), &greeting.version);
    if *theirs != ours {
        let message = format!("versions differ: the launcher has {ours}; the joiner has {theirs}");
        return Err((message, "install the same version on both machines"));
    }
    match greeting.hosts.filter(|&expected| expected != hosts) {
        None => Ok(greeting),
        Some(expected) => {
            let message =
                format!("the number of hosts differs: the launcher has {hosts}; the joiner has {expected}");
            Err((message, "--hosts (or WORLD_SIZE) must be the same on both sides"))
        }
    }
}

/// Tells somebody who holds the key why it cannot take part. Nobody waits until it has heard.
pub(crate) fn refuse(link: Link, message: &str, hint: &str) {
    let (message, hint) = (message.to_owned(), hint.to_owned());
    if let Ok(line) = Line::new(link, joining::DOCUMENT, HeartbeatTiming::default(), |_| {}) {
        line.say(joining::encode(&HostCommand::Refused { message, hint }, &[]));
    }
}

pub(crate) fn name(greeting: &[u8]) -> String {
    joining::decode::<Greeting>(greeting).map_or("somebody".into(), |(greeting, _)| excerpt(&greeting.name))
}

/// What to type on the other machines; `made` says whether the key is new.
pub fn how_to_join(join_listener: &JoinListener, others: usize, path: &Path, made: bool) -> String {
    let (at, file) = (join_listener.address(), path.display());
    let reached = match at.ip().is_unspecified() {
        true => format!("ADDRESS_OF_THIS_MACHINE:{}", at.port()),
        false => at.to_string(),
    };
    let who =
        if others == 1 { "the other machine".into() } else { format!("each of the {others} other machines") };
    let made = if made { "a new key is in" } else { "the key is in" };
    let copy = if at.ip().is_loopback() { "" } else { "; copy it there first, e.g. with scp -p" };
    format!("listening at {at}; {made} {file}{copy}\non {who}:\n  paceline join {reached} --key-file {file}")
}
