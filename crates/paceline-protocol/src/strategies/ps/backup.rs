//! The backup of a shard: it makes the shard's updates, and can take its place.
//!
//! It tells the workers itself that it has a step's sums, as soon as it has them all: the server's answers are under way
//! meanwhile. The update that this would wait for is made afterwards, whatever happens to the server. Single pushes are applied
//! as they come, which is in the server's order.

use super::{ACKNOWLEDGED, BYE, FORWARD, Part, parts, single_parts};
use crate::setup::Setup;
use crate::vocabulary::{
    Action, Actions, Buf, Input, MessageHead, MsgId, OpId, Outcome, PartStanding, Participant, Rank,
    RankStanding, Region, Tag, Time,
};

pub(super) struct Backup {
    setup: Setup,
    shard: usize,
    server: Rank,
    workers: usize,
    generation: u32,
    /// The shard's parts by their number among all, with the updates made to each.
    parts: Vec<(u32, Part, u64)>,
    /// Of the same parts, the single pushes that each has.
    singles: Vec<PartStanding>,
    /// Parts of the present step whose sums have come; of each worker's single push, those that have.
    came: usize,
    came_of: Vec<usize>,
    /// The last part's sum, whose update is made when the workers have been told; and how many have not.
    last: Option<(usize, Tag, MsgId)>,
    telling: Vec<OpId>,
    finished: bool,
}

impl Backup {
    pub fn new(setup: &Setup, shard: usize) -> Self {
        let all = parts(setup).into_iter().enumerate();
        let own = all.filter(|(_, part)| part.shard == shard).map(|(number, part)| {
            let number = number as u32;
            (number, part, setup.from + u64::from(setup.ahead.contains(&number)))
        });
        Self {
            shard,
            server: setup.server(shard),
            workers: setup.workers,
            generation: setup.generation,
            parts: own.collect(),
            singles: single_parts(setup, shard),
            came: 0,
            came_of: vec![0; setup.workers],
            last: None,
            telling: Vec::new(),
            finished: false,
            setup: setup.clone(),
        }
    }

    /// Tells a worker that its step is saved here.
    fn tell(&self, worker: Rank, tag: Tag, out: &mut Actions) -> OpId {
        let tag = Tag { phase: ACKNOWLEDGED, bucket: self.shard as u32, ..tag };
        out.send(worker, tag, MessageHead::default(), None)
    }

    fn own_part(&self, bucket: u32) -> Option<usize> {
        self.parts.binary_search_by_key(&bucket, |(number, ..)| *number).ok()
    }

    /// Takes a part's sum.
    fn forward(&mut self, tag: Tag, msg: MsgId, out: &mut Actions) {
        self.update_last(out);
        let Some(i) = self.own_part(tag.bucket) else { return out.push(Action::Release(msg)) };
        self.came += 1;
        if self.came < self.parts.len() {
            return self.update(i, tag, msg, out);
        }
        self.came = 0;
        self.last = Some((i, tag, msg));
        let telling: Vec<OpId> = (0..self.workers).map(|worker| self.tell(worker, tag, out)).collect();
        self.telling.extend(telling);
    }

    /// Takes a part of a worker's single push; without a body it is one that both copies have already.
    fn single(&mut self, tag: Tag, head: MessageHead, body: Option<MsgId>, out: &mut Actions) {
        let (worker, known) = (head.version as usize, self.own_part(tag.bucket));
        let (Some(i), true) = (known, worker < self.workers) else {
            return body.into_iter().for_each(|msg| out.push(Action::Release(msg)));
        };
        if let Some(msg) = body {
            let params = Region::new(Buf::Param, self.parts[i].1.range.clone());
            let grad = Region { buf: Buf::Msg(msg), offset: 0, len: params.len };
            let step = self.setup.unit(head.unit).step;
            out.push(Action::Apply { params, grad, step, whole: false });
            out.push(Action::Release(msg));
            self.singles.get_mut(i).into_iter().for_each(|single| single.note(head.unit));
        }
        self.came_of[worker] += 1;
        if self.came_of[worker] == self.parts.len() {
            self.came_of[worker] = 0;
            self.tell(worker, tag, out);
        }
    }

    /// Makes a part's update, unless it has it.
    fn update(&mut self, i: usize, tag: Tag, msg: MsgId, out: &mut Actions) {
        let ((_, part, made), step) = (&mut self.parts[i], u64::from(tag.step));
        if *made == step {
            let params = Region::new(Buf::Param, part.range.clone());
            let grad = Region { buf: Buf::Msg(msg), offset: 0, len: params.len };
            out.push(Action::Apply { params, grad, step, whole: true });
            *made += 1;
        }
        out.push(Action::Release(msg));
    }

    fn update_last(&mut self, out: &mut Actions) {
        self.telling.clear();
        if let Some((i, tag, msg)) = self.last.take() {
            self.update(i, tag, msg, out);
        }
    }
}

impl Participant for Backup {
    fn on(&mut self, _now: Time, input: Input, out: &mut Actions) {
        match input {
            Input::Message { from, tag, head, body } => {
                let heard = !self.finished && tag.generation == self.generation && from == self.server;
                match (tag.phase, body) {
                    (FORWARD, body) if heard && !self.setup.sync.is_bsp() => {
                        self.single(tag, head, body, out)
                    }
                    (FORWARD, Some(msg)) if heard => self.forward(tag, msg, out),
                    (BYE, None) if heard => {
                        self.update_last(out);
                        self.finished = true;
                        out.push(Action::Finish(Outcome::Completed));
                    }
                    (_, body) => body.into_iter().for_each(|msg| out.push(Action::Release(msg))),
                }
            }
            Input::Done(op) if !self.finished => {
                self.telling.retain(|telling| *telling != op);
                if self.telling.is_empty() {
                    self.update_last(out);
                }
            }
            Input::Lost(rank) if !self.finished => {
                self.update_last(out);
                self.finished = true;
                out.push(Action::Finish(Outcome::Lost(rank)));
            }
            _ => {}
        }
    }

    fn standing(&self) -> RankStanding {
        if !self.setup.sync.is_bsp() {
            return RankStanding { parts: self.singles.clone(), ..RankStanding::default() };
        }
        let standing = |(number, part, made): &(u32, Part, u64)| PartStanding {
            part: *number,
            range: part.range.clone(),
            made: *made,
            lacks: Vec::new(),
        };
        let parts = self.parts.iter().map(standing).collect();
        RankStanding { parts, ..RankStanding::default() }
    }
}
