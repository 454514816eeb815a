//! The one executor of schedules: runs a collective over lanes of one buffer, each lane by itself as soon
//! as it is started.

use std::collections::HashMap;
use std::ops::Range;

use crate::codec::{Accumulate, Coder};
use crate::schedule::{Combine, Move, Piece, Schedule};
use crate::setup::{Setup, part, pieces};
use crate::vocabulary::{Action, Actions, Buf, MessageHead, MsgId, OpId, Rank, Region, Tag};

/// A collective over lanes of one buffer.
pub struct Exchange {
    schedule: Schedule,
    /// Phases from here on are this exchange's rounds.
    phase: u16,
    generation: u32,
    step: u64,
    lanes: Vec<Lane>,
    hops: Option<Hops>,
    /// Whether a lane's end waits until nothing of it is still being sent: its elements will be changed.
    patient: bool,
    /// Sends that are under way, with the lane that they read.
    sends: HashMap<OpId, usize>,
    /// Messages that came before their lane was ready for them.
    early: HashMap<Tag, MsgId>,
    /// Lanes that are not finished in this step, and the first of them.
    open: usize,
    first: usize,
}

/// A region that runs the schedule by itself.
struct Lane {
    region: Region,
    state: State,
    /// The next move, and whether its send was made.
    at: usize,
    sent: bool,
    /// Chunks that are still being sent.
    leaving: Vec<(OpId, Range<usize>)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Running,
    Done,
}

/// Sums stay as they are; what travels is encoded on every hop.
struct Hops {
    coder: Coder,
    /// Where codes lie until they have left, and where each lane's begin.
    outbox: Buf,
    starts: Vec<usize>,
}

/// The lanes of a run's parameters: pieces of the buckets, in the order in which backward finishes them, cut
/// so that no message of the schedule is longer than the setup allows.
pub fn lanes(setup: &Setup, schedule: &Schedule) -> Vec<Range<usize>> {
    let most = setup.message * schedule.chunks / schedule.piece.max(1);
    setup.buckets().iter().flat_map(|bucket| pieces(bucket, most)).collect()
}

impl Exchange {
    /// An exchange over `lanes`, whose phases begin at `phase`.
    pub fn new(setup: &Setup, schedule: Schedule, lanes: Vec<Region>, phase: u16) -> Self {
        let idle = |region| Lane { region, state: State::Idle, at: 0, sent: false, leaving: Vec::new() };
        Self {
            schedule,
            phase,
            generation: setup.generation,
            step: 0,
            lanes: lanes.into_iter().map(idle).collect(),
            hops: None,
            patient: false,
            sends: HashMap::new(),
            early: HashMap::new(),
            open: 0,
            first: 0,
        }
    }

    /// Encodes every message, in a scratch buffer of [`Exchange::outbox_len`] elements.
    pub fn with_hops(mut self, coder: Coder, outbox: Buf) -> Self {
        let lens = self.lanes.iter().map(|lane| coder.words(lane.region.len) + self.schedule.chunks);
        let starts = lens.scan(0, |at, len| Some(std::mem::replace(at, *at + len))).collect();
        self.hops = Some(Hops { coder, outbox, starts });
        self
    }

    /// A lane is at its end only when nothing of it is still being sent: for those who change it then.
    pub fn patient(self) -> Self {
        Self { patient: true, ..self }
    }

    /// Elements that [`Exchange::with_hops`] needs.
    pub fn outbox_len(&self, coder: Coder) -> usize {
        self.lanes.iter().map(|lane| coder.words(lane.region.len) + self.schedule.chunks).sum()
    }

    /// Number of lanes.
    pub fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Whether there is nothing to exchange.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Where a lane lies.
    pub fn region(&self, lane: usize) -> Region {
        self.lanes[lane].region
    }

    /// Begins a step: every lane is to be run once more.
    pub fn begin(&mut self, step: u64) {
        (self.step, self.open, self.first) = (step, self.lanes.len(), 0);
        for lane in &mut self.lanes {
            (lane.state, lane.at, lane.sent) = (State::Idle, 0, false);
        }
    }

    /// Runs a lane as far as it goes; true if that is to its end.
    pub fn start(&mut self, lane: usize, out: &mut Actions) -> bool {
        self.lanes[lane].state = State::Running;
        self.advance(lane, out)
    }

    /// Takes a message; the lane that it brought to its end.
    pub fn message(&mut self, tag: Tag, msg: MsgId, out: &mut Actions) -> Option<usize> {
        self.early.insert(tag, msg);
        let lane = tag.bucket as usize;
        let now = u64::from(tag.step) == self.step && lane < self.lanes.len();
        (now && self.advance(lane, out)).then_some(lane)
    }

