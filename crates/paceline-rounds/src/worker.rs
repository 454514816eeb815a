//! The participant: each lane runs its worker's operations by itself, as soon as it may.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use paceline_protocol::setup::{part, pieces, split};
use paceline_protocol::{
    Accumulate, Action, Actions, Buf, Coder, GradientScale, MessageHead, MsgId, OpId, Rank, Region, Setup,
    StepProtocol, TAKEN, Tag,
};

use crate::compile::{Iteration, RoundOp, needs_gradient};
use crate::program::Compiled;
use crate::statement::{G, Register, X};

/// A worker of a strategy file.
pub struct RoundsWorker {
    compiled: Arc<Compiled>,
    rank: Rank,
    generation: u32,
    scale: GradientScale,
    /// Whether the model is averaged: then it is touched only after backward.
    weights: bool,
    step: u64,
    iteration: Arc<Iteration>,
    lanes: Vec<Lane>,
    coder: Option<Coder>,
    /// Where codes lie until they have left, and where a swap keeps a register meanwhile.
    codes: Buf,
    spare: Buf,
    scratch: Vec<usize>,
    /// Bodies that have come.
    held: HashMap<(Rank, Tag), MsgId>,
    sends: HashMap<OpId, usize>,
    /// Lanes that are not at their end in this step, and the first of them.
    open: usize,
    first: usize,
    /// Steps whose messages a peer has not taken yet, with how many it may leave.
    untaken: BTreeMap<Rank, (u64, BTreeSet<u64>)>,
    /// Messages of this step that are still to be taken, of senders who are told then.
    owed: HashMap<Rank, usize>,
}

/// A region that runs the rounds by itself.
struct Lane {
    range: Range<usize>,
    /// Which of the independent chunks it is.
    chunk: usize,
    code: usize,
    /// The next operation.
    at: usize,
    /// Whether its gradient is there.
    ready: bool,
    done: bool,
    /// What is still being sent, and whether it is the model or its gradient itself.
    leaving: Vec<(OpId, Region)>,
}

impl RoundsWorker {
    pub fn new(compiled: Arc<Compiled>, setup: &Setup, rank: Rank) -> Self {
        let cut = compiled.cut;
        let most = setup.message * cut.chunks / compiled.piece;
        let mut lanes = Vec::new();
        let mut code = 0;
        for lane in setup.buckets().into_iter().flat_map(|bucket| pieces(&bucket, most)) {
            for (chunk, range) in split(&lane, cut.independent).into_iter().enumerate() {
                // Each chunk has an element to spare for rounding up.
                let words = setup.coder.map_or(0, |coder| coder.words(range.len()) + cut.each());
                let (ready, done, leaving) = (false, false, Vec::new());
                lanes.push(Lane { range, chunk, code, at: 0, ready, done, leaving });
                code += words;
            }
        }
        let registers = compiled.description.registers.len() - 2;
        let mut scratch = vec![setup.params; registers];
        let mut more = |needed: bool, len: usize| {
            if needed {
                scratch.push(len);
            }
            Buf::Scratch(scratch.len().max(1) as u16 - 1)
        };
        let codes = more(setup.coder.is_some(), code);
        let spare = more(compiled.swaps, setup.params);
        let iteration = compiled.iteration(setup.from);
        Self {
            rank,
            generation: setup.generation,
            scale: compiled.scale,
            weights: compiled.weights,
            step: setup.from,
            iteration,
            lanes,
            coder: setup.coder,
            codes,
            spare,
            scratch,
            held: HashMap::new(),
            sends: HashMap::new(),
            open: 0,
            first: 0,
            untaken: BTreeMap::new(),
            owed: HashMap::new(),
            compiled,
        }
    }

    fn buf(register: Register) -> Buf {
        match register {
            X => Buf::Param,
            G => Buf::Grad,
            scratch => Buf::Scratch(scratch as u16 - 2),
        }
    }

    /// The elements of a lane's chunks.
    fn range(&self, lane: usize, chunks: &Range<usize>) -> Range<usize> {
        let (whole, each) = (&self.lanes[lane].range, self.iteration.chunks);
        part(whole, each, chunks.start).start..part(whole, each, chunks.end - 1).end
    }

    fn region(&self, lane: usize, register: Register, chunks: &Range<usize>) -> Region {
        Region::new(Self::buf(register), self.range(lane, chunks))
    }

    /// Whether something of a region is still being sent.
    fn leaves(&self, lane: usize, region: Region) -> bool {
        self.lanes[lane].leaving.iter().any(|(_, sent)| sent.overlaps(&region))
    }

