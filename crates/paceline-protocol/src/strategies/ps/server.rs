//! The server's side: one shard.

use std::collections::{HashMap, VecDeque};

use super::straggling::Straggling;
use super::{BYE, FAREWELL, FORWARD, FRESH, GO, NONE, PULL, PUSH, Part, back, parts, single_parts};
use crate::codec::Accumulate;
use crate::consistency::{Gate, WorkerClocks};
use crate::setup::{Averages, Setup};
use crate::vocabulary::{
    Action, Actions, Buf, Input, MessageHead, MsgId, OpId, Outcome, PartStanding, Participant, Rank,
    RankStanding, Region, Tag, Time,
};

pub(super) struct Server {
    setup: Setup,
    shard: usize,
    /// This shard's parts: their number among all parts, and the part.
    parts: Vec<(usize, Part)>,
    /// Where each own part lies in a copy for a worker, and the length of such a copy.
    slots: Vec<usize>,
    copy_len: usize,
    /// Updates applied: synchronous steps, and single pushes.
    version: u64,
    workers: Vec<Peer>,
    race: WorkerClocks,
    gate: Box<dyn Gate>,
    /// Per own part, what has come of the present synchronous step.
    gathered: Vec<Gather>,
    /// Per own part, where members may change, the single pushes that it has; and those that wait until the one before has gone to the backup.
    singles: Vec<PartStanding>,
    queued: Vec<VecDeque<SinglePush>>,
    /// Own parts of the present synchronous step that are updated.
    updated: usize,
    /// Units of members that were lost, to be handed out first; the next new one, and the step before which that ends
    /// (shard 0).
    open: VecDeque<u64>,
    next_unit: u64,
    stop: u64,
    /// Whether the step after this one is synchronous: decided once per step (shard 0).
    verdict: Option<(u64, bool)>,
    /// Between a greedy fall to single pushes and the return to steps together (shard 0).
    fallen: bool,
    straggling: Straggling,
    /// Sends that are under way.
    sends: HashMap<OpId, Leaving>,
    finished: bool,
}

#[derive(Clone, Copy)]
enum Leaving {
    /// The parameters of an own part.
    Part(usize),
    Copy,
    /// Fresh values for a worker.
    Fresh(Rank),
    /// The sum of an own part, to the backup.
    Sum(usize),
}

/// What the shard knows of a worker.
#[derive(Clone, Debug, Default)]
struct Peer {
    /// Parts of the present push that have come.
    arrived: usize,
    /// The oldest version that the present push was computed from.
    read: u64,
    /// Whether it waits for an answer to its push, and the step of that.
    waiting: bool,
    step: u64,
    /// Shard 0's word: up to which clock it may go on, and what must be here before it is answered.
    told: Option<Clearance>,
    /// Fresh values are still on their way to it.
    refreshing: bool,
    /// The version that was sent to it last.
    sent: u64,
}

/// A part of a single push.
#[derive(Clone, Copy, Debug)]
struct SinglePush {
    from: Rank,
    tag: Tag,
    head: MessageHead,
    msg: MsgId,
}

/// Shard 0's word that a worker may go on.
#[derive(Clone, Copy, Debug)]
struct Clearance {
    clock: u64,
    slowest: u64,
    version: u64,
}

/// One part's gradients of a synchronous step.
#[derive(Clone, Debug, Default)]
struct Gather {
    /// Held bodies by worker; early ones wait for their turn.
    held: Vec<Option<MsgId>>,
    /// Workers whose gradient is in the sum: always a prefix of the ranks.
    summed: usize,
    /// The step that it is about.
    step: u64,
    /// Answers that have not left yet.
    leaving: usize,
    /// Updates made to the part.
    made: u64,
    /// The sum is still being sent to the backup.
    forwarding: bool,
}

