//! Steps that repeat are driven once.
//!
//! Where nothing is drawn, a run soon comes to a state that it was in some steps before, only later. From there on
//! everything happens again, so as many steps as cost the same are left out of the run: their times are those of
//! the steps before them, moved on. States are compared whole, when all workers have begun a step: what is under
//! way, who is how far, what each interface is busy with. What a participant has in mind follows from what it was
//! told since it began its step, if it begins every step anew.

use paceline_protocol::{Input, Rank, Time};

use super::{Driver, Flight, RankContext};
use crate::memory::RankMemory;
use crate::queue::Event;
use crate::report::SimulatedTimes;

/// Most words of the states that are remembered.
const ROOM: usize = 1 << 24;

/// The states that a run was in, and what the present one is made from.
pub(super) struct Repetition {
    /// The step that workers begin, in the participants' count, and how many have begun it.
    step: u64,
    begun: usize,
    /// What each worker was told since it began its step, until all have begun it.
    told: Vec<Vec<Input>>,
    /// Messages that each worker got before it began the step that they belong to.
    early: Vec<Vec<Input>>,
    /// The first send of each worker's step.
    first_op: Vec<u64>,
    states: Vec<State>,
    words: usize,
}

/// The state of a run when all workers have begun a step.
struct State {
    step: u64,
    at: Time,
    words: Vec<u64>,
    spent: Vec<SimulatedTimes>,
    sent_bytes: Vec<u64>,
    messages: u64,
}

impl Repetition {
    pub(super) fn new(workers: usize, step: u64) -> Self {
        let empty = || vec![Vec::new(); workers];
        let (told, early, first_op) = (empty(), empty(), vec![0; workers]);
        Self { step, begun: 0, told, early, first_op, states: Vec::new(), words: 0 }
    }

    /// Notes what a worker in `step` is told.
    pub(super) fn tell(&mut self, rank: Rank, step: Option<u64>, input: Input) {
        match input {
            Input::Message { tag, .. } if step.is_none_or(|own| u64::from(tag.step) > own) => {
                self.early[rank].push(input);
            }
            _ if step == Some(self.step) && self.begun < self.told.len() => self.told[rank].push(input),
            _ => {}
        }
    }

    /// A worker begins a step; whether that can be: all others have begun the one before.
    pub(super) fn begin(&mut self, rank: Rank, step: u64, first_op: u64) -> bool {
        if step != self.step {
            if self.begun < self.told.len() || step != self.step + 1 {
                return false;
            }
            (self.step, self.begun) = (step, 0);
        }
        self.begun += 1;
        self.first_op[rank] = first_op;
        self.told[rank] = std::mem::take(&mut self.early[rank]);
        true
    }

    /// Whether all workers have begun the step, of which no state is remembered.
    fn due(&self, skipped: u64) -> bool {
        self.begun == self.told.len()
            && self.states.last().is_none_or(|state| state.step != self.step + skipped)
    }

    /// An input as a worker sees it.
    fn input(&self, rank: Rank, input: Input, words: &mut Vec<u64>) {
        match input {
            Input::Message { from, tag, body, .. } => {
                let step = u64::from(tag.step).wrapping_sub(self.step);
                let place = u64::from(tag.bucket) << 32 | u64::from(tag.phase);
                words.extend([1, from as u64, step, place, u64::from(body.is_some())]);
            }
            Input::Done(op) => words.extend([2, op.0.wrapping_sub(self.first_op[rank])]),
            Input::GradReady { from } => words.extend([3, from as u64]),
            Input::BackwardDone => words.push(4),
            // A worker's load follows from its pass; the rest ends a run.
            _ => words.push(5),
        }
    }

    /// What a worker is about.
    fn worker(&self, rank: Rank, context: &RankContext, now: Time, words: &mut Vec<u64>) {
        words.extend([context.busy.wrapping_sub(now), context.waits_for.map_or(0, |peer| peer as u64 + 1)]);
        match context.pass {
            Some(pass) => words.extend(pass.words()),
            None => words.push(u64::MAX),
        }
        for inputs in [&self.told[rank], &self.early[rank]] {
            words.push(inputs.len() as u64);
            inputs.iter().for_each(|input| self.input(rank, *input, words));
        }
        words.push(context.inbox.len() as u64);
        context.inbox.iter().for_each(|input| self.input(rank, *input, words));
    }

