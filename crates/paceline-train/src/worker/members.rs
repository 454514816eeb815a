//! A worker of a run whose members may change: how it enters a generation, and leaves one for the next.

use std::time::Duration;

use paceline_memory::Allocator;
use paceline_protocol::{GradientScale, Input, Participant};
use paceline_record::RankState;

use super::{Worker, WorkerEvent, participant};
use crate::clock::Phase;
use crate::error::TrainError;
use crate::members::{Generation, NextGeneration};
use crate::memory::Scratch;
use crate::segment::{Account, SegmentControl, part_in_one_piece};
use crate::source::{AfterStep, GradientSource};

impl Worker<'_> {
    /// Greets its peers and starts, the first time.
    pub(super) fn begin(
        &mut self,
        control: &SegmentControl<'_>,
        say: &mut dyn FnMut(WorkerEvent),
    ) -> Result<(), TrainError> {
        if self.begun {
            return Ok(());
        }
        if control.gate.asked_to_stop(control.segment.generation) && self.generation.is_some() {
            // It is not connected to anybody.
            return Err(TrainError::Regroup);
        }
        self.engine.greet(&mut self.buffers.whole())?;
        self.begun = true;
        self.engine.start(&mut self.buffers.whole())?;
        // The training clock begins with the first step.
        self.clock.spend(Duration::ZERO, Phase::Exchange);
        self.steps.skip(&self.clock, &self.engine.times);
        say(WorkerEvent::Started);
        Ok(())
    }

    /// All work is done here; in a run whose members may change, waits until it is done everywhere.
    pub(super) fn conclude(&mut self, control: &mut SegmentControl<'_>) -> Result<(), TrainError> {
        let Some(members) = &mut control.members else { return Ok(()) };
        self.engine.settle(&mut self.buffers.whole())?;
        if members.conclude(control.segment.generation)? { Ok(()) } else { Err(TrainError::Regroup) }
    }

    /// Goes on as a member of the next generation; whether it has one.
    pub(super) fn regroup(
        &mut self,
        source: &mut dyn GradientSource,
        control: &mut SegmentControl<'_>,
        say: &mut dyn FnMut(WorkerEvent),
    ) -> Result<bool, TrainError> {
        if std::mem::replace(&mut self.begun, true) {
            self.engine.stop_here(&mut self.buffers.whole())?;
        }
        let mut standing = self.engine.standing();
        let mut handed = self.handed_over(source, control);
        if standing.own && standing.at > self.done {
            // Its own update was made; what others would have made of it is given up.
            let next = AfterStep::Next(GradientScale::Part);
            self.step_done(source, say, (self.done, next), (Duration::ZERO, 0))?;
        }
        loop {
            let Some(members) = &mut control.members else { return Ok(false) };
            let NextGeneration::GoOn { generation, commit } =
                members.stand(control.segment.generation, standing, handed.take())?
            else {
                return Ok(false);
            };
            let from = generation.segment.from;
            if commit {
                self.engine.input(Input::Commit(from), &mut self.buffers.whole())?;
                let next = AfterStep::Next(GradientScale::Part);
                self.step_done(source, say, (from - 1, next), (Duration::ZERO, 0))?;
            }
            // A step that was given up is made anew, by whoever.
            // One that was handed over has no row of this worker's, which goes on counting as the others do.
            let first = generation.first_step();
            // (Workers that take units one by one count their own.)
            self.own += if self.together { first.saturating_sub(self.done) } else { 0 };
            (self.done, self.taken) = (first, self.settled);
            let participant = self.take_place(source, control, *generation)?;
            let (Some(members), Some(place)) = (&mut control.members, &self.generation) else {
                return Ok(false);
            };
            let links = self.job.strategy.links_of(&self.setup, self.rank);
            match members.connect(place, &links) {
                Ok(transport) => {
                    let (own, number) = (&place.members, place.segment.generation);
                    self.engine.reconnect(participant, transport, links, own, number);
                    if let Some(stream) = source.beside() {
                        self.engine.wake_by(Some(stream));
                    }
                    break;
                }
                // Somebody else was lost meanwhile.
                Err(TrainError::Wire(_) | TrainError::Regroup) => standing = participant.standing(),
                Err(error) => return Err(error),
            }
        }
        if self.allocator == Allocator::Shared {
            self.buffers.lend_to_peers(&mut self.engine)?;
        }
        self.engine.start(&mut self.buffers.whole())?;
        self.steps.skip(&self.clock, &self.engine.times);
        Ok(true)
    }

    /// What the source hands over, if it was asked to and has saved itself; if it cannot, the leader is told.
    pub(super) fn handed_over(
        &self,
        source: &mut dyn GradientSource,
        control: &mut SegmentControl<'_>,
    ) -> Option<RankState> {
        if let Err(problem) = source.handed_over()? {
            control.members.iter_mut().for_each(|members| members.cannot_hand_over(problem.clone()));
            return None;
        }
        let own = source.params_to_save().unwrap_or_default();
        let named = [("params", &self.buffers.params[..]), ("own", own), ("state", source.state())];
        // Whoever takes it has an account of its own.
        let account = Account::default();
        Some(part_in_one_piece(account, &named, &self.buffers.update, self.setup.params, self.done))
    }

    /// Takes the worker's place in a generation; its participant there.
    fn take_place(
        &mut self,
        source: &mut dyn GradientSource,
        control: &mut SegmentControl<'_>,
        generation: Generation,
    ) -> Result<Box<dyn Participant>, TrainError> {
        control.segment = generation.segment;
        (self.setup, self.rank) = (generation.setup(self.job.setup), generation.rank);
        source.take_place(&self.setup, self.rank)?;
        let numbers = source.layout().params;
        let refused = |source| TrainError::Memory { numbers, source };
        let participant = participant(self.job.strategy, &self.setup, self.rank, control.segment);
        let positions = self.setup.positions(self.rank).len();
        let before = (std::mem::take(&mut self.buffers.params), std::mem::take(&mut self.buffers.grads));
        let (params, grads) = source.buffers_anew(positions, self.allocator, before).map_err(refused)?;
        let scratch = Scratch::new(participant.scratch(), self.allocator).map_err(refused)?;
        (self.buffers.params, self.buffers.grads, self.buffers.scratch) = (params, grads, scratch);
        if generation.gives_optimiser() {
            self.buffers.show_optimiser();
        }
        self.evaluation_due = evaluation_due(source, self.done, self.setup.end());
        self.generation = Some(generation);
        Ok(participant)
    }
}

/// Whether the model is evaluated after so many steps: those who were there may have been kept from it.
pub(super) fn evaluation_due(source: &dyn GradientSource, done: u64, end: u64) -> bool {
    source.evaluates() && done > 0 && (source.evaluates_after(done - 1) || done == end)
}
