//! The two streams: data on standard output, progress, summaries and errors on standard error.
//!
//! Everything that people read passes through here and is made printable on the way: names, levels and messages of
//! commands may hold what a terminal would obey. JSON is data and stays as it is.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use paceline_plan::{printable, printable_lines};
use paceline_record::{Event, EventLine, RecordError, RunOrigin, RunResult};
use serde::Serialize;

use crate::failure::Failure;

/// How much is shown, and in which form.
#[derive(Args, Clone, Copy, Debug)]
pub struct Show {
    // Their place in every verb's help, however many verbs there are.
    /// Print machine-readable JSON on standard output
    #[arg(long, global = true, display_order = 25)]
    pub json: bool,
    /// Only results and errors
    #[arg(short, long, global = true, display_order = 26)]
    pub quiet: bool,
}

impl Show {
    /// Writes a line to standard error, unless only results are to be shown.
    pub fn note(self, line: &str) {
        if !self.quiet {
            note(line);
        }
    }

    /// Writes a document to standard output, for programs or for people.
    pub fn print(self, document: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
        let written = if self.json { json(document) } else { self::text(&text()) };
        Ok(written?)
    }
}

/// Writes one line of JSON to standard output.
pub fn json(value: &impl Serialize) -> std::io::Result<()> {
    json_line(&serde_json::to_string(value)?)
}

/// Writes a line that is JSON already to standard output.
pub fn json_line(line: &str) -> std::io::Result<()> {
    write(&format!("{line}\n"))
}

/// Writes a run's result: the last line on standard output.
pub fn result(result: RunResult, origin: RunOrigin) -> std::io::Result<()> {
    json(&EventLine { what: &Event::Result(result), origin })
}

/// Writes text to standard output.
pub fn text(text: &str) -> std::io::Result<()> {
    write(&printable_lines(text))
}

fn write(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes a line to standard error; a closed one is no reason to fail.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", printable_lines(line));
}

/// Writes an error and its hint.
pub fn error(message: &str, hint: &str) {
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let (red, cyan, off) = if colour { ("\x1b[1;31m", "\x1b[1;36m", "\x1b[0m") } else { ("", "", "") };
    let mut text = format!("{red}error:{off} {}\n", printable_lines(message));
    if !hint.is_empty() {
        let _ = writeln!(text, "{cyan} hint:{off} {}", printable_lines(hint));
    }
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Ends the program for a command line that cannot be read, or with the help that it asks for.
pub fn exit_usage(error: &clap::Error) -> ! {
    let plain = error.to_string();
    // Styles cannot be told from what was given: who gives escapes gets none.
    if printable_lines(&plain) == plain {
        error.exit();
    }
    note(plain.trim_end());
    std::process::exit(error.exit_code());
}

/// A progress bar on a terminal; nothing elsewhere, or if only results are to be shown.
pub struct Bar {
    bar: ProgressBar,
    quiet: bool,
}

impl Bar {
    /// In the style of an indicatif template.
    pub fn new(show: Show, template: &str) -> Self {
        let visible = !show.quiet && std::io::stderr().is_terminal();
        let bar = if visible { ProgressBar::new(0) } else { ProgressBar::hidden() };
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        if visible {
            bar.enable_steady_tick(Duration::from_millis(500));
        }
        Self { bar, quiet: show.quiet }
    }

    /// How much there is to do.
    pub fn length(&self, length: u64) {
        self.bar.set_length(length);
    }

    pub fn position(&self, position: u64) {
        self.bar.set_position(position);
    }

    /// What stands beside the bar.
    pub fn message(&self, text: &str) {
        self.bar.set_message(printable(text).into_owned());
    }

    /// Writes a line above the bar, unless only results are to be shown.
    pub fn note(&self, line: &str) {
        if !self.quiet {
            self.urgent(line);
        }
    }

    /// Writes a line above the bar in any case.
    pub fn urgent(&self, line: &str) {
        self.bar.suspend(|| note(line));
    }

    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// Follows a run: a bar on a terminal, a line per evaluation, NDJSON if asked for.
pub struct Follow {
    show: Show,
    origin: RunOrigin,
    /// Whether the stream of `--json` is written here; if a run is recorded, its record does, once events are stored.
    streams: bool,
    bar: Bar,
    /// Where the workers' time went: sums over the workers, in the order of [`PHASES`].
    phases: [f64; PHASES.len()],
    workers: f64,
}

/// What the training time is divided into.
const PHASES: [&str; 6] = ["data", "forward", "backward", "apply", "exchange", "wait"];

impl Follow {
    /// A follower of one run.
    pub fn new(show: Show, origin: RunOrigin, streams: bool) -> Self {
        let style = "{bar:30} {percent:>3}%  step {pos}/{len}  {msg}  {elapsed} of about {duration}";
        let bar = Bar::new(show, style);
        Self { show, origin, streams, bar, phases: [0.0; PHASES.len()], workers: 0.0 }
    }

    pub fn event(&mut self, event: &Event<'_>) {
        // Rows are for the store; a stream of them would bury everything else.
        if self.show.json && self.streams && !matches!(event, Event::Batch { .. } | Event::Paused) {
            // A reader that has gone away is noticed when the result is written.
            let _ = json(&EventLine { what: event, origin: self.origin });
        }
        match *event {
            Event::Start { plan, parameters, steps, ref kernels, .. } => {
                self.bar.length(steps);
                self.line(&format!(
                    "{} on {}: {parameters} parameters, {steps} steps of {} samples, {} {} ({kernels})",
                    plan.model,
                    plan.data,
                    plan.global_batch(),
                    plan.threads,
                    if plan.threads == 1 { "thread" } else { "threads" },
                ));
            }
            Event::Progress { step, samples, train_s, train_loss } => {
                self.bar.position(step);
                let rate = samples as f64 / train_s;
                self.bar.message(&format!("loss {train_loss:.4}  {rate:.0} samples/s"));
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
            Event::Checkpoint { step } => self.bar.position(step),
            Event::Restarted { step, cause, left } => self.line(&format!(
                "{cause}\nstarts again from step {step}; {left} more {} possible",
                if left == 1 { "restart is" } else { "restarts are" }
            )),
            Event::Batch { .. } | Event::Paused | Event::Failed { .. } | Event::Result(_) => {}
        }
    }

    /// The record cannot be written any more: says so at once, and streams without it.
    pub fn unrecorded(&mut self, error: &RecordError) {
        self.streams = true;
        let line = format!("the run goes on, but its record cannot be written any more: {error}");
        self.bar.urgent(&line);
    }

    fn line(&self, line: &str) {
        self.bar.note(line);
    }

    pub fn finish(&self) {
        self.bar.clear();
    }

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
