//! What the workers of all serverless strategies have in common: the steps of a run, its end, losses
//! and generations. A strategy fills in what happens within a step.

use crate::setup::Setup;
use crate::vocabulary::{
    Action, Actions, GradientScale, Input, MsgId, OpId, Outcome, Participant, Rank, Tag, Time, WorkUnit,
};

/// What happens within a worker's steps.
pub trait StepProtocol: Send {
    /// How the gradient is weighted.
    fn scale(&self) -> GradientScale;
    /// A step begins.
    fn begin(&mut self, step: u64, out: &mut Actions);
    /// Every gradient at or behind this offset is final.
    fn gradients(&mut self, from: usize, out: &mut Actions);
    /// The backward pass is over, and all gradients were announced.
    fn backward_done(&mut self, out: &mut Actions);
    /// A message of this run has come; `msg` is to be released.
    fn message(&mut self, from: Rank, tag: Tag, msg: Option<MsgId>, out: &mut Actions);
    /// A send is over.
    fn sent(&mut self, op: OpId, out: &mut Actions);
    /// Whether the next step may begin.
    fn over(&self) -> bool;
    /// Whether the run may end here: nobody will send anything more to this rank.
    fn settled(&self) -> bool {
        true
    }
    /// For whom this worker waits.
    fn waiting_for(&self) -> Option<Rank>;
    /// Gives back every message that is held.
    fn release(&mut self, out: &mut Actions);
    /// Lengths of the scratch buffers.
    fn scratch(&self) -> Vec<usize>;
    /// Takes up a run at a step, before it begins.
    fn resume(&mut self, _step: u64) {}
}

/// A worker of a serverless strategy.
pub struct StepDriver<R> {
    rounds: R,
    rank: Rank,
    generation: u32,
    step: u64,
    stop: u64,
    backward_done: bool,
    /// All steps are done; the end waits until everything has settled.
    ending: bool,
    finished: bool,
}

impl<R: StepProtocol> StepDriver<R> {
    /// The participant of one rank.
    pub fn new(setup: &Setup, rank: Rank, mut rounds: R) -> Self {
        rounds.resume(setup.from);
        Self {
            rounds,
            rank,
            generation: setup.generation,
            step: setup.from,
            stop: setup.end(),
            backward_done: false,
            ending: false,
            finished: false,
        }
    }

    fn begin(&mut self, out: &mut Actions) {
        if self.step >= self.stop {
            self.ending = true;
            return;
        }
        self.backward_done = false;
        self.rounds.begin(self.step, out);
        let unit = WorkUnit { step: self.step, share: self.rank };
        out.push(Action::BeginStep { step: self.step, unit, scale: self.rounds.scale() });
    }

    fn finish(&mut self, outcome: Outcome, out: &mut Actions) {
        self.finished = true;
        self.rounds.release(out);
        out.push(Action::Finish(outcome));
    }

    /// Goes on to the next step, or ends, once nothing of this one is left.
    fn go_on(&mut self, out: &mut Actions) {
        if !self.ending && self.backward_done {
            if self.rounds.over() {
                self.step += 1;
                self.begin(out);
            } else if let Some(rank) = self.rounds.waiting_for() {
                out.push(Action::WaitingFor(rank));
            }
        }
        if self.ending {
            if self.rounds.settled() {
                self.finish(Outcome::Completed, out);
            } else if let Some(rank) = self.rounds.waiting_for() {
                out.push(Action::WaitingFor(rank));
            }
        }
    }
}

impl<R: StepProtocol> Participant for StepDriver<R> {
    fn on(&mut self, _now: Time, input: Input, out: &mut Actions) {
        let stale = |tag: Tag| tag.generation != self.generation;
        match input {
            Input::Message { tag, body, .. } if self.finished || stale(tag) => {
                body.into_iter().for_each(|msg| out.push(Action::Release(msg)));
                return;
            }
            _ if self.finished => return,
            Input::Start => self.begin(out),
            Input::GradReady { from } => self.rounds.gradients(from, out),
            Input::BackwardDone => {
                self.rounds.gradients(0, out);
                self.backward_done = true;
                self.rounds.backward_done(out);
            }
            Input::Message { from, tag, body, .. } => self.rounds.message(from, tag, body, out),
            Input::Done(op) => self.rounds.sent(op, out),
            Input::Lost(rank) => return self.finish(Outcome::Lost(rank), out),
            Input::StopAt(step) => self.stop = self.stop.min(step),
            Input::Load(_) | Input::Ran(_) | Input::Leave | Input::RunOut | Input::Commit(_) => {}
        }
        self.go_on(out);
    }

    fn scratch(&self) -> Vec<usize> {
        self.rounds.scratch()
    }
}
