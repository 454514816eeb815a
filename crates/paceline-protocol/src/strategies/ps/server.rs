//! The server's side: one shard.

use std::collections::HashMap;

use super::{BYE, NONE, PULL, PUSH, Part, parts};
use crate::setup::{Setup, Sync};
use crate::vocabulary::{
    Action, Actions, Buf, Head, Input, MsgId, OpId, Outcome, Participant, Rank, Region, Tag, Time,
};

pub(super) struct Server {
    setup: Setup,
    shard: usize,
    /// This shard's parts: their number among all parts, and the part.
    parts: Vec<(usize, Part)>,
    /// Pushes applied (asynchronous runs).
    version: u64,
    workers: Vec<Peer>,
    /// Per own part, what has come of the present step under BSP.
    gathered: Vec<Gather>,
    /// The next unit to be handed out (shard 0 of an asynchronous run).
    next_unit: u64,
    /// Sends that are under way, with the own part that they read.
    sends: HashMap<OpId, usize>,
    finished: bool,
}

/// What the shard knows of a worker.
#[derive(Clone, Debug, Default)]
struct Peer {
    /// Steps whose push is complete on this shard.
    clock: u64,
    /// Parts of the present push that have come.
    arrived: usize,
    /// The version that the present push was computed from.
    read: u64,
    /// Whether it waits for an answer to its push.
    waiting: bool,
    gone: bool,
}

/// One part's gradients under BSP.
#[derive(Clone, Debug, Default)]
struct Gather {
    /// Held bodies by worker; early ones wait for their turn.
    held: Vec<Option<MsgId>>,
    /// Workers whose gradient is in the sum: always a prefix of the ranks.
    summed: usize,
    /// Steps whose update was applied and sent.
    step: u64,
    /// Answers that have not left yet.
    leaving: usize,
}

impl Server {
    pub fn new(setup: &Setup, shard: usize) -> Self {
        let parts: Vec<_> = parts(setup).into_iter().enumerate().filter(|(_, p)| p.shard == shard).collect();
        let p = setup.workers;
        Self {
            shard,
            gathered: vec![Gather { held: vec![None; p], ..Gather::default() }; parts.len()],
            parts,
            version: 0,
            workers: vec![Peer::default(); p],
            next_unit: p as u64,
            sends: HashMap::new(),
            finished: false,
            setup: setup.clone(),
        }
    }

    fn own_part(&self, bucket: u16) -> Option<usize> {
        self.parts.binary_search_by_key(&usize::from(bucket), |(number, _)| *number).ok()
    }

    /// Sums in rank order, so that the result does not depend on arrival; then updates and answers.
    fn gather(&mut self, i: usize, out: &mut Actions) {
        let range = self.parts[i].1.range.clone();
        let sum = Region::new(Buf::Grad, range.clone());
        let gather = &mut self.gathered[i];
        while let Some(msg) = gather.held.get_mut(gather.summed).and_then(Option::take) {
            let src = Region { buf: Buf::Msg(msg), offset: 0, len: sum.len };
            out.push(match gather.summed {
                0 => Action::Copy { dst: sum, src },
                _ => Action::Reduce { dst: sum, src },
            });
            out.push(Action::Release(msg));
            gather.summed += 1;
        }
        // Parameters that are still being sent must not change. (They have left when a worker pushes again,
        // but the driver may not have said so yet.)
        if gather.summed < self.setup.workers || gather.leaving > 0 {
            return;
        }
        let params = Region::new(Buf::Param, range);
        out.push(Action::Apply { params, grad: sum, step: gather.step });
        out.push(Action::Staleness(0));
        let tag = Tag {
            generation: self.setup.generation,
            step: gather.step as u32,
            bucket: self.parts[i].0 as u16,
            phase: PULL,
        };
        (gather.summed, gather.step, gather.leaving) = (0, gather.step + 1, self.setup.workers);
        let head = Head { version: gather.step, unit: NONE };
        for worker in 0..self.setup.workers {
            let op = out.send(worker, tag, head, Some(params));
            self.sends.insert(op, i);
        }
    }

    /// Applies an asynchronous push part on arrival.
    fn update(&mut self, i: usize, from: Rank, head: Head, msg: MsgId, out: &mut Actions) {
        let params = Region::new(Buf::Param, self.parts[i].1.range.clone());
        let grad = Region { buf: Buf::Msg(msg), offset: 0, len: params.len };
        out.push(Action::Apply { params, grad, step: self.setup.unit(head.unit).step });
        out.push(Action::Release(msg));
        let peer = &mut self.workers[from];
        (peer.read, peer.arrived) = (head.version, peer.arrived + 1);
        if peer.arrived == self.parts.len() {
            peer.arrived = 0;
            peer.clock += 1;
            peer.waiting = true;
            out.push(Action::Staleness(self.version - peer.read));
            self.version += 1;
            self.answer(out);
        }
    }

