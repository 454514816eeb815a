//! A worker's walk through the work of its stage.
//!
//! Nobody posts receives. A body that comes is held as a message until its slot is free and no pass is under way; then it
//! is copied into the crossing's values or slopes. A pass begins when it is next in the stage's work, all it needs has come,
//! and whatever lay in its slot before has left. What comes out of it is sent at once, in pieces. The strategy inside is told
//! of gradients only while the step's last backward pass goes on.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::StageAveraging;
use crate::setup::{Setup, part};
use crate::stages::{Crossing, Stage, StageSetup};
use crate::vocabulary::{
    Action, Actions, Buf, Input, MessageHead, MsgId, OpId, Outcome, Participant, Rank, Region, Tag, Time,
};
use crate::work::{Work, WorkKind};

/// What a body is a piece of: with its number among the pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PieceKey {
    step: u32,
    /// Forward: values; backward: slopes.
    kind: WorkKind,
    micro: usize,
    crossing: usize,
    piece: usize,
}

/// A send under way.
struct Leaving {
    /// Whether it reads values or slopes.
    kind: WorkKind,
    slot: usize,
    to: Rank,
}

/// A worker of a stage.
pub(super) struct StageWorker {
    averaging: StageAveraging,
    stages: Arc<StageSetup>,
    stage: usize,
    replica: usize,
    generation: u32,
    /// Most elements of a message.
    most: usize,
    replicas: usize,
    step: u64,
    /// Whether that step has begun.
    begun: bool,
    /// Samples of the replica's batch in that step.
    samples: usize,
    /// The next of the stage's work.
    next: usize,
    running: Option<(OpId, Work)>,
    /// Micro-batches below this have had their backward pass.
    returned: usize,
    /// Elements of the present step that have been copied, by kind, micro-batch and crossing.
    copied: HashMap<(WorkKind, usize, usize), usize>,
    /// Bodies that wait for their slot.
    held: BTreeMap<PieceKey, MsgId>,
    leaving: HashMap<OpId, Leaving>,
    /// The step that the strategy inside has asked for.
    begin: Option<Action>,
    /// How the strategy inside has ended.
    outcome: Option<Outcome>,
    finished: bool,
}

impl StageWorker {
    pub(super) fn new(
        averaging: StageAveraging,
        setup: &Setup,
        stages: &Arc<StageSetup>,
        rank: Rank,
    ) -> Self {
        Self {
            averaging,
            stages: Arc::clone(stages),
            stage: setup.stage_of(rank),
            replica: setup.rank_in_stage(rank),
            generation: setup.generation,
            most: setup.message.max(1),
            replicas: setup.replicas(),
            step: setup.from,
            begun: false,
            samples: 0,
            next: 0,
            running: None,
            returned: 0,
            copied: HashMap::new(),
            held: BTreeMap::new(),
            leaving: HashMap::new(),
            begin: None,
            outcome: None,
            finished: false,
        }
    }

    fn own(&self) -> &Stage {
        &self.stages.stages[self.stage]
    }

    /// The rank that has another stage of this replica.
    fn rank_of(&self, stage: usize) -> Rank {
        self.replica * self.stages.stages.len() + stage
    }

    fn slot(&self, micro: usize) -> usize {
        micro % self.own().slots
    }

    /// What a crossing carries of a micro-batch.
    fn region(&self, kind: WorkKind, micro: usize, crossing: usize) -> Region {
        let number = crossing as u16;
        let buf = if kind == WorkKind::Forward { Buf::Value(number) } else { Buf::Slope(number) };
        let samples = self.stages.micro_batch(self.samples, micro).len();
        self.stages.region(buf, &self.own().crossings[crossing], self.slot(micro), samples)
    }

    /// A piece of a region.
    fn piece(&self, region: Region, piece: usize) -> Region {
        let count = region.len.div_ceil(self.most).max(1);
        Region::new(region.buf, part(&region.range(), count, piece))
    }

    /// The crossings that a pass needs: those that come in forward, those whose gradients come back backward.
    fn needs(&self, kind: WorkKind) -> Vec<(usize, Crossing)> {
        match kind {
            WorkKind::Forward => self.own().inputs().map(|(n, crossing)| (n, *crossing)).collect(),
            WorkKind::Backward => self.own().outputs().filter_map(with_gradient).collect(),
        }
    }