    /// Takes the end of a send; the lane that it brought to its end.
    pub fn sent(&mut self, op: OpId, out: &mut Actions) -> Option<usize> {
        let lane = self.sends.remove(&op)?;
        self.lanes[lane].leaving.retain(|(leaving, _)| *leaving != op);
        self.advance(lane, out).then_some(lane)
    }

    /// Whether every lane is at its end and nothing is still being sent.
    pub fn over(&self) -> bool {
        self.open == 0 && self.sends.is_empty()
    }

    /// For whom the first lane that has not ended waits.
    pub fn waiting_for(&self) -> Option<Rank> {
        let lane = self.lanes.get(self.first).filter(|lane| lane.state == State::Running)?;
        self.schedule.moves.get(lane.at)?.receive.map(|piece| piece.peer)
    }

    /// Gives back every message that is held.
    pub fn release(&mut self, out: &mut Actions) {
        self.early.drain().for_each(|(_, msg)| out.push(Action::Release(msg)));
    }

    fn tag(&self, lane: usize, round: u16) -> Tag {
        let (generation, step) = (self.generation, self.step as u32);
        Tag { generation, step, bucket: lane as u32, phase: self.phase + round }
    }

    /// The elements of a piece.
    fn of(&self, lane: usize, piece: Piece) -> Region {
        let Region { buf, .. } = self.lanes[lane].region;
        let whole = self.lanes[lane].region.range();
        let chunk = |i| part(&whole, self.schedule.chunks, i);
        Region::new(buf, chunk(piece.first).start..chunk(piece.first + piece.count - 1).end)
    }

    /// Whether a chunk of the piece is still being sent: it must not change.
    fn leaving(&self, i: usize, piece: Piece) -> bool {
        let chunks = piece.first..piece.first + piece.count;
        let overlaps = |(_, read): &(OpId, Range<usize>)| read.start < chunks.end && chunks.start < read.end;
        self.lanes[i].leaving.iter().any(overlaps)
    }

    /// Makes the moves of a lane as far as messages and sends allow; true when the last one is made.
    fn advance(&mut self, i: usize, out: &mut Actions) -> bool {
        while self.lanes[i].state == State::Running {
            let Some(&step) = self.schedule.moves.get(self.lanes[i].at) else {
                if self.patient && !self.lanes[i].leaving.is_empty() {
                    return false;
                }
                self.lanes[i].state = State::Done;
                self.open -= 1;
                while self.lanes.get(self.first).is_some_and(|lane| lane.state == State::Done) {
                    self.first += 1;
                }
                return true;
            };
            if !self.make(i, step, out) {
                return false;
            }
            self.lanes[i].at += 1;
            self.lanes[i].sent = false;
        }
        false
    }

    /// Makes one move; false if something is missing.
    fn make(&mut self, i: usize, step: Move, out: &mut Actions) -> bool {
        if let (Some(piece), false) = (step.send, self.lanes[i].sent) {
            if self.hops.is_some() && self.leaving(i, piece) {
                return false;
            }
            let body = self.body(i, piece, out);
            let op = out.send(piece.peer, self.tag(i, step.round), MessageHead::default(), Some(body));
            self.sends.insert(op, i);
            self.lanes[i].leaving.push((op, piece.first..piece.first + piece.count));
            self.lanes[i].sent = true;
        }
        let Some(piece) = step.receive else { return true };
        let tag = self.tag(i, step.round);
        if !self.early.contains_key(&tag) || self.leaving(i, piece) {
            return false;
        }
        let Some(msg) = self.early.remove(&tag) else { return false };
        let dst = self.of(i, piece);
        let into = if piece.combine == Combine::Add { Accumulate::Add } else { Accumulate::Set };
        out.push(Action::take(self.hops.as_ref().map(|hops| hops.coder), dst, msg, into));
        out.push(Action::Release(msg));
        true
    }

    /// What is sent of a piece.
    fn body(&self, i: usize, piece: Piece, out: &mut Actions) -> Region {
        let src = self.of(i, piece);
        let Some(Hops { coder, outbox, starts }) = &self.hops else { return src };
        let before = src.offset - self.lanes[i].region.offset;
        // Codes of neighbouring pieces do not overlap: each chunk has an element to spare for rounding up.
        let offset = starts[i] + coder.words(before) + piece.first;
        let code = Region { buf: *outbox, offset, len: coder.words(src.len) };
        out.push(Action::Encode { coder: *coder, dst: code, src, feedback: false });
        if piece.combine == Combine::Replace {
            // Everybody must end up with the same numbers, the sender too.
            out.push(Action::Decode { coder: *coder, dst: src, src: code, into: Accumulate::Set });
        }
        code
    }
}
