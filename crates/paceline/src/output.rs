//! The two streams: data on standard output, progress, summaries and errors on standard error.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use paceline_record::{Event, RecordError, RunResult};
use serde::Serialize;

/// How much is shown, and in which form.
#[derive(Args, Clone, Copy, Debug)]
pub struct Show {
    /// Print machine-readable JSON on standard output
    #[arg(long, global = true)]
    pub json: bool,
    /// Only results and errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

/// Writes one line of JSON to standard output.
pub fn json(value: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_string(value)?;
    line.push('\n');
    text(&line)
}

/// Writes text to standard output.
pub fn text(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes a line to standard error; a closed one is no reason to fail.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Cells in columns, the first of each row to the left and the others to the right.
pub fn table<S: AsRef<str>>(head: &[S], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|cell| cell.as_ref().to_owned()).collect();
    let all: Vec<&Vec<String>> = std::iter::once(&head).chain(rows).collect();
    let width = |i: usize| all.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for row in all {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(
                |(i, (cell, &width))| {
                    if i == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                },
            )
            .collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Writes an error and its hint.
pub fn error(message: &str, hint: &str) {
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let (red, cyan, off) = if colour { ("\x1b[1;31m", "\x1b[1;36m", "\x1b[0m") } else { ("", "", "") };
    note(&format!("{red}error:{off} {message}"));
    if !hint.is_empty() {
        note(&format!("{cyan} hint:{off} {hint}"));
    }
}

/// Follows a run: a bar on a terminal, a line per evaluation, NDJSON if asked for.
pub struct Follow {
    show: Show,
    /// Whether the stream of `--json` is written here; if a run is recorded, its record does, once events are stored.
    streams: bool,
    bar: ProgressBar,
    /// Where the workers' time went: sums over the workers, in the order of [`PHASES`].
    phases: [f64; PHASES.len()],
    workers: f64,
}

/// What the training time is divided into.
const PHASES: [&str; 6] = ["data", "forward", "backward", "apply", "exchange", "wait"];

impl Follow {
    /// A follower of one run.
    pub fn new(show: Show, streams: bool) -> Self {
        let visible = !show.quiet && std::io::stderr().is_terminal();
        let bar = if visible { ProgressBar::new(0) } else { ProgressBar::hidden() };
        let style = "{bar:30} {percent:>3}%  step {pos}/{len}  {msg}  {elapsed} of about {duration}";
        bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
        if visible {
            bar.enable_steady_tick(Duration::from_millis(500));
        }
        Self { show, streams, bar, phases: [0.0; PHASES.len()], workers: 0.0 }
    }

    /// Takes one event.
    pub fn event(&mut self, event: &Event<'_>) {
        // Rows are for the store; a stream of them would bury everything else.
        if self.show.json && self.streams && !matches!(event, Event::Batch { .. } | Event::Paused) {
            // A reader that has gone away is noticed when the result is written.
            let _ = json(event);
        }
        match *event {
            Event::Start { plan, parameters, steps, ref kernels, .. } => {
                self.bar.set_length(steps);
                self.line(&format!(
                    "{} on {}: {parameters} parameters, {steps} steps of {} samples, {} {} ({kernels})",
                    plan.model,
                    plan.data,
                    plan.batch * plan.workers,
                    plan.threads,
                    if plan.threads == 1 { "thread" } else { "threads" },
                ));
            }
            Event::Progress { step, samples, train_s, train_loss } => {
                self.bar.set_position(step);
                let rate = samples as f64 / train_s;
                self.bar.set_message(format!("loss {train_loss:.4}  {rate:.0} samples/s"));
            }
            Event::Evaluation { step, train_s, loss, accuracy, .. } => self.line(&format!(
                "step {step:>6}  {train_s:>8.2} s  test loss {loss:.4}  accuracy {:.2}%",
                100.0 * accuracy
            )),
            Event::Phases { data_s, forward_s, backward_s, send_s, wait_s, apply_s, .. } => {
                // Of several workers, the mean is shown.
                let one = [data_s, forward_s, backward_s, apply_s, send_s, wait_s];
                self.workers += 1.0;
                self.phases.iter_mut().zip(one).for_each(|(sum, seconds)| *sum += seconds);
            }
            Event::Waiting { hosts, joined, address } if joined < hosts => {
                self.line(&format!("waiting for {} of {hosts} hosts at {address}", hosts - joined));
            }
            Event::Waiting { .. } => {}
            Event::Host { host, name, state } => self.line(&match state {
                "quiet" => format!("host {host}, {name}, may be lost: nothing heard for 2 s"),
                "back" => format!("host {host}, {name}, is there again"),
                state => format!("host {host} {state}: {name}"),
            }),
            Event::Liveness { rank, state: "suspect" } => {
                self.line(&format!("suspect rank {rank}: nothing heard of it for 2 s"));
            }
            Event::Liveness { rank, .. } => self.line(&format!("rank {rank} is there again")),
            Event::Refused { rank: Some(rank), cause } => {
                self.line(&format!("rank {rank} turned a stranger away: {cause}"))
            }
            Event::Refused { rank: None, cause } => {
                self.line(&format!("a stranger was turned away where machines join: {cause}"))
            }
            Event::Checkpoint { step } => self.bar.set_position(step),
            Event::Restarted { step, cause, left } => self.line(&format!(
                "{cause}\nstarts again from step {step}; {left} more {} possible",
                if left == 1 { "restart is" } else { "restarts are" }
            )),
            Event::Batch { .. } | Event::Paused | Event::Result(_) => {}
        }
    }

    /// The record cannot be written any more: says so at once, and streams without it.
    pub fn unrecorded(&mut self, error: &RecordError) {
        self.streams = true;
        let line = format!("the run goes on, but its record cannot be written any more: {error}");
        self.bar.suspend(|| note(&line));
    }

    fn line(&self, line: &str) {
        if !self.show.quiet {
            self.bar.suspend(|| note(line));
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// The result in words.
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
            text += &format!("target accuracy reached after {seconds:.2} s of training\n");
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