impl Server {
    pub fn new(setup: &Setup, shard: usize) -> Self {
        let parts: Vec<_> = parts(setup).into_iter().enumerate().filter(|(_, p)| p.shard == shard).collect();
        let p = setup.workers;
        let back = back(setup);
        let len = |part: &Part| back.map_or(part.range.len(), |coder| coder.words(part.range.len()));
        let gather = |(number, _): &(usize, Part)| {
            let made = setup.from + u64::from(setup.ahead.contains(&(*number as u32)));
            Gather { held: vec![None; p], made, ..Gather::default() }
        };
        Self {
            shard,
            gathered: parts.iter().map(gather).collect(),
            slots: parts.iter().scan(0, |at, (_, p)| Some(std::mem::replace(at, *at + len(p)))).collect(),
            copy_len: parts.iter().map(|(_, p)| len(p)).sum(),
            singles: single_parts(setup, shard),
            queued: vec![VecDeque::new(); parts.len()],
            version: 0,
            workers: vec![Peer { step: setup.from, ..Peer::default() }; p],
            race: WorkerClocks { clocks: vec![setup.from; p], ..WorkerClocks::new(p) },
            gate: setup.sync.gate(p),
            updated: 0,
            open: setup.work.iter().flat_map(|work| work.open.iter().copied()).collect(),
            next_unit: setup.work.as_ref().map_or(setup.from * setup.units() + p as u64, |work| work.next),
            stop: setup.end(),
            verdict: None,
            fallen: false,
            straggling: Straggling::new(p),
            sends: HashMap::new(),
            finished: false,
            parts,
            setup: setup.clone(),
        }
    }

    fn own_part(&self, bucket: u32) -> Option<usize> {
        self.parts.binary_search_by_key(&(bucket as usize), |(number, _)| *number).ok()
    }

    /// Whether answers of synchronous steps are sent from the parameters themselves, which do not change
    /// before everybody has them.
    fn direct(&self) -> bool {
        self.setup.sync.is_bsp() && back(&self.setup).is_none()
    }

    fn tag(&self, step: u64, part: usize, phase: u32) -> Tag {
        let bucket = self.parts[part].0 as u32;
        Tag { generation: self.setup.generation, step: step as u32, bucket, phase }
    }

    fn total(&self) -> u64 {
        self.stop.saturating_mul(self.setup.units())
    }

    /// The next unit that has not been handed out, if there is one (shard 0).
    fn hand_out(&mut self) -> u64 {
        if let Some(unit) = self.open.pop_front() {
            return unit;
        }
        if self.next_unit >= self.total() {
            return NONE;
        }
        self.next_unit += 1;
        self.next_unit - 1
    }

    /// A worker's copy of a part, as it is sent.
    fn copy(&self, i: usize, copy: usize, out: &mut Actions) -> Region {
        let src = Region::new(Buf::Param, self.parts[i].1.range.clone());
        let (buf, offset) = (Buf::Scratch(copy as u16), self.slots[i]);
        match back(&self.setup) {
            None => {
                let dst = Region { buf, offset, len: src.len };
                out.push(Action::Copy { dst, src });
                dst
            }
            Some(coder) => {
                let dst = Region { buf, offset, len: coder.words(src.len) };
                out.push(Action::Encode { coder, dst, src, feedback: false });
                dst
            }
        }
    }

    /// Sums in rank order, so that the result does not depend on arrival; then updates and answers.
    fn gather(&mut self, i: usize, out: &mut Actions) {
        let sum = Region::new(Buf::Grad, self.parts[i].1.range.clone());
        if self.gathered[i].forwarding {
            return;
        }
        while let Some(msg) = self.next_held(i) {
            let into = if self.gathered[i].summed > 0 { Accumulate::Add } else { Accumulate::Set };
            out.push(Action::take(self.setup.coder, sum, msg, into));
            out.push(Action::Release(msg));
            self.gathered[i].summed += 1;
        }
        let Gather { summed, step, leaving, .. } = self.gathered[i];
        // What is still being sent must not change. (It has left when a worker pushes again, but the driver
        // may not have said so yet.)
        if summed < self.setup.workers || leaving > 0 {
            return;
        }
        if self.setup.backups {
            let tag = self.tag(step, i, FORWARD);
            let op = out.send(self.setup.backup(self.shard), tag, MessageHead::default(), Some(sum));
            self.sends.insert(op, Leaving::Sum(i));
            self.gathered[i].forwarding = true;
        }
        let params = Region { buf: Buf::Param, ..sum };
        match self.setup.averages {
            _ if self.gathered[i].made > step => {}
            Averages::Gradients => out.push(Action::Apply { params, grad: sum, step, whole: true }),
            Averages::Weights => {
                let add = 1.0 / self.setup.workers as f32;
                out.push(Action::Mix { dst: params, keep: 0.0, src: sum, add });
            }
        }
        self.gathered[i].made = step + 1;
        self.gathered[i].summed = 0;
        self.answer_all(i, step, out);
        self.updated += 1;
        if self.updated == self.parts.len() {
            (self.updated, self.version) = (0, self.version + 1);
            (0..self.setup.workers).for_each(|_| out.push(Action::Staleness(0)));
        }
    }

