//! What ranks are handed before the first step of a generation: parameters, and what the optimiser knows of them. A rank
//! begins when it has everything that it gets, and nothing that it gives is still being read.

use std::collections::HashSet;
use std::ops::Range;

use crate::setup::{GenerationMembers, Handover, Setup, pieces};
use crate::vocabulary::{
    Action, Actions, Buf, Input, MessageHead, MsgId, OpId, Outcome, Participant, Rank, RankStanding, Region,
    Tag, Time,
};

/// The phase of what is handed over: no strategy uses it.
const HANDOVER: u32 = u32::MAX - 9;

/// Something that a rank gets.
struct Receipt {
    number: usize,
    handover: Handover,
    /// Messages that have not come.
    missing: usize,
    /// What has come of parameters of which the rank keeps an older copy until all is there.
    held: Vec<(Region, MsgId)>,
}

/// A participant that first gives, or gets, what ranks are handed.
pub struct HandingOver {
    inner: Box<dyn Participant>,
    generation: u32,
    /// Most elements of a message.
    message: usize,
    /// What this rank gives.
    gives: Vec<(usize, Handover)>,
    /// What it gets.
    gets: Vec<Receipt>,
    /// Blocks of the optimiser's memory.
    blocks: u16,
    sends: HashSet<OpId>,
    /// What has come for the participant before its start.
    early: Vec<Input>,
    begun: bool,
    finished: bool,
}

impl HandingOver {
    /// A rank's part.
    pub fn new(inner: Box<dyn Participant>, setup: &Setup, members: &GenerationMembers, rank: Rank) -> Self {
        let all = || members.handovers.iter().cloned().enumerate();
        let messages = |handover: &Handover| {
            let blocks = if handover.optimiser { 1 + usize::from(members.blocks) } else { 1 };
            blocks * pieces(&handover.range, setup.message).len()
        };
        Self {
            inner,
            generation: setup.generation,
            message: setup.message,
            gives: all().filter(|(_, handover)| handover.from == rank).collect(),
            gets: all()
                .filter(|(_, handover)| handover.to == rank)
                .map(|(number, handover)| {
                    let missing = messages(&handover);
                    Receipt { number, handover, missing, held: Vec::new() }
                })
                .collect(),
            blocks: members.blocks,
            sends: HashSet::new(),
            early: Vec::new(),
            begun: false,
            finished: false,
        }
    }

    /// The ranks that a rank gives to, or gets from.
    pub fn links(members: &GenerationMembers, rank: Rank) -> impl Iterator<Item = Rank> + '_ {
        members.handovers.iter().filter_map(move |handover| match (handover.from, handover.to) {
            (from, to) if from == rank => Some(to),
            (from, to) if to == rank => Some(from),
            _ => None,
        })
    }

    fn start(&mut self, out: &mut Actions) {
        for (number, handover) in &self.gives {
            let blocks = if handover.optimiser { self.blocks } else { 0 };
            for block in 0..=blocks {
                for (piece, range) in pieces(&handover.range, self.message).into_iter().enumerate() {
                    let (generation, step, bucket) = (self.generation, *number as u32, piece as u32);
                    let tag = Tag { generation, step, bucket, phase: HANDOVER };
                    let head = MessageHead { unit: u64::from(block), ..MessageHead::default() };
                    self.sends.insert(out.send(handover.to, tag, head, Some(place(block, range))));
                }
            }
        }
    }

    /// Takes a piece of what this rank gets.
    fn take(&mut self, from: Rank, tag: Tag, head: MessageHead, msg: MsgId, out: &mut Actions) {
        let blocks = u64::from(self.blocks);
        let of = |got: &&mut Receipt| got.number == tag.step as usize && got.handover.from == from;
        let Some(got) = self.gets.iter_mut().find(of).filter(|got| head.unit <= blocks && got.missing > 0)
        else {
            return out.push(Action::Release(msg));
        };
        let Some(range) = pieces(&got.handover.range, self.message).get(tag.bucket as usize).cloned() else {
            return out.push(Action::Release(msg));
        };
        got.missing -= 1;
        got.held.push((place(head.unit as u16, range), msg));
        // An older copy stays whole until all of the new one is there: whoever gives it may be lost before.
        if got.handover.older.is_none() || got.missing == 0 {
            for (dst, msg) in got.held.drain(..) {
                out.push(Action::Copy { dst, src: Region { buf: Buf::Msg(msg), offset: 0, len: dst.len } });
                out.push(Action::Release(msg));
            }
        }
    }

    /// Begins the run once everything is handed over.
    fn begin(&mut self, now: Time, out: &mut Actions) {
        if let Some(awaited) = self.gets.iter().find(|got| got.missing > 0) {
            return out.push(Action::WaitingFor(awaited.handover.from));
        }
        if !self.sends.is_empty() {
            return;
        }
        self.begun = true;
        self.inner.on(now, Input::Start, out);
        for input in std::mem::take(&mut self.early) {
            self.inner.on(now, input, out);
        }
    }
}

/// Where a piece lies: block 0 is the parameters, the others are the optimiser's.
fn place(block: u16, range: Range<usize>) -> Region {
    Region::new(block.checked_sub(1).map_or(Buf::Param, Buf::Optimiser), range)
}

impl Participant for HandingOver {
    fn on(&mut self, now: Time, input: Input, out: &mut Actions) {
        match input {
            Input::Message { body, .. } if self.finished => {
                body.into_iter().for_each(|msg| out.push(Action::Release(msg)));
            }
            _ if self.finished => {}
            Input::Message { from, tag, head, body: Some(msg) } if tag.phase == HANDOVER => {
                if tag.generation != self.generation || self.begun {
                    return out.push(Action::Release(msg));
                }
                self.take(from, tag, head, msg, out);
                self.begin(now, out);
            }
            input if self.begun => self.inner.on(now, input, out),
            Input::Start => {
                self.start(out);
                self.begin(now, out);
            }
            Input::Done(op) if self.sends.remove(&op) => self.begin(now, out),
            Input::Lost(rank) => {
                self.finished = true;
                for input in self.early.drain(..) {
                    if let Input::Message { body: Some(msg), .. } = input {
                        out.push(Action::Release(msg));
                    }
                }
                let held = self.gets.iter_mut().flat_map(|got| got.held.drain(..));
                held.for_each(|(_, msg)| out.push(Action::Release(msg)));
                out.push(Action::Finish(Outcome::Lost(rank)));
            }
            input => self.early.push(input),
        }
    }

    fn goes_alone(&self) -> bool {
        self.inner.goes_alone()
    }

    fn scratch(&self) -> Vec<usize> {
        self.inner.scratch()
    }

    fn standing(&self) -> RankStanding {
        let mut standing = self.inner.standing();
        for got in self.gets.iter().filter(|got| got.missing > 0) {
            match &got.handover.older {
                None => standing.missing.push(got.handover.range.clone()),
                Some(older) => {
                    let same = standing.parts.iter_mut().find(|part| part.part == older.part);
                    same.into_iter().for_each(|part| part.clone_from(older));
                }
            }
        }
        standing
    }
}
