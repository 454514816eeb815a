//! From a list of peers to connections: dials the smaller ranks, waits for the larger ones.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::peer::Peer;
use super::shake::{Shake, Shaken};
use super::strangers::{Strangers, Visit};
use super::{Options, Slot, Tcp, await_any, buffers, prepare};
use crate::error::{Missing, WireError};
use crate::handshake::Handshake;
use crate::identity::{Identity, random};
use crate::transport::{Event, Traffic};

/// Pause before dialling again somebody who does not listen yet.
const REDIAL: Duration = Duration::from_millis(10);
/// Refusals kept for the error or the first events; a flood must not grow without bound.
const REMEMBERED: usize = 64;

/// A peer of smaller rank on the way to a connection.
struct Dial {
    rank: usize,
    address: SocketAddr,
    stage: Stage,
    /// Why the last attempt failed.
    cause: String,
}

enum Stage {
    Resting { until: Instant },
    Opening(TcpStream),
    Shaking(Box<Shake>),
    Connected,
}

pub(super) fn connect(
    listener: TcpListener,
    identity: Identity,
    peers: &[(usize, SocketAddr)],
    options: Options,
    deadline: Duration,
) -> Result<Tcp, WireError> {
    check(&identity, peers)?;
    buffers(&listener, &options).map_err(WireError::system("size the buffers of a socket"))?;
    let begun = Instant::now();
    let end = begun + deadline;
    let us = identity.rank;
    let mut slots: Vec<Slot> = (0..identity.world).map(|_| Slot::Unknown).collect();
    let mut refused = Vec::new();
    let dialled = peers.iter().filter(|(rank, _)| *rank < us);
    let mut dials: Vec<Dial> = dialled.map(|&(rank, address)| Dial::new(rank, address, begun)).collect();
    let mut strangers = Strangers::new(listener, identity.clone(), options);

    loop {
        let now = Instant::now();
        for dial in &mut dials {
            if let Some(stream) = dial.drive(&identity, &options, now)? {
                slots[dial.rank] = Slot::Connected(Box::new(Peer::new(dial.rank, stream, options.max_body)));
            }
        }
        let mut taken = Vec::new();
        let visits = strangers.visit(now, |rank| {
            let expected = rank > us && peers.iter().any(|(peer, _)| *peer == rank);
            if !expected {
                return Err(format!("rank {rank} is not expected by rank {us}"));
            }
            if matches!(slots[rank], Slot::Connected(_)) || taken.contains(&rank) {
                return Err(format!("rank {rank} is already connected to rank {us}"));
            }
            taken.push(rank);
            Ok(())
        })?;
        for visit in visits {
            match visit {
                Visit::Admitted { rank, stream } => {
                    slots[rank] = Slot::Connected(Box::new(Peer::new(rank, stream, options.max_body)));
                }
                Visit::Refused { cause } if refused.len() < REMEMBERED => refused.push(cause),
                Visit::Refused { .. } => {}
            }
        }
        let missing: Vec<_> =
            peers.iter().filter(|(rank, _)| matches!(slots[*rank], Slot::Unknown)).collect();
        if missing.is_empty() {
            break;
        }
        if now >= end {
            let missing = missing.iter().map(|&&(rank, address)| missed(rank, address, &dials)).collect();
            return Err(WireError::Deadline { rank: us, deadline, missing, refused });
        }
        wait(&dials, &strangers, end)?;
    }

    Ok(Tcp {
        rank: us,
        options,
        slots,
        traffic: vec![Traffic::default(); identity.world],
        pool: Arc::default(),
        strangers,
        knocked: true,
        looked: Instant::now(),
        early: refused.into_iter().map(|cause| Event::Refused { cause }).collect(),
    })
}

/// Finds mistakes of the caller.
fn check(identity: &Identity, peers: &[(usize, SocketAddr)]) -> Result<(), WireError> {
    let (us, world) = (identity.rank, identity.world);
    let wrong = |problem: String| Err(WireError::Identity { rank: us, world, problem });
    if us >= world {
        return wrong("the rank must be below the number of ranks".into());
    }
    if identity.workers > world {
        return wrong(format!("{} workers are more than there are ranks", identity.workers));
    }
    for (i, (rank, _)) in peers.iter().enumerate() {
        if *rank >= world || *rank == us {
            return wrong(format!("rank {rank} cannot be its peer"));
        }
        if peers[..i].iter().any(|(other, _)| other == rank) {
            return wrong(format!("rank {rank} is listed twice"));
        }
    }
    Ok(())
}