    /// The crossings that a pass fills, the nearest stage first.
    fn gives(&self, kind: WorkKind) -> Vec<(usize, Crossing)> {
        let mut gives: Vec<_> = match kind {
            WorkKind::Forward => self.own().outputs().map(|(n, crossing)| (n, *crossing)).collect(),
            WorkKind::Backward => self.own().inputs().filter_map(with_gradient).collect(),
        };
        gives.sort_by_key(|(_, crossing)| crossing.stage.abs_diff(self.stage));
        gives
    }

    /// What a message is, if it is one of this replica for this step or a later one.
    fn piece_key(&self, from: Rank, tag: Tag) -> Option<PieceKey> {
        let count = self.own().crossings.len().max(1);
        let (micro, crossing) = (tag.bucket as usize / count, tag.bucket as usize % count);
        let kind = if tag.phase.is_multiple_of(2) { WorkKind::Forward } else { WorkKind::Backward };
        let key = PieceKey { step: tag.step, kind, micro, crossing, piece: tag.phase as usize / 2 };
        let known =
            self.needs(kind).iter().any(|&(n, other)| n == crossing && self.rank_of(other.stage) == from);
        let present = tag.step > self.step as u32 || tag.step == self.step as u32 && self.outcome.is_none();
        (known && present && micro < self.stages.micro_batches && !self.held.contains_key(&key))
            .then_some(key)
    }

    /// Copies bodies whose slots are free.
    fn take(&mut self, out: &mut Actions) {
        if self.running.is_some() || !self.begun {
            return;
        }
        let step = self.step as u32;
        let free = |key: &PieceKey| {
            key.step == step
                && match key.kind {
                    WorkKind::Forward => {
                        // Those before it in the same slot have come back, and nothing of them is still leaving.
                        key.micro < self.returned + self.own().slots
                            && !self.leaves(WorkKind::Forward, self.slot(key.micro))
                    }
                    WorkKind::Backward => true,
                }
        };
        let keys: Vec<PieceKey> = self.held.keys().copied().filter(free).collect();
        for key in keys {
            let dst = self.piece(self.region(key.kind, key.micro, key.crossing), key.piece);
            if let Some(msg) = self.held.remove(&key) {
                out.push(Action::Copy { dst, src: Region { buf: Buf::Msg(msg), offset: 0, len: dst.len } });
                out.push(Action::Release(msg));
                *self.copied.entry((key.kind, key.micro, key.crossing)).or_default() += dst.len;
            }
        }
    }

    /// Whether values or slopes of a slot are still being sent.
    fn leaves(&self, kind: WorkKind, slot: usize) -> bool {
        self.leaving.values().any(|leaving| leaving.kind == kind && leaving.slot == slot)
    }

    /// For whom a pass has to wait.
    fn waits_for(&self, work: Work) -> Option<Rank> {
        let Work { kind, micro, .. } = work;
        let missing = |&(n, _): &(usize, Crossing)| {
            let copied = self.copied.get(&(kind, micro, n)).copied().unwrap_or(0);
            copied < self.region(kind, micro, n).len
        };
        // The furthest along the way comes last.
        let last = self
            .needs(kind)
            .into_iter()
            .filter(missing)
            .min_by_key(|(_, crossing)| crossing.stage.abs_diff(self.stage));
        // A forward pass overwrites the slot's values; a backward pass its slopes, and it may work on values in place.
        let busy = |leaving: &&Leaving| {
            leaving.slot == self.slot(micro) && (leaving.kind == kind || kind == WorkKind::Backward)
        };
        let leaving = || self.leaving.values().filter(busy).map(|leaving| leaving.to).min();
        last.map(|(_, crossing)| self.rank_of(crossing.stage)).or_else(leaving)
    }

    /// The next pass that has something to compute.
    fn next_work(&mut self) -> Option<Work> {
        while let Some(&work) = self.own().work.get(self.next) {
            if self.stages.computes(self.samples, work.micro) {
                return Some(work);
            }
            if work.kind == WorkKind::Backward {
                self.returned = work.micro + 1;
            }
            self.next += 1;
        }
        None
    }

