//! Messages between ranks: out of the sender's interface and, a latency later, to the receiver's.

use paceline_protocol::{Input, MessageHead, OpId, Rank, Region, Tag, Time};

use super::Driver;
use crate::memory::RankMemory;
use crate::queue::Event;

/// A message on its way.
pub(super) struct Flight<B> {
    pub(super) from: Rank,
    pub(super) to: Rank,
    pub(super) op: OpId,
    pub(super) tag: Tag,
    pub(super) head: MessageHead,
    pub(super) src: Option<Region>,
    pub(super) bytes: usize,
    /// What was read when it had left.
    pub(super) body: Option<B>,
    /// Whether it has left: a rank that dies before that has sent nothing.
    pub(super) left: bool,
    /// When its last bit leaves the sender's interface and is under way no more.
    pub(super) last_bit: Time,
}

impl<M: RankMemory> Driver<'_, M> {
    /// A message comes to the interface of its sender's host.
    pub(super) fn depart(&mut self, at: Time, place: u32) {
        let Flight { from, to, bytes, .. } = *self.flights.get(place);
        let there = self.sites[self.members[to].host].host.latency;
        let site = &mut self.sites[self.members[from].host];
        let (begin, time) = (site.sends.max(at), site.host.transfer(bytes));
        site.sends = begin + time;
        let room = site.host.transfer(self.costs.buffer);
        let latency = there.max(site.host.latency);
        self.queue.push(at.max((begin + time).saturating_sub(room)), Event::Sent(place));
        let first_bit = self.under_way(from, to, begin, latency);
        self.flights.get(place).last_bit = first_bit + time;
        self.queue.push(first_bit, Event::Reaches(place));
    }

    /// When something that leaves now is there; what one rank sends to another does not overtake.
    pub(super) fn under_way(&mut self, from: Rank, to: Rank, now: Time, latency: Time) -> Time {
        let count = &mut self.members[from].transfers;
        let there = now + self.costs.delay(from, *count, latency);
        *count += 1;
        if self.costs.spread == 0.0 {
            return there;
        }
        let last = self.last.entry((from, to)).or_default();
        *last = there.max(*last);
        *last
    }

    /// A message has left: its body is read, and the sender told.
    pub(super) fn sent(&mut self, now: Time, place: u32) {
        let Flight { from, op, src, .. } = *self.flights.get(place);
        if self.members[from].dead {
            return;
        }
        if cfg!(debug_assertions) {
            self.members[from].leaving.retain(|(leaving, _)| *leaving != op);
        }
        let body = src.map(|src| self.memory.read(from, src));
        let flight = self.flights.get(place);
        (flight.body, flight.left) = (body, true);
        self.take(now, from, Input::Done(op));
    }
}
