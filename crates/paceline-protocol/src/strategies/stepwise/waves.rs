//! The participant: one wave per lane and chunk, each by itself.

use std::collections::{BTreeSet, HashMap};

use super::Axes;
use crate::codec::{Accumulate, Coder};
use crate::setup::{Averages, Setup, pieces, split};
use crate::step_driver::StepProtocol;
use crate::vocabulary::{
    Action, Actions, Buf, GradientScale, MessageHead, MsgId, OpId, Rank, Region, TAKEN, Tag,
};

/// Kinds of messages besides [`TAKEN`]: a running sum, and a full average.
const SUM: u32 = 0;
const MEAN: u32 = 1;

/// Steps whose sums the next worker may leave untaken: nothing else keeps a start worker from running away
/// from those behind it and filling their memory.
const WINDOW: usize = 8;

/// Sums on their way out, laid out like the parameters.
const OUTBOX: Buf = Buf::Scratch(0);

pub(super) struct Waves {
    axes: Axes,
    averages: Averages,
    rank: Rank,
    generation: u32,
    step: u64,
    waves: Vec<Wave>,
    /// Push-sum's weight of each worker, by chunk.
    weights: Vec<Vec<f64>>,
    coder: Option<Coder>,
    /// Where codes lie until they have left.
    codes: Buf,
    scratch: Vec<usize>,
    /// Bodies that have come, by wave, step and kind.
    held: HashMap<(usize, u32, u32), MsgId>,
    sends: HashMap<OpId, (usize, u32)>,
    /// Waves whose own part in this step is not over.
    open: usize,
    /// Steps whose sums the next worker has not taken yet.
    untaken: BTreeSet<u64>,
    /// Sums from the worker before that have not been taken in this step.
    owed: usize,
    /// Full averages that are still being sent.
    means_leaving: usize,
}

/// A region that travels by itself.
struct Wave {
    offset: usize,
    len: usize,
    chunk: usize,
    code: usize,
    stage: Stage,
    /// A sum, or a mean, is still being sent.
    sum_leaves: bool,
    mean_leaves: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The own update is not made.
    Idle,
    /// The sum of those before is needed.
    Sum,
    /// The mean of all is needed.
    Mean,
    Over,
}

impl Waves {
    pub(super) fn new(setup: &Setup, rank: Rank) -> Self {
        let axes = Axes::new(setup);
        let lanes = setup.buckets().into_iter().flat_map(|b| pieces(&b, setup.message * axes.chunks));
        let mut code = 0;
        let mut waves = Vec::new();
        for lane in lanes {
            for (chunk, range) in split(&lane, axes.chunks).into_iter().enumerate() {
                let (offset, len, stage) = (range.start, range.len(), Stage::Idle);
                waves.push(Wave { offset, len, chunk, code, stage, sum_leaves: false, mean_leaves: false });
                code += setup.coder.map_or(0, |coder| coder.words(len));
            }
        }
        let mut scratch = vec![setup.params];
        let mut more = |len| {
            scratch.push(len);
            Buf::Scratch(scratch.len() as u16 - 1)
        };
        let codes = if setup.coder.is_some() { more(code) } else { OUTBOX };
        Self {
            weights: vec![vec![1.0; setup.workers]; axes.chunks],
            axes,
            averages: setup.averages,
            rank,
            generation: setup.generation,
            step: 0,
            waves,
            coder: setup.coder,
            codes,
            scratch,
            held: HashMap::new(),
            sends: HashMap::new(),
            open: 0,
            untaken: BTreeSet::new(),
            owed: 0,
            means_leaving: 0,
        }
    }

    fn region(&self, i: usize, buf: Buf) -> Region {
        Region { buf, offset: self.waves[i].offset, len: self.waves[i].len }
    }

    /// The buffer that is averaged in this step: full averages are always of weights.
    fn averaged(&self) -> Buf {
        match self.averages {
            Averages::Gradients if !self.together() => Buf::Grad,
            _ => Buf::Param,
        }
    }

    fn together(&self) -> bool {
        self.axes.brings_together(self.step)
    }

    fn position(&self, i: usize) -> usize {
        self.axes.position(self.step, self.waves[i].chunk, self.rank)
    }

    fn apply(&self, i: usize, out: &mut Actions) {
        let (params, grad) = (self.region(i, Buf::Param), self.region(i, Buf::Grad));
        out.push(Action::Apply { params, grad, step: self.step, whole: true });
    }