    fn flight<B>(&self, flight: &Flight<B>, now: Time, words: &mut Vec<u64>) {
        let Flight { from, to, op, tag, head, bytes, left, last_bit, .. } = *flight;
        let body = flight.src.map(|_| paceline_protocol::MsgId(0));
        self.input(to, Input::Message { from, tag, head, body }, words);
        let op = op.0.wrapping_sub(self.first_op[from]);
        words.extend([to as u64, op, bytes as u64, u64::from(left), last_bit.wrapping_sub(now)]);
    }
}

impl<M: RankMemory> Driver<'_, M> {
    /// Looks whether the run was in its state before; then leaves out what repeats.
    pub(super) fn repeat(&mut self, now: Time) {
        let Some(repetition) = self.repetition.take_if(|repetition| repetition.due(self.skipped)) else {
            return;
        };
        let mut repetition = repetition;
        let words = self.words(&repetition, now);
        let (step, at) = (repetition.step + self.skipped, now + self.shift);
        let alike = repetition.states.iter().filter(|state| state.words == words);
        let times = alike.map(|state| (self.repeats(state.step, step), state));
        if let Some((times @ 1.., state)) = times.max_by_key(|(times, state)| times * (step - state.step)) {
            self.leave_out(times, state, step, at);
        }
        if repetition.words + words.len() > ROOM {
            (repetition.states, repetition.words) = (Vec::new(), 0);
        }
        repetition.words += words.len();
        let (step, at) = (repetition.step + self.skipped, now + self.shift);
        let report = &self.report;
        let (spent, sent_bytes) = (report.spent.clone(), report.sent_bytes.clone());
        let messages = report.messages;
        repetition.states.push(State { step, at, words, spent, sent_bytes, messages });
        self.repetition = Some(repetition);
    }

    /// The state, as words that are the same whenever it is.
    fn words(&mut self, repetition: &Repetition, now: Time) -> Vec<u64> {
        let mut words = Vec::new();
        for (rank, context) in self.members.iter().enumerate() {
            repetition.worker(rank, context, now, &mut words);
        }
        let busy = |site: &super::Site| [site.sends.saturating_sub(now), site.receives.saturating_sub(now)];
        words.extend(self.sites.iter().flat_map(busy));
        for (at, event) in self.queue.sorted() {
            words.push(at - now);
            match event {
                Event::Part(rank) => words.extend([1, u64::from(rank)]),
                Event::Free(rank) => words.extend([2, u64::from(rank)]),
                Event::Departs(place)
                | Event::Sent(place)
                | Event::Reaches(place)
                | Event::Arrived(place) => {
                    let kind = match event {
                        Event::Departs(_) => 3,
                        Event::Sent(_) => 4,
                        Event::Reaches(_) => 5,
                        _ => 6,
                    };
                    words.push(kind);
                    repetition.flight(self.flights.get(place), now, &mut words);
                }
                // Only before the first step, or at the end of a run.
                Event::Input(_) | Event::Crash(_) | Event::Stop => words.push(7),
            }
        }
        words
    }

    /// How often the steps between two states of the run repeat behind the second one.
    fn repeats(&self, first: u64, second: u64) -> u64 {
        let period = second - first;
        self.costs.repeats(self.setup.workers, first, period, self.setup.end()) / period
    }

    /// Leaves out `times` repetitions of what happened since `state`.
    fn leave_out(&mut self, times: u64, state: &State, step: u64, at: Time) {
        let (period, took) = (step - state.step, at - state.at);
        let report = &mut self.report;
        for (spent, before) in report.spent.iter_mut().zip(&state.spent) {
            spent.repeat(before, times);
        }
        for (bytes, before) in report.sent_bytes.iter_mut().zip(&state.sent_bytes) {
            *bytes += times * (*bytes - before);
        }
        report.messages += times * (report.messages - state.messages);
        for finished in &mut report.finished {
            for _ in 0..times * period {
                let before = finished[finished.len() - period as usize];
                finished.push(before + took);
            }
        }
        self.shift += times * took;
        self.skipped += times * period;
        let stop = self.setup.end() - self.skipped;
        for context in &mut self.members {
            context.participant.on(context.busy, Input::StopAt(stop), &mut context.actions);
            // For whom it waits, once more.
            context.actions.drain().for_each(drop);
        }
    }
}
