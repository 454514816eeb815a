//! The doctor of a machine that is asked by another one: answers whoever holds the key.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use paceline_launch::Interrupt;
use paceline_record::process;
use paceline_wire::line::join_listener::{JoinListener, Visit};
use paceline_wire::line::{HeartbeatTiming, Line, LineEvent, Link};
use paceline_wire::{Key, WireError};

use crate::diagnosis::HostReport;
use crate::links::{measure, unix_s};
use crate::message::{self, LARGEST, LARGEST_PAYLOAD, ProbeAnswer, ProbeGreeting, ProbeRequest};

/// How often a request to stop is looked for.
const LOOK: Duration = Duration::from_millis(100);

/// What is found of this machine.
pub type Examine = dyn Fn() -> HostReport + Send + Sync;

/// Answers until it is interrupted. `tell` gets lines for people.
pub fn answer(
    listener: JoinListener,
    key: Key,
    examine: Arc<Examine>,
    interrupt: &Interrupt,
    tell: &mut dyn FnMut(&str),
) -> Result<(), WireError> {
    let (sender, lines) = channel::<String>();
    let visitors = sender.clone();
    let own = key.clone();
    let port = listener.attend(key, move |visit| match visit {
        Visit::Refused { cause } => drop(visitors.send(format!("turned away {cause}"))),
        Visit::Arrived { link, greeting } => {
            let (key, examine, tell) = (own.clone(), Arc::clone(&examine), visitors.clone());
            std::thread::spawn(move || converse(*link, &greeting, &key, &*examine, &tell));
        }
    })?;
    while !interrupt.requested() {
        if let Ok(line) = lines.recv_timeout(LOOK) {
            tell(&line);
        }
    }
    drop(port);
    Ok(())
}

/// Answers one machine until it hangs up.
fn converse(link: Link, greeting: &[u8], key: &Key, examine: &Examine, tell: &Sender<String>) {
    let Ok((_, who)) = link.addresses() else { return };
    let said = message::decode::<ProbeGreeting>(greeting);
    // Nobody listens to these lines any more when the program ends.
    let _ = tell.send(match said {
        Some(_) => format!("{who} asks"),
        None => format!("turned away {who}: it is no doctor"),
    });
    let (sender, heard) = channel();
    let hear = move |event| drop(sender.send(event));
    let Ok(line) = Line::new(link, LARGEST, HeartbeatTiming::default(), hear) else { return };
    if said.is_none() {
        let problem = "`paceline doctor --listen` is here, and no run to join".into();
        return line.say(message::encode(&ProbeAnswer::Failed { problem }, &[]));
    }
    for event in heard {
        let document = match event {
            LineEvent::Document(document) => document,
            LineEvent::Quiet | LineEvent::Back => continue,
            LineEvent::Lost { .. } => return,
        };
        let mut payload = Vec::new();
        let answer = match message::decode(&document) {
            Some((ProbeRequest::Examine, _)) => ProbeAnswer::Examined { report: examine() },
            Some((ProbeRequest::Clock, _)) => ProbeAnswer::Clock { unix_s: unix_s() },
            Some((ProbeRequest::Take, bytes)) => ProbeAnswer::Taken { bytes },
            Some((ProbeRequest::Give { bytes }, _)) => {
                payload.resize(bytes.min(LARGEST_PAYLOAD), 0xa5);
                ProbeAnswer::Given
            }
            Some((ProbeRequest::Measure { address }, _)) => match measure(address, key, &process::host()) {
                Ok(link) => ProbeAnswer::Measured { link },
                Err(error) => ProbeAnswer::Failed { problem: error.to_string() },
            },
            None => ProbeAnswer::Failed { problem: "the question cannot be understood".into() },
        };
        line.say(message::encode(&answer, &payload));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::survey;

    fn report() -> HostReport {
        HostReport { host: "there".into(), cpu: "Abacus".into(), found: Vec::new() }
    }

    /// A responder at a port of its own; the handle ends when the interrupt is requested.
    fn start(key: &Key) -> (std::net::SocketAddr, Arc<Interrupt>, std::thread::JoinHandle<()>) {
        let listener = JoinListener::bind(([127, 0, 0, 1], 0).into()).unwrap();
        let (address, interrupt) = (listener.address(), Arc::new(Interrupt::default()));
        let (key, stop) = (key.clone(), Arc::clone(&interrupt));
        let thread = std::thread::spawn(move || {
            answer(listener, key, Arc::new(report), &stop, &mut |_| {}).unwrap();
        });
        (address, interrupt, thread)
    }

    #[test]
    fn two_machines_are_asked_and_all_three_links_measured() {
        let key = Key::generate().unwrap();
        let (a, b) = (start(&key), start(&key));
        let survey = survey(&[a.0, b.0], &key, "here", &mut |_| {});
        assert_eq!(survey.hosts.len(), 2, "{survey:?}");
        let ends: Vec<_> = survey.links.iter().map(|link| (link.from.clone(), link.to.clone())).collect();
        let (first, second) = (a.0.to_string(), b.0.to_string());
        let expected = [("here".into(), first.clone()), ("here".into(), second.clone()), (first, second)];
        assert_eq!(ends, expected, "{survey:?}");
        for link in &survey.links {
            assert!(link.round_trip_us > 0.0 && link.send_mbit > 0.0 && link.receive_mbit > 0.0, "{link:?}");
            // One machine, one clock.
            assert!(link.clock_ahead_s.abs() < 1.0, "{link:?}");
        }
        for (_, interrupt, thread) in [a, b] {
            interrupt.request();
            thread.join().unwrap();
        }
    }

    #[test]
    fn another_key_or_nobody_at_all_is_named() {
        let key = Key::generate().unwrap();
        let (address, interrupt, thread) = start(&key);
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let survey = survey(&[address, nobody], &Key::generate().unwrap(), "here", &mut |_| {});
        assert!(survey.hosts.is_empty() && survey.found.iter().all(|one| one.severity.is_problem()));
        assert!(survey.found[0].found.contains("cannot prove themselves"), "{survey:?}");
        assert!(survey.found[1].found.contains("nobody answered"), "{survey:?}");
        interrupt.request();
        thread.join().unwrap();
    }
}
