//! Updates of runs whose members may change: a worker's parameters change at the end of a step, all at once, so that
//! they always are those of some step.
//!
//! Whatever a strategy does to the parameters within a step is put off until the step is complete on this rank. Where
//! servers hold the model, it is then done: what a worker has from all servers, all servers have. Where workers update
//! by themselves, they first vote: a worker that has all sums of the step says so, and goes on when it knows that
//! everybody has. (A dissemination barrier: in round k each tells the worker 2^k behind it, which by then speaks for 2^k
//! workers.) So if anybody has updated, everybody can: sums lie in the gradient buffers until the next step begins, and
//! that is after the update. After a loss, [`crate::regroup`] tells who is behind to catch up ([`Input::Commit`]).

use std::collections::HashSet;

use crate::vocabulary::{
    Action, Actions, Buf, Input, MessageHead, MsgId, Outcome, Participant, Rank, RankStanding, Tag, Time,
};

/// The phase of votes: no strategy uses it.
const VOTE: u32 = u32::MAX - 8;

/// A worker whose parameters change at the end of a step only.
pub struct Commit {
    inner: Box<dyn Participant>,
    rank: Rank,
    workers: usize,
    generation: u32,
    /// Whether workers vote.
    votes: bool,
    /// Steps whose update was made.
    at: u64,
    /// The step that was begun last.
    begun: Option<u64>,
    /// What is to be done to the parameters, in order, with releases of what it reads.
    put_off: Vec<Action>,
    /// What follows the step once its update is made: the step is complete here.
    next: Option<Action>,
    /// The round of the vote, whether its message is sent, and those that have come.
    round: u32,
    sent: bool,
    came: HashSet<(u32, u32)>,
    finished: bool,
}

impl Commit {
    /// The worker `rank` of `workers`, whose first step is `from`.
    pub fn new(
        inner: Box<dyn Participant>,
        rank: Rank,
        workers: usize,
        generation: u32,
        from: u64,
        votes: bool,
    ) -> Self {
        Self {
            inner,
            rank,
            workers,
            generation,
            votes,
            at: from,
            begun: None,
            put_off: Vec::new(),
            next: None,
            round: 0,
            sent: false,
            came: HashSet::new(),
            finished: false,
        }
    }

    /// The workers that a worker votes with.
    pub fn links(rank: Rank, workers: usize) -> impl Iterator<Item = Rank> {
        let rounds = 0..rounds(workers);
        rounds.flat_map(move |round| [ahead(rank, workers, round), behind(rank, workers, round)])
    }

    /// Hands an input on, and keeps back what would change the parameters and what follows the step.
    fn pass(&mut self, now: Time, input: Input, out: &mut Actions) {
        let before = out.list().len();
        self.inner.on(now, input, out);
        let Self { put_off, next, at, begun, .. } = self;
        out.rewrite(before, |action| {
            match action {
                Action::Release(msg) if put_off.iter().any(|put_off| reads(put_off, msg)) => {
                    put_off.push(action);
                }
                Action::BeginStep { step, .. } if step > *at => *next = Some(action),
                Action::Finish(Outcome::Completed) if *begun == Some(*at) => *next = Some(action),
                // Somebody leaves before a later step: this one is made.
                Action::Finish(Outcome::Left { before, .. }) if *begun == Some(*at) && before > *at => {
                    *next = Some(action);
                }
                // It ends after a step that is being voted on, or within one that is given up.
                Action::Finish(_) if next.is_some() => *next = Some(action),
                _ if action.changes().into_iter().flatten().any(|region| region.buf == Buf::Param) => {
                    put_off.push(action);
                }
                Action::BeginStep { step, .. } => {
                    *begun = Some(step);
                    return Some(action);
                }
                _ => return Some(action),
            }
            None
        });
        let ended = out.list()[before..].iter().any(|action| matches!(action, Action::Finish(_)));
        if ended {
            self.finished = true;
            self.drop_updates(out);
        }
        if self.next.is_some() {
            self.vote(out);
        }
    }

    /// Goes through the rounds of the vote as far as they have come, and updates behind the last one.
    fn vote(&mut self, out: &mut Actions) {
        let last = if self.votes { rounds(self.workers) } else { 0 };
        while self.round < last {
            let tag =
                Tag { generation: self.generation, step: self.at as u32, bucket: self.round, phase: VOTE };
            if !self.sent {
                let to = ahead(self.rank, self.workers, self.round);
                out.send(to, tag, MessageHead::default(), None);
                self.sent = true;
            }
            if !self.came.remove(&(tag.step, tag.bucket)) {
                return out.push(Action::WaitingFor(behind(self.rank, self.workers, self.round)));
            }
            (self.round, self.sent) = (self.round + 1, false);
        }
        self.round = 0;
        self.update(out);
        let Some(next) = self.next.take() else { return };
        match next {
            Action::BeginStep { step, .. } => self.begun = Some(step),
            _ => self.finished = true,
        }
        out.push(next);
    }

