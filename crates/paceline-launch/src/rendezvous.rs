//! Waiting until every machine of a run has come.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use paceline_record::{Event, FailureKind};
use paceline_wire::Key;
use paceline_wire::line::join_listener::{JoinListener, Visit};
use paceline_wire::line::{HeartbeatTiming, Line, LineEvent, Link};

use crate::engine::EngineTask;
use crate::error::LaunchError;
use crate::hosts::Hosts;
use crate::joining::{self, Greeting, HostCommand, RunEnd, Version, excerpt};
use crate::ranks::{Incoming, left};
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
    /// Whether machines come by themselves (`paceline join`), during the run too: no engine, ssh or study has started them.
    pub by_hand: bool,
}

/// Waits for all machines that the plan counts besides this one. `limit`: most bytes of what one may say.
pub(crate) fn rendezvous(
    launch: &Launch<'_>,
    listen: Listen,
    limit: usize,
    sender: Sender<Incoming>,
    heard: &Receiver<Incoming>,
    report: &mut dyn FnMut(Event<'_>),
) -> Result<Hosts, LaunchError> {
    let hosts = launch.plan.host_count();
    let Listen { join_listener, key, timeout, task, mut trouble, .. } = listen;
    let mut here = Hosts::open((launch.run, hosts), (join_listener, key), task, limit, sender)?;
    let (end, text) = (Instant::now() + timeout, here.address.to_string());
    report(Event::Waiting { hosts, joined: 1, address: &text });
    let mut refused = 0;
    while here.joined() < hosts {
        let mut turned_away = |cause: &str| {
            refused += 1;
            if refused <= TOLD {
                report(Event::Refused { rank: None, cause });
            }
        };
        if launch.checkpointing.interrupt.requested() {
            send_home(here, "the run was interrupted", FailureKind::Interrupted);
            let (when, run) = ("while waiting for other machines".into(), launch.run.to_owned());
            return Err(LaunchError::Abandoned { when, run });
        }
        if let Some(error) = trouble.as_mut().and_then(|trouble| trouble()) {
            send_home(here, &error.to_string(), error.kind());
            return Err(error);
        }
        match heard.recv_timeout(left(end).min(LOOK)) {
            Ok(Incoming::Door(Visit::Refused { cause })) => turned_away(&cause),
            Ok(Incoming::Door(Visit::Arrived { link, greeting })) => match here.admit(*link, &greeting) {
                Err(cause) => turned_away(&cause),
                Ok((host, name)) => {
                    report(Event::Host { host, name: &name, state: "joined" });
                    report(Event::Waiting { hosts, joined: here.joined(), address: &text });
                }
            },
            Ok(Incoming::There(id, LineEvent::Lost { cause })) => {
                let gone = here.number(id).and_then(|host| Some((host, here.remove(host)?.label())));
                if let Some((host, name)) = gone {
                    report(Event::Host { host, name: &format!("{name}: {cause}"), state: "left" });
                    report(Event::Waiting { hosts, joined: here.joined(), address: &text });
                }
            }
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) if !left(end).is_zero() => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let came = here.others().map(|(_, host)| host.label()).collect();
                send_home(here, "not all hosts came in time", FailureKind::Lost);
                let seconds = timeout.as_secs_f64();
                return Err(LaunchError::Missing { hosts, came, address: text, seconds, refused });
            }
        }
    }
    Ok(here)
}

/// Tells those who came why the run does not begin.
fn send_home(here: Hosts, message: &str, kind: FailureKind) {
    let over = RunEnd { failure: Some(kind), message: message.to_owned(), ..RunEnd::default() };
    here.dismiss(&over, || {});
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
