//! A rank of a host in a ring of hosts: what it does with what comes to it.
//!
//! What comes is taken in in the order in which it comes, whoever sent it; in a pass, when a part of it is over. Two
//! messages of different lanes that come at the same time have an order of their own in events, which is not known
//! here: then there is no result.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use paceline_protocol::Time;

use super::RecurrenceRefusal;
use super::program::{LocalMove, OUTSIDE, Program, Sent};
use super::rotation::{ChunkCosts, LaneCosts, MARKS, NOTHING};
use super::stream::Flying;
use crate::costs::PassPart;

/// No message that is not known comes before.
pub(super) const NEVER: Time = Time::MAX / 4;

/// What a lane costs in hosts of one size, and what their ranks do with it.
pub(super) struct HostLane<'a> {
    pub(super) program: &'a Program,
    /// Pieces inside a host: their costs and elements.
    pub(super) inside: Vec<ChunkCosts>,
    pub(super) lens: Vec<usize>,
    pub(super) outside: &'a LaneCosts,
}

/// What all ranks have in common.
pub(super) struct Terms<'a> {
    pub(super) parts: &'a [PassPart],
    pub(super) latency: Time,
    pub(super) local_latency: Time,
    pub(super) room: Time,
    /// The least time of sending, and of passing an interface.
    pub(super) least: (Time, Time),
    pub(super) leader: usize,
    pub(super) hosts: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// A part of the pass ends then.
    Part(Time),
    Waiting,
    /// The step is over.
    Over,
}

/// How far a rank is with a lane.
#[derive(Clone, Copy, Default)]
struct LaneState {
    at: u32,
    started: bool,
    /// Whether the send of the next move was made.
    sent: bool,
    /// Messages from outside that have come.
    heard: u32,
}

/// A message inside a host: when it is there, when its sender did what it came of, its lane, and for which receive it
/// is. Of messages that come at the same time, the first is the one that was sent first.
pub(super) type Inside = (Time, Time, u32, u32);

pub(super) struct Member {
    pub(super) stage: Stage,
    part: usize,
    whole: Time,
    done: Time,
    /// Until when it is at work.
    pub(super) time: Time,
    /// When its last send has left.
    pub(super) left: Time,
    /// When what it has taken in came.
    looked: Time,
    /// When it began with what it does.
    now: Time,
    /// When it set out on the present part of its pass, if that is known.
    set_out: Option<Time>,
    /// What came before was taken in within the step before.
    pub(super) before: Time,
    open: usize,
    /// Sends inside the host that are not made yet.
    pub(super) unsent: usize,
    lanes: Vec<LaneState>,
    /// Which messages inside the host have come, by lane.
    come: Vec<u64>,
    words: usize,
    queue: BinaryHeap<Reverse<Inside>>,
}

/// A host's interface, as its leader uses it.
#[derive(Default)]
pub(super) struct Interface {
    /// When it is free to send, and to receive.
    pub(super) sends: Time,
    pub(super) receives: Time,
    /// When it was free again after every so many sends of a lane.
    marks: Vec<Time>,
    /// What is on its way to it, and how much of that is taken in.
    pub(super) stream: Vec<Flying>,
    pub(super) taken: usize,
    /// What it sends to the next host.
    pub(super) out: Vec<Flying>,
    /// Nothing else comes to it before.
    pub(super) heard: Time,
}

/// A message that a rank sends inside its host: to whom, and what it is there.
pub(super) type Delivery = (u32, Inside);

/// A rank at work.
pub(super) struct MemberRun<'a> {
    pub(super) local: usize,
    /// The place of its host.
    pub(super) place: usize,
    pub(super) member: &'a mut Member,
    pub(super) interface: &'a mut Interface,
    pub(super) lanes: &'a [HostLane<'a>],
    pub(super) terms: &'a Terms<'a>,
    pub(super) inside: &'a mut Vec<Delivery>,
}

impl Interface {
    pub(super) fn new(lanes: usize) -> Self {
        Self { marks: vec![0; lanes * MARKS], ..Self::default() }
    }
}

