//! A worker's step: its pass, part by part, and what it is held up by on purpose.

use paceline_protocol::{Buf, Input, OpId, Rank, Time, Work, WorkKind, WorkerLoad};

use super::Driver;
use crate::costs::{Host, PassPart};
use crate::memory::{RankMemory, StepStart};
use crate::queue::Event;
use crate::report::{SimulatedPass, StartedStep};

/// Slices of a pass on a host that is shared.
const SLICES: Time = 16;

/// A pass without parts.
const WHOLE: &[PassPart] = &[PassPart { end: 1.0, announces: None }];

/// A pass through a stage.
#[derive(Clone, Copy)]
pub(super) struct StageRun {
    pub(super) op: OpId,
    pub(super) work: Work,
    pub(super) slot: usize,
}

/// A forward and backward pass under way, or one of them through a stage.
#[derive(Clone, Copy)]
pub(super) struct Pass {
    step: u64,
    run: Option<StageRun>,
    begin: Time,
    whole: Time,
    /// How long it is held up afterwards, once that has begun.
    pause: Time,
    /// The part under way; behind the last one, the pause.
    part: usize,
    /// How much of the pass is done, and the time that this took on a shared host.
    done: Time,
    took: Time,
}

impl Pass {
    /// How far it is, whichever step's it is.
    pub(super) fn words(&self) -> [u64; 5] {
        [self.whole, self.pause, self.part as u64, self.done, self.took]
    }
}

