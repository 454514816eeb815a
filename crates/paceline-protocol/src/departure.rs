//! How a run ends that nobody knows the length of: a worker that has run out of work leaves, its peers pass that on,
//! and everybody ends before the step that it did not compute. Nobody waits for a deadline. Gradients of that step are
//! dropped; where weights are averaged, those who had begun it keep their own update.

use crate::vocabulary::{
    Action, Actions, Input, MessageHead, Outcome, Participant, Rank, RankStanding, Tag, Time,
};

/// The phase of the message that a worker leaves: no strategy uses it.
pub const LEAVE: u32 = u32::MAX - 3;

/// A participant whose run can end because a worker leaves.
pub struct Departure {
    inner: Box<dyn Participant>,
    rank: Rank,
    links: Vec<Rank>,
    generation: u32,
    /// Whether all workers make each step together: then those before the leaver's last one are finished.
    together: bool,
    /// The step that is being computed, if one has begun.
    step: Option<u64>,
    /// Who leaves, and the step that will not be computed.
    left: Option<(Rank, u64)>,
    finished: bool,
}

impl Departure {
    pub fn new(
        inner: Box<dyn Participant>,
        rank: Rank,
        links: Vec<Rank>,
        generation: u32,
        together: bool,
    ) -> Self {
        Self { inner, rank, links, generation, together, step: None, left: None, finished: false }
    }

    /// Notes that a worker leaves before a step, and passes it on to everybody but `from`.
    fn leave(&mut self, now: Time, leaver: Rank, step: u64, from: Option<Rank>, out: &mut Actions) {
        if self.left.is_some() || self.finished {
            return;
        }
        self.left = Some((leaver, step));
        let tag = Tag { generation: self.generation, step: step as u32, bucket: leaver as u32, phase: LEAVE };
        for &peer in self.links.iter().filter(|peer| Some(**peer) != from) {
            out.send(peer, tag, MessageHead::default(), None);
        }
        if !self.together || self.step.is_none_or(|own| own >= step) {
            self.abandon(now, out);
        }
    }

    /// Ends what the participant has begun: whatever it holds is given back.
    fn abandon(&mut self, now: Time, out: &mut Actions) {
        let Some((leaver, _)) = self.left else { return };
        let before = out.list().len();
        self.inner.on(now, Input::Lost(leaver), out);
        self.rewrite(before, out);
    }

    /// Whatever ends the participant from now on, it ends because somebody has left.
    fn rewrite(&self, before: usize, out: &mut Actions) {
        let Some((leaver, end)) = self.left else { return };
        out.rewrite(before, |action| match action {
            Action::Finish(_) => Some(Action::Finish(Outcome::Left { worker: leaver, before: end })),
            Action::BeginStep { step, .. } if !self.together || step >= end => None,
            action => Some(action),
        });
    }
}

impl Participant for Departure {
    fn on(&mut self, now: Time, input: Input, out: &mut Actions) {
        match input {
            Input::Leave => {
                let step = self.step.unwrap_or_default();
                return self.leave(now, self.rank, step, None, out);
            }
            Input::RunOut if !self.inner.goes_alone() => {
                let step = self.step.unwrap_or_default();
                return self.leave(now, self.rank, step, None, out);
            }
            Input::Message { from, tag, body, .. } if tag.phase == LEAVE => {
                body.into_iter().for_each(|msg| out.push(Action::Release(msg)));
                if tag.generation == self.generation {
                    self.leave(now, tag.bucket as Rank, u64::from(tag.step), Some(from), out);
                }
                return;
            }
            _ => {}
        }
        let before = out.list().len();
        self.inner.on(now, input, out);
        for action in &out.list()[before..] {
            match action {
                Action::BeginStep { step, .. } => self.step = Some(*step),
                Action::Finish(_) => self.finished = true,
                _ => {}
            }
        }
        if let Some((_, step)) = self.left {
            let abandoned = self.step.is_some_and(|own| own >= step);
            self.rewrite(before, out);
            if abandoned {
                self.abandon(now, out);
            }
        }
    }

    fn scratch(&self) -> Vec<usize> {
        self.inner.scratch()
    }

    fn standing(&self) -> RankStanding {
        self.inner.standing()
    }
}
