//! Links between machines: measured over the encrypted line that `train --listen` and `join` use, so that what a run
//! would get is what is told, and firewalls and keys are tried out as well.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime};

use paceline_statistics::median;
use paceline_wire::Key;
use paceline_wire::line::{HeartbeatTiming, Line, LineEvent, Link};
use serde::{Deserialize, Serialize};

use crate::diagnosis::{Diagnosis, HostReport};
use crate::message::{self, LARGEST, LARGEST_PAYLOAD, ProbeAnswer, ProbeGreeting, ProbeRequest};

/// Time to reach a machine.
const DIAL: Duration = Duration::from_secs(5);
/// Time that any one answer may take; a lost machine is noticed earlier.
const ANSWER: Duration = Duration::from_secs(120);
/// Round trips that are measured.
const ROUND_TRIPS: usize = 50;
/// A transfer that takes this long tells the bandwidth.
const LONG_ENOUGH: Duration = Duration::from_millis(250);
/// Bytes of the first transfer; each one after it is twice as large.
const FIRST: usize = 64 << 10;
/// Gradients of a million parameters, in bytes: what bandwidths are judged by.
const MILLION_PARAMETERS: f64 = 4e6;
/// Bandwidth below which sending them takes longer than computing most models of that size, in Mbit/s.
const THIN: f64 = 500.0;
/// A round trip above this, in milliseconds, is felt in every step.
const FAR: f64 = 5.0;
/// Clocks further apart than this, in seconds, make records of several machines hard to compare.
const APART: f64 = 1.0;

/// Why a link could not be measured.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum LinkError {
    /// Nobody is there.
    #[error("nobody answered at {address}: {source}")]
    Unreachable { address: SocketAddr, source: std::io::Error },
    /// Another key, or another program.
    #[error("{address} and this machine cannot prove themselves to each other: {source}")]
    Stranger { address: SocketAddr, source: std::io::Error },
    /// It is gone.
    #[error("{address} was lost: {cause}")]
    Lost { address: SocketAddr, cause: String },
    /// It says something else than it should.
    #[error("{address} is no `paceline doctor --listen` of this version")]
    Foreign { address: SocketAddr },
    /// It could not do what it was asked.
    #[error("{address}: {problem}")]
    Failed { address: SocketAddr, problem: String },
}

impl LinkError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => {
                "start `paceline doctor --listen ADDR --key-file FILE` there, and let its port through the firewall"
            }
            Self::Stranger { .. } => {
                "copy the key file there (scp -p), and name it with --key-file on both sides"
            }
            Self::Foreign { .. } => "start `paceline doctor --listen` of the same version there",
            Self::Lost { .. } | Self::Failed { .. } => "are that machine and the network to it up?",
        }
    }
}

/// A link, as it was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkMeasurement {
    /// Who measured.
    pub from: String,
    /// Who answered.
    pub to: String,
    /// The median round trip of a short message, in microseconds, both processes' wake-ups included.
    pub round_trip_us: f64,
    /// Bandwidth towards the one who answered, in Mbit/s.
    pub send_mbit: f64,
    /// Bandwidth back, in Mbit/s.
    pub receive_mbit: f64,
    /// How far the other clock is ahead, in seconds.
    pub clock_ahead_s: f64,
}

impl LinkMeasurement {
    /// What it means for runs.
    pub fn diagnosis(&self) -> Diagnosis {
        let subject = format!("{} - {}", self.from, self.to);
        let (trip, thinnest) = (self.round_trip_us / 1e3, self.send_mbit.min(self.receive_mbit));
        let mut found = format!(
            "{trip:.2} ms there and back, {:.0} Mbit/s there, {:.0} Mbit/s back",
            self.send_mbit, self.receive_mbit
        );
        let mut mend = Vec::new();
        if thinnest < THIN {
            let seconds = MILLION_PARAMETERS * 8.0 / 1e6 / thinnest;
            found += &format!("; the gradients of a million parameters take {seconds:.2} s per step");
            mend.push(
                "--compression or --strategy local sends less; `ethtool` shows what the interface can do",
            );
        }
        if trip > FAR {
            found += "; every step waits for several round trips";
            mend.push("--sync ssp or asp, or --strategy local, waits less often");
        }
        if self.clock_ahead_s.abs() > APART {
            found += &format!("; the clocks are {:.1} s apart", self.clock_ahead_s.abs());
            mend.push("set the clocks (chrony, ntpd): records of several machines are hard to compare");
        }
        match &mend[..] {
            [] => Diagnosis::ok(&subject, found),
            all => Diagnosis::hurts(&subject, found, &all.join("; ")),
        }
    }
}

