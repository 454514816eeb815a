//! The one executor of schedules: runs a collective over lanes of one buffer, each lane by itself as soon
//! as it is started.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::codec::{Accumulate, Coder};
use crate::schedule::{
    CollectiveCall, CollectivePath, Combine, Move, Piece, Schedule, ScheduleOf, SizedPath,
};
use crate::setup::{Setup, part, pieces};
use crate::topology::Topology;
use crate::vocabulary::{Action, Actions, Buf, MessageHead, MsgId, OpId, Rank, Region, Tag};

/// A collective over lanes of one buffer.
pub struct Exchange {
    /// Phases from here on are this exchange's rounds.
    phase: u32,
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
    schedule: Arc<Schedule>,
    state: State,
    /// The next move, and whether its send was made.
    at: usize,
    sent: bool,
    /// What is still being sent.
    leaving: Vec<(OpId, Piece)>,
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

/// What a rank does with each bucket, by its length: schedules are made once and shared.
pub struct Schedules {
    make: ScheduleOf,
    rank: Rank,
    topology: Topology,
    paths: Vec<SizedPath>,
    made: Vec<(usize, Arc<Schedule>)>,
}

impl Schedules {
    /// A rank's, of one of a path's two collectives.
    pub fn new(make: ScheduleOf, setup: &Setup, rank: Rank) -> Self {
        Self { make, rank, topology: setup.topology(), paths: setup.paths.clone(), made: Vec::new() }
    }

    /// The schedule for a bucket of so many elements.
    pub fn of(&mut self, elements: usize) -> Arc<Schedule> {
        if let Some((_, schedule)) = self.made.iter().find(|(len, _)| *len == elements) {
            return Arc::clone(schedule);
        }
        let bytes = elements * size_of::<f32>();
        let call = CollectiveCall { topology: &self.topology, bytes, paths: &self.paths };
        let schedule = Arc::new((self.make)(self.rank, &call));
        self.made.push((elements, Arc::clone(&schedule)));
        schedule
    }

    /// Cuts a range that is exchanged together into lanes, so that no message of its schedule is longer than the
    /// setup allows.
    pub fn cut(&mut self, setup: &Setup, range: &Range<usize>) -> Vec<(Range<usize>, Arc<Schedule>)> {
        let schedule = self.of(range.len());
        let most = setup.message * schedule.chunks / schedule.piece.max(1);
        pieces(range, most).into_iter().map(|lane| (lane, Arc::clone(&schedule))).collect()
    }
}

/// The lanes of a run's parameters and how a rank sums each: pieces of the buckets, in the order in which backward
/// finishes them.
pub fn lanes(
    setup: &Setup,
    path: CollectivePath,
    rank: Rank,
) -> impl Iterator<Item = (Range<usize>, Arc<Schedule>)> {
    let mut schedules = Schedules::new(path.reduce, setup, rank);
    setup.buckets().into_iter().flat_map(move |bucket| schedules.cut(setup, &bucket))
}

impl Exchange {
    /// An exchange over `lanes`, whose phases begin at `phase`.
    pub fn new(setup: &Setup, lanes: impl IntoIterator<Item = (Region, Arc<Schedule>)>, phase: u32) -> Self {
        let idle = |(region, schedule)| Lane {
            region,
            schedule,
            state: State::Idle,
            at: 0,
            sent: false,
            leaving: Vec::new(),
        };
        Self {
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
        let lens = self.lanes.iter().map(|lane| coder.words(lane.region.len) + lane.schedule.chunks);
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
        self.lanes.iter().map(|lane| coder.words(lane.region.len) + lane.schedule.chunks).sum()
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
        lane.schedule.moves.get(lane.at)?.receive.map(|piece| piece.peer)
    }

    /// Gives back every message that is held.
    pub fn release(&mut self, out: &mut Actions) {
        self.early.drain().for_each(|(_, msg)| out.push(Action::Release(msg)));
    }

    fn tag(&self, lane: usize, round: u32) -> Tag {
        let (generation, step) = (self.generation, self.step as u32);
        Tag { generation, step, bucket: lane as u32, phase: self.phase + round }
    }

    /// The elements of a piece.
    fn of(&self, lane: usize, piece: Piece) -> Region {
        let Lane { region, schedule, .. } = &self.lanes[lane];
        let whole = region.range();
        let chunk = |i| part(&whole, schedule.chunks, i);
        Region::new(region.buf, chunk(piece.first).start..chunk(piece.first + piece.count - 1).end)
    }

    /// Whether a chunk of the piece is still being sent: it must not change.
    fn leaving(&self, i: usize, piece: Piece) -> bool {
        let chunks = piece.first..piece.first + piece.count;
        let overlaps =
            |(_, read): &(OpId, Piece)| read.first < chunks.end && chunks.start < read.first + read.count;
        self.lanes[i].leaving.iter().any(overlaps)
    }

    /// Makes the moves of a lane as far as messages and sends allow; true when the last one is made.
    fn advance(&mut self, i: usize, out: &mut Actions) -> bool {
        while self.lanes[i].state == State::Running {
            let Some(&step) = self.lanes[i].schedule.moves.get(self.lanes[i].at) else {
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
            let Some(body) = self.body(i, piece, out) else { return false };
            let op = out.send(piece.peer, self.tag(i, step.round), MessageHead::default(), Some(body));
            self.sends.insert(op, i);
            self.lanes[i].leaving.push((op, piece));
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

    /// What is sent of a piece; nothing yet if another code still lies in its place.
    fn body(&self, i: usize, piece: Piece, out: &mut Actions) -> Option<Region> {
        let src = self.of(i, piece);
        let Some(Hops { coder, outbox, starts }) = &self.hops else { return Some(src) };
        let before = src.offset - self.lanes[i].region.offset;
        // Codes of neighbouring pieces do not overlap: each chunk has an element to spare for rounding up.
        let offset = starts[i] + coder.words(before) + piece.first;
        let code = Region { buf: *outbox, offset, len: coder.words(src.len) };
        if self.leaving(i, piece) {
            // On their way to somebody else, the same chunks cannot have changed: their code is still right.
            let same = |(_, sent): &(OpId, Piece)| Piece { peer: piece.peer, ..*sent } == piece;
            let spread = piece.combine == Combine::Replace && self.lanes[i].leaving.iter().any(same);
            return spread.then_some(code);
        }
        out.push(Action::Encode { coder: *coder, dst: code, src, feedback: false });
        if piece.combine == Combine::Replace {
            // Everybody must end up with the same numbers, the sender too.
            out.push(Action::Decode { coder: *coder, dst: src, src: code, into: Accumulate::Set });
        }
        Some(code)
    }
}
