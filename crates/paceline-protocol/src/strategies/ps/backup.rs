//! The backup of a shard: it makes the shard's updates, and can take its place.

use super::{ACKNOWLEDGED, BYE, FORWARD, Part, parts};
use crate::setup::Setup;
use crate::vocabulary::{
    Action, Actions, Buf, Input, MessageHead, MsgId, Outcome, PartStanding, Participant, Rank, RankStanding,
    Region, Tag, Time,
};

pub(super) struct Backup {
    server: Rank,
    generation: u32,
    /// The shard's parts by their number among all, with the updates made to each.
    parts: Vec<(u32, Part, u64)>,
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
            server: setup.server(shard),
            generation: setup.generation,
            parts: own.collect(),
            finished: false,
        }
    }

    /// Makes a part's update, unless it has it.
    fn forward(&mut self, tag: Tag, msg: MsgId, out: &mut Actions) {
        if let Ok(i) = self.parts.binary_search_by_key(&tag.bucket, |(number, ..)| *number) {
            let ((_, part, made), step) = (&mut self.parts[i], u64::from(tag.step));
            if *made == step {
                let params = Region::new(Buf::Param, part.range.clone());
                let grad = Region { buf: Buf::Msg(msg), offset: 0, len: params.len };
                out.push(Action::Apply { params, grad, step, whole: true });
                *made += 1;
            }
            out.send(self.server, Tag { phase: ACKNOWLEDGED, ..tag }, MessageHead::default(), None);
        }
        out.push(Action::Release(msg));
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
                        self.finished = true;
                        out.push(Action::Finish(Outcome::Completed));
                    }
                    (_, body) => body.into_iter().for_each(|msg| out.push(Action::Release(msg))),
                }
            }
            Input::Lost(rank) if !self.finished => {
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
