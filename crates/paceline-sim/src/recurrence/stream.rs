//! A rank of a rotation: what it does with the messages that come to it.

use paceline_protocol::{Rank, Time};

use super::RecurrenceRefusal;
use super::rotation::{LaneCosts, MARKS, NOTHING, Rotation};
use crate::costs::PassPart;

/// A message on its way: its lane, and when its first bit is there (inside a host: the whole).
pub(super) type Flying = (u32, Time);

/// How far a rank is with a lane.
#[derive(Clone, Copy, Default)]
pub(super) struct LaneState {
    started: bool,
    /// The next move, and whether its send was made.
    at: usize,
    sent: bool,
    /// Messages for the moves from there on that have come.
    early: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// A part of the pass ends then.
    Part(Time),
    /// It has ended then, and what has come is taken in.
    Draining(Time),
    /// The pass is over.
    Waiting,
    /// The step is over.
    Over,
}

pub(super) struct RankState {
    pub(super) stage: Stage,
    pub(super) part: usize,
    /// The whole pass, and how much of it is done.
    pub(super) whole: Time,
    pub(super) done: Time,
    /// Until when it is at work.
    pub(super) time: Time,
    /// When its interface is free to send, and to receive.
    pub(super) sends: Time,
    pub(super) receives: Time,
    /// When its last send has left.
    pub(super) left: Time,
    /// When it last looked at what had come.
    pub(super) looked: Time,
    pub(super) open: usize,
    /// Whether what it sends, and what it gets, passes an interface.
    pub(super) sends_out: bool,
    pub(super) hears_from_outside: bool,
    /// Nothing that it sends from now on is there before.
    pub(super) bound: Time,
}

impl RankState {
    /// Sets out on a part of the pass.
    pub(super) fn next_part(&mut self, parts: &[PassPart]) {
        let done = (self.whole as f64 * parts[self.part].end) as Time;
        self.stage = Stage::Part(self.time + done - self.done);
        self.done = done;
    }

    /// When a message is there whole.
    fn arrival(&self, first_bit: Time, transfer: u32) -> Time {
        let transfer = if self.hears_from_outside { transfer.into() } else { 0 };
        self.receives.max(first_bit) + transfer
    }
}

/// A rank at work.
pub(super) struct RankRun<'a> {
    pub(super) rank: Rank,
    pub(super) state: &'a mut RankState,
    pub(super) lanes: &'a mut [LaneState],
    pub(super) marks: &'a mut [Time],
    pub(super) costs: &'a [LaneCosts],
    pub(super) rotation: &'a Rotation,
    pub(super) out: &'a mut Vec<Flying>,
    pub(super) latency: Time,
    pub(super) local_latency: Time,
    pub(super) room: Time,
}

