//! A worker's part of evaluations.

use paceline_nn::Outcome;
use paceline_protocol::ReplicaAgreement;

use super::{Worker, WorkerEvent};
use crate::clock::Phase;
use crate::error::TrainError;
use crate::segment::SegmentControl;
use crate::source::GradientSource;

impl Worker<'_> {
    /// Has the model evaluated after the steps done so far; whether the run ends with that.
    pub(super) fn evaluate(
        &mut self,
        source: &mut dyn GradientSource,
        control: &mut SegmentControl<'_>,
        say: &mut dyn FnMut(WorkerEvent),
    ) -> Result<bool, TrainError> {
        let done = self.done;
        let verdict = control.verdict.as_mut().filter(|_| done < self.setup.end());
        if verdict.is_some() {
            // Nothing moves while this worker stands still, and others may need what has not left yet.
            self.engine.settle(&mut self.buffers.whole())?;
            self.clock.lap(Phase::Exchange);
        }
        let outcome = self.show(source, say)?;
        self.evaluated = Some(done);
        let loss = outcome.map_or(0.0, |outcome| outcome.loss);
        if !loss.is_finite() {
            let samples = source.samples_before(done);
            return Err(TrainError::Diverged { step: done, samples, loss });
        }
        let ends = verdict.map_or(Ok(false), |verdict| verdict(done))?;
        self.clock.lap(Phase::Evaluate);
        self.steps.skip(&self.clock, &self.engine.times);
        Ok(ends)
    }

    /// Evaluates what is this worker's to evaluate; its outcome, if there is one. Models that agree are evaluated by all
    /// workers together, each on its share of the test split; statistics that differ are averaged first, elsewhere, as are
    /// models that differ. Stages are put together elsewhere too, and so is what members that may change have. What servers
    /// have alone is theirs to show.
    pub(super) fn show(
        &mut self,
        source: &mut dyn GradientSource,
        say: &mut dyn FnMut(WorkerEvent),
    ) -> Result<Option<Outcome>, TrainError> {
        let Self { job, setup, rank, agreement, buffers, clock, done, .. } = self;
        let (step, train_s, common) = (*done, clock.train(), *agreement != ReplicaAgreement::Apart);
        let whole_elsewhere =
            setup.stages.is_some() || self.generation.is_some() && (common || setup.servers == 0);
        if common && !whole_elsewhere && (source.state().is_empty() || job.plan.workers == 1) {
            let outcome = source.evaluate(&buffers.params, false)?;
            clock.lap(Phase::Evaluate);
            say(WorkerEvent::Evaluated { step, train_s, outcome });
            return Ok(Some(outcome));
        }
        // Of models that agree, one is shown: that of the first replica, or of whoever has the first share.
        let first = match self.generation {
            Some(_) if !common && setup.servers == 0 => true,
            Some(_) => setup.host(0) == *rank,
            None if setup.stages.is_some() => *rank < setup.stage_count(),
            None => *rank == 0 || !common,
        };
        if common || whole_elsewhere || setup.servers == 0 && step < setup.end() {
            let params = if first { &buffers.params[..] } else { &[] };
            say(WorkerEvent::Snapshot { step, train_s, numbers: [params, source.state()].concat() });
            clock.lap(Phase::Evaluate);
        }
        Ok(None)
    }
}