    fn tag(&self, lane: usize, phase: u32) -> Tag {
        let (generation, step) = (self.generation, self.step as u32);
        Tag { generation, step, bucket: lane as u32, phase }
    }

    /// Makes a lane's operations as far as messages, sends and gradients allow.
    fn advance(&mut self, i: usize, out: &mut Actions) {
        if self.lanes[i].done {
            return;
        }
        let iteration = Arc::clone(&self.iteration);
        let ops = &iteration.ops[self.lanes[i].chunk][self.rank];
        while let Some(op) = ops.get(self.lanes[i].at) {
            let waits = needs_gradient(op) && !self.lanes[i].ready;
            if waits || !self.make(i, op, out) {
                return;
            }
            self.lanes[i].at += 1;
        }
        // A lane without anything to do after its gradient is at its end with it.
        if !self.lanes[i].ready {
            return;
        }
        self.lanes[i].done = true;
        self.open -= 1;
        while self.lanes.get(self.first).is_some_and(|lane| lane.done) {
            self.first += 1;
        }
    }

    /// Makes one operation; false if something is missing.
    fn make(&mut self, i: usize, op: &RoundOp, out: &mut Actions) -> bool {
        match op {
            RoundOp::Send { to, register, chunks, phase, copied, window } => {
                let src = self.region(i, *register, chunks);
                let Some(body) = self.body(i, src, chunks.start, *copied, out) else { return false };
                let tag = self.tag(i, *phase);
                for &peer in to {
                    let send = out.send(peer, tag, MessageHead::default(), Some(body));
                    self.sends.insert(send, i);
                    self.lanes[i].leaving.push((send, body));
                    if let Some(window) = window {
                        let untaken = self.untaken.entry(peer).or_default();
                        untaken.0 = *window;
                        untaken.1.insert(self.step);
                    }
                }
            }
            RoundOp::Receive { from, register, chunks, phase, keep, add, window } => {
                let dst = self.region(i, *register, chunks);
                let key = (*from, self.tag(i, *phase));
                if !self.held.contains_key(&key) || self.leaves(i, dst) {
                    return false;
                }
                let Some(msg) = self.held.remove(&key) else { return false };
                self.take(dst, msg, *keep, *add, out);
                out.push(Action::Release(msg));
                if *window {
                    self.owe_one_less(*from, out);
                }
            }
            RoundOp::Set { dst, src, chunks, keep, add } => {
                let (dst, src) = (self.region(i, *dst, chunks), self.region(i, *src, chunks));
                if self.leaves(i, dst) {
                    return false;
                }
                match (*keep, *add) {
                    (1.0, 0.0) => {}
                    (0.0, 1.0) => out.push(Action::Copy { dst, src }),
                    (1.0, 1.0) => out.push(Action::Reduce { dst, src }),
                    (keep, add) => out.push(Action::Mix { dst, keep, src, add }),
                }
            }
            RoundOp::Scale { dst, chunks, by } => {
                let dst = self.region(i, *dst, chunks);
                if self.leaves(i, dst) {
                    return false;
                }
                out.push(Action::Scale { dst, by: *by });
            }
            RoundOp::Swap(a, b, chunks) => {
                let (a, b) = (self.region(i, *a, chunks), self.region(i, *b, chunks));
                if self.leaves(i, a) || self.leaves(i, b) {
                    return false;
                }
                let spare = Region { buf: self.spare, ..a };
                out.push(Action::Copy { dst: spare, src: a });
                out.push(Action::Copy { dst: a, src: b });
                out.push(Action::Copy { dst: b, src: spare });
            }
            RoundOp::Update(with) => {
                let all = 0..self.iteration.chunks;
                let (params, grad) = (self.region(i, X, &all), self.region(i, *with, &all));
                if self.leaves(i, params) {
                    return false;
                }
                out.push(Action::Apply { params, grad, step: self.step, whole: true });
            }
        }
        true
    }

    fn take(&self, dst: Region, msg: MsgId, keep: f32, add: f32, out: &mut Actions) {
        let into = match (keep, add) {
            (1.0, 1.0) => Accumulate::Add,
            (0.0, 1.0) => Accumulate::Set,
            // Codes are decoded in these two ways alone: the setup was refused otherwise.
            (keep, add) => {
                let src = Region { buf: Buf::Msg(msg), offset: 0, len: dst.len };
                return out.push(Action::Mix { dst, keep, src, add });
            }
        };
        out.push(Action::take(self.coder, dst, msg, into));
    }

