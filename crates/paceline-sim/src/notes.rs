//! Steps, messages and waits one by one, as real runs record them.

use std::ops::Range;

use paceline_protocol::{Rank, Tag, Time, Work};

use crate::report::SimulatedTimes;

/// What a rank did over a step (of a server: until an update), in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Its steps so far, this one included; a server's updates so far.
    pub step: u64,
    /// When it began.
    pub begin: Time,
    /// Forward and backward pass, pauses included.
    pub compute: Time,
    /// Sending, receiving, summing.
    pub exchange: Time,
    /// Updating parameters.
    pub apply: Time,
    /// Encoding and decoding, a part of `exchange`.
    pub codec: Time,
    /// By how much the pass took longer because others used the same cores.
    pub core_wait: Time,
    /// The rest: nothing to do.
    pub wait: Time,
    /// Who was waited for the longest.
    pub wait_for: Option<Rank>,
    /// Of a stage: what was waited for earlier stages of its replica, as far as it is known for whom.
    pub wait_up: Time,
    /// The same for later stages.
    pub wait_down: Time,
}

/// What a rank did with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageDirection {
    /// Sent it.
    Sent,
    /// Took it in.
    Received,
}

/// A message as one of its ends saw it, or a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// A message.
    Message {
        /// What was done with it.
        did: MessageDirection,
        /// When.
        at: Time,
        /// The other end.
        peer: Rank,
        /// Which one it is of all on this link in this direction.
        n: u64,
        /// What it belongs to.
        tag: Tag,
        /// Bytes of its body.
        bytes: u64,
    },
    /// A pass through the rank's stage.
    Pass {
        /// From when.
        at: Time,
        /// How long.
        duration: Time,
        /// In which step.
        step: u64,
        /// Which one.
        work: Work,
        /// In which slot.
        slot: usize,
    },
    /// A time with nothing to do.
    Wait {
        /// From when.
        at: Time,
        /// For whom, if somebody in particular.
        peer: Option<Rank>,
        /// How long.
        duration: Time,
    },
}

/// What a rank has to do with another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTraffic {
    /// Messages sent, and received.
    pub messages: [u64; 2],
    /// Their bytes, headers included.
    pub bytes: [u64; 2],
    /// An empty message there and back, nothing else being under way.
    pub round_trip: Time,
}

/// What was noted of a rank.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    pub steps: Vec<StepTimes>,
    /// Its messages and waits, as many as there was room for.
    pub trace: Vec<Note>,
    /// Its links by rank; those over which nothing went are there too.
    pub links: Vec<LinkTraffic>,
    /// Of the step under way.
    pub(crate) codec: Time,
    pub(crate) core_wait: Time,
    room: usize,
    /// Of a stage: its rank, and the ranks of its replica.
    stage: Option<(Rank, Range<Rank>)>,
    /// Where its last step ended: the time, and what was spent until then.
    ended: Time,
    before: SimulatedTimes,
}

impl Notes {
    /// With so many messages and waits at most, and what an empty message to each rank and back takes.
    pub(crate) fn new(round_trips: Vec<Time>, room: usize) -> Self {
        let link = |round_trip| LinkTraffic { round_trip, ..LinkTraffic::default() };
        Self { room, links: round_trips.into_iter().map(link).collect(), ..Self::default() }
    }

    /// The same of a worker that has a stage of a replica.
    pub(crate) fn of_stage(self, rank: Rank, replica: Range<Rank>) -> Self {
        Self { stage: Some((rank, replica)), ..self }
    }

    fn note(&mut self, note: Note) {
        if self.trace.len() < self.room {
            self.trace.push(note);
        }
    }

    pub(crate) fn message(
        &mut self,
        did: MessageDirection,
        at: Time,
        peer: Rank,
        tag: Tag,
        bytes: u64,
        header: usize,
    ) {
        let LinkTraffic { messages, bytes: sum, .. } = &mut self.links[peer];
        let n = messages[did as usize];
        messages[did as usize] += 1;
        sum[did as usize] += bytes + header as u64;
        self.note(Note::Message { did, at, peer, n, tag, bytes });
    }

    pub(crate) fn pass(&mut self, at: Time, duration: Time, step: u64, work: Work, slot: usize) {
        self.note(Note::Pass { at, duration, step, work, slot });
    }

    pub(crate) fn wait(&mut self, at: Time, peer: Option<Rank>, duration: Time) {
        self.note(Note::Wait { at, peer, duration });
    }

    /// A step or an update is over.
    pub(crate) fn over(&mut self, now: Time, spent: &SimulatedTimes) {
        let since = |of: fn(&SimulatedTimes) -> Time| of(spent) - of(&self.before);
        let (compute, exchange, apply) = (since(|s| s.compute), since(|s| s.exchange), since(|s| s.apply));
        let before = self.before.wait_for.iter().copied().chain(std::iter::repeat(0));
        let waits: Vec<Time> = spent.wait_for.iter().zip(before).map(|(now, before)| now - before).collect();
        let of = |ranks: Range<Rank>| waits.iter().skip(ranks.start).take(ranks.len()).sum();
        let (wait_up, wait_down) = match &self.stage {
            Some((rank, replica)) => (of(replica.start..*rank), of(rank + 1..replica.end)),
            None => (0, 0),
        };
        let longest =
            waits.into_iter().enumerate().max_by_key(|(_, wait)| *wait).filter(|(_, wait)| *wait > 0);
        self.steps.push(StepTimes {
            step: self.steps.len() as u64 + 1,
            begin: self.ended,
            compute,
            exchange,
            apply,
            codec: std::mem::take(&mut self.codec),
            core_wait: std::mem::take(&mut self.core_wait),
            wait: (now - self.ended).saturating_sub(compute + exchange + apply),
            wait_for: longest.map(|(rank, _)| rank),
            wait_up,
            wait_down,
        });
        (self.ended, self.before) = (now, spent.clone());
    }
}