impl Member {
    pub(super) fn new(local: usize, lanes: &[HostLane<'_>]) -> Self {
        let words = lanes.iter().map(|lane| lane.program.receives[local].div_ceil(64)).max().unwrap_or(0);
        Self {
            stage: Stage::Over,
            part: 0,
            whole: 0,
            done: 0,
            time: 0,
            left: 0,
            looked: 0,
            now: 0,
            set_out: None,
            before: 0,
            open: 0,
            unsent: 0,
            lanes: vec![LaneState::default(); lanes.len()],
            come: vec![0; words * lanes.len()],
            words,
            queue: BinaryHeap::new(),
        }
    }

    pub(super) fn begin(&mut self, whole: Time, sends: usize, parts: &[PassPart]) {
        self.lanes.fill(LaneState::default());
        self.come.fill(0);
        (self.part, self.whole, self.done, self.left) = (0, whole, 0, 0);
        (self.open, self.unsent, self.set_out) = (self.lanes.len(), sends, None);
        self.next_part(parts);
    }

    fn next_part(&mut self, parts: &[PassPart]) {
        let done = (self.whole as f64 * parts[self.part].end) as Time;
        self.stage = Stage::Part(self.time + done - self.done);
        self.done = done;
    }

    /// How long it takes from the end of the present part until a part ends that announces gradients.
    fn until_announced(&self, parts: &[PassPart]) -> Time {
        let announcing = parts[self.part..].iter().find(|part| part.announces.is_some());
        announcing.map_or(0, |part| (self.whole as f64 * part.end) as Time - self.done)
    }

    pub(super) fn deliver(&mut self, message: Inside) {
        self.queue.push(Reverse(message));
    }
}

/// Something that comes to a rank: when it is there, and when that was set off.
struct Come {
    there: Time,
    sent: Time,
    next: Next,
}

enum Next {
    Inside(u32, u32),
    Outside(u32),
}

impl MemberRun<'_> {
    /// It does nothing before, if nothing that is not known comes from inside before `horizon`.
    pub(super) fn earliest(&self, horizon: Time) -> Time {
        let inside = self.member.queue.peek().map_or(horizon, |Reverse((there, ..))| horizon.min(*there));
        match self.member.stage {
            Stage::Part(end) => end + self.member.until_announced(self.terms.parts),
            Stage::Waiting => self.member.time.max(inside.min(self.next_outside().0)),
            Stage::Over => NEVER,
        }
    }

    /// When the next message from outside is there, and whether it is known which one.
    fn next_outside(&self) -> (Time, Option<u32>) {
        if self.local != self.terms.leader || self.terms.hosts == 1 {
            return (NEVER, None);
        }
        let receives = self.interface.receives;
        match self.interface.stream.get(self.interface.taken) {
            Some(&(lane, first_bit)) => {
                let number = self.member.lanes[lane as usize].heard;
                (receives.max(first_bit) + self.outside_transfer(lane, number), Some(lane))
            }
            None => (receives.max(self.interface.heard) + self.terms.least.1, None),
        }
    }

    /// How long the interface takes for a lane's message with a number.
    fn outside_transfer(&self, lane: u32, number: u32) -> Time {
        let HostLane { program, outside, .. } = &self.lanes[lane as usize];
        let piece = program.heard[number as usize];
        outside.chunks[self.own(piece)].transfer.into()
    }

    /// The place that is this host's where it is `place` for host 0.
    #[inline]
    fn own(&self, place: u32) -> usize {
        let at = place as usize + self.place;
        if at < self.terms.hosts { at } else { at - self.terms.hosts }
    }

    /// What comes next, if it is known: nothing from inside that is not known comes before `horizon`.
    fn next(&self, horizon: Time) -> Result<Option<Come>, RecurrenceRefusal> {
        let (out_there, lane) = self.next_outside();
        // Its last bit is there so long after the first.
        let first_bit =
            self.interface.stream.get(self.interface.taken).map_or(0, |(_, first_bit)| *first_bit);
        let inside = self.member.queue.peek().map(|Reverse(message)| *message);
        match (inside, lane) {
            (Some((there, sent, own, _)), Some(other))
                if (there, sent) == (out_there, first_bit) && own != other =>
            {
                Err(RecurrenceRefusal::Order)
            }
            (Some((there, sent, lane_inside, number)), _)
                if there < horizon
                    && (there < out_there || lane.is_some() && (there, sent) <= (out_there, first_bit)) =>
            {
                Ok(Some(Come { there, sent, next: Next::Inside(lane_inside, number) }))
            }
            (_, Some(lane)) if out_there < horizon => {
                Ok(Some(Come { there: out_there, sent: first_bit, next: Next::Outside(lane) }))
            }
            _ => Ok(None),
        }
    }

