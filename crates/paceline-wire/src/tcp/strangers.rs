//! Whoever knocks at the listener, until it is known who it is.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use super::shake::{Shake, Shaken};
use super::{Options, READABLE, prepare};
use crate::error::WireError;
use crate::handshake::Handshake;
use crate::identity::{Identity, random};

/// Handshakes at a time; further strangers wait in the kernel's queue.
const PENDING: usize = 64;
/// Rest after the system could not accept a connection (it has no descriptors left, say).
const REST: Duration = Duration::from_millis(100);

/// What became of a stranger.
pub(super) enum Visit {
    Admitted { rank: usize, stream: TcpStream },
    Refused { cause: String },
}

pub(super) struct Strangers {
    listener: TcpListener,
    identity: Identity,
    options: Options,
    pending: Vec<Shake>,
    resting_until: Option<Instant>,
}

impl Strangers {
    pub(super) fn new(listener: TcpListener, identity: Identity, options: Options) -> Self {
        Self { listener, identity, options, pending: Vec::new(), resting_until: None }
    }

    /// Accepts who knocks and moves all handshakes on. `admit` decides about ranks that have proved
    /// themselves, or says why not.
    pub(super) fn visit(
        &mut self,
        now: Instant,
        mut admit: impl FnMut(usize) -> Result<(), String>,
    ) -> Result<Vec<Visit>, WireError> {
        self.accept(now)?;
        let mut visits = Vec::new();
        let mut i = 0;
        while i < self.pending.len() {
            let mut shaken = self.pending[i].drive(now);
            if matches!(shaken, Shaken::Pending) {
                i += 1;
                continue;
            }
            let mut stranger = self.pending.swap_remove(i);
            if matches!(shaken, Shaken::Proven) {
                let rank = stranger.handshake.theirs().map_or(usize::MAX, |hello| hello.rank as usize);
                match admit(rank) {
                    Ok(()) => stranger.handshake.admit(),
                    Err(what) => stranger.handshake.refuse(&what),
                }
                shaken = stranger.drive(now);
                if matches!(shaken, Shaken::Proven) {
                    visits.push(Visit::Admitted { rank, stream: stranger.stream });
                    continue;
                }
            }
            if let Shaken::Refused { cause } | Shaken::Broken { cause } = shaken {
                visits.push(Visit::Refused { cause: format!("{}: {cause}", stranger.address) });
            }
        }
        Ok(visits)
    }

    fn accept(&mut self, now: Instant) -> Result<(), WireError> {
        if self.resting_until.is_some_and(|until| now < until) {
            return Ok(());
        }
        self.resting_until = None;
        while self.pending.len() < PENDING {
            match self.listener.accept() {
                Ok((stream, address)) => self.greet(stream, address, now)?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.resting_until = Some(now + REST);
                    break;
                }
            }
        }
        Ok(())
    }

    fn greet(&mut self, stream: TcpStream, address: SocketAddr, now: Instant) -> Result<(), WireError> {
        // These fail only for a connection that is gone already.
        if stream.set_nonblocking(true).is_ok() && prepare(&stream, &self.options).is_ok() {
            let handshake = Handshake::accept(&self.identity, random()?);
            let deadline = Some(now + self.options.handshake);
            self.pending.push(Shake { stream, address, handshake, deadline });
        }
        Ok(())
    }

    /// Adds the sockets to wait for.
    pub(super) fn interests<'a>(&'a self, sockets: &mut Vec<PollFd<'a>>) {
        if self.pending.len() < PENDING && self.resting_until.is_none() {
            sockets.push(PollFd::from_borrowed_fd(self.listener.as_fd(), READABLE));
        }
        sockets.extend(self.pending.iter().map(Shake::interest));
    }

    /// When to look again even if no socket is ready.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.pending.iter().filter_map(|stranger| stranger.deadline).chain(self.resting_until).min()
    }
}