    /// Begins the next pass or the next step, ends, or says for whom it waits.
    fn go_on(&mut self, waits: Option<Rank>, out: &mut Actions) {
        if self.finished || self.running.is_some() {
            return;
        }
        if !self.begun
            && let Some(begin) = self.begin.take()
        {
            self.begin_step(begin, out);
        }
        if self.begun {
            // (Passes without samples are skipped, which may free slots.)
            let Some(work) = self.next_work() else { return };
            self.take(out);
            match self.waits_for(work) {
                Some(rank) => out.push(Action::WaitingFor(rank)),
                None => {
                    self.next += 1;
                    self.running = Some((out.run(work, self.slot(work.micro)), work));
                }
            }
            return;
        }
        if let Some(outcome) = self.outcome
            && self.leaving.is_empty()
        {
            return self.finish(outcome, out);
        }
        let leaving = self.leaving.values().map(|leaving| leaving.to).min();
        if let Some(rank) = waits.or(leaving.filter(|_| self.outcome.is_some())) {
            out.push(Action::WaitingFor(rank));
        }
    }

    fn begin_step(&mut self, begin: Action, out: &mut Actions) {
        let Action::BeginStep { step, .. } = begin else { return };
        (self.step, self.begun, self.next, self.returned) = (step, true, 0, 0);
        let all = (self.stages.batches.0)(step);
        self.samples = part(&(0..all), self.replicas, self.replica).len();
        self.copied.clear();
        out.push(begin);
    }

    /// A pass is over: what it has made leaves.
    fn ran(&mut self, op: OpId, out: &mut Actions) {
        let Some((_, work)) = self.running.take_if(|(running, _)| *running == op) else { return };
        if work.kind == WorkKind::Backward {
            self.returned = work.micro + 1;
        }
        for (n, crossing) in self.gives(work.kind) {
            let region = self.region(work.kind, work.micro, n);
            let (to, there) = (self.rank_of(crossing.stage), &self.stages.stages[crossing.stage]);
            let bucket = (work.micro * there.crossings.len() + crossing.there) as u32;
            let pieces = region.len.div_ceil(self.most);
            for piece in 0..pieces {
                let phase = 2 * piece as u32 + u32::from(work.kind == WorkKind::Backward);
                let tag = Tag { generation: self.generation, step: self.step as u32, bucket, phase };
                let src = self.piece(region, piece);
                let op = out.send(to, tag, MessageHead::default(), Some(src));
                self.leaving.insert(op, Leaving { kind: work.kind, slot: self.slot(work.micro), to });
            }
        }
        if self.next_work().is_none() {
            self.begun = false;
        }
    }

    fn finish(&mut self, outcome: Outcome, out: &mut Actions) {
        self.finished = true;
        std::mem::take(&mut self.held).into_values().for_each(|msg| out.push(Action::Release(msg)));
        out.push(Action::Finish(outcome));
    }
}

/// A crossing whose gradient comes back.
fn with_gradient((n, crossing): (usize, &Crossing)) -> Option<(usize, Crossing)> {
    crossing.gradient.then_some((n, *crossing))
}

impl Participant for StageWorker {
    fn on(&mut self, now: Time, input: Input, out: &mut Actions) {
        let mut waits = None;
        match input {
            Input::Message { tag, body, .. } if self.finished || tag.generation != self.generation => {
                body.into_iter().for_each(|msg| out.push(Action::Release(msg)));
                return;
            }
            _ if self.finished => return,
            Input::Message { from, tag, body: Some(msg), .. }
                if self.averaging.setup.stage_of(from) != self.stage =>
            {
                match self.piece_key(from, tag) {
                    Some(key) => {
                        self.held.insert(key, msg);
                    }
                    None => out.push(Action::Release(msg)),
                }
            }
            Input::Done(op) if self.leaving.remove(&op).is_some() => {}
            Input::Ran(op) => self.ran(op, out),
            Input::Lost(rank) => {
                self.finished = true;
                std::mem::take(&mut self.held).into_values().for_each(|msg| out.push(Action::Release(msg)));
                return self.averaging.lose(now, rank, out);
            }
            input => {
                let Self { averaging, begin, outcome, .. } = self;
                averaging.on(now, input, out, |action, _| match action {
                    Action::BeginStep { .. } => *begin = Some(action),
                    Action::WaitingFor(rank) => waits = Some(rank),
                    Action::Finish(ended) => *outcome = Some(ended),
                    _ => {}
                });
            }
        }
        self.go_on(waits, out);
    }

    fn scratch(&self) -> Vec<usize> {
        self.averaging.inner.scratch()
    }
}
