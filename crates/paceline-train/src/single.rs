//! One worker, alone: plain training.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use paceline_data::{Dataset, Order};
use paceline_nn::{Compute, Pass};
use paceline_plan::Plan;
use paceline_record::event::SCHEMA;
use paceline_record::process::{self, Started};
use paceline_record::{
    Batch, Event, RankTotals, Recorder, Recording, RunResult, Seconds, Staleness, StepRow,
};

use crate::clock::{Clock, Phase};
use crate::course::{Account, Course, Pause, part, restore};
use crate::curve::Curve;
use crate::engine::Times;
use crate::error::TrainError;
use crate::memory::Scratch;
use crate::model::{self, Replica, params_sha256};
use crate::observe::Steps;
use crate::update::Update;
use crate::weights;

/// Seconds between two progress events.
const PROGRESS_EVERY: f64 = 0.2;

/// The record of the one worker: its batches come back to the thread that trains, which reports them.
struct Own {
    recorder: Recorder,
    batches: Receiver<Batch>,
}

impl Own {
    fn start(recording: Recording) -> Self {
        let (shipped, batches) = channel();
        let ship = move |batch: &Batch, _| shipped.send(batch.clone()).is_ok();
        Self { recorder: Recorder::start(recording, Box::new(ship)), batches }
    }

