//! From a list of peers to connections: dials the smaller ranks, waits for the larger ones.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::intake::ReaderThread;
use super::medium::{Medium, Stream};
use super::peer::Peer;
use super::shake::{Shake, Shaken};
use super::strangers::{Strangers, Visit};
use super::{Slot, Spin, StreamOptions, StreamTransport, await_any};
use crate::error::{MissingPeer, WireError};
use crate::handshake::{Handshake, Side};
use crate::identity::{Identity, random};
use crate::transport::{Event, Traffic};

/// Pause before dialling again somebody who does not listen yet.
const REDIAL: Duration = Duration::from_millis(10);
/// Refusals kept for the error or the first events; a flood must not grow without bound.
const REMEMBERED: usize = 64;

/// A peer of smaller rank on the way to a connection.
struct Dial<M: Medium> {
    rank: usize,
    address: M::Address,
    stage: Stage<M>,
    /// Why the last attempt failed.
    cause: String,
}

enum Stage<M: Medium> {
    Resting { until: Instant },
    Opening(M::Socket),
    Shaking(Box<Shake<M>>),
    Connected,
}

pub(super) fn connect<M: Medium>(
    listener: M::Listener,
    identity: Identity,
    peers: &[(usize, M::Address)],
    options: StreamOptions,
    deadline: Duration,
) -> Result<StreamTransport<M>, WireError> {
    check::<M>(&identity, peers)?;
    M::size(&listener, &options).map_err(WireError::system("size the buffers of a socket"))?;
    let begun = Instant::now();
    let end = begun + deadline;
    let us = identity.rank;
    let mut slots: Vec<Slot<M>> = (0..identity.world).map(|_| Slot::Unknown).collect();
    let mut refused = Vec::new();
    let dialled = peers.iter().filter(|(rank, _)| *rank < us);
    let mut dials: Vec<Dial<M>> =
        dialled.map(|(rank, address)| Dial::new(*rank, address.clone(), begun)).collect();
    let mut strangers = Strangers::new(listener, identity.clone(), options);

    loop {
        let now = Instant::now();
        for dial in &mut dials {
            if let Some(socket) = dial.drive(&identity, &options, now)? {
                slots[dial.rank] = connected(dial.rank, socket, Side::Dialler, &options)?;
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
                Visit::Admitted { rank, socket } => {
                    slots[rank] = connected(rank, socket, Side::Acceptor, &options)?;
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
            let missing = missing.iter().map(|(rank, address)| missed(*rank, address, &dials)).collect();
            return Err(WireError::Deadline { rank: us, deadline, missing, refused });
        }
        wait(&dials, &strangers, end)?;
    }

    let pool = Arc::default();
    let shared = options.spare_core.then(|| {
        let peers = slots.iter_mut().filter_map(Slot::connected);
        peers.filter_map(|peer| peer.share()).collect::<Vec<_>>()
    });
    let shared = shared.filter(|intakes| !intakes.is_empty());
    let reader = shared.and_then(|intakes| ReaderThread::new(intakes, Arc::clone(&pool)));
    Ok(StreamTransport {
        rank: us,
        options,
        slots,
        traffic: vec![Traffic::default(); identity.world],
        pool,
        strangers,
        knocked: true,
        looked: Instant::now(),
        early: refused.into_iter().map(|cause| Event::Refused { cause }).collect(),
        wakes: None,
        spin: Spin::of::<M>(&options),
        reader,
        was_reading: false,
    })
}

/// A slot with a connection whose other end has proved itself.
fn connected<M: Medium>(
    rank: usize,
    socket: M::Socket,
    side: Side,
    options: &StreamOptions,
) -> Result<Slot<M>, WireError> {
    let stream = M::stream(socket, side, options).map_err(WireError::system("set up a connection"))?;
    Ok(Slot::Connected(Box::new(Peer::new(rank, stream, options.max_body))))
}

/// Finds mistakes of the caller.
fn check<M: Medium>(identity: &Identity, peers: &[(usize, M::Address)]) -> Result<(), WireError> {
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

fn missed<M: Medium>(rank: usize, address: &M::Address, dials: &[Dial<M>]) -> MissingPeer {
    let dial = dials.iter().find(|dial| dial.rank == rank);
    let cause = dial.map_or("it never dialled".to_owned(), |dial| match dial.stage {
        Stage::Shaking(_) => "connected, but it never answered".to_owned(),
        _ => dial.cause.clone(),
    });
    MissingPeer { rank, address: address.to_string(), cause }
}

/// Sleeps until a socket is ready or something is due.
fn wait<M: Medium>(dials: &[Dial<M>], strangers: &Strangers<M>, end: Instant) -> Result<(), WireError> {
    let due = dials.iter().filter_map(|dial| match &dial.stage {
        Stage::Resting { until } => Some(*until),
        _ => None,
    });
    let until = due.chain(strangers.next_deadline()).fold(end, Instant::min);
    let mut sockets = Vec::new();
    for dial in dials {
        match &dial.stage {
            Stage::Opening(socket) => sockets.push(socket.interest(true)),
            Stage::Shaking(shake) => sockets.push(shake.interest()),
            Stage::Resting { .. } | Stage::Connected => {}
        }
    }
    strangers.interests(&mut sockets);
    await_any(&mut sockets, until.saturating_duration_since(Instant::now()))
}

impl<M: Medium> Dial<M> {
    fn new(rank: usize, address: M::Address, now: Instant) -> Self {
        Self { rank, address, stage: Stage::Resting { until: now }, cause: "it did not answer".into() }
    }

    /// Moves on as far as possible; returns the connection when it is there. A peer that refuses is an error:
    /// it would refuse again.
    fn drive(
        &mut self,
        identity: &Identity,
        options: &StreamOptions,
        now: Instant,
    ) -> Result<Option<M::Socket>, WireError> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Connected) {
                Stage::Connected => return Ok(None),
                Stage::Resting { until } if until > now => {
                    self.stage = Stage::Resting { until };
                    return Ok(None);
                }
                Stage::Resting { .. } => match M::open(&self.address, &identity.key, options) {
                    Ok(socket) => self.stage = Stage::Opening(socket),
                    Err(e) => self.rest(now, e.to_string()),
                },
                Stage::Opening(mut socket) => match socket.opened() {
                    Ok(true) => {
                        let handshake = Handshake::dial(identity, random()?, self.rank);
                        // It may still be busy before its own `connect`: no deadline but the caller's.
                        let who = self.address.to_string();
                        let shake = Shake { socket, who, handshake, deadline: None };
                        self.stage = Stage::Shaking(Box::new(shake));
                    }
                    Ok(false) => {
                        self.stage = Stage::Opening(socket);
                        return Ok(None);
                    }
                    Err(e) => self.rest(now, e.to_string()),
                },
                Stage::Shaking(mut shake) => match shake.drive(now) {
                    Shaken::Proven => return Ok(Some(shake.socket)),
                    Shaken::Pending => {
                        self.stage = Stage::Shaking(shake);
                        return Ok(None);
                    }
                    Shaken::Refused { cause } => {
                        let (rank, address) = (self.rank, self.address.to_string());
                        return Err(WireError::Refused { rank, address, cause });
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
