//! The one executor of schedules: gradients are summed lane by lane along the schedule's path, each lane
//! as soon as backward has finished it, and every worker applies the same update.

use std::collections::HashMap;
use std::ops::Range;

use crate::schedule::{Combine, Schedule};
use crate::setup::{Setup, part, pieces};
use crate::vocabulary::{
    Action, Actions, Buf, Head, Input, MsgId, OpId, Outcome, Participant, Rank, Region, Tag, Time, Unit,
};

/// A worker of a collective strategy.
pub struct Collective {
    setup: Setup,
    rank: Rank,
    schedule: Schedule,
    lanes: Vec<Lane>,
    /// Sends that are under way, with the lane and chunk they read.
    sends: HashMap<OpId, (usize, usize)>,
    /// Messages that came before their lane was ready for them.
    early: HashMap<Tag, MsgId>,
    step: u64,
    stop: u64,
    /// Lanes that are not finished in this step.
    open: usize,
    /// First gradient element that is final.
    final_from: usize,
    backward_done: bool,
    snapshot_wanted: bool,
    finished: bool,
}

/// A piece of the flat buffer that runs the schedule by itself.
struct Lane {
    range: Range<usize>,
    state: State,
    /// The next move, and whether its send was made.
    at: usize,
    sent: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Backward has not finished it.
    Idle,
    Running,
    Done,
}

impl Collective {
    /// The participant of one rank.
    pub fn new(setup: &Setup, rank: Rank, schedule: Schedule) -> Self {
        let most = setup.message * schedule.chunks;
        let lanes = setup.buckets().iter().flat_map(|bucket| pieces(bucket, most)).collect::<Vec<_>>();
        Self {
            rank,
            schedule,
            lanes: lanes
                .into_iter()
                .map(|range| Lane { range, state: State::Idle, at: 0, sent: false })
                .collect(),
            sends: HashMap::new(),
            early: HashMap::new(),
            step: 0,
            stop: setup.steps,
            open: 0,
            final_from: setup.params,
            backward_done: false,
            snapshot_wanted: false,
            finished: false,
            setup: setup.clone(),
        }
    }

    fn tag(&self, lane: usize, round: u16) -> Tag {
        Tag { generation: self.setup.generation, step: self.step as u32, bucket: lane as u16, phase: round }
    }

    fn begin(&mut self, out: &mut Actions) {
        if self.snapshot_wanted {
            self.snapshot_wanted = false;
            out.push(Action::SnapshotReady);
        }
        if self.step >= self.stop {
            self.finish(Outcome::Completed, out);
            return;
        }
        self.open = self.lanes.len();
        self.final_from = self.setup.params;
        self.backward_done = false;
        for lane in &mut self.lanes {
            (lane.state, lane.at, lane.sent) = (State::Idle, 0, false);
        }
        out.push(Action::BeginStep { step: self.step, unit: Unit { step: self.step, share: self.rank } });
    }

    fn finish(&mut self, outcome: Outcome, out: &mut Actions) {
        self.finished = true;
        for (_, msg) in self.early.drain() {
            out.push(Action::Release(msg));
        }
        out.push(Action::Finish(outcome));
    }

    /// Starts the lanes that backward has finished. They become final in the order of the lanes.
    fn start_lanes(&mut self, out: &mut Actions) {
        for i in 0..self.lanes.len() {
            if self.lanes[i].state == State::Idle {
                if self.lanes[i].range.start < self.final_from {
                    break;
                }
                self.lanes[i].state = State::Running;
                self.advance(i, out);
            }
        }
    }

    /// Makes the moves of a lane as far as messages and sends allow.
    fn advance(&mut self, i: usize, out: &mut Actions) {
        let chunks = self.schedule.chunks;
        while self.lanes[i].state == State::Running {
            let Some(&step) = self.schedule.moves.get(self.lanes[i].at) else {
                let range = self.lanes[i].range.clone();
                self.lanes[i].state = State::Done;
                self.open -= 1;
                let (params, grad) = (Region::new(Buf::Param, range.clone()), Region::new(Buf::Grad, range));
                out.push(Action::Apply { params, grad, step: self.step });
                return;
            };
            let range = self.lanes[i].range.clone();
            let region = |chunk| Region::new(Buf::Grad, part(&range, chunks, chunk));
            if let (Some((to, chunk)), false) = (step.send, self.lanes[i].sent) {
                let op = out.send(to, self.tag(i, step.round), Head::default(), Some(region(chunk)));
                self.sends.insert(op, (i, chunk));
                self.lanes[i].sent = true;
            }
            if let Some((from, chunk, combine)) = step.receive {
                let tag = self.tag(i, step.round);
                let Some(&msg) = self.early.get(&tag) else {
                    if self.backward_done {
                        out.push(Action::WaitingFor(from));
                    }
                    return;
                };
                // What is still being sent must not change.
                if self.sends.values().any(|&read| read == (i, chunk)) {
                    return;
                }
                self.early.remove(&tag);
                let dst = region(chunk);
                let src = Region { buf: Buf::Msg(msg), offset: 0, len: dst.len };
                out.push(match combine {
                    Combine::Add => Action::Reduce { dst, src },
                    Combine::Replace => Action::Copy { dst, src },
                });
                out.push(Action::Release(msg));
            }
            self.lanes[i].at += 1;
            self.lanes[i].sent = false;
        }
    }

    /// Goes on to the next step once nothing of this one is left.
    fn end_step(&mut self, out: &mut Actions) {
        if self.backward_done && self.open == 0 && self.sends.is_empty() {
            self.step += 1;
            self.begin(out);
        }
    }
}

impl Participant for Collective {
    fn on(&mut self, _now: Time, input: Input, out: &mut Actions) {
        if self.finished {
            if let Input::Message { body: Some(msg), .. } = input {
                out.push(Action::Release(msg));
            }
            return;
        }
        match input {
            Input::Start => return self.begin(out),
            Input::GradReady { from } => {
                self.final_from = from;
                self.start_lanes(out);
            }
            Input::BackwardDone => {
                self.final_from = 0;
                self.backward_done = true;
                self.start_lanes(out);
                if let Some(i) = self.lanes.iter().position(|lane| lane.state == State::Running) {
                    // Says for whom the wait is.
                    self.advance(i, out);
                }
            }
            Input::Message { tag, body, .. } if tag.generation != self.setup.generation => {
                body.into_iter().for_each(|msg| out.push(Action::Release(msg)));
            }
            Input::Message { tag, body: Some(msg), .. } => {
                self.early.insert(tag, msg);
                let lane = usize::from(tag.bucket);
                if u64::from(tag.step) == self.step && lane < self.lanes.len() {
                    self.advance(lane, out);
                }
            }
            Input::Done(op) => {
                if let Some((lane, _)) = self.sends.remove(&op) {
                    self.advance(lane, out);
                }
            }
            Input::Lost(rank) => return self.finish(Outcome::Lost(rank), out),
            Input::StopAt(step) => self.stop = self.stop.min(step),
            Input::Snapshot => self.snapshot_wanted = true,
            Input::Message { body: None, .. }
            | Input::Timer(_)
            | Input::Load { .. }
            | Input::Rejoined { .. } => {}
        }
        self.end_step(out);
    }

    fn save(&self) -> Vec<u64> {
        vec![self.step]
    }

    fn restore(&mut self, saved: &[u64]) {
        self.step = saved[0];
    }
}