impl<M: RankMemory> Driver<'_, M> {
    /// A worker has finished a step, if it has begun one.
    pub(super) fn step_over(&mut self, rank: Rank) {
        let context = &mut self.members[rank];
        if context.step.take().is_none() {
            return;
        }
        if let Some(notes) = self.report.notes.get_mut(rank) {
            notes.over(context.busy, &self.report.spent[rank]);
        }
        let times = &mut self.report.finished[rank];
        times.push(context.busy + self.shift);
        self.memory.step_over(rank, times.len() as u64, context.busy);
    }

    pub(super) fn begin(&mut self, rank: Rank, begin: StepStart) {
        let step = begin.step;
        debug_assert!(
            self.members[rank].leaving.iter().all(|(_, src)| src.buf != gradients(begin.slot)),
            "rank {rank} begins a step while its gradients are still being sent"
        );
        if self.members[rank].step != Some(step) {
            self.step_over(rank);
            if self.memory.waits(rank) {
                return self.waiting.push((rank, begin));
            }
        }
        self.begin_pass(rank, begin);
    }

    /// Lets those begin who wait no longer: all workers have finished the step that they waited after.
    pub(super) fn end_waits(&mut self) {
        let ended = |(rank, _): &mut (Rank, StepStart)| !self.memory.waits(*rank);
        let ended: Vec<_> = self.waiting.extract_if(.., ended).collect();
        let at = self.report.finished.iter().filter_map(|times| times.last()).max().copied();
        for (rank, begin) in ended {
            self.members[rank].busy = self.members[rank].busy.max(at.unwrap_or(0));
            self.begin_pass(rank, begin);
        }
    }

    fn begin_pass(&mut self, rank: Rank, begin: StepStart) {
        let StepStart { step, unit, scale, .. } = begin;
        self.report.first_step = self.report.first_step.or(Some(self.members[rank].busy));
        if self.detailed {
            self.report.steps.push(StartedStep { at: self.members[rank].busy, rank, step, unit, scale });
        }
        if self.setup.stages.is_some() {
            return self.begin_passes(rank, begin);
        }
        if !self.memory.gradient(rank, begin) {
            // Handled once the actions of the present input are.
            return self.put_by(self.members[rank].busy, rank, Input::Leave);
        }
        let position = if self.setup.one_position_each() { rank } else { unit.share };
        let context = &mut self.members[rank];
        if let Some(repetition) = &mut self.repetition
            && !repetition.begin(rank, step, context.next_op)
        {
            self.repetition = None;
        }
        // The participants do not know of steps that were left out.
        let step_in_run = step + self.skipped;
        let whole = self.costs.pass(rank, position, step_in_run);
        context.step = Some(step);
        self.set_out(
            rank,
            Pass { step: step_in_run, run: None, begin: 0, whole, pause: 0, part: 0, done: 0, took: 0 },
        );
    }

    /// A worker's unit begins whose passes come one by one.
    fn begin_passes(&mut self, rank: Rank, begin: StepStart) {
        if !self.memory.begin(rank, begin) {
            self.members[rank].asked = None;
            // Handled once the actions of the present input are.
            return self.put_by(self.members[rank].busy, rank, Input::Leave);
        }
        self.members[rank].step = Some(begin.step);
        if let Some(run) = self.members[rank].asked.take() {
            self.run_stage(rank, run);
        }
    }

    /// A worker passes a micro-batch through its stage.
    pub(super) fn run_stage(&mut self, rank: Rank, run: StageRun) {
        let Some(stages) = &self.setup.stages else { return };
        let context = &mut self.members[rank];
        let Some(step) = context.step else {
            // The step waits to begin, or nothing is left to do.
            context.asked = Some(run);
            return;
        };
        debug_assert!(context.pass.is_none(), "rank {rank} is asked for {} during a pass", run.work);
        let n = context.runs;
        context.runs += 1;
        let batch = self.setup.replica_batch(step, rank / self.setup.stage_count());
        let samples = stages.micro_batch(batch, run.work.micro).len();
        let size = samples as f64 / stages.capacity.max(1) as f64;
        let whole = self.costs.stage_pass(rank, run.work, size, n);
        self.memory.pass(rank, run.work, run.slot);
        let begin = self.members[rank].busy;
        self.set_out(rank, Pass { step, run: Some(run), begin, whole, pause: 0, part: 0, done: 0, took: 0 });
    }

    fn set_out(&mut self, rank: Rank, pass: Pass) {
        self.members[rank].pass = Some(pass);
        self.next_part(rank);
    }

    /// How a pass is divided.
    fn parts(&self, rank: Rank, run: Option<StageRun>) -> &[PassPart] {
        match run {
            None => &self.parts,
            Some(StageRun { work, .. })
                if self.is_last(work) && !self.costs.stages[rank].parts.is_empty() =>
            {
                &self.costs.stages[rank].parts
            }
            Some(_) => WHOLE,
        }
    }

    /// Whether a pass is a step's last: its backward pass finishes the gradients.
    fn is_last(&self, work: Work) -> bool {
        let stages = self.setup.stages.as_ref();
        work.kind == WorkKind::Backward && stages.is_some_and(|stages| work.micro + 1 == stages.micro_batches)
    }

    /// Sets out on the next part of a pass, or a slice of it: how many others compute is looked at again for
    /// each.
    fn next_part(&mut self, rank: Rank) {
        let Some(Pass { run, whole, part, done, .. }) = self.members[rank].pass else { return };
        let mut time = (whole as f64 * self.parts(rank, run)[part].end) as Time - done;
        if !self.sites[self.members[rank].machine].crowd.is_empty() {
            time = time.min(whole / SLICES + 1);
        }
        let took = self.stretched(rank, time, Host::pass_shared_by);
        self.members[rank].busy += took;
        self.report.spent[rank].compute += took;
        if let Some(notes) = self.report.notes.get_mut(rank) {
            notes.core_wait += took.saturating_sub(time);
        }
        if let Some(pass) = &mut self.members[rank].pass {
            pass.done += time;
            pass.took += took;
        }
        self.queue.push(self.members[rank].busy, Event::Part(rank as u32));
    }

    /// A part of a pass is over, or the pause behind it.
    pub(super) fn part_over(&mut self, now: Time, rank: Rank) {
        let Some(pass) = self.members[rank].pass else { return };
        let Pass { step, run, begin, whole, part, pause, done, took } = pass;
        if self.members[rank].dead {
            return;
        }
        let (parts, count) = (self.parts(rank, run), self.parts(rank, run).len());
        if let Some(&PassPart { announces, end }) = parts.get(part) {
            if done < (whole as f64 * end) as Time {
                return self.next_part(rank);
            }
            if let Some(from) = announces {
                self.handle(now, rank, Input::GradReady { from });
                while let Some(input) = self.members[rank].inbox.pop_front() {
                    self.handle(now, rank, input);
                }
            }
            let last = part + 1 == count;
            let pause = if last { self.costs.pause(rank, step, took) } else { 0 };
            if let Some(pass) = &mut self.members[rank].pass {
                (pass.part, pass.pause) = (part + 1, pause);
            }
            if !last {
                return self.next_part(rank);
            }
            if pause > 0 || self.members[rank].busy > now {
                let context = &mut self.members[rank];
                context.asleep = pause > 0;
                context.busy += pause;
                self.report.spent[rank].compute += pause;
                self.queue.push(self.members[rank].busy, Event::Part(rank as u32));
                return;
            }
        }
        let context = &mut self.members[rank];
        (context.pass, context.asleep) = (None, false);
        if let Some(StageRun { op, work, slot }) = run {
            if let Some(notes) = self.report.notes.get_mut(rank) {
                notes.pass(begin, now - begin, step, work, slot);
            }
            if self.detailed {
                self.report.passes.push(SimulatedPass { rank, step, work, start: begin, end: now });
            }
            self.handle(now, rank, Input::Ran(op));
            if !self.is_last(work) {
                return self.catch_up(now, rank);
            }
        }
        let step = took + pause;
        let cpu = if step == 0 { 1.0 } else { took as f32 / step as f32 };
        self.handle(now, rank, Input::Load(WorkerLoad { cpu, step_s: step as f32 * 1e-9 }));
        self.handle(now, rank, Input::BackwardDone);
        self.catch_up(now, rank);
    }
}

/// The gradients of a rank's position.
fn gradients(slot: usize) -> Buf {
    if slot == 0 { Buf::Grad } else { Buf::HostedGrad(slot as u16) }
}
