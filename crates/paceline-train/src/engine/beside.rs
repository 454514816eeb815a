//! What an engine does where a script computes beside its rank.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use paceline_protocol::{MessageHead, Rank, Tag};
use paceline_wire::Span;

use super::greetings::GREETINGS;
use super::{Engine, WAIT_OF_MEMBERS};
use crate::error::TrainError;
use crate::memory::Memory;
use crate::meta::{RATE, pack};

/// Longest wait beside a computation where its side cannot end the wait.
const UNWOKEN: Duration = Duration::from_micros(200);

impl Engine {
    /// Exchanges what can be exchanged while somebody else computes, waiting a while for a message, or for what the
    /// computing side has said. Time spent waiting here is nobody's. Whether the run is over.
    pub fn wait_beside(&mut self, wait: Duration, memory: &mut dyn Memory) -> Result<bool, TrainError> {
        self.poll(memory)?;
        if self.is_asked_to_stop() {
            self.stop_here(memory)?;
        }
        if self.outcome.is_some() {
            return Ok(true);
        }
        let wait = if self.members.is_some() { wait.min(WAIT_OF_MEMBERS) } else { wait };
        let wait = if self.woken { wait } else { wait.min(UNWOKEN) };
        // The core is theirs who compute.
        self.transport.keep_busy(false);
        let waited = self.exchange(Some(wait), memory);
        self.transport.keep_busy(true);
        waited?;
        self.silence = Duration::ZERO;
        Ok(self.outcome.is_some())
    }

    /// Tells every peer what this rank's learning rate is from now on, as a multiple of its first one.
    pub fn tell_rate(&mut self, rank: Rank, rate: f64) -> Result<(), TrainError> {
        if self.rates[rank] == rate {
            return Ok(());
        }
        self.rates[rank] = rate;
        let tag = Tag { generation: self.generation, step: 0, bucket: 0, phase: RATE };
        let head = MessageHead { unit: rate.to_bits(), ..MessageHead::default() };
        for &to in &self.links {
            self.transport.send(to, pack(tag, head, false), Span::EMPTY, GREETINGS)?;
        }
        Ok(())
    }

    /// Lets waits beside a computation end when a stream has something to read; none takes that back.
    pub fn wake_by(&mut self, stream: Option<Arc<UnixStream>>) {
        self.woken = self.transport.wake_by(stream);
    }
}
