//! The worker's side.

use std::collections::{BTreeSet, HashSet};

use super::{ACKNOWLEDGED, BYE, FAREWELL, FRESH, NONE, PULL, PUSH, Part, back, parts};
use crate::codec::{Accumulate, Coder};
use crate::setup::{Averages, Setup};
use crate::vocabulary::{
    Action, Actions, Buf, GradientScale, Input, MessageHead, MsgId, OpId, Outcome, Participant, Rank, Region,
    Tag, Time, WorkerLoad,
};

/// What has not been sent yet, laid out like the gradients; and the codes on their way out.
const REST: Buf = Buf::Scratch(0);
const CODES: Buf = Buf::Scratch(1);

pub(super) struct Worker {
    setup: Setup,
    parts: Vec<Part>,
    /// Where each part's code lies.
    codes: Vec<usize>,
    step: u64,
    /// The unit of work of this step, by its running number, and whether all work on its step together.
    unit: u64,
    together: bool,
    /// The next one, once shard 0 has told.
    next: (u64, bool),
    /// Parameter version read, by part.
    versions: Vec<u64>,
    /// Parts pushed and pulled in this step.
    pushed: usize,
    pulled: Vec<bool>,
    missing: usize,
    /// The first part that is not pulled.
    awaited: usize,
    /// By shard: whether its backup has still to say that it has this step's sums.
    unsaved: Vec<bool>,
    sends: HashSet<OpId>,
    load: WorkerLoad,
    backward_done: bool,
    /// Whether it waits for the parameters that a generation begins with.
    opening: bool,
    /// Shards that have not said farewell, once this worker is leaving.
    leaving: Option<BTreeSet<Rank>>,
    finished: bool,
}

impl Worker {
    pub fn new(setup: &Setup, rank: Rank) -> Self {
        let parts = parts(setup);
        let words = |part: &Part| setup.coder.map_or(0, |coder| coder.words(part.range.len()));
        let codes = parts.iter().scan(0, |at, part| Some(std::mem::replace(at, *at + words(part)))).collect();
        Self {
            pulled: vec![false; parts.len()],
            versions: vec![0; parts.len()],
            missing: 0,
            awaited: 0,
            unsaved: vec![false; setup.servers],
            codes,
            parts,
            step: setup.from,
            unit: NONE,
            together: false,
            next: (
                if setup.end() > setup.from { setup.from * setup.units() + rank as u64 } else { NONE },
                setup.sync.together_at(setup.from),
            ),
            pushed: 0,
            sends: HashSet::new(),
            load: WorkerLoad::default(),
            backward_done: false,
            opening: setup.work.is_some(),
            leaving: None,
            finished: false,
            setup: setup.clone(),
        }
    }

    fn tag(&self, bucket: usize, phase: u32) -> Tag {
        Tag { generation: self.setup.generation, step: self.step as u32, bucket: bucket as u32, phase }
    }

    fn begin(&mut self, out: &mut Actions) {
        (self.unit, self.together) = self.next;
        if self.unit == NONE {
            let shards = self.setup.workers..self.setup.world();
            for shard in shards.clone() {
                out.send(shard, self.tag(0, BYE), MessageHead::default(), None);
            }
            self.leaving = Some(shards.collect());
            return;
        }
        self.pushed = 0;
        self.pulled.fill(false);
        (self.missing, self.awaited) = (self.parts.len(), 0);
        if self.setup.backups {
            self.parts.iter().for_each(|part| self.unsaved[part.shard] = true);
        }
        self.backward_done = false;
        let scale = match (self.setup.averages, self.together) {
            (Averages::Weights, _) => GradientScale::Even,
            (Averages::Gradients, true) => GradientScale::Part,
            (Averages::Gradients, false) => GradientScale::Own,
        };
        out.push(Action::BeginStep { step: self.step, unit: self.setup.unit(self.unit), scale });
    }

    fn push_parts(&mut self, final_from: usize, out: &mut Actions) {
        while let Some(part) = self.parts.get(self.pushed).filter(|part| part.range.start >= final_from) {
            let (to, range) = (self.setup.server(part.shard), part.range.clone());
            let body = self.body(self.pushed, range, out);
            let head = MessageHead {
                version: self.versions[self.pushed],
                unit: self.unit,
                together: self.together,
                load: self.load,
                ..MessageHead::default()
            };
            let op = out.send(to, self.tag(self.pushed, PUSH), head, Some(body));
            self.sends.insert(op);
            self.pushed += 1;
        }
    }