    /// Everything so far, before a pause.
    fn flush(&mut self, report: &mut dyn FnMut(Event<'_>)) {
        self.recorder.flush();
        self.deliver(report);
    }

    fn deliver(&self, report: &mut dyn FnMut(Event<'_>)) {
        self.batches.try_iter().for_each(|batch| report(Event::Batch { rank: 0, batch: &batch }));
    }

    fn finish(self, report: &mut dyn FnMut(Event<'_>)) {
        self.recorder.finish();
        self.batches.try_iter().for_each(|batch| report(Event::Batch { rank: 0, batch: &batch }));
    }
}

/// The order of a plan's samples, out of so many, and the steps to do.
pub fn order(plan: &Plan, samples: usize) -> (Order, u64) {
    let order = Order::new(plan.seed, samples, plan.batch * plan.workers, plan.total_samples(samples));
    let steps = order.steps().min(plan.stop_after_step.unwrap_or(u64::MAX));
    (order, steps)
}

/// Trains as the plan says, telling `report` what happens, and returns the result; `None` if the run pauses and does
/// not go on.
pub fn run(
    plan: &Plan,
    dataset: &Dataset,
    run: &str,
    started: Started,
    recording: Option<Recording>,
    course: &mut Course<'_>,
    report: &mut dyn FnMut(Event<'_>),
) -> Result<Option<RunResult>, TrainError> {
    let graph = Arc::new(model::graph(plan, dataset)?);
    let compute = Arc::new(Compute::new(plan.threads, plan.pin));
    let (mut order, steps) = order(plan, dataset.train.len());
    let mut update = Update::new(plan, dataset.train.len(), Arc::clone(&compute));
    let frozen = weights::frozen(plan, &graph)?;
    let mut replica = Replica::new(plan, graph, compute)?;
    update.freeze(&frozen, &replica.params);
    report(Event::Start {
        schema: SCHEMA,
        run,
        plan,
        plan_sha256: plan.hash(),
        parameters: replica.params.len(),
        steps,
        kernels: replica.compute().level.to_string(),
    });

    let mut record = recording.map(Own::start);
    let startup = started.seconds();
    let (mut account, mut nothing) = (Account::default(), Scratch::default());
    if let Some(part) = course.restored.take() {
        let named = &mut [("params", &mut replica.params[..]), ("state", &mut replica.state[..])];
        account = restore(&part, named, &mut update, &mut nothing)?;
    }
    let mut clock = Clock::resumed(&account.clock);
    let alone = Times::default();
    let mut rows = Steps::begin(&clock, &alone);
    let (mut curve, mut last_report) = (Curve::new(account.curve), clock.train());
    let (mut done, mut last, mut train_loss) = (account.steps, account.evaluated, account.last_loss);
    while done < steps {
        let step = done;
        let stop = course.brake.step(step);
        if step == course.segment.to || stop.is_some() {
            let account = Account {
                steps: done,
                last_loss: train_loss,
                curve: curve.points().to_vec(),
                evaluated: last,
                ..Account::default()
            };
            let named = [("params", &replica.params[..]), ("state", &replica.state[..])];
            let part = part(account.note(&clock, &alone), &named, &update, &nothing);
            record.iter_mut().for_each(|record| record.flush(report));
            report(Event::Paused);
            let next = (course.pause)(Pause { step: Some(done), part });
            report(Event::Checkpoint { step: done });
            let Some(next) = next else {
                record.into_iter().for_each(|record| record.finish(report));
                return Ok(None);
            };
            course.segment = next;
            clock.lap(Phase::Evaluate);
            rows.skip(&clock, &alone);
        }
        let samples = order.samples_before(step);
        if dataset.train.streamed() {
            for ahead in [step, step + 1].into_iter().filter(|&ahead| ahead < steps) {
                replica.ahead(dataset, plan.seed, ahead, order.batch(ahead, 0, 1));
            }
        }
        let ids = order.batch(step, 0, 1);
        let pass = Pass { samples: ids.len(), training: true, seed: plan.seed, step, ids };
        let outcome = replica.forward(dataset, &pass, 1.0 / ids.len() as f64, &mut clock)?;
        replica.backward(&pass);
        clock.lap(Phase::Backward);
        train_loss = outcome.mean_loss();
        if !train_loss.is_finite() {
            record.into_iter().for_each(|record| record.finish(report));
            return Err(TrainError::Diverged { step: step + 1, samples, loss: train_loss });
        }
        let Replica { params, grads, .. } = &mut replica;
        update.apply(0, params, grads, step, true);
        clock.lap(Phase::Apply);
        done = step + 1;
        if let Some(record) = &mut record {
            let row = rows.end(done, &clock, &alone);
            record.recorder.step(StepRow { samples: pass.samples as u64, loss: train_loss, ..row });
        }
        let (samples, train_s) = (order.samples_before(done), clock.train());
        if train_s - last_report >= PROGRESS_EVERY {
            last_report = train_s;
            report(Event::Progress { step: done, samples, train_s, train_loss });
            record.iter().for_each(|record| record.deliver(report));
        }
        let due = plan.eval_every.map_or(order.ends_epoch(step), |every| done.is_multiple_of(every));
        if due || done == steps {
            let outcome = replica.evaluate(dataset, 0..dataset.test.len())?;
            clock.lap(Phase::Evaluate);
            rows.skip(&clock, &alone);
            let (loss, accuracy) = (outcome.mean_loss(), outcome.accuracy());
            if !loss.is_finite() {
                record.into_iter().for_each(|record| record.finish(report));
                return Err(TrainError::Diverged { step: done, samples, loss });
            }
            curve.push(train_s, accuracy);
            report(Event::Evaluation { step: done, samples, train_s, loss, accuracy });
            last = Some((loss, accuracy));
            if plan.stop_at_target && plan.target_accuracy.is_some_and(|target| accuracy >= target) {
                break;
            }
        }
    }

    record.into_iter().for_each(|record| record.finish(report));
    let (final_loss, final_accuracy) = last.expect("the last step is always evaluated");
    report(Event::Phases {
        rank: 0,
        data_s: clock.seconds(Phase::Data),
        forward_s: clock.seconds(Phase::Forward),
        backward_s: clock.seconds(Phase::Backward),
        send_s: 0.0,
        wait_s: 0.0,
        wait_for_s: Vec::new(),
        apply_s: clock.seconds(Phase::Apply),
    });
    let (samples, train) = (order.samples_before(done), clock.train());
    let params_sha256 = params_sha256(&replica.params);
    Ok(Some(RunResult {
        run: run.to_owned(),
        strategy: "single".into(),
        steps: done,
        samples,
        seconds: Seconds { total: started.seconds(), startup, train },
        samples_per_s: samples as f64 / train,
        train_loss,
        final_loss,
        final_accuracy,
        replicas: None,
        time_to_accuracy_s: plan.target_accuracy.and_then(|target| curve.time_to(target)),
        convergence_s: curve.convergence(),
        params_sha256: params_sha256.clone(),
        staleness: Staleness::default(),
        dropped_rows: 0,
        ranks: vec![RankTotals {
            rank: 0,
            role: "worker".into(),
            host: process::host(),
            params_sha256,
            compute_s: train - clock.seconds(Phase::Apply),
            send_s: 0.0,
            wait_s: 0.0,
            apply_s: clock.seconds(Phase::Apply),
            sent_bytes: 0,
            received_bytes: 0,
            cpu_s: process::cpu_seconds(),
            rss_peak_bytes: process::peak_memory_bytes(),
        }],
        simulated: None,
    }))
}