    /// Answers every waiting worker that may start its next step.
    fn answer(&mut self, out: &mut Actions) {
        let slowest = self.workers.iter().filter(|w| !w.gone).map(|w| w.clock).min().unwrap_or(u64::MAX);
        for worker in 0..self.workers.len() {
            let Peer { waiting, clock, .. } = self.workers[worker];
            let lead = clock.saturating_sub(slowest);
            let allowed = match self.setup.sync {
                Sync::Ssp(bound) => lead <= bound,
                Sync::Bsp | Sync::Asp => true,
            };
            if !waiting || !allowed {
                continue;
            }
            self.workers[worker].waiting = false;
            let mut unit = NONE;
            if self.shard == 0 && self.next_unit < self.setup.steps * self.setup.workers as u64 {
                unit = self.next_unit;
                self.next_unit += 1;
            }
            let head = Head { version: self.version, unit };
            let base = self.parts.iter().map(|(_, p)| p.range.start).min().unwrap_or(0);
            for (i, (number, part)) in self.parts.iter().enumerate() {
                // Updates go on while the answer leaves: it is sent from a copy.
                let at = part.range.start - base..part.range.end - base;
                let copy = Region::new(Buf::Scratch(worker as u16), at);
                out.push(Action::Copy { dst: copy, src: Region::new(Buf::Param, part.range.clone()) });
                let tag = Tag {
                    generation: self.setup.generation,
                    step: (clock - 1) as u32,
                    bucket: *number as u16,
                    phase: PULL,
                };
                let op = out.send(worker, tag, head, Some(copy));
                self.sends.insert(op, i);
            }
        }
    }

    fn message(&mut self, from: Rank, tag: Tag, head: Head, body: Option<MsgId>, out: &mut Actions) {
        let own = self.own_part(tag.bucket);
        match (tag.phase, own, body) {
            (PUSH, Some(i), Some(msg)) if self.setup.sync == Sync::Bsp => {
                self.gathered[i].held[from] = Some(msg);
                self.gather(i, out);
            }
            (PUSH, Some(i), Some(msg)) => self.update(i, from, head, msg, out),
            (BYE, _, None) => {
                self.workers[from].gone = true;
                self.answer(out);
            }
            (_, _, body) => body.into_iter().for_each(|msg| out.push(Action::Release(msg))),
        }
    }
}

impl Participant for Server {
    fn on(&mut self, _now: Time, input: Input, out: &mut Actions) {
        match input {
            Input::Message { body, .. } if self.finished => {
                body.into_iter().for_each(|msg| out.push(Action::Release(msg)));
            }
            Input::Message { tag, body, .. } if tag.generation != self.setup.generation => {
                body.into_iter().for_each(|msg| out.push(Action::Release(msg)));
            }
            Input::Message { from, tag, head, body } => self.message(from, tag, head, body, out),
            Input::Done(op) => {
                let part = self.sends.remove(&op);
                if let (Some(i), Sync::Bsp) = (part, self.setup.sync) {
                    self.gathered[i].leaving -= 1;
                    self.gather(i, out);
                }
            }
            Input::Lost(rank) if !self.finished && self.workers.get(rank).is_none_or(|w| !w.gone) => {
                self.finished = true;
                for msg in self.gathered.iter_mut().flat_map(|g| g.held.iter_mut().filter_map(Option::take)) {
                    out.push(Action::Release(msg));
                }
                out.push(Action::Finish(Outcome::Lost(rank)));
            }
            Input::Snapshot => out.push(Action::SnapshotReady),
            _ => {}
        }
        if self.finished {
            return;
        }
        if self.workers.iter().all(|w| w.gone) && self.sends.is_empty() {
            self.finished = true;
            out.push(Action::Finish(Outcome::Completed));
        }
    }

    fn scratch(&self) -> Vec<usize> {
        if self.setup.sync == Sync::Bsp {
            return Vec::new();
        }
        let len = self.parts.iter().map(|(_, p)| p.range.len()).sum();
        vec![len; self.setup.workers]
    }

    fn save(&self) -> Vec<u64> {
        let step = self.gathered.first().map_or(0, |g| g.step);
        let mut saved = vec![self.version, self.next_unit, step];
        saved.extend(self.workers.iter().map(|w| w.clock));
        saved
    }

    fn restore(&mut self, saved: &[u64]) {
        (self.version, self.next_unit) = (saved[0], saved[1]);
        self.gathered.iter_mut().for_each(|g| g.step = saved[2]);
        self.workers.iter_mut().zip(&saved[3..]).for_each(|(w, &clock)| w.clock = clock);
    }
}