    /// Goes on as far as is known what comes; whether that is any further than before. `answered`: others may still
    /// send something inside.
    pub(super) fn go_on(&mut self, known: Time, answered: bool) -> Result<bool, RecurrenceRefusal> {
        let mut moved = false;
        loop {
            // What it sends itself may be answered.
            let first = self.inside.first().filter(|_| answered).map_or(NEVER, |(_, (there, ..))| *there);
            let horizon = known.min(first + self.terms.least.0 + self.terms.local_latency);
            match self.member.stage {
                Stage::Part(end) => {
                    let Some(from) = self.terms.parts[self.member.part].announces else {
                        self.member.time = end;
                        self.part_over();
                        moved = true;
                        continue;
                    };
                    // All that comes until then must be known.
                    if horizon.min(self.outside_horizon()) <= end {
                        return Ok(moved);
                    }
                    self.part_ends(end, from)?;
                    moved = true;
                }
                Stage::Waiting if self.member.open == 0 => self.over(),
                Stage::Waiting => {
                    if horizon >= NEVER && self.member.queue.is_empty() {
                        let taken = self.take_stream()?;
                        moved |= taken > 0;
                    }
                    let Some(come) = self.next(horizon)? else { return Ok(moved) };
                    self.member.now = self.member.time.max(come.there);
                    self.take(&come)?;
                    moved = true;
                }
                Stage::Over => return Ok(moved),
            }
        }
    }

    /// Nothing that is not in the stream comes from outside before.
    fn outside_horizon(&self) -> Time {
        if self.local != self.terms.leader || self.terms.hosts == 1 {
            return NEVER;
        }
        let Interface { receives, heard, stream, .. } = &*self.interface;
        let last = stream.last().map_or(0, |(_, first_bit)| *first_bit);
        last.max(*receives).max(*heard) + self.terms.least.1
    }

    /// A part of the pass is over that announces gradients: lanes start, then what has come is taken in.
    fn part_ends(&mut self, end: Time, from: usize) -> Result<(), RecurrenceRefusal> {
        // What came in the step before was taken in then.
        while let Some(come) = self.next(NEVER)? {
            if come.there > self.member.before || come.there >= end {
                break;
            }
            if come.there == self.member.before {
                return Err(RecurrenceRefusal::Order);
            }
            self.note(&come);
        }
        self.member.before = 0;
        (self.member.time, self.member.now) = (end, end);
        for lane in 0..self.lanes.len() {
            if !self.member.lanes[lane].started && self.lanes[lane].outside.start >= from {
                self.member.lanes[lane].started = true;
                self.advance(lane)?;
            }
        }
        while let Some(come) = self.next(NEVER)? {
            if come.there == end && self.member.set_out.is_none_or(|set_out| set_out == come.sent) {
                return Err(RecurrenceRefusal::Order);
            }
            // Of what happens at the same time, the first is what was set off first.
            if (come.there, Some(come.sent)) > (end, self.member.set_out) {
                break;
            }
            self.take(&come)?;
        }
        if self.member.queue.is_empty() {
            // Not all hosts have so many messages under way at once.
            self.member.queue = BinaryHeap::new();
        }
        self.member.looked = end;
        self.part_over();
        Ok(())
    }

    fn part_over(&mut self) {
        if let Stage::Part(end) = self.member.stage {
            self.member.set_out = Some(end);
        }
        self.member.part += 1;
        if self.member.part < self.terms.parts.len() {
            self.member.next_part(self.terms.parts);
        } else {
            self.member.stage = Stage::Waiting;
        }
    }

    fn over(&mut self) {
        let member = &mut *self.member;
        member.stage = Stage::Over;
        member.queue = BinaryHeap::new();
        member.before = member.looked.max(member.left);
        member.time = member.time.max(member.left);
    }

    /// Notes that a message is there; its lane.
    fn note(&mut self, come: &Come) -> usize {
        match come.next {
            Next::Inside(lane, number) => {
                self.member.queue.pop();
                let word = lane as usize * self.member.words + number as usize / 64;
                self.member.come[word] |= 1 << (number % 64);
                lane as usize
            }
            Next::Outside(lane) => {
                self.interface.taken += 1;
                self.interface.receives = come.there;
                self.member.lanes[lane as usize].heard += 1;
                lane as usize
            }
        }
    }

    fn take(&mut self, come: &Come) -> Result<(), RecurrenceRefusal> {
        let lane = self.note(come);
        if let Some(Reverse((there, sent, other, _))) = self.member.queue.peek()
            && (*there, *sent, *other as usize != lane) == (come.there, come.sent, true)
        {
            return Err(RecurrenceRefusal::Order);
        }
        self.member.looked = come.there;
        self.member.time = self.member.time.max(come.there);
        if self.member.lanes[lane].started { self.advance(lane) } else { Ok(()) }
    }