    /// The own update, of the parameters z; what push-sum spreads is x = w·z. (Moving x as far as z would
    /// count every worker the same, but multiplies its own step by 1/w, and w becomes very small.)
    fn update(&self, i: usize, out: &mut Actions) {
        self.apply(i, out);
        let weight = self.weights[self.waves[i].chunk][self.rank];
        if weight != 1.0 {
            out.push(Action::Scale { dst: self.region(i, Buf::Param), by: weight as f32 });
        }
    }

    /// What a position's parameters are divided by, once it has added its own: with push-sum, Σ over the positions up to
    /// it of w/(p − j), which becomes its weight.
    fn divisor(&self, i: usize, position: usize) -> f64 {
        if !self.axes.push_sum {
            return (position + 1) as f64;
        }
        let chunk = self.waves[i].chunk;
        let start = self.axes.start(self.step, chunk);
        let (weights, p) = (&self.weights[chunk], self.axes.workers);
        (0..=position).map(|j| weights[(start + j) % p] * self.axes.share(j)).sum()
    }

    fn send(&mut self, i: usize, kind: u32, src: Region, out: &mut Actions) {
        let body = self.coder.map_or(src, |coder| {
            let dst = Region { buf: self.codes, offset: self.waves[i].code, len: coder.words(src.len) };
            out.push(Action::Encode { coder, dst, src, feedback: false });
            if kind == MEAN {
                // Everybody must end up with the same numbers, the sender too.
                out.push(Action::Decode { coder, dst: src, src: dst, into: Accumulate::Set });
            }
            dst
        });
        let (generation, step) = (self.generation, self.step as u32);
        let tag = Tag { generation, step, bucket: i as u32, phase: kind };
        let op = out.send((self.rank + 1) % self.axes.workers, tag, MessageHead::default(), Some(body));
        self.sends.insert(op, (i, kind));
        if kind == SUM {
            self.waves[i].sum_leaves = true;
            self.untaken.insert(self.step);
        } else {
            self.waves[i].mean_leaves = true;
            self.means_leaving += 1;
        }
    }

    /// Takes a held body into a region, and gives it back.
    fn take(&self, msg: MsgId, dst: Region, into: Accumulate, out: &mut Actions) {
        out.push(Action::take(self.coder, dst, msg, into));
        out.push(Action::Release(msg));
    }

    /// Brings a wave as far as it goes.
    fn advance(&mut self, i: usize, out: &mut Actions) {
        if self.waves[i].stage == Stage::Sum {
            self.add_own(i, out);
        }
        if self.waves[i].stage == Stage::Mean {
            self.take_mean(i, out);
        }
    }

    /// Adds the own contribution to the sum of those before, forwards it, and takes what is due.
    fn add_own(&mut self, i: usize, out: &mut Actions) {
        let (position, last) = (self.position(i), self.axes.workers - 1);
        let key = (i, self.step as u32, SUM);
        let missing = position > 0 && !self.held.contains_key(&key);
        // What is still being sent must not change.
        if missing || self.waves[i].sum_leaves || self.waves[i].mean_leaves {
            return;
        }
        let msg = if position > 0 { self.held.remove(&key) } else { None };
        let (own, outbox) = (self.region(i, self.averaged()), self.region(i, OUTBOX));
        let together = self.together();
        let share = if together { 1.0 } else { self.axes.share(position) as f32 };
        let sum = if position < last { outbox } else { own };
        match (position < last, share == 1.0) {
            (true, true) => out.push(Action::Copy { dst: sum, src: own }),
            (true, false) => out.push(Action::Mix { dst: sum, keep: 0.0, src: own, add: share }),
            (false, true) => {}
            (false, false) => out.push(Action::Scale { dst: sum, by: share }),
        }
        if let Some(msg) = msg {
            self.take(msg, sum, Accumulate::Add, out);
            self.owe_one_less(out);
        }
        if position < last {
            self.send(i, SUM, outbox, out);
        }
        if together {
            self.waves[i].stage = Stage::Mean;
            if position == last {
                if last > 0 {
                    out.push(Action::Scale { dst: own, by: 1.0 / (last + 1) as f32 });
                    self.send(i, MEAN, own, out);
                }
                self.close(i);
            }
            return;
        }
        let by = (1.0 / self.divisor(i, position)) as f32;
        match (position < last, by == 1.0) {
            // At the start of an unweighted wave the sum is the worker's own.
            (true, true) if position == 0 && share == 1.0 => {}
            (true, true) => out.push(Action::Copy { dst: own, src: outbox }),
            (true, false) => out.push(Action::Mix { dst: own, keep: 0.0, src: outbox, add: by }),
            (false, true) => {}
            (false, false) => out.push(Action::Scale { dst: own, by }),
        }
        if own.buf == Buf::Grad {
            self.apply(i, out);
        }
        self.close(i);
    }

