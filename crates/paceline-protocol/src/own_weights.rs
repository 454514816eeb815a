//! A worker that has weights of its own, in a run whose members may change.
//!
//! It owes nobody a step: a step is made when the worker's own update is, whatever becomes of the exchange behind it. So
//! nobody votes. The update is made in one piece; each lane's average is then adopted at once or not at all, so that
//! whatever happens, parameters are averages of workers' weights whose weights add up to 1. When a member is lost, the
//! exchange under way is given up: lanes that are averaged stay so, the others stay the worker's own.
//!
//! Survivors may stand at different steps. The next generation exchanges from the furthest one's on; who is behind makes
//! the steps up to there by itself. Shares that have moved are computed from then on, each by one worker: the gradients
//! of its shares are one gradient, weighted so that the mean over the workers is the global batch's.

use crate::setup::{GenerationMembers, Setup};
use crate::vocabulary::{
    Action, Actions, Buf, GradientScale, Input, Outcome, Participant, Rank, RankStanding, Region, Time,
    WorkUnit,
};

/// A worker with weights of its own.
pub struct OwnWeights {
    /// The strategy between this generation's workers.
    inner: Box<dyn Participant>,
    /// Its shares: number, gradient buffer, and the step from which it computes each.
    shares: Vec<Share>,
    params: usize,
    /// What a sum of gradients counts in a step that all make together.
    weight: f32,
    /// The step that all make together first, and the one before which the run ends.
    together: u64,
    stop: u64,
    /// Steps whose own update was made: the step under way.
    at: u64,
    /// How its gradient is weighted, and how many of its units are computed.
    scale: GradientScale,
    computed: usize,
    /// Messages that came while this worker made up for steps.
    early: Vec<Input>,
    begun: bool,
    finished: bool,
}

#[derive(Clone, Copy)]
struct Share {
    number: usize,
    gradient: Buf,
    begins: u64,
}

impl OwnWeights {
    /// The worker `rank` of a generation.
    pub fn new(inner: Box<dyn Participant>, setup: &Setup, members: &GenerationMembers, rank: Rank) -> Self {
        let share = |(slot, number): (usize, usize)| Share {
            number,
            gradient: if slot == 0 { Buf::Grad } else { Buf::HostedGrad(slot as u16) },
            begins: members.begins.get(number).copied().unwrap_or(setup.from),
        };
        Self {
            inner,
            shares: setup.positions(rank).into_iter().enumerate().map(share).collect(),
            params: setup.params,
            weight: setup.workers as f32 / setup.shares() as f32,
            together: setup.from,
            stop: setup.end(),
            at: setup.first_step(rank),
            scale: GradientScale::Even,
            computed: 0,
            early: Vec::new(),
            begun: false,
            finished: false,
        }
    }

    /// The shares that are computed in the step under way.
    fn due(&self) -> impl Iterator<Item = Share> + '_ {
        self.shares.iter().copied().filter(|share| share.begins <= self.at)
    }

    /// Asks for the next unit of the step, if there is one.
    fn next_unit(&mut self, out: &mut Actions) -> bool {
        let Some(share) = self.due().nth(self.computed) else { return false };
        let unit = WorkUnit { step: self.at, share: share.number };
        out.push(Action::BeginStep { step: self.at, unit, scale: self.scale });
        true
    }

    /// Makes up for a step by itself, or begins what all do together.
    fn go_on(&mut self, now: Time, out: &mut Actions) {
        self.computed = 0;
        if self.at < self.together.min(self.stop) {
            self.next_unit(out);
            return;
        }
        self.begun = true;
        self.pass(now, Input::Start, out);
        for input in std::mem::take(&mut self.early) {
            self.pass(now, input, out);
        }
    }

    /// Hands an input on. The strategy asks for one unit per step, which stands for those of all shares; its update is
    /// made already.
    fn pass(&mut self, now: Time, input: Input, out: &mut Actions) {
        let before = out.list().len();
        self.inner.on(now, input, out);
        let first = self.shares.iter().find(|share| share.begins <= self.at).map_or(0, |share| share.number);
        let Self { scale, computed, finished, .. } = self;
        out.rewrite(before, |action| match action {
            Action::BeginStep { step, scale: asked, .. } => {
                (*scale, *computed) = (asked, 0);
                Some(Action::BeginStep { step, unit: WorkUnit { step, share: first }, scale: asked })
            }
            Action::Apply { .. } => None,
            Action::Finish(_) => {
                *finished = true;
                Some(action)
            }
            action => Some(action),
        });
    }

    /// Makes the gradients of the step's units one gradient, and the update with it.
    fn update(&mut self, out: &mut Actions) {
        let whole = |buf| Region { buf, offset: 0, len: self.params };
        let dst = whole(Buf::Grad);
        let alone = 1.0 / self.computed as f32;
        let weight = if self.at < self.together { alone } else { self.weight };
        for (n, share) in self.due().enumerate() {
            match (n, share.gradient) {
                (0, Buf::Grad) if weight == 1.0 => {}
                (0, Buf::Grad) => out.push(Action::Scale { dst, by: weight }),
                (0, src) => out.push(Action::Mix { dst, keep: 0.0, src: whole(src), add: weight }),
                (_, src) => out.push(Action::Mix { dst, keep: 1.0, src: whole(src), add: weight }),
            }
        }
        out.push(Action::Apply { params: whole(Buf::Param), grad: dst, step: self.at, whole: true });
        self.at += 1;
    }

    /// A unit's gradient is there.
    fn unit_done(&mut self, now: Time, input: Input, out: &mut Actions) {
        self.computed += 1;
        if self.next_unit(out) {
            return;
        }
        self.update(out);
        if self.begun { self.pass(now, input, out) } else { self.go_on(now, out) }
    }

    /// Stops where it is: the exchange under way is given up.
    fn lose(&mut self, now: Time, rank: Rank, out: &mut Actions) {
        self.finished = true;
        let before = out.list().len();
        self.inner.on(now, Input::Lost(rank), out);
        out.rewrite(before, |action| matches!(action, Action::Release(_)).then_some(action));
        for input in self.early.drain(..) {
            if let Input::Message { body: Some(msg), .. } = input {
                out.push(Action::Release(msg));
            }
        }
        out.push(Action::Finish(Outcome::Lost(rank)));
    }
}

impl Participant for OwnWeights {
    fn on(&mut self, now: Time, input: Input, out: &mut Actions) {
        match input {
            Input::Message { body, .. } if self.finished => {
                body.into_iter().for_each(|msg| out.push(Action::Release(msg)));
            }
            _ if self.finished => {}
            Input::Start => self.go_on(now, out),
            Input::Lost(rank) => self.lose(now, rank, out),
            Input::BackwardDone => self.unit_done(now, input, out),
            // Nothing is exchanged before the update.
            Input::GradReady { .. } | Input::Commit(_) => {}
            Input::StopAt(step) => {
                self.stop = self.stop.min(step);
                self.pass(now, input, out);
            }
            input if self.begun => self.pass(now, input, out),
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
        RankStanding { at: self.at, own: true, ..RankStanding::default() }
    }
}