/// A conversation with the doctor of another machine.
struct Probe {
    address: SocketAddr,
    line: Line,
    heard: Receiver<LineEvent>,
}

impl Probe {
    fn open(address: SocketAddr, key: &Key) -> Result<Self, LinkError> {
        let mut link = Link::dial(address, key, DIAL).map_err(|source| {
            match paceline_wire::line::may_come_yet(&source) {
                true => LinkError::Unreachable { address, source },
                false => LinkError::Stranger { address, source },
            }
        })?;
        link.queue(&message::encode(&ProbeGreeting::own(), &[]));
        let (sender, heard) = channel();
        let hear = move |event| drop(sender.send(event));
        let line = Line::new(link, LARGEST, HeartbeatTiming::default(), hear)
            .map_err(|error| LinkError::Lost { address, cause: error.to_string() })?;
        Ok(Self { address, line, heard })
    }

    /// The answer, and how many bytes came with it.
    fn ask(&self, request: &ProbeRequest, payload: &[u8]) -> Result<(ProbeAnswer, usize), LinkError> {
        let (address, end) = (self.address, Instant::now() + ANSWER);
        self.line.say(message::encode(request, payload));
        loop {
            let cause = match self.heard.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(LineEvent::Document(document)) => {
                    return match message::decode(&document) {
                        Some((ProbeAnswer::Failed { problem }, _)) => {
                            Err(LinkError::Failed { address, problem })
                        }
                        Some(answer) => Ok(answer),
                        None => Err(LinkError::Foreign { address }),
                    };
                }
                Ok(LineEvent::Quiet | LineEvent::Back) => continue,
                Ok(LineEvent::Lost { cause }) => cause,
                Err(RecvTimeoutError::Timeout) => format!("no answer within {} s", ANSWER.as_secs()),
                Err(RecvTimeoutError::Disconnected) => "the line was closed".into(),
            };
            return Err(LinkError::Lost { address, cause });
        }
    }

    /// Round trip in seconds, and how far the other clock is ahead of this one.
    fn clock(&self) -> Result<(f64, f64), LinkError> {
        let (begun, before) = (Instant::now(), unix_s());
        let (ProbeAnswer::Clock { unix_s }, _) = self.ask(&ProbeRequest::Clock, &[])? else {
            return Err(LinkError::Foreign { address: self.address });
        };
        let trip = begun.elapsed().as_secs_f64();
        Ok((trip, unix_s - (before + trip / 2.0)))
    }

    /// Bandwidth in Mbit/s: `transfer` moves so many bytes; ever more, until that takes long enough.
    fn bandwidth(
        &self,
        round_trip: f64,
        transfer: impl Fn(usize) -> Result<(), LinkError>,
    ) -> Result<f64, LinkError> {
        let mut bytes = FIRST;
        loop {
            let begun = Instant::now();
            transfer(bytes)?;
            let took = begun.elapsed();
            if took >= LONG_ENOUGH || bytes >= LARGEST_PAYLOAD {
                let seconds = (took.as_secs_f64() - round_trip).max(1e-6);
                return Ok(bytes as f64 * 8.0 / 1e6 / seconds);
            }
            bytes *= 2;
        }
    }

    fn measure(&self, from: &str, to: &str) -> Result<LinkMeasurement, LinkError> {
        let trips = (0..ROUND_TRIPS).map(|_| self.clock()).collect::<Result<Vec<_>, _>>()?;
        let round_trip = median(&trips.iter().map(|(trip, _)| *trip).collect::<Vec<_>>());
        // The quickest exchange says most about the clocks.
        let quickest = trips.iter().min_by(|a, b| a.0.total_cmp(&b.0)).map_or(0.0, |(_, ahead)| *ahead);
        let foreign = || LinkError::Foreign { address: self.address };
        let send =
            self.bandwidth(round_trip, |bytes| match self.ask(&ProbeRequest::Take, &vec![0x5a; bytes])? {
                (ProbeAnswer::Taken { bytes: taken }, _) if taken == bytes => Ok(()),
                _ => Err(foreign()),
            })?;
        let receive =
            self.bandwidth(round_trip, |bytes| match self.ask(&ProbeRequest::Give { bytes }, &[])? {
                (ProbeAnswer::Given, came) if came == bytes => Ok(()),
                _ => Err(foreign()),
            })?;
        Ok(LinkMeasurement {
            from: from.into(),
            to: to.into(),
            round_trip_us: round_trip * 1e6,
            send_mbit: send,
            receive_mbit: receive,
            clock_ahead_s: quickest,
        })
    }
}