    fn next_held(&mut self, i: usize) -> Option<MsgId> {
        let gather = &mut self.gathered[i];
        gather.held.get_mut(gather.summed).and_then(Option::take)
    }

    /// Answers everybody's synchronous push of a part.
    fn answer_all(&mut self, i: usize, step: u64, out: &mut Actions) {
        let p = self.setup.workers;
        let together = self.stays_together(step);
        let first = (step + 1) * p as u64;
        let more = first < self.total();
        self.next_unit = first + p as u64;
        let shared = (!self.direct() && self.setup.sync.is_bsp()).then(|| self.copy(i, 0, out));
        for worker in 0..p {
            let unit = if more { first + worker as u64 } else { NONE };
            let head = MessageHead { version: self.version + 1, unit, together, ..MessageHead::default() };
            let (body, leaving) = match (self.direct(), shared) {
                (true, _) => {
                    let range = self.parts[i].1.range.clone();
                    (Region::new(Buf::Param, range), Leaving::Part(i))
                }
                (_, Some(copy)) => (copy, Leaving::Part(i)),
                _ => (self.copy(i, worker, out), Leaving::Copy),
            };
            // The worker counts its own steps, and tells them in its pushes.
            let tag = self.tag(self.race.clocks[worker] - 1, i, PULL);
            let op = out.send(worker, tag, head, Some(body));
            self.gathered[i].leaving += usize::from(matches!(leaving, Leaving::Part(_)));
            self.sends.insert(op, leaving);
        }
    }

    /// Whether the step after this one is synchronous; the same answer for all parts of a step.
    fn stays_together(&mut self, step: u64) -> bool {
        if self.setup.sync.is_bsp() {
            return true;
        }
        if let Some((_, together)) = self.verdict.filter(|(decided, _)| *decided == step) {
            return together;
        }
        let from = self.setup.sync.together_until;
        let falls = self.setup.sync.greedy && self.shard == 0 && self.straggling.any();
        let together = step + 1 < from && !falls;
        self.fallen = falls && step + 1 < from;
        self.verdict = Some((step, together));
        together
    }

    /// Applies a part of a single push, unless it has that unit already, and sends it to the backup.
    fn update(&mut self, i: usize, SinglePush { from, tag, head, msg }: SinglePush, out: &mut Actions) {
        let params = Region::new(Buf::Param, self.parts[i].1.range.clone());
        let mut grad = Region { buf: Buf::Msg(msg), offset: 0, len: params.len };
        let forward = Tag { phase: FORWARD, ..tag };
        let own = MessageHead { version: from as u64, unit: head.unit, ..MessageHead::default() };
        if self.singles.get(i).is_some_and(|single| single.has(head.unit)) {
            if self.setup.backups {
                out.send(self.setup.backup(self.shard), forward, own, None);
            }
            return out.push(Action::Release(msg));
        }
        if self.setup.coder.is_some() || self.setup.backups {
            grad = Region { buf: Buf::Grad, ..params };
            out.push(Action::take(self.setup.coder, grad, msg, Accumulate::Set));
        }
        if self.setup.backups {
            let op = out.send(self.setup.backup(self.shard), forward, own, Some(grad));
            self.sends.insert(op, Leaving::Sum(i));
            self.gathered[i].forwarding = true;
        }
        out.push(Action::Apply { params, grad, step: self.setup.unit(head.unit).step, whole: false });
        out.push(Action::Release(msg));
        self.singles.get_mut(i).into_iter().for_each(|single| single.note(head.unit));
    }

    fn push(&mut self, now: Time, i: usize, push: SinglePush, out: &mut Actions) {
        let SinglePush { from, tag, head, msg } = push;
        // What is being sent to the backup must not change.
        if !head.together && self.gathered[i].forwarding {
            return self.queued[i].push_back(push);
        }
        let slowest = self.race.slowest();
        let peer = &mut self.workers[from];
        peer.read = if peer.arrived == 0 { head.version } else { peer.read.min(head.version) };
        peer.arrived += 1;
        let whole = peer.arrived == self.parts.len();
        // Answers name the step by the clock, which a synchronous part needs before the push is whole.
        if peer.arrived == 1 {
            self.race.clocks[from] += u64::from(head.together);
        }
        if whole {
            peer.arrived = 0;
            self.straggling.step(from, head.load.step_s);
        }
        if head.together {
            self.gathered[i].step = self.setup.unit(head.unit).step;
            self.gathered[i].held[from] = Some(msg);
            self.gather(i, out);
            return;
        }
        self.update(i, push, out);
        if whole {
            let peer = &mut self.workers[from];
            (peer.waiting, peer.step) = (true, u64::from(tag.step));
            out.push(Action::Staleness(self.version - peer.read));
            self.race.clocks[from] += 1;
            self.version += 1;
            self.gate.pushed(now, from, head.load);
            self.answer(now, out);
            self.refresh(slowest, out);
        }
    }