    /// What is sent of a region; nothing yet if another code still lies in its place.
    fn body(&self, i: usize, src: Region, chunk: usize, copied: bool, out: &mut Actions) -> Option<Region> {
        let Some(coder) = self.coder else { return Some(src) };
        let before = src.offset - self.lanes[i].range.start;
        let offset = self.lanes[i].code + coder.words(before) + chunk;
        let code = Region { buf: self.codes, offset, len: coder.words(src.len) };
        if self.leaves(i, code) {
            return None;
        }
        out.push(Action::Encode { coder, dst: code, src, feedback: false });
        if copied {
            // Everybody must end up with the same numbers, the sender too.
            out.push(Action::Decode { coder, dst: src, src: code, into: Accumulate::Set });
        }
        Some(code)
    }

    /// Tells a sender once all its messages of this step are taken.
    fn owe_one_less(&mut self, to: Rank, out: &mut Actions) {
        let Some(owed) = self.owed.get_mut(&to) else { return };
        *owed -= 1;
        if *owed == 0 {
            let tag = Tag { bucket: 0, ..self.tag(0, TAKEN) };
            out.send(to, tag, MessageHead::default(), None);
        }
    }

    /// Lanes whose gradient is there go on.
    fn ready(&mut self, from: usize, out: &mut Actions) {
        for i in 0..self.lanes.len() {
            if !self.lanes[i].ready && self.lanes[i].range.start >= from {
                self.lanes[i].ready = true;
                self.advance(i, out);
            }
        }
    }
}

impl StepProtocol for RoundsWorker {
    fn scale(&self) -> GradientScale {
        self.scale
    }

    fn begin(&mut self, step: u64, out: &mut Actions) {
        self.step = step;
        self.iteration = self.compiled.iteration(step);
        (self.open, self.first) = (self.lanes.len(), 0);
        for lane in &mut self.lanes {
            (lane.at, lane.ready, lane.done) = (0, false, false);
        }
        self.owed.clear();
        for lane in &self.lanes {
            for op in &self.iteration.ops[lane.chunk][self.rank] {
                if let RoundOp::Receive { from, window: true, .. } = op {
                    *self.owed.entry(*from).or_default() += 1;
                }
            }
        }
        // What needs no gradient is exchanged while it is computed.
        (0..self.lanes.len()).for_each(|i| self.advance(i, out));
    }

    fn gradients(&mut self, from: usize, out: &mut Actions) {
        if !self.weights {
            self.ready(from, out);
        }
    }

    fn backward_done(&mut self, out: &mut Actions) {
        self.ready(0, out);
    }

    fn message(&mut self, from: Rank, tag: Tag, msg: Option<MsgId>, out: &mut Actions) {
        let i = tag.bucket as usize;
        match msg {
            None if tag.phase == TAKEN => {
                if let Some((_, steps)) = self.untaken.get_mut(&from) {
                    steps.remove(&u64::from(tag.step));
                }
            }
            None => {}
            Some(msg) if i >= self.lanes.len() => out.push(Action::Release(msg)),
            Some(msg) => {
                if let Some(second) = self.held.insert((from, tag), msg) {
                    out.push(Action::Release(second));
                }
                self.advance(i, out);
            }
        }
    }

    fn sent(&mut self, op: OpId, out: &mut Actions) {
        let Some(i) = self.sends.remove(&op) else { return };
        self.lanes[i].leaving.retain(|(leaving, _)| *leaving != op);
        self.advance(i, out);
    }

    fn over(&self) -> bool {
        let own = |region: &Region| matches!(region.buf, Buf::Param | Buf::Grad);
        // What is sent from the model or its gradient itself has to leave before they change.
        self.open == 0
            && self.untaken.values().all(|(window, steps)| (steps.len() as u64) < *window)
            && self.lanes.iter().all(|lane| lane.leaving.iter().all(|(_, region)| !own(region)))
    }

    fn settled(&self) -> bool {
        self.untaken.values().all(|(_, steps)| steps.is_empty()) && self.sends.is_empty()
    }

    fn waiting_for(&self) -> Option<Rank> {
        if let Some(lane) = self.lanes.get(self.first) {
            return match self.iteration.ops[lane.chunk][self.rank].get(lane.at) {
                Some(RoundOp::Receive { from, .. }) => Some(*from),
                _ => None,
            };
        }
        self.untaken.iter().find(|(_, (_, steps))| !steps.is_empty()).map(|(peer, _)| *peer)
    }

    fn release(&mut self, out: &mut Actions) {
        self.held.drain().for_each(|(_, msg)| out.push(Action::Release(msg)));
    }

    fn scratch(&self) -> Vec<usize> {
        self.scratch.clone()
    }
}
