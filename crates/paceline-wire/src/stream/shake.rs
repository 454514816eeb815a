//! One handshake on one non-blocking socket.

use std::io::{ErrorKind, Read, Write};
use std::time::Instant;

use rustix::event::PollFd;

use super::medium::Medium;
use super::unless_blocked;
use crate::handshake::{Handshake, HandshakeState};
use crate::hello::HELLO;

/// How a handshake on a socket stands.
pub(super) enum Shaken {
    /// Waiting for the other end.
    Pending,
    /// The other end proved itself.
    Proven,
    /// The ends do not belong together.
    Refused { cause: String },
    /// The connection did not live long enough to tell.
    Broken { cause: String },
}

pub(super) struct Shake<M: Medium> {
    pub(super) socket: M::Socket,
    /// The other end, as far as it is known.
    pub(super) who: String,
    pub(super) handshake: Handshake,
    /// A stranger has one; a dialler waits as long as its caller does.
    pub(super) deadline: Option<Instant>,
}

impl<M: Medium> Shake<M> {
    /// Moves the handshake on as far as the socket allows.
    pub(super) fn drive(&mut self, now: Instant) -> Shaken {
        loop {
            // An end that hung up may have said why before: that is read first.
            let broken = self.flush().err().map(|e| e.to_string());
            match (self.handshake.standing(), broken) {
                (HandshakeState::Refused { cause }, _) => return Shaken::Refused { cause },
                (HandshakeState::Proven, None) => return Shaken::Proven,
                (HandshakeState::Proven, Some(cause)) => return Shaken::Broken { cause },
                (HandshakeState::Pending, _) => {}
            }
            let mut bytes = [0; HELLO];
            let wanted = self.handshake.wants().min(HELLO);
            match unless_blocked(|| self.socket.read(&mut bytes[..wanted])) {
                Ok(Some(0)) => return Shaken::Broken { cause: "closed during the handshake".into() },
                Ok(Some(n)) => self.handshake.receive(&bytes[..n]),
                Ok(None) => {
                    if self.deadline.is_none_or(|deadline| now < deadline) {
                        return Shaken::Pending;
                    }
                    return Shaken::Broken { cause: "no proof before the deadline of the handshake".into() };
                }
                // It speaks something else, or holds another key: it would do so again.
                Err(e) if e.kind() == ErrorKind::InvalidData => {
                    return Shaken::Refused { cause: e.to_string() };
                }
                Err(e) => return Shaken::Broken { cause: e.to_string() },
            }
        }
    }

    /// Writes what the handshake has to say; it always fits into a socket's empty buffer, so what does not is
    /// tried again at the next drive.
    pub(super) fn flush(&mut self) -> std::io::Result<()> {
        let output = self.handshake.output();
        while !output.is_empty() {
            let Some(n) = unless_blocked(|| self.socket.write(output))? else { break };
            output.drain(..n);
        }
        Ok(())
    }

    pub(super) fn interest(&self) -> PollFd<'_> {
        M::interest(&self.socket, self.handshake.has_output())
    }
}