    /// Answers every waiting worker that may start its next step.
    fn answer(&mut self, now: Time, out: &mut Actions) {
        if self.shard == 0 && self.fallen && !self.straggling.any() && self.return_together(now, out) {
            return;
        }
        for worker in 0..self.workers.len() {
            if !self.workers[worker].waiting || !self.may_go(worker) {
                continue;
            }
            let unit = if self.shard == 0 { self.hand_out() } else { NONE };
            self.let_go(now, worker, unit, false, 0, out);
        }
    }

    fn may_go(&mut self, worker: Rank) -> bool {
        if self.shard == 0 || !self.setup.sync.central {
            return self.gate.open(worker, &self.race);
        }
        self.workers[worker].told.is_some_and(|told| {
            told.clock == self.race.clocks[worker]
                && told.slowest <= self.race.slowest()
                && told.version <= self.version
        })
    }

    /// After the last straggler is gone: lets single pushes run out at the end of a global batch, then has
    /// everybody start the next step together. Whether answers are held back for that.
    fn return_together(&mut self, now: Time, out: &mut Actions) -> bool {
        let p = self.setup.workers as u64;
        let ends = self.setup.sync.together_until.saturating_mul(p);
        if !self.next_unit.is_multiple_of(p) || self.next_unit >= self.total().min(ends) {
            return false;
        }
        if self.workers.iter().all(|peer| peer.waiting) {
            self.fallen = false;
            let first = self.next_unit;
            self.next_unit += p;
            for worker in 0..self.workers.len() {
                self.let_go(now, worker, first + worker as u64, true, self.version, out);
            }
        }
        true
    }

    /// Sends a waiting worker its parameters and its next unit; tells the shards that obey.
    fn let_go(
        &mut self,
        now: Time,
        worker: Rank,
        unit: u64,
        together: bool,
        version: u64,
        out: &mut Actions,
    ) {
        self.workers[worker].waiting = false;
        self.workers[worker].sent = self.version;
        self.gate.released(now, worker);
        let (clock, step) = (self.race.clocks[worker], self.workers[worker].step);
        let head = MessageHead { version: self.version, unit, together, ..MessageHead::default() };
        for i in 0..self.parts.len() {
            // Updates go on while the answer leaves: it is sent from a copy.
            let copy = self.copy(i, worker, out);
            let op = out.send(worker, self.tag(step, i, PULL), head, Some(copy));
            self.sends.insert(op, Leaving::Copy);
        }
        if self.shard == 0 && self.setup.sync.central {
            let (generation, step) = (self.setup.generation, clock as u32);
            let tag = Tag { generation, step, bucket: worker as u32, phase: GO };
            let head = MessageHead { version, unit: self.race.slowest(), ..MessageHead::default() };
            for shard in 1..self.setup.servers {
                out.send(self.setup.server(shard), tag, head, None);
            }
        }
    }

    /// If values are pushed eagerly: pushes fresh values to everybody when the slowest worker has made a step.
    fn refresh(&mut self, slowest_before: u64, out: &mut Actions) {
        if !self.setup.sync.eager {
            return;
        }
        // Who has heard from every shard has begun: with one shard nobody could use them.
        if self.race.slowest() <= slowest_before || self.setup.servers == 1 {
            return;
        }
        for worker in 0..self.workers.len() {
            let peer = &self.workers[worker];
            if self.race.gone[worker] || peer.refreshing || peer.waiting || peer.sent == self.version {
                continue;
            }
            self.workers[worker].refreshing = true;
            let head = MessageHead { version: self.version, unit: NONE, ..MessageHead::default() };
            for i in 0..self.parts.len() {
                let copy = self.copy(i, self.setup.workers + worker, out);
                let op = out.send(worker, self.tag(0, i, FRESH), head, Some(copy));
                self.sends.insert(op, Leaving::Fresh(worker));
            }
        }
    }

