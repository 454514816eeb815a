//! The two streams: data on standard output, progress, summaries and errors on standard error.
//!
//! Everything that people read passes through here and is made printable on the way: names, levels and messages of
//! commands may hold what a terminal would obey. JSON is data and stays as it is.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use paceline_analyze::sheet::{WIDTH, wrapped};
use paceline_plan::{printable, printable_lines};
use paceline_record::{Event, EventLine, EventWords, RecordError, RunOrigin, RunResult};
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
    /// Tell more: the plan with everything filled in, paths, addresses of ranks, when what happens
    #[arg(short, long, global = true, display_order = 27, conflicts_with = "quiet")]
    pub verbose: bool,
}

impl Show {
    /// Writes a line to standard error, unless only results are to be shown.
    pub fn note(self, line: &str) {
        if !self.quiet {
            note(line);
        }
    }

    /// Whether standard output is read by people: a result is its summary then, and no line of JSON.
    pub fn to_people(self) -> bool {
        !self.json && std::io::stdout().is_terminal()
    }

    /// Writes what only `-v` shows, with the time since the program began.
    pub fn detail(self, line: impl FnOnce() -> String) {
        if self.verbose {
            note(&stamped(&line()));
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

/// Writes a run's result for programs: the last line on standard output.
pub fn result(result: RunResult, origin: RunOrigin) -> std::io::Result<()> {
    json(&EventLine { what: &Event::Result(result), origin })
}

/// Writes a file that is not there yet.
pub fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    let written = File::create_new(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| Failure::file(path, &error))
}

/// Writes text to standard output.
pub fn text(text: &str) -> std::io::Result<()> {
    write(&shown(text, &std::io::stdout()))
}

/// Text as a stream shows it: printable; on a terminal its lines are broken between words, and headings, bars and
/// marks stand out.
fn shown(text: &str, stream: &(impl IsTerminal + AsFd)) -> String {
    let text = printable_lines(text);
    if !stream.is_terminal() {
        return text.into_owned();
    }
    let width = terminal_size::terminal_size_of(stream).map_or(WIDTH, |(width, _)| width.0.into());
    let text = wrapped(&text, width.max(20), 2);
    if colours(stream) { text.split_inclusive('\n').map(coloured).collect() } else { text }
}

/// Columns of standard output.
pub fn width() -> usize {
    terminal_size::terminal_size_of(std::io::stdout())
        .map_or(WIDTH, |(width, _)| usize::from(width.0).max(40))
}

/// Whether a stream is a terminal that may be written to in colours.
fn colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && may_colour() == clap::ColorChoice::Auto
}

/// Whether terminals may be written to in colours, as the environment has it.
pub(crate) fn may_colour() -> clap::ColorChoice {
    let set = |name| std::env::var_os(name).filter(|value: &std::ffi::OsString| !value.is_empty());
    let may = set("NO_COLOR").is_none() && set("TERM").is_some_and(|term| term != "dumb");
    if may { clap::ColorChoice::Auto } else { clap::ColorChoice::Never }
}

fn coloured(line: &str) -> String {
    let (content, end) = line.split_at(line.trim_end_matches('\n').len());
    if let Some((name, rest)) = content.split_once(": ").filter(|(name, _)| ["note", "best"].contains(name)) {
        return format!("{BOLD}{name}:{OFF} {rest}{end}");
    }
    if content.ends_with(':') && !content.starts_with(' ') {
        return format!("{BOLD}{content}{OFF}{end}");
    }
    for state in ["failed", "diverged"] {
        if let Some((what, why)) = content.split_once(&format!(": {state}: ")) {
            return format!("{what}: {RED}{state}:{OFF} {why}{end}");
        }
    }
    match content.find('█') {
        Some(at) => format!("{}{CYAN}{}{OFF}{end}", &content[..at], &content[at..]),
        None => line.into(),
    }
}

const BOLD: &str = "\x1b[1m";
const CYAN: &str = "\x1b[36m";
const RED: &str = "\x1b[1;31m";
const HINT: &str = "\x1b[1;36m";
const OFF: &str = "\x1b[0m";

/// A line with the time since the program began.
fn stamped(line: &str) -> String {
    format!("[{:7.3} s] {line}", BEGUN.elapsed().as_secs_f64())
}

/// When the program began, as far as it says when things happen.
pub static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

fn write(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes a line to standard error; a closed one is no reason to fail.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", shown(line, &std::io::stderr()));
}

/// Writes an error and its hint.
pub fn error(message: &str, hint: &str) {
    let paint = |style: &str, name: &str, words: &str| {
        let words = shown(words, &std::io::stderr());
        if colours(&std::io::stderr()) {
            format!("{style}{name}{OFF} {words}\n")
        } else {
            format!("{name} {words}\n")
        }
    };
    let mut text = paint(RED, "error:", message);
    if !hint.is_empty() {
        text += &paint(HINT, " hint:", hint);
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
    pub bar: Bar,
    words: EventWords,
}

impl Follow {
    /// A follower of one run.
    pub fn new(show: Show, origin: RunOrigin, streams: bool) -> Self {
        let style = "{bar:10.cyan} {percent:>3}%  step {pos}/{len}  {msg}  {elapsed} of about {duration}";
        Self { show, origin, streams, bar: Bar::new(show, style), words: EventWords::default() }
    }

    pub fn event(&mut self, event: &Event<'_>) {
        // Rows are for the store; a stream of them would bury everything else.
        let streamed = !matches!(event, Event::Batch { .. } | Event::Paused | Event::Bound { .. });
        if self.show.json && self.streams && streamed {
            // A reader that has gone away is noticed when the result is written.
            let _ = json(&EventLine { what: event, origin: self.origin });
        }
        match *event {
            Event::Start { steps, .. } => self.bar.length(steps),
            Event::Progress { step, samples, train_s, train_loss } => {
                self.bar.position(step);
                let rate = samples as f64 / train_s;
                self.bar.message(&format!("loss {train_loss:.4}  {rate:.0} samples/s"));
            }
            Event::Checkpoint { step } => self.bar.position(step),
            _ => {}
        }
        self.words.line(event).into_iter().for_each(|line| self.bar.note(&line));
        if let Some(detail) = EventWords::detail(event).filter(|_| self.show.verbose) {
            self.bar.urgent(&stamped(&detail));
        }
    }

    /// The record cannot be written any more: says so at once, and streams without it.
    pub fn unrecorded(&mut self, error: &RecordError) {
        self.streams = true;
        let line = format!("the run goes on, but its record cannot be written any more: {error}");
        self.bar.urgent(&line);
    }

    pub fn finish(&self) {
        self.bar.clear();
    }

    pub fn summary(&self, result: &RunResult) -> String {
        self.words.summary(result)
    }
}