impl RankRun<'_> {
    /// Takes in what is known to come; how many messages. Any other one is there at `bound` at the earliest.
    pub(super) fn go_on(
        &mut self,
        stream: &[Flying],
        parts: &[PassPart],
        bound: Time,
    ) -> Result<usize, RecurrenceRefusal> {
        let mut taken = 0;
        loop {
            match self.state.stage {
                Stage::Part(end) => {
                    self.state.time = end;
                    let Some(from) = parts[self.state.part].announces else {
                        self.part_over(parts);
                        continue;
                    };
                    // Behind the last part everything is taken in as it comes.
                    let last = self.state.part + 1 == parts.len();
                    self.state.stage = Stage::Draining(end);
                    for lane in 0..self.lanes.len() {
                        if !self.lanes[lane].started && self.costs[lane].start >= from {
                            self.lanes[lane].started = true;
                            let looked = self.state.looked;
                            self.advance(lane, looked)?;
                        }
                    }
                    self.state.looked = end;
                    if last {
                        self.part_over(parts);
                    }
                }
                Stage::Draining(end) => {
                    let Some(&(lane, first_bit)) = stream.get(taken) else {
                        if self.state.receives.max(bound) <= end {
                            return Ok(taken);
                        }
                        self.part_over(parts);
                        continue;
                    };
                    let there = self.arrival(lane, first_bit);
                    if there > end {
                        self.part_over(parts);
                    } else if there == end {
                        return Err(RecurrenceRefusal::Order);
                    } else {
                        taken += 1;
                        self.take(lane, there)?;
                    }
                }
                Stage::Waiting => {
                    taken += self.take_all(&stream[taken..])?;
                    if self.state.open > 0 {
                        return Ok(taken);
                    }
                    self.state.stage = Stage::Over;
                }
                Stage::Over => return Ok(taken),
            }
        }
    }

    fn part_over(&mut self, parts: &[PassPart]) {
        self.state.part += 1;
        if self.state.part < parts.len() {
            self.state.next_part(parts);
        } else {
            self.state.stage = if self.state.open == 0 { Stage::Over } else { Stage::Waiting };
        }
    }

    /// The chunk that is this rank's where it is `chunk` for rank 0.
    fn own(&self, chunk: u32) -> usize {
        let (at, p) = (chunk as usize + self.rank, self.costs[0].chunks.len());
        if at < p { at } else { at - p }
    }

    /// When the next message of a lane is there.
    fn arrival(&self, lane: u32, first_bit: Time) -> Time {
        let LaneState { at, early, .. } = self.lanes[lane as usize];
        let chunk = self.own(self.rotation.turns[at + early as usize].receive);
        self.state.arrival(first_bit, self.costs[lane as usize].chunks[chunk].transfer)
    }

    fn take(&mut self, lane: u32, there: Time) -> Result<(), RecurrenceRefusal> {
        self.state.receives = there;
        let lane = lane as usize;
        self.lanes[lane].early += 1;
        if self.lanes[lane].started { self.advance(lane, there) } else { Ok(()) }
    }

    /// Takes in messages after the pass, when every lane waits for its next one; how many. What [`RankRun::receive`] and
    /// [`RankRun::send`] do for each, with the rank's times at hand: nearly all messages come through here.
    fn take_all(&mut self, stream: &[Flying]) -> Result<usize, RecurrenceRefusal> {
        let RankState { mut time, mut sends, mut receives, sends_out, hears_from_outside, .. } = *self.state;
        let [inward, outward] = [hears_from_outside, sends_out].map(|out| if out { Time::MAX } else { 0 });
        let latency = if sends_out { self.latency } else { self.local_latency };
        let (turns, p) = (&self.rotation.turns[..], self.costs[0].chunks.len());
        let mut last_send = None;
        let mut taken = 0;
        self.out.reserve(stream.len());
        for &(number, first_bit) in stream {
            let lane = number as usize;
            let (chunks, marks) = (&self.costs[lane].chunks[..], &mut self.marks[lane * MARKS..][..MARKS]);
            let own = |chunk: u32| {
                let at = chunk as usize + self.rank;
                chunks[if at < p { at } else { at - p }]
            };
            let at = self.lanes[lane].at;
            let turn = &turns[at];
            let costs = own(turn.receive);
            taken += 1;
            receives = receives.max(first_bit) + (Time::from(costs.transfer) & inward);
            if turn.needs != NOTHING && marks[turn.needs as usize] >= receives {
                return Err(RecurrenceRefusal::Order);
            }
            time = time.max(receives) + costs.take(turn.combine);
            self.lanes[lane].at = at + 1;
            let Some(turn) = turns.get(at + 1) else {
                time += self.costs[lane].apply;
                self.state.open -= 1;
                if self.state.open == 0 {
                    break;
                }
                continue;
            };
            let costs = own(turn.send);
            time += Time::from(costs.send);
            let begin = time.max(sends);
            sends = begin + (Time::from(costs.transfer) & outward);
            last_send = Some(time);
            self.out.push((number, begin + latency));
            if turn.mark != NOTHING {
                marks[turn.mark as usize] = sends;
            }
        }
        let state = &mut *self.state;
        (state.time, state.sends, state.receives) = (time, sends, receives);
        if let Some(at) = last_send {
            state.left = at.max(sends.saturating_sub(self.room));
        }
        Ok(taken)
    }

    /// Makes the moves of a lane as far as messages allow. Of sends it was told that had left before `looked`.
    fn advance(&mut self, lane: usize, looked: Time) -> Result<(), RecurrenceRefusal> {
        loop {
            if !self.lanes[lane].sent {
                self.send(lane);
            }
            if self.lanes[lane].early == 0 {
                return Ok(());
            }
            self.lanes[lane].early -= 1;
            if self.receive(lane, looked)? {
                return Ok(());
            }
        }
    }

    /// Makes the send of a lane's next move.
    #[inline]
    fn send(&mut self, lane: usize) {
        let turn = &self.rotation.turns[self.lanes[lane].at];
        let costs = self.costs[lane].chunks[self.own(turn.send)];
        let state = &mut *self.state;
        state.time += Time::from(costs.send);
        let begin = state.time.max(state.sends);
        state.sends = begin + if state.sends_out { Time::from(costs.transfer) } else { 0 };
        state.left = state.time.max(state.sends.saturating_sub(self.room));
        let latency = if state.sends_out { self.latency } else { self.local_latency };
        self.out.push((lane as u32, begin + latency));
        self.lanes[lane].sent = true;
        if turn.mark != NOTHING {
            self.marks[lane * MARKS + turn.mark as usize] = state.sends;
        }
    }

    /// Makes the receive of a lane's next move; whether that is the last one.
    #[inline]
    fn receive(&mut self, lane: usize, looked: Time) -> Result<bool, RecurrenceRefusal> {
        let at = self.lanes[lane].at;
        let turn = &self.rotation.turns[at];
        // What is replaced must be known to have left: the interface was free at the next mark.
        if turn.needs != NOTHING && self.marks[lane * MARKS + turn.needs as usize] >= looked {
            return Err(RecurrenceRefusal::Order);
        }
        let LaneCosts { chunks, apply, .. } = &self.costs[lane];
        self.state.time += chunks[self.own(turn.receive)].take(turn.combine);
        (self.lanes[lane].at, self.lanes[lane].sent) = (at + 1, false);
        let last = at + 1 == self.rotation.turns.len();
        if last {
            self.state.time += apply;
            self.state.open -= 1;
        }
        Ok(last)
    }
}