    fn message(
        &mut self,
        now: Time,
        from: Rank,
        tag: Tag,
        head: MessageHead,
        body: Option<MsgId>,
        out: &mut Actions,
    ) {
        match (tag.phase, self.own_part(tag.bucket), body) {
            (PUSH, Some(i), Some(msg)) if from < self.workers.len() => {
                self.push(now, i, SinglePush { from, tag, head, msg }, out)
            }
            (BYE, _, None) if from < self.workers.len() => {
                let slowest = self.race.slowest();
                self.race.gone[from] = true;
                if self.setup.backups && self.race.gone.iter().all(|gone| *gone) {
                    let tag = Tag { phase: BYE, ..tag };
                    out.send(self.setup.backup(self.shard), tag, MessageHead::default(), None);
                }
                let (generation, step) = (self.setup.generation, tag.step);
                let tag = Tag { generation, step, bucket: 0, phase: FAREWELL };
                out.send(from, tag, MessageHead::default(), None);
                self.answer(now, out);
                self.refresh(slowest, out);
            }
            (GO, _, None) => {
                if let Some(peer) = self.workers.get_mut(tag.bucket as usize) {
                    let (clock, slowest, version) = (u64::from(tag.step), head.unit, head.version);
                    peer.told = Some(Clearance { clock, slowest, version });
                    self.answer(now, out);
                }
            }
            (_, _, body) => body.into_iter().for_each(|msg| out.push(Action::Release(msg))),
        }
    }

    fn sent(&mut self, now: Time, op: OpId, out: &mut Actions) {
        match self.sends.remove(&op) {
            Some(Leaving::Part(i)) => {
                self.gathered[i].leaving -= 1;
                self.gather(i, out);
            }
            Some(Leaving::Fresh(worker)) => {
                let fresh = |leaving: &Leaving| matches!(leaving, Leaving::Fresh(w) if *w == worker);
                self.workers[worker].refreshing = self.sends.values().any(fresh);
            }
            Some(Leaving::Sum(i)) => {
                self.gathered[i].forwarding = false;
                if self.setup.sync.is_bsp() {
                    return self.gather(i, out);
                }
                while !self.gathered[i].forwarding
                    && let Some(push) = self.queued[i].pop_front()
                {
                    self.push(now, i, push, out);
                }
            }
            Some(Leaving::Copy) | None => {}
        }
    }
}

impl Participant for Server {
    fn on(&mut self, now: Time, input: Input, out: &mut Actions) {
        match input {
            Input::Message { tag, body, .. } if self.finished || tag.generation != self.setup.generation => {
                body.into_iter().for_each(|msg| out.push(Action::Release(msg)));
            }
            _ if self.finished => return,
            Input::Message { from, tag, head, body } => self.message(now, from, tag, head, body, out),
            Input::Done(op) => self.sent(now, op, out),
            // Everybody begins with an answer: with the newest parameters.
            Input::Start if self.setup.work.is_some() => {
                self.workers.iter_mut().for_each(|peer| peer.waiting = true);
                self.answer(now, out);
            }
            Input::Lost(rank) => {
                self.finished = true;
                for push in self.queued.iter_mut().flat_map(|queued| queued.drain(..)) {
                    out.push(Action::Release(push.msg));
                }
                for msg in self.gathered.iter_mut().flat_map(|g| g.held.iter_mut().filter_map(Option::take)) {
                    out.push(Action::Release(msg));
                }
                out.push(Action::Finish(Outcome::Lost(rank)));
                return;
            }
            Input::StopAt(step) => {
                // What was handed out already is done, and the step that it belongs to.
                self.stop = self.stop.min(step.max(self.next_unit.div_ceil(self.setup.units())));
            }
            _ => {}
        }
        if self.race.gone.iter().all(|&gone| gone) && self.sends.is_empty() {
            self.finished = true;
            out.push(Action::Finish(Outcome::Completed));
        }
    }

    fn scratch(&self) -> Vec<usize> {
        let copies = match &self.setup.sync {
            sync if sync.is_bsp() => usize::from(!self.direct()),
            sync if sync.eager => 2 * self.setup.workers,
            _ => self.setup.workers,
        };
        vec![self.copy_len; copies]
    }

    fn standing(&self) -> RankStanding {
        if !self.setup.sync.is_bsp() {
            return RankStanding { parts: self.singles.clone(), ..RankStanding::default() };
        }
        let made = |((number, part), gather): (&(usize, Part), &Gather)| PartStanding {
            part: *number as u32,
            range: part.range.clone(),
            made: gather.made,
            lacks: Vec::new(),
        };
        let parts = self.parts.iter().zip(&self.gathered).map(made).collect();
        RankStanding { parts, ..RankStanding::default() }
    }
}