fn missed(rank: usize, address: SocketAddr, dials: &[Dial]) -> Missing {
    let dial = dials.iter().find(|dial| dial.rank == rank);
    let cause = dial.map_or("it never dialled".to_owned(), |dial| match dial.stage {
        Stage::Shaking(_) => "connected, but it never answered".to_owned(),
        _ => dial.cause.clone(),
    });
    Missing { rank, address, cause }
}

/// Sleeps until a socket is ready or something is due.
fn wait(dials: &[Dial], strangers: &Strangers, end: Instant) -> Result<(), WireError> {
    let due = dials.iter().filter_map(|dial| match &dial.stage {
        Stage::Resting { until } => Some(*until),
        _ => None,
    });
    let until = due.chain(strangers.next_deadline()).fold(end, Instant::min);
    let mut sockets = Vec::new();
    for dial in dials {
        match &dial.stage {
            Stage::Opening(stream) => {
                sockets.push(PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::OUT));
            }
            Stage::Shaking(shake) => sockets.push(shake.interest()),
            Stage::Resting { .. } | Stage::Connected => {}
        }
    }
    strangers.interests(&mut sockets);
    await_any(&mut sockets, until.saturating_duration_since(Instant::now()))
}

impl Dial {
    fn new(rank: usize, address: SocketAddr, now: Instant) -> Self {
        Self { rank, address, stage: Stage::Resting { until: now }, cause: "it did not answer".into() }
    }

    /// Moves on as far as possible; returns the connection when it is there. A peer that refuses is an error:
    /// it would refuse again.
    fn drive(
        &mut self,
        identity: &Identity,
        options: &Options,
        now: Instant,
    ) -> Result<Option<TcpStream>, WireError> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Connected) {
                Stage::Connected => return Ok(None),
                Stage::Resting { until } if until > now => {
                    self.stage = Stage::Resting { until };
                    return Ok(None);
                }
                Stage::Resting { .. } => match open(self.address, options) {
                    Ok(stream) => self.stage = Stage::Opening(stream),
                    Err(e) => self.rest(now, e.to_string()),
                },
                Stage::Opening(stream) => match opened(&stream) {
                    Ok(true) => {
                        let handshake = Handshake::dial(identity, random()?, self.rank);
                        // It may still be busy before its own `connect`: no deadline but the caller's.
                        let shake = Shake { stream, address: self.address, handshake, deadline: None };
                        self.stage = Stage::Shaking(Box::new(shake));
                    }
                    Ok(false) => {
                        self.stage = Stage::Opening(stream);
                        return Ok(None);
                    }
                    Err(e) => self.rest(now, e.to_string()),
                },
                Stage::Shaking(mut shake) => match shake.drive(now) {
                    Shaken::Proven => return Ok(Some(shake.stream)),
                    Shaken::Pending => {
                        self.stage = Stage::Shaking(shake);
                        return Ok(None);
                    }
                    Shaken::Refused { cause } => {
                        return Err(WireError::Refused { rank: self.rank, address: self.address, cause });
                    }
                    Shaken::Broken { cause } => self.rest(now, cause),
                },
            }
        }
    }

    fn rest(&mut self, now: Instant, cause: String) {
        self.cause = cause;
        self.stage = Stage::Resting { until: now + REDIAL };
    }
}

/// Starts to open a connection.
fn open(address: SocketAddr, options: &Options) -> std::io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    prepare(&socket, options)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(e) => Err(e.into()),
    }
}

/// Whether a connection is open by now.
fn opened(stream: &TcpStream) -> std::io::Result<bool> {
    let mut sockets = [PollFd::new(stream, PollFlags::OUT)];
    await_any(&mut sockets, Duration::ZERO).map_err(std::io::Error::other)?;
    if sockets[0].revents().is_empty() {
        return Ok(false);
    }
    sockopt::socket_error(stream)??;
    Ok(true)
}
