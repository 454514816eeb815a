//! The worker's side.

use std::collections::HashSet;

use super::{BYE, NONE, PULL, PUSH, Part, parts};
use crate::setup::{Setup, Sync};
use crate::vocabulary::{
    Action, Actions, Buf, Head, Input, OpId, Outcome, Participant, Rank, Region, Tag, Time,
};

pub(super) struct Worker {
    setup: Setup,
    parts: Vec<Part>,
    step: u64,
    stop: u64,
    /// The unit of work of this step, by its running number.
    unit: u64,
    /// The next one, once shard 0 has told.
    next: u64,
    /// Parameter version read from each shard.
    versions: Vec<u64>,
    /// Parts pushed and pulled in this step.
    pushed: usize,
    pulled: Vec<bool>,
    missing: usize,
    sends: HashSet<OpId>,
    backward_done: bool,
    snapshot_wanted: bool,
    finished: bool,
}

impl Worker {
    pub fn new(setup: &Setup, rank: Rank) -> Self {
        let parts = parts(setup);
        Self {
            pulled: vec![false; parts.len()],
            missing: 0,
            parts,
            step: 0,
            // Asynchronous workers go on until shard 0 has no more work.
            stop: if setup.sync == Sync::Bsp { setup.steps } else { u64::MAX },
            unit: rank as u64,
            next: rank as u64,
            versions: vec![0; setup.servers],
            pushed: 0,
            sends: HashSet::new(),
            backward_done: false,
            snapshot_wanted: false,
            finished: false,
            setup: setup.clone(),
        }
    }

    fn tag(&self, bucket: usize, phase: u16) -> Tag {
        Tag { generation: self.setup.generation, step: self.step as u32, bucket: bucket as u16, phase }
    }

    fn begin(&mut self, out: &mut Actions) {
        if self.snapshot_wanted {
            self.snapshot_wanted = false;
            out.push(Action::SnapshotReady);
        }
        self.unit = self.next;
        if self.unit == NONE || self.step >= self.stop {
            for shard in 0..self.setup.servers {
                let op = out.send(self.setup.server(shard), self.tag(0, BYE), Head::default(), None);
                self.sends.insert(op);
            }
            self.finished = true;
            out.push(Action::Finish(Outcome::Completed));
            return;
        }
        self.pushed = 0;
        self.pulled.fill(false);
        self.missing = self.parts.len();
        self.backward_done = false;
        out.push(Action::BeginStep { step: self.step, unit: self.setup.unit(self.unit) });
    }

    fn push_parts(&mut self, final_from: usize, out: &mut Actions) {
        while let Some(part) = self.parts.get(self.pushed).filter(|part| part.range.start >= final_from) {
            let (to, shard) = (self.setup.server(part.shard), part.shard);
            let src = Region::new(Buf::Grad, part.range.clone());
            let head = Head { version: self.versions[shard], unit: self.unit };
            let op = out.send(to, self.tag(self.pushed, PUSH), head, Some(src));
            self.sends.insert(op);
            self.pushed += 1;
        }
    }

    fn end_step(&mut self, out: &mut Actions) {
        if !self.backward_done || self.finished {
            return;
        }
        if self.missing == 0 && self.sends.is_empty() {
            self.step += 1;
            if self.setup.sync == Sync::Bsp {
                self.next = self.unit + self.setup.workers as u64;
            }
            self.begin(out);
        } else if let Some(i) = self.pulled.iter().position(|pulled| !pulled) {
            out.push(Action::WaitingFor(self.setup.server(self.parts[i].shard)));
        }
    }
}

impl Participant for Worker {
    fn on(&mut self, _now: Time, input: Input, out: &mut Actions) {
        if self.finished {
            if let Input::Message { body: Some(msg), .. } = input {
                out.push(Action::Release(msg));
            }
            return;
        }
        match input {
            Input::Start => return self.begin(out),
            Input::GradReady { from } => self.push_parts(from, out),
            Input::BackwardDone => {
                self.push_parts(0, out);
                self.backward_done = true;
            }
            Input::Message { tag, head, body: Some(msg), .. } => {
                let i = usize::from(tag.bucket);
                let fresh = tag.generation == self.setup.generation
                    && u64::from(tag.step) == self.step
                    && tag.phase == PULL
                    && self.pulled.get(i) == Some(&false);
                if fresh {
                    let part = &self.parts[i];
                    let dst = Region::new(Buf::Param, part.range.clone());
                    out.push(Action::Copy {
                        dst,
                        src: Region { buf: Buf::Msg(msg), offset: 0, len: dst.len },
                    });
                    self.versions[part.shard] = head.version;
                    if part.shard == 0 {
                        self.next = head.unit;
                    }
                    self.pulled[i] = true;
                    self.missing -= 1;
                }
                out.push(Action::Release(msg));
            }
            Input::Done(op) => {
                self.sends.remove(&op);
            }
            Input::Lost(rank) => {
                self.finished = true;
                out.push(Action::Finish(Outcome::Lost(rank)));
                return;
            }
            Input::StopAt(step) => self.stop = self.stop.min(step),
            Input::Snapshot => self.snapshot_wanted = true,
            Input::Message { body: None, .. }
            | Input::Timer(_)
            | Input::Load { .. }
            | Input::Rejoined { .. } => {}
        }
        self.end_step(out);
    }

    fn save(&self) -> Vec<u64> {
        let mut saved = vec![self.step, self.next];
        saved.extend(&self.versions);
        saved
    }

    fn restore(&mut self, saved: &[u64]) {
        (self.step, self.next) = (saved[0], saved[1]);
        self.versions.copy_from_slice(&saved[2..]);
    }
}
