//! What a run reports, in words: a line for an event, a summary for its end.

use paceline_plan::{Plan, TrainingLength};

use crate::event::{AssignedGpu, Event, RunResult};

/// What the training time is divided into.
const PHASES: [&str; 6] = ["data", "forward", "backward", "apply", "exchange", "wait"];

/// Follows a run's events and puts them into words.
#[derive(Debug, Default)]
pub struct EventWords {
    /// Where the workers' time went: sums over the workers, in the order of [`PHASES`].
    phases: [f64; PHASES.len()],
    workers: f64,
    /// Whether a script is trained.
    scripted: bool,
}

impl EventWords {
    /// Takes an event in; what it says, where that is worth a line.
    pub fn line(&mut self, event: &Event<'_>) -> Option<String> {
        if let Event::Start { plan, .. } = event {
            self.scripted = plan.script.is_some();
        }
        Some(match *event {
            Event::Start { plan, parameters, steps, .. } if plan.script.is_some() => {
                let length = match plan.work {
                    TrainingLength::UntilScriptEnds => "until the script ends".into(),
                    _ => format!("{steps} steps"),
                };
                let threads = if plan.threads == 1 { "thread" } else { "threads" };
                let subject = plan.subject();
                format!("{subject}: {parameters} parameters, {length}, {} {threads} each", plan.threads)
            }
            Event::Attached { framework, .. } if !framework.is_empty() => {
                format!("every script has attached ({framework})")
            }
            Event::Devices { gpus, mps, notes } => {
                let assigned = gpus.iter().filter(|gpu| !gpu.ranks.is_empty()).map(AssignedGpu::words);
                let mps = match mps {
                    "started" => {
                        Some("MPS was started: workers of one GPU compute at the same time".to_owned())
                    }
                    "running" => Some("MPS runs: workers of one GPU compute at the same time".to_owned()),
                    _ => None,
                };
                let lines: Vec<String> = assigned.chain(mps).chain(notes.iter().cloned()).collect();
                return (!lines.is_empty()).then(|| lines.join("\n"));
            }
            Event::Script { rank: 0, line } => line.to_owned(),
            Event::Script { rank, line } => format!("[{rank}] {line}"),
            Event::ScriptWait { rank, text } => format!("waiting for rank {rank}: {text}"),
            Event::Reported { step, train_s, ref values, .. } => {
                let value = |(name, value): (&&str, &Option<f64>)| match value {
                    Some(value) => format!("  {name} {}", short(*value)),
                    None => format!("  {name} no number"),
                };
                let values: String = values.iter().map(value).collect();
                format!("step {step:>6}  {train_s:>8.2} s{values}")
            }
            Event::Start { plan, parameters, steps, ref kernels, .. } => format!(
                "{}: {parameters} parameters, {steps} steps of {} samples, {} {} ({kernels})",
                plan.subject(),
                plan.global_batch(),
                plan.threads,
                if plan.threads == 1 { "thread" } else { "threads" },
            ),
            // A script's own report has said so.
            Event::Evaluation { .. } if self.scripted => return None,
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
            Event::Membership { change } => change.words(),
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
        let mut text = match self.scripted {
            false => format!(
                "accuracy {:.2}% on the test split (loss {:.4}) after {} samples in {} steps\n",
                100.0 * result.final_accuracy,
                result.final_loss,
                result.samples,
                result.steps
            ),
            true => reported(result),
        };
        text += &format!(
            "training {:.2} s at {:.0} samples/s, startup {:.2} s, peak memory {:.0} MB\n",
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

/// What a script has reported, in words.
fn reported(result: &RunResult) -> String {
    let mut words = Vec::new();
    if result.final_accuracy.is_finite() {
        words.push(format!("accuracy {:.2}%", 100.0 * result.final_accuracy));
    }
    if result.final_loss.is_finite() {
        words.push(format!("loss {}", short(result.final_loss)));
    }
    words.extend(result.reported.iter().map(|(name, value)| format!("{name} {}", short(*value))));
    let (samples, steps) = (result.samples, result.steps);
    match words.is_empty() {
        true => format!(
            "nothing was reported (run.report(accuracy=…)) after {samples} samples in {steps} steps\n"
        ),
        false => format!("{} after {samples} samples in {steps} steps\n", words.join(", ")),
    }
}

/// A figure whose size is not known before, in at most five digits.
pub fn short(value: f64) -> String {
    match value.abs() {
        size if size != 0.0 && !(1e-3..1e6).contains(&size) => format!("{value:.3e}"),
        size if size >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.4}"),
    }
}

/// What a plan says, a line each.
pub fn plan_lines(plan: &Plan) -> String {
    let settings = plan.settings();
    let all = settings.iter().filter(|(_, value)| !value.is_null());
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), Into::into);
    all.map(|(name, value)| format!("\n  {name} {}", text(value))).collect()
}
