//! Whoever knocks at the listener, until it is known who it is.

use std::time::{Duration, Instant};

use rustix::event::PollFd;

use super::medium::Medium;
use super::shake::{Shake, Shaken};
use super::{READABLE, StreamOptions, unless_blocked};
use crate::error::WireError;
use crate::handshake::Handshake;
use crate::identity::{Identity, random};

/// Handshakes at a time; further strangers wait in the kernel's queue.
const PENDING: usize = 64;
/// Rest after the system could not accept a connection (it has no descriptors left, say).
const REST: Duration = Duration::from_millis(100);

/// What became of a stranger.
pub(super) enum Visit<M: Medium> {
    Admitted { rank: usize, socket: M::Socket },
    Refused { cause: String },
}

pub(super) struct Strangers<M: Medium> {
    listener: M::Listener,
    identity: Identity,
    options: StreamOptions,
    pending: Vec<Shake<M>>,
    resting_until: Option<Instant>,
}

impl<M: Medium> Strangers<M> {
    pub(super) fn new(listener: M::Listener, identity: Identity, options: StreamOptions) -> Self {
        Self { listener, identity, options, pending: Vec::new(), resting_until: None }
    }

    /// Accepts who knocks and moves all handshakes on. `admit` decides about ranks that have proved
    /// themselves, or says why not.
    pub(super) fn visit(
        &mut self,
        now: Instant,
        mut admit: impl FnMut(usize) -> Result<(), String>,
    ) -> Result<Vec<Visit<M>>, WireError> {
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
                    visits.push(Visit::Admitted { rank, socket: stranger.socket });
                    continue;
                }
            }
            if let Shaken::Refused { cause } | Shaken::Broken { cause } = shaken {
                visits.push(Visit::Refused { cause: format!("{}: {cause}", stranger.who) });
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
            match unless_blocked(|| M::accept(&self.listener, &self.identity.key)) {
                Ok(Some((socket, who))) => self.greet(socket, who, now)?,
                Ok(None) => break,
                Err(_) => {
                    self.resting_until = Some(now + REST);
                    break;
                }
            }
        }
        Ok(())
    }

    fn greet(&mut self, socket: M::Socket, who: String, now: Instant) -> Result<(), WireError> {
        // This fails only for a connection that is gone already.
        if M::prepare(&socket, &self.options).is_ok() {
            let handshake = Handshake::accept(&self.identity, random()?);
            let deadline = Some(now + self.options.handshake);
            self.pending.push(Shake { socket, who, handshake, deadline });
        }
        Ok(())
    }

    /// Adds the sockets to wait for.
    pub(super) fn interests<'a>(&'a self, sockets: &mut Vec<PollFd<'a>>) {
        if self.pending.len() < PENDING && self.resting_until.is_none() {
            sockets.push(PollFd::new(&self.listener, READABLE));
        }
        sockets.extend(self.pending.iter().map(Shake::interest));
    }

    /// When to look again even if no socket is ready.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.pending.iter().filter_map(|stranger| stranger.deadline).chain(self.resting_until).min()
    }
}