    /// What is pushed of a part.
    fn body(&self, i: usize, range: std::ops::Range<usize>, out: &mut Actions) -> Region {
        let [params, grad, rest] = [Buf::Param, Buf::Grad, REST].map(|buf| Region::new(buf, range.clone()));
        let weights = self.setup.averages == Averages::Weights;
        if weights {
            let step = self.setup.unit(self.unit).step;
            out.push(Action::Apply { params, grad, step, whole: true });
        }
        let Some(coder) = self.setup.coder else { return if weights { params } else { grad } };
        let dst = Region { buf: CODES, offset: self.codes[i], len: coder.words(range.len()) };
        if weights {
            out.push(Action::Encode { coder, dst, src: params, feedback: false });
        } else {
            out.push(Action::Reduce { dst: rest, src: grad });
            out.push(Action::Encode { coder, dst, src: rest, feedback: true });
        }
        dst
    }

    fn pull(&mut self, tag: Tag, head: MessageHead, msg: MsgId, out: &mut Actions) {
        let i = tag.bucket as usize;
        let asked = tag.phase == PULL && self.pulled.get(i) == Some(&false);
        // Fresher values are welcome as long as the next step has not begun.
        let fresher = tag.phase == FRESH
            && self.backward_done
            && self.pulled.get(i) == Some(&true)
            && head.version > self.versions[i];
        if asked && u64::from(tag.step) == self.step || fresher {
            let dst = Region::new(Buf::Param, self.parts[i].range.clone());
            out.push(Action::take(back(&self.setup), dst, msg, Accumulate::Set));
            self.versions[i] = head.version;
        }
        if asked && u64::from(tag.step) == self.step {
            if self.parts[i].shard == 0 {
                self.next = (head.unit, head.together);
            }
            self.pulled[i] = true;
            self.missing -= 1;
            while self.pulled.get(self.awaited) == Some(&true) {
                self.awaited += 1;
            }
        }
        out.push(Action::Release(msg));
    }

    fn end_step(&mut self, out: &mut Actions) {
        if let Some(shards) = &self.leaving {
            match shards.first() {
                None => self.finish(Outcome::Completed, out),
                Some(&shard) => out.push(Action::WaitingFor(shard)),
            }
            return;
        }
        if !self.backward_done {
            return;
        }
        let unsaved = self.unsaved.iter().position(|unsaved| *unsaved);
        if self.missing == 0 && unsaved.is_none() && self.sends.is_empty() {
            self.step += u64::from(!std::mem::take(&mut self.opening));
            self.begin(out);
        } else if let Some(part) = self.parts.get(self.awaited) {
            out.push(Action::WaitingFor(self.setup.server(part.shard)));
        } else if let Some(shard) = unsaved {
            out.push(Action::WaitingFor(self.setup.backup(shard)));
        }
    }

    fn finish(&mut self, outcome: Outcome, out: &mut Actions) {
        self.finished = true;
        out.push(Action::Finish(outcome));
    }
}

impl Participant for Worker {
    fn on(&mut self, _now: Time, input: Input, out: &mut Actions) {
        match input {
            Input::Message { tag, body, .. } if self.finished || tag.generation != self.setup.generation => {
                body.into_iter().for_each(|msg| out.push(Action::Release(msg)));
                return;
            }
            _ if self.finished => return,
            Input::Start if self.opening => {
                (self.missing, self.backward_done) = (self.parts.len(), true);
            }
            Input::Start => self.begin(out),
            // Weights can only be pushed once they are updated.
            Input::GradReady { .. } if self.setup.averages == Averages::Weights => {}
            // The last part waits for the end of backward, since the load goes with it.
            Input::GradReady { from } => self.push_parts(from.max(1), out),
            Input::BackwardDone => {
                self.push_parts(0, out);
                self.backward_done = true;
            }
            Input::Message { tag, head, body: Some(msg), .. } => self.pull(tag, head, msg, out),
            Input::Message { from, tag, body: None, .. } => match (tag.phase, &mut self.leaving) {
                (FAREWELL, Some(shards)) => {
                    shards.remove(&from);
                }
                (ACKNOWLEDGED, _) if u64::from(tag.step) == self.step => {
                    if let Some(unsaved) = self.unsaved.get_mut(tag.bucket as usize) {
                        *unsaved = false;
                    }
                }
                _ => {}
            },
            Input::Done(op) => {
                self.sends.remove(&op);
            }
            Input::Lost(rank) => return self.finish(Outcome::Lost(rank), out),
            Input::Load(load) => self.load = load,
            Input::RunOut => {
                self.next = (NONE, false);
                self.begin(out);
            }
            Input::Ran(_) | Input::StopAt(_) | Input::Leave | Input::Commit(_) => {}
        }
        self.end_step(out);
    }

    fn goes_alone(&self) -> bool {
        !self.together && !self.opening && self.leaving.is_none()
    }

    fn scratch(&self) -> Vec<usize> {
        let words = |coder: Coder| self.parts.iter().map(|part| coder.words(part.range.len())).sum();
        self.setup.coder.map_or_else(Vec::new, |coder| vec![self.setup.params, words(coder)])
    }
}
