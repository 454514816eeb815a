//! What is said before the first step and after the last one.

use std::time::{Duration, Instant};

use paceline_protocol::{MessageHead, Rank, Tag};
use paceline_wire::{Event, Span};

use super::{Engine, WAIT};
use crate::error::TrainError;
use crate::memory::Memory;
use crate::meta::{GOODBYE, GREETING, pack};

/// Numbers of the goodbyes' sends, far from the participant's.
pub(super) const GOODBYES: u64 = 1 << 63;
/// The number of greetings' sends: nobody waits until they have left.
pub(super) const GREETINGS: u64 = 1 << 62;
/// Greetings of each peer, of which the fastest counts: at least, and at most if that takes no longer than the time
/// behind them.
const ROUNDS: [u32; 2] = [3, 20];
const ROUNDS_TIME: Duration = Duration::from_millis(20);
/// Longest time for all of them: who starts late is not waited for.
const GREETING_TIME: Duration = Duration::from_secs(2);

impl Engine {
    /// Greets every peer before the start, where somebody records: how long an empty message takes there and back is
    /// what any message takes, and cannot be told from those of one length that carry something.
    pub fn greet(&mut self, memory: &mut dyn Memory) -> Result<(), TrainError> {
        if self.watch.is_none() {
            return Ok(());
        }
        let begun = Instant::now();
        for peer in self.links.clone() {
            self.greeted.push((peer, begun, 0));
            self.send_greeting(peer);
        }
        while self.greeted.iter().any(|(_, _, round)| *round < ROUNDS[0]) {
            let left = GREETING_TIME.saturating_sub(begun.elapsed());
            let lost = self.later.iter().any(|event| matches!(event, Event::Lost { .. }));
            if left.is_zero() || lost {
                break;
            }
            self.exchange(Some(left.min(WAIT)), memory)?;
        }
        self.greeted.clear();
        Ok(())
    }

    pub(super) fn send_greeting(&mut self, peer: Rank) {
        let Some(greeted) = self.greeted.iter_mut().find(|(to, _, _)| *to == peer) else { return };
        greeted.1 = Instant::now();
        let tag = Tag { generation: 0, step: greeted.2, bucket: 0, phase: GREETING };
        // A peer that is gone is noticed by whoever needs it.
        let _ = self.transport.send(peer, pack(tag, MessageHead::default(), false), Span::EMPTY, GREETINGS);
    }

    /// A greeting has come back: the next one leaves, if there are any more.
    pub(super) fn answered(&mut self, from: Rank, round: u32) {
        let Some(greeted) = self.greeted.iter_mut().find(|(to, _, at)| (*to, *at) == (from, round)) else {
            return;
        };
        greeted.2 += 1;
        let (took, rounds) = (greeted.1.elapsed(), greeted.2);
        if let Some(watch) = &mut self.watch {
            watch.round_trip(from, took);
        }
        let more = rounds < ROUNDS[0] || rounds < ROUNDS[1] && took * rounds < ROUNDS_TIME;
        if more {
            self.send_greeting(from);
        }
    }

    /// Sees that everything has left: to be called before a pause, in which nothing moves.
    pub fn settle(&mut self, memory: &mut dyn Memory) -> Result<(), TrainError> {
        while self.leaving > 0 {
            self.wait(memory)?;
        }
        Ok(())
    }

    /// Says goodbye to every peer and sees that it has left. Where the run ended because a worker has left, peers may
    /// still be sending: what they send is taken until they have said goodbye as well, since a connection that is
    /// closed with something unread takes with it what was sent.
    pub fn finish(&mut self, memory: &mut dyn Memory) -> Result<(), TrainError> {
        let tag = Tag { generation: 0, step: 0, bucket: 0, phase: GOODBYE };
        for to in self.links.clone() {
            let op = GOODBYES + to as u64;
            if self.transport.send(to, pack(tag, MessageHead::default(), false), Span::EMPTY, op).is_ok() {
                self.goodbyes.push(to);
            }
        }
        let start = Instant::now();
        let early = self.left().is_some();
        while start.elapsed() < Duration::from_secs(2)
            && (!self.goodbyes.is_empty() || early && self.links.iter().any(|&peer| !self.departed[peer]))
        {
            self.exchange(Some(WAIT), memory)?;
        }
        if let Some(watch) = &self.watch {
            watch.publish(&self.links, &*self.transport);
        }
        Ok(())
    }
}
