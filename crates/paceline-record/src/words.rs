//! What a run reports, in words: a line for an event, a summary for its end.

use paceline_plan::Plan;

use crate::event::{Event, RunResult};

/// What the training time is divided into.
const PHASES: [&str; 6] = ["data", "forward", "backward", "apply", "exchange", "wait"];

/// Follows a run's events and puts them into words.
#[derive(Debug, Default)]
pub struct EventWords {
    /// Where the workers' time went: sums over the workers, in the order of [`PHASES`].
    phases: [f64; PHASES.len()],
    workers: f64,
}

impl EventWords {
    /// Takes an event in; what it says, where that is worth a line.
    pub fn line(&mut self, event: &Event<'_>) -> Option<String> {
        Some(match *event {
            Event::Start { plan, parameters, steps, ref kernels, .. } => format!(
                "{} on {}: {parameters} parameters, {steps} steps of {} samples, {} {} ({kernels})",
                plan.model,
                plan.data,
                plan.global_batch(),
                plan.threads,
                if plan.threads == 1 { "thread" } else { "threads" },
            ),
            Event::Evaluation { step, train_s, loss, accuracy, .. } => {
                let percent = 100.0 * accuracy;
                format!("step {step:>6}  {train_s:>8.2} s  test loss {loss:.4}  accuracy {percent:.2}%")
            }
            Event::Phases { data_s, forward_s, backward_s, send_s, wait_s, apply_s, .. } => {
                // Of several workers, the mean is shown.
                let one = [data_s, forward_s, backward_s, apply_s, send_s, wait_s];
                self.workers += 1.0;
                self.phases.iter_mut().zip(one).for_each(|(sum, seconds)| *sum += seconds);
                return None;
            }
            Event::Waiting { hosts, joined, address } if joined < hosts => {
                format!("waiting for {} of {hosts} hosts at {address}", hosts - joined)
            }
            Event::Host { host, name, state } => match state {
                "quiet" => format!("host {host}, {name}, may be lost: nothing heard for 2 s"),
                "back" => format!("host {host}, {name}, is there again"),
                state => format!("host {host} {state}: {name}"),
            },
            Event::Liveness { rank, state: "suspect" } => {
                format!("suspect rank {rank}: nothing heard of it for 2 s")
            }
            Event::Liveness { rank, .. } => format!("rank {rank} is there again"),
            Event::Refused { rank: Some(rank), cause } => {
                format!("rank {rank} turned a stranger away: {cause}")
            }
            Event::Refused { rank: None, cause } => {
                format!("a stranger was turned away where machines join: {cause}")
            }
            Event::Restarted { step, cause, left } => format!(
                "{cause}\nstarts again from step {step}; {left} more {} possible",
                if left == 1 { "restart is" } else { "restarts are" }
            ),
            _ => return None,
        })
    }

    /// What an event says to those who want to know more: the plan with everything filled in, where ranks listen, what
    /// is saved.
    pub fn detail(event: &Event<'_>) -> Option<String> {
        Some(match event {
            Event::Start { run, plan, plan_sha256, .. } => {
                format!("run {run}, plan {plan_sha256}:{}", plan_lines(plan))
            }
            Event::Bound { rank, address } => format!("rank {rank} listens at {address}"),
            Event::Checkpoint { step } => format!("saved after step {step}"),
            _ => return None,
        })
    }

    /// What came of the run, and where its time went.
    pub fn summary(&self, result: &RunResult) -> String {
        let mut text = format!(
            "accuracy {:.2}% on the test split (loss {:.4}) after {} samples in {} steps\n\
             training {:.2} s at {:.0} samples/s, startup {:.2} s, peak memory {:.0} MB\n",
            100.0 * result.final_accuracy,
            result.final_loss,
            result.samples,
            result.steps,
            result.seconds.train,
            result.samples_per_s,
            result.seconds.startup,
            result.ranks.iter().map(|r| r.rss_peak_bytes).max().unwrap_or(0) as f64 / 1e6,
        );
        if let Some(seconds) = result.time_to_accuracy_s {
            let end = |step| format!("; the run ended there, after step {step}");
            let end = result.stopped_at_target.map_or_else(String::new, end);
            text += &format!("target accuracy reached after {seconds:.2} s of training{end}\n");
        }
        let whose = if self.workers > 1.0 { " (mean of the workers)" } else { "" };
        text += &format!("where the training time went{whose}:\n");
        for (name, sum) in PHASES.iter().zip(self.phases).filter(|(_, sum)| *sum > 0.0) {
            let seconds = sum / self.workers;
            let share = seconds / result.seconds.train;
            let bar = "█".repeat((share * 40.0).round() as usize);
            text += &format!("  {name:<9} {seconds:>8.3} s {:>5.1}%  {bar}\n", 100.0 * share);
        }
        text
    }
}

/// What a plan says, a line each.
pub fn plan_lines(plan: &Plan) -> String {
    let document = serde_json::to_value(plan).expect("a plan is plain data");
    let all = document.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), Into::into);
    all.map(|(name, value)| format!("\n  {name} {}", text(value))).collect()
}
