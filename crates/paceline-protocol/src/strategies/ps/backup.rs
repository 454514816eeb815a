//! The backup of a shard: it makes the shard's updates, and can take its place.
//!
//! It tells the workers itself that it has a step's sums, as soon as it has them all: the server's answers are under way
//! meanwhile. The update that this would wait for is made afterwards, whatever happens to the server.

use super::{ACKNOWLEDGED, BYE, FORWARD, Part, parts};
use crate::setup::Setup;
use crate::vocabulary::{
    Action, Actions, Buf, Input, MessageHead, MsgId, OpId, Outcome, PartStanding, Participant, Rank,
    RankStanding, Region, Tag, Time,
};

pub(super) struct Backup {
    shard: usize,
    server: Rank,
    workers: usize,
    generation: u32,
    /// The shard's parts by their number among all, with the updates made to each.
    parts: Vec<(u32, Part, u64)>,
    /// Parts of the present step whose sums have come.
    came: usize,
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
            came: 0,
            last: None,
            telling: Vec::new(),
            finished: false,
        }
    }

    /// Takes a part's sum.
    fn forward(&mut self, tag: Tag, msg: MsgId, out: &mut Actions) {
        self.update_last(out);
        let Ok(i) = self.parts.binary_search_by_key(&tag.bucket, |(number, ..)| *number) else {
            return out.push(Action::Release(msg));
        };
        self.came += 1;
        if self.came < self.parts.len() {
            return self.update(i, tag, msg, out);
        }
        self.came = 0;
        self.last = Some((i, tag, msg));
        let tag = Tag { phase: ACKNOWLEDGED, bucket: self.shard as u32, ..tag };
        let tell = |worker| out.send(worker, tag, MessageHead::default(), None);
        self.telling.extend((0..self.workers).map(tell));
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
            Input::Message { from, tag, body, .. } => {
                let heard = !self.finished && tag.generation == self.generation && from == self.server;
                match (tag.phase, body) {
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
        let standing = |(number, part, made): &(u32, Part, u64)| PartStanding {
            part: *number,
            start: part.range.start,
            made: *made,
        };
        let parts = self.parts.iter().map(standing).collect();
        RankStanding { parts, ..RankStanding::default() }
    }
}