    /// Makes the moves of a lane as far as messages allow.
    fn advance(&mut self, lane: usize) -> Result<(), RecurrenceRefusal> {
        let HostLane { program, inside, outside, .. } = &self.lanes[lane];
        let moves = &program.local_ranks[self.local];
        loop {
            let LaneState { at, sent, heard, .. } = self.member.lanes[lane];
            let Some(LocalMove { send, receive }) = moves.get(at as usize) else {
                self.member.time += outside.apply;
                self.member.open -= 1;
                return Ok(());
            };
            if let (Some(send), false) = (send, sent) {
                self.send(lane, send);
                self.member.lanes[lane].sent = true;
            }
            if let Some(receive) = receive {
                let costs = if receive.outside {
                    if receive.number >= heard {
                        return Ok(());
                    }
                    // What is replaced must be known to have left: the interface was free at the next mark.
                    if receive.needs != NOTHING
                        && self.interface.marks[lane * MARKS + receive.needs as usize] >= self.member.looked
                    {
                        return Err(RecurrenceRefusal::Order);
                    }
                    outside.chunks[self.own(receive.piece)]
                } else {
                    let word = lane * self.member.words + receive.number as usize / 64;
                    if self.member.come[word] >> (receive.number % 64) & 1 == 0 {
                        return Ok(());
                    }
                    inside[receive.piece as usize]
                };
                self.member.time += costs.take(receive.combine);
            }
            let state = &mut self.member.lanes[lane];
            (state.at, state.sent) = (at + 1, false);
        }
    }

    #[inline]
    fn send(&mut self, lane: usize, send: &Sent) {
        let HostLane { inside, outside, .. } = &self.lanes[lane];
        if send.to != OUTSIDE {
            self.member.unsent -= 1;
            self.member.time += Time::from(inside[send.piece as usize].send);
            self.member.left = self.member.left.max(self.member.time);
            let there = self.member.time + self.terms.local_latency;
            self.inside.push((send.to, (there, self.member.now, lane as u32, send.lands)));
            return;
        }
        let costs = outside.chunks[self.own(send.piece)];
        let (member, interface) = (&mut *self.member, &mut *self.interface);
        member.time += Time::from(costs.send);
        let begin = member.time.max(interface.sends);
        interface.sends = begin + Time::from(costs.transfer);
        let left = member.time.max(interface.sends.saturating_sub(self.terms.room));
        member.left = member.left.max(left);
        interface.out.push((lane as u32, begin + self.terms.latency));
        if send.mark != NOTHING {
            interface.marks[lane * MARKS + send.mark as usize] = interface.sends;
        }
    }

    /// Takes in messages from outside while nothing comes from inside; how many. What [`MemberRun::take`] does for each,
    /// where a message is the one that its lane waits for and another one follows it: nearly all come through here.
    fn take_stream(&mut self) -> Result<usize, RecurrenceRefusal> {
        let (place, hosts) = (self.place, self.terms.hosts);
        let Interface { sends, receives, marks, stream, taken, out, .. } = &mut *self.interface;
        let (mut time, mut free) = (self.member.time, [*sends, *receives]);
        let (first, mut last_send) = (*taken, None);
        out.reserve(stream.len() - first);
        for &(number, first_bit) in &stream[first..] {
            let lane = number as usize;
            let (state, HostLane { program, outside, .. }) =
                (&mut self.member.lanes[lane], &self.lanes[lane]);
            let Some(turn) = program.turns.get(state.at as usize).filter(|turn| turn.receive != NOTHING)
            else {
                break;
            };
            if !state.started || state.heard != turn.number {
                break;
            }
            let own = |chunk: u32| {
                let at = chunk as usize + place;
                outside.chunks[if at < hosts { at } else { at - hosts }]
            };
            let costs = own(turn.receive);
            free[1] = free[1].max(first_bit) + Time::from(costs.transfer);
            let marks = &mut marks[lane * MARKS..][..MARKS];
            if turn.needs != NOTHING && marks[turn.needs as usize] >= free[1] {
                return Err(RecurrenceRefusal::Order);
            }
            time = time.max(free[1]) + costs.take(turn.combine);
            let costs = own(turn.send);
            time += Time::from(costs.send);
            let begin = time.max(free[0]);
            free[0] = begin + Time::from(costs.transfer);
            out.push((number, begin + self.terms.latency));
            if turn.mark != NOTHING {
                marks[turn.mark as usize] = free[0];
            }
            last_send = Some(time);
            (state.at, state.sent, state.heard) = (state.at + 1, true, state.heard + 1);
            *taken += 1;
        }
        [*sends, *receives] = free;
        let member = &mut *self.member;
        member.time = time;
        if let Some(at) = last_send {
            member.looked = free[1];
            member.left = member.left.max(at).max(free[0].saturating_sub(self.terms.room));
        }
        Ok(self.interface.taken - first)
    }
}