    /// Takes the mean of all, and forwards it to those who have not got it.
    fn take_mean(&mut self, i: usize, out: &mut Actions) {
        let key = (i, self.step as u32, MEAN);
        if self.waves[i].sum_leaves && self.coder.is_some() {
            return;
        }
        let Some(msg) = self.held.remove(&key) else { return };
        let params = self.region(i, Buf::Param);
        self.take(msg, params, Accumulate::Set, out);
        if self.position(i) + 2 < self.axes.workers {
            self.send(i, MEAN, params, out);
        }
        self.close(i);
    }

    fn close(&mut self, i: usize) {
        self.waves[i].stage = Stage::Over;
        self.open -= 1;
    }

    /// Tells the worker before once all its sums of this step are taken.
    fn owe_one_less(&mut self, out: &mut Actions) {
        self.owed -= 1;
        if self.owed == 0 {
            let (generation, step) = (self.generation, self.step as u32);
            let tag = Tag { generation, step, bucket: 0, phase: TAKEN };
            out.send(
                (self.rank + self.axes.workers - 1) % self.axes.workers,
                tag,
                MessageHead::default(),
                None,
            );
        }
    }

    /// Push-sum's weights after a step.
    fn weigh_on(&mut self, step: u64) {
        if !self.axes.push_sum {
            return;
        }
        for (chunk, weights) in self.weights.iter_mut().enumerate() {
            let (p, start) = (weights.len(), self.axes.start(step, chunk));
            if self.axes.brings_together(step) {
                weights.fill(1.0);
                continue;
            }
            let mut sum = 0.0;
            for position in 0..p {
                let worker = (start + position) % p;
                sum += weights[worker] * self.axes.share(position);
                weights[worker] = sum;
            }
        }
    }
}

impl StepProtocol for Waves {
    fn scale(&self) -> GradientScale {
        GradientScale::Even
    }

    fn begin(&mut self, step: u64, _: &mut Actions) {
        if step > 0 {
            self.weigh_on(step - 1);
        }
        (self.step, self.open) = (step, self.waves.len());
        self.waves.iter_mut().for_each(|wave| wave.stage = Stage::Idle);
        self.owed = (0..self.waves.len()).filter(|&i| self.position(i) > 0).count();
    }

    fn gradients(&mut self, _: usize, _: &mut Actions) {}

    fn backward_done(&mut self, out: &mut Actions) {
        for i in 0..self.waves.len() {
            if self.averaged() == Buf::Param {
                self.update(i, out);
            }
            self.waves[i].stage = Stage::Sum;
            self.advance(i, out);
        }
    }

    fn message(&mut self, _: Rank, tag: Tag, msg: Option<MsgId>, out: &mut Actions) {
        let i = tag.bucket as usize;
        match msg {
            None => {
                self.untaken.remove(&u64::from(tag.step));
            }
            Some(msg) if i >= self.waves.len() => out.push(Action::Release(msg)),
            Some(msg) => {
                self.held.insert((i, tag.step, tag.phase), msg);
                self.advance(i, out);
            }
        }
    }

    fn sent(&mut self, op: OpId, out: &mut Actions) {
        let Some((i, kind)) = self.sends.remove(&op) else { return };
        match kind {
            SUM => self.waves[i].sum_leaves = false,
            _ => {
                self.waves[i].mean_leaves = false;
                self.means_leaving -= 1;
            }
        }
        self.advance(i, out);
    }

    fn over(&self) -> bool {
        // A mean is sent from the parameters themselves: it has to leave before they change.
        self.open == 0 && self.untaken.len() < WINDOW && self.means_leaving == 0
    }

    fn settled(&self) -> bool {
        self.untaken.is_empty() && self.sends.is_empty()
    }

    fn waiting_for(&self) -> Option<Rank> {
        let p = self.axes.workers;
        let next = if self.open == 0 { self.rank + 1 } else { self.rank + p - 1 };
        (p > 1).then_some(next % p)
    }

    fn release(&mut self, out: &mut Actions) {
        self.held.drain().for_each(|(_, msg)| out.push(Action::Release(msg)));
    }

    fn scratch(&self) -> Vec<usize> {
        self.scratch.clone()
    }

    fn resume(&mut self, step: u64) {
        // `begin` takes the last of these steps itself.
        (0..step.saturating_sub(1)).for_each(|step| self.weigh_on(step));
    }
}