    fn update(&mut self, out: &mut Actions) {
        self.at += 1;
        self.put_off.drain(..).for_each(|action| out.push(action));
    }

    /// Forgets the updates of a step that is given up.
    fn drop_updates(&mut self, out: &mut Actions) {
        let bodies = self.put_off.drain(..).filter(|action| matches!(action, Action::Release(_)));
        bodies.for_each(|action| out.push(action));
    }

    /// Stops where it is: what is complete stays so, what is not is given up.
    fn lose(&mut self, now: Time, rank: Rank, out: &mut Actions) {
        self.finished = true;
        let before = out.list().len();
        self.inner.on(now, Input::Lost(rank), out);
        let put_off = &mut self.put_off;
        out.rewrite(before, |action| match action {
            Action::Release(msg) if put_off.iter().any(|put_off| reads(put_off, msg)) => {
                put_off.push(action);
                None
            }
            Action::Release(_) => Some(action),
            _ => None,
        });
        if !self.ready() {
            self.drop_updates(out);
        }
        out.push(Action::Finish(Outcome::Lost(rank)));
    }

    /// Whether an update is complete and not made.
    fn ready(&self) -> bool {
        self.votes && self.next.is_some()
    }
}

/// Rounds of a vote.
fn rounds(workers: usize) -> u32 {
    workers.next_power_of_two().trailing_zeros()
}

fn ahead(rank: Rank, workers: usize, round: u32) -> Rank {
    (rank + (1 << round)) % workers
}

fn behind(rank: Rank, workers: usize, round: u32) -> Rank {
    (rank + workers - (1 << round)) % workers
}

fn reads(action: &Action, msg: MsgId) -> bool {
    action.regions().into_iter().flatten().any(|region| region.buf == Buf::Msg(msg))
}

impl Participant for Commit {
    fn on(&mut self, now: Time, input: Input, out: &mut Actions) {
        match input {
            Input::Message { tag, body, .. } if tag.phase == VOTE => {
                body.into_iter().for_each(|msg| out.push(Action::Release(msg)));
                if tag.generation == self.generation && !self.finished {
                    self.came.insert((tag.step, tag.bucket));
                    if self.next.is_some() {
                        self.vote(out);
                    }
                }
            }
            Input::Commit(step) => {
                if self.finished && self.ready() && step == self.at + 1 {
                    self.next = None;
                    self.update(out);
                }
            }
            Input::Lost(_) if self.finished => {}
            Input::Lost(rank) => self.lose(now, rank, out),
            input => self.pass(now, input, out),
        }
    }

    fn goes_alone(&self) -> bool {
        self.inner.goes_alone()
    }

    fn scratch(&self) -> Vec<usize> {
        self.inner.scratch()
    }

    fn standing(&self) -> RankStanding {
        let ready = self.finished && self.ready();
        RankStanding { at: self.at, ready, ..RankStanding::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{OpId, Region};

    /// Begins a step; in its midst, or once its update is known, it learns that the run ends before step 1.
    struct Left {
        complete: bool,
    }

    impl Participant for Left {
        fn on(&mut self, _: Time, input: Input, out: &mut Actions) {
            let unit = crate::WorkUnit { step: 0, share: 0 };
            match input {
                Input::Start => {
                    out.push(Action::BeginStep { step: 0, unit, scale: crate::GradientScale::Part })
                }
                Input::Done(_) => {
                    let params = Region { buf: Buf::Param, offset: 0, len: 4 };
                    out.push(Action::Apply {
                        params,
                        grad: Region { buf: Buf::Grad, ..params },
                        step: 0,
                        whole: true,
                    });
                    let before = if self.complete { 1 } else { 0 };
                    out.push(Action::Finish(Outcome::Left { worker: 1, before }));
                }
                _ => {}
            }
        }
    }

    #[test]
    fn a_step_that_is_complete_when_somebody_leaves_is_updated_and_one_that_is_not_is_given_up() {
        for complete in [true, false] {
            let mut commit = Commit::new(Box::new(Left { complete }), 0, 2, 0, 0, false);
            let mut out = Actions::default();
            commit.on(0, Input::Start, &mut out);
            out.drain().for_each(drop);
            commit.on(1, Input::Done(OpId(0)), &mut out);
            let done = out.list();
            assert_eq!(matches!(done[0], Action::Apply { .. }), complete, "{done:?}");
            assert!(matches!(done.last(), Some(Action::Finish(Outcome::Left { .. }))), "{done:?}");
            assert_eq!(commit.standing().at, u64::from(complete));
        }
    }
}
