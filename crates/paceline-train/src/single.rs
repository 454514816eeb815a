//! One worker, alone: plain training.

use std::sync::Arc;

use paceline_data::{Dataset, Order};
use paceline_nn::{Compute, Pass};
use paceline_plan::Plan;
use paceline_record::process::{self, Started};
use paceline_record::{Event, Rank, RunResult, Seconds, Staleness};

use crate::clock::{Clock, Phase};
use crate::curve::Curve;
use crate::error::TrainError;
use crate::model::{self, Replica, params_sha256};
use crate::update::Update;

/// Seconds between two progress events.
const PROGRESS_EVERY: f64 = 0.2;

/// Trains as the plan says, telling `report` what happens, and returns the result.
pub fn run(
    plan: &Plan,
    dataset: &Dataset,
    run: &str,
    started: Started,
    report: &mut dyn FnMut(Event<'_>),
) -> Result<RunResult, TrainError> {
    let graph = Arc::new(model::graph(plan, dataset)?);
    let compute = Arc::new(Compute::new(plan.threads, plan.pin));
    let total = plan.total_samples(dataset.train.len());
    let mut order = Order::new(plan.seed, dataset.train.len(), plan.batch * plan.workers, total);
    let mut update = Update::new(plan, dataset.train.len(), Arc::clone(&compute));
    let mut replica = Replica::new(plan, graph, compute);
    let steps = order.steps().min(plan.stop_after_step.unwrap_or(u64::MAX));
    report(Event::Start {
        run,
        plan,
        plan_sha256: plan.hash(),
        parameters: replica.params.len(),
        steps,
        kernels: replica.compute().level.to_string(),
    });

    let startup = started.seconds();
    let mut clock = Clock::default();
    let (mut curve, mut last_report, mut done) = (Curve::default(), 0.0, 0);
    let (mut train_loss, mut last) = (f64::NAN, None);
    for step in 0..steps {
        let samples = order.samples_before(step);
        let ids = order.batch(step, 0, 1);
        let pass = Pass { samples: ids.len(), training: true, seed: plan.seed, step, ids };
        let outcome = replica.forward(dataset, &pass, 1.0 / ids.len() as f64, &mut clock);
        let Replica { network, params, grads, .. } = &mut replica;
        network.backward(&pass, params, grads, &mut |_, _| {});
        clock.lap(Phase::Backward);
        train_loss = outcome.mean_loss();
        if !train_loss.is_finite() {
            return Err(TrainError::Diverged { step: step + 1, samples, loss: train_loss });
        }
        update.apply(0, params, grads, step, true);
        clock.lap(Phase::Apply);
        done = step + 1;
        let (samples, train_s) = (order.samples_before(done), clock.train());
        if train_s - last_report >= PROGRESS_EVERY {
            last_report = train_s;
            report(Event::Progress { step: done, samples, train_s, train_loss });
        }
        let due = plan.eval_every.map_or(order.ends_epoch(step), |every| done.is_multiple_of(every));
        if due || done == steps {
            let outcome = replica.evaluate(dataset, 0..dataset.test.len());
            clock.lap(Phase::Evaluate);
            let (loss, accuracy) = (outcome.mean_loss(), outcome.accuracy());
            if !loss.is_finite() {
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
    Ok(RunResult {
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
        ranks: vec![Rank {
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
    })
}