/// Measures the link to a machine whose doctor listens.
pub(crate) fn measure(address: SocketAddr, key: &Key, from: &str) -> Result<LinkMeasurement, LinkError> {
    Probe::open(address, key)?.measure(from, &address.to_string())
}

pub(crate) fn unix_s() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// What was found of other machines and of the links to and between them.
#[derive(Debug, Default)]
pub struct Survey {
    /// The machines.
    pub hosts: Vec<HostReport>,
    /// The links that could be measured.
    pub links: Vec<LinkMeasurement>,
    /// What all links mean for runs.
    pub found: Vec<Diagnosis>,
}

/// Asks the doctors of other machines what they find, and measures the links to them and between them, one after
/// another. `tell` gets lines for people.
pub fn survey(addresses: &[SocketAddr], key: &Key, here: &str, tell: &mut dyn FnMut(&str)) -> Survey {
    let mut survey = Survey::default();
    let mut reached = Vec::new();
    for &address in addresses {
        tell(&format!("measuring the link to {address}"));
        match Probe::open(address, key).and_then(|probe| survey.one(probe, here)) {
            Ok(probe) => reached.push(probe),
            Err(error) => survey.lost(here, address, &error),
        }
    }
    for (i, probe) in reached.iter().enumerate() {
        for other in reached.iter().skip(i + 1) {
            let (from, to) = (probe.address, other.address);
            tell(&format!("measuring the link from {from} to {to}"));
            match probe.ask(&ProbeRequest::Measure { address: to }, &[]) {
                Ok((ProbeAnswer::Measured { link }, _)) => {
                    survey.add(LinkMeasurement { from: from.to_string(), ..link });
                }
                Ok(_) => survey.lost(&from.to_string(), to, &LinkError::Foreign { address: from }),
                Err(error) => survey.lost(&from.to_string(), to, &error),
            }
        }
    }
    survey
}

impl Survey {
    fn one(&mut self, probe: Probe, here: &str) -> Result<Probe, LinkError> {
        let (ProbeAnswer::Examined { mut report }, _) = probe.ask(&ProbeRequest::Examine, &[])? else {
            return Err(LinkError::Foreign { address: probe.address });
        };
        report.host = format!("{} at {}", report.host, probe.address);
        self.hosts.push(report);
        self.add(probe.measure(here, &probe.address.to_string())?);
        Ok(probe)
    }

    fn add(&mut self, link: LinkMeasurement) {
        self.found.push(link.diagnosis());
        self.links.push(link);
    }

    fn lost(&mut self, from: &str, to: SocketAddr, error: &LinkError) {
        self.found.push(Diagnosis::fails(&format!("{from} - {to}"), error.to_string(), error.hint()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_judged_by_bandwidth_round_trip_and_clocks() {
        let good = LinkMeasurement {
            from: "a".into(),
            to: "b".into(),
            round_trip_us: 120.0,
            send_mbit: 9000.0,
            receive_mbit: 8000.0,
            clock_ahead_s: -0.01,
        };
        assert!(!good.diagnosis().severity.is_problem(), "{:?}", good.diagnosis());
        let thin = LinkMeasurement { receive_mbit: 1.0, ..good.clone() }.diagnosis();
        assert!(thin.severity.is_problem() && thin.found.contains("32.00 s per step"), "{thin:?}");
        let far = LinkMeasurement { round_trip_us: 40e3, ..good.clone() }.diagnosis();
        assert!(far.found.contains("40.00 ms") && far.mend.contains("--sync"), "{far:?}");
        let apart = LinkMeasurement { clock_ahead_s: -7.0, ..good }.diagnosis();
        assert!(apart.found.contains("7.0 s apart") && apart.mend.contains("chrony"), "{apart:?}");
    }
}
