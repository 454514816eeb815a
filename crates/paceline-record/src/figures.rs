//! The one registry of figures: the numbers that runs are compared by in studies, analyses, predictions, pages and
//! exports. A new figure is one line of [`FIGURES`].

use std::collections::BTreeMap;

use paceline_plan::Goal;

use crate::event::{RankTotals, RunResult};
use FigureKind::{Amount, Clock, Rate, Time};
use PredictionBasis::{Learning, Timing};

/// Reads a figure from a result; `None` where that run has none.
pub type ReadFigure = fn(&RunResult) -> Option<f64>;

/// Joins the figures of repeats, at least one.
pub type JoinRepeats = fn(&[f64]) -> f64;

/// What a figure counts: how it follows a machine's pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureKind {
    /// A reading of the training clock: while a run has none, it is at least what the clock says.
    Clock,
    /// A time, or what time costs.
    Time,
    /// So much per second.
    Rate,
    /// What does not depend on the pace.
    Amount,
}

/// What a run in virtual time must do to predict a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictionBasis {
    /// Keep time.
    Timing,
    /// Train, too.
    Learning,
}

/// One figure.
#[derive(Clone, Copy, Debug)]
pub struct RunFigure {
    /// Its name; a dot leads into a part of the result.
    pub name: &'static str,
    /// Names that it had before: they are still read.
    pub old_names: &'static [&'static str],
    /// Its unit; empty for a plain number.
    pub unit: &'static str,
    /// Whether less or more of it is better.
    pub goal: Goal,
    /// What it counts.
    pub kind: FigureKind,
    /// What it is of a run of `paceline train`; empty where such runs have none.
    pub of_runs: &'static str,
    /// What it is of any other program; empty where only `paceline train` has it.
    pub of_commands: &'static str,
    /// How it is read; absent where it is measured from outside of the run.
    pub read: Option<ReadFigure>,
    /// How repeats are joined.
    pub join: JoinRepeats,
    /// How it is predicted, if it is.
    pub predicted: Option<PredictionBasis>,
}

impl RunFigure {
    /// The same, read from results.
    pub const fn read(self, read: ReadFigure) -> Self {
        Self { read: Some(read), ..self }
    }

    /// The same, also measured of other programs.
    pub const fn of_commands(self, of_commands: &'static str) -> Self {
        Self { of_commands, ..self }
    }

    /// The same, with names that it had before.
    pub const fn formerly(self, old_names: &'static [&'static str]) -> Self {
        Self { old_names, ..self }
    }

    /// The same, predicted.
    pub const fn predicted(self, basis: PredictionBasis) -> Self {
        Self { predicted: Some(basis), ..self }
    }
}

type Text = &'static str;

/// A figure of runs of which less is better. Repeats are joined by the mean.
pub const fn less(name: Text, unit: Text, kind: FigureKind, of_runs: Text) -> RunFigure {
    let (old_names, of_commands, join) = (&[], "", paceline_statistics::mean as JoinRepeats);
    let (goal, read, predicted) = (Goal::Minimize, None, None);
    RunFigure { name, old_names, unit, goal, kind, of_runs, of_commands, read, join, predicted }
}

/// The same, of which more is better.
pub const fn more(name: Text, unit: Text, kind: FigureKind, of_runs: Text) -> RunFigure {
    RunFigure { goal: Goal::Maximize, ..less(name, unit, kind, of_runs) }
}

/// A sum over all ranks.
fn total(result: &RunResult, of: fn(&RankTotals) -> f64) -> Option<f64> {
    Some(result.ranks.iter().map(of).sum())
}

/// A result that knows what was exchanged: not where a script's own framework averaged.
fn observed(result: &RunResult) -> Option<&RunResult> {
    Some(result).filter(|result| !result.exchange_unobserved)
}

/// The figure that says how much of a run is exchange.
pub const WAIT_SHARE: &str = "wait_share";

fn wait_share(ranks: &[RankTotals]) -> Option<f64> {
    let sum = |of: fn(&RankTotals) -> f64| ranks.iter().filter(|r| r.role == "worker").map(of).sum::<f64>();
    let all = sum(|r| r.compute_s + r.send_s + r.wait_s + r.apply_s);
    (all > 0.0).then(|| sum(|r| r.send_s + r.wait_s) / all)
}

/// The figures.
pub static FIGURES: &[RunFigure] = &[
    less("time_to_accuracy_s", "s", Clock, "the training clock when the target accuracy was reached")
        .read(|r| r.time_to_accuracy_s)
        .predicted(Learning),
    more("final_accuracy", "", Amount, "accuracy over the test split, 0 to 1")
        .read(|r| Some(r.final_accuracy))
        .predicted(Learning),
    less("final_loss", "", Amount, "loss over the test split").read(|r| Some(r.final_loss)),
    less("train_loss", "", Amount, "loss of the last step").read(|r| Some(r.train_loss)),
    more("samples_per_s", "samples/s", Rate, "samples per second of the training clock")
        .read(|r| Some(r.samples_per_s))
        .predicted(Timing),
    less("step_s", "s", Time, "mean time of a step: the training clock divided by the steps done")
        .read(|r| (r.steps > 0).then(|| r.seconds.train / r.steps as f64))
        .predicted(Timing),
    less("convergence_s", "s", Clock, "the training clock when accuracy came within 1% of its end")
        .read(|r| r.convergence_s),
    less("seconds.train", "s", Clock, "the training clock")
        .formerly(&["train_s"])
        .read(|r| Some(r.seconds.train))
        .predicted(Timing),
    less("seconds.startup", "s", Time, "process start to first step").read(|r| Some(r.seconds.startup)),
    less("seconds.total", "s", Time, "process start to result")
        .read(|r| Some(r.seconds.total))
        .predicted(Timing),
    less("wall_s", "s", Time, "the whole process, as seen from outside")
        .of_commands("the whole program")
        .predicted(Timing),
    less("cpu_s", "s", Time, "CPU time of all ranks")
        .of_commands("CPU time of the program and all that it started and waited for")
        .read(|r| total(r, |rank| rank.cpu_s)),
    less("sent_bytes", "bytes", Amount, "sent by all ranks")
        .read(|r| observed(r).and_then(|r| total(r, |rank| rank.sent_bytes as f64)))
        .predicted(Timing),
    less("received_bytes", "bytes", Amount, "received by all ranks")
        .read(|r| observed(r).and_then(|r| total(r, |rank| rank.received_bytes as f64)))
        .predicted(Timing),
    less("rss_peak_bytes", "bytes", Amount, "peak memory of the largest rank")
        .of_commands("most memory of the process tree at a moment, sampled five times a second")
        .read(|r| r.ranks.iter().map(|rank| rank.rss_peak_bytes as f64).reduce(f64::max)),
    less(WAIT_SHARE, "", Amount, "part of the workers' time in which they send or wait for others, 0 to 1")
        .read(|r| observed(r).and_then(|r| wait_share(&r.ranks))),
    less("staleness.mean", "versions", Amount, "mean age of parameters").read(|r| Some(r.staleness.mean)),
    less("staleness.p95", "versions", Amount, "95th percentile of the age of parameters")
        .read(|r| Some(r.staleness.p95)),
    less("staleness.max", "versions", Amount, "greatest age of parameters").read(|r| Some(r.staleness.max)),
    more("steps", "", Amount, "steps done").read(|r| Some(r.steps as f64)),
    more("samples", "", Amount, "samples done").read(|r| Some(r.samples as f64)),
    less(
        "infer.p50_ms",
        "ms",
        Time,
        "median latency of the trained network's answer, by `paceline infer` after the run",
    ),
    less("infer.p95_ms", "ms", Time, "95th percentile of that latency"),
    less("infer.p99_ms", "ms", Time, "99th percentile of that latency"),
    more("infer.samples_per_s", "samples/s", Rate, "samples that the network answers per second"),
    less("processes", "", Amount, "").of_commands("most processes of the tree at a moment, sampled"),
    less("read_bytes", "bytes", Amount, "").of_commands("read from storage by the process tree, sampled"),
    less("written_bytes", "bytes", Amount, "").of_commands("written to storage by the process tree, sampled"),
    less(COST, "", Time, "what the run costs by the study's [prices]")
        .of_commands("what the run costs by the study's [prices]"),
];

/// The figure that needs prices.
pub const COST: &str = "cost";

/// Begins the figures that `paceline infer` measures after a run.
pub const INFER: &str = "infer.";

/// Begins the figures that a script reports: `reported.perplexity` is the last `run.report(perplexity=…)` of rank 0.
pub const REPORTED: &str = "reported.";

/// Units of names that the registry does not have, by how they end.
const UNITS: &[(&str, &str)] = &[
    ("per_s", "1/s"),
    ("_ms", "ms"),
    ("_ns", "ns"),
    ("_s", "s"),
    ("_usd", "USD"),
    ("_bytes", "bytes"),
    ("(ms)", "ms"),
];

/// The figures that are looked up by name: those of [`FIGURES`] and any others.
#[derive(Clone, Debug)]
pub struct Figures(Vec<&'static RunFigure>);

impl Default for Figures {
    fn default() -> Self {
        Self(FIGURES.iter().collect())
    }
}

impl Figures {
    /// One figure more. It replaces one of the same name.
    pub fn with(mut self, figure: &'static RunFigure) -> Self {
        self.0.retain(|known| known.name != figure.name);
        self.0.push(figure);
        self
    }

    /// Figures of runs of `paceline train`.
    pub fn of_runs(&self) -> impl Iterator<Item = &'static RunFigure> {
        self.0.iter().copied().filter(|figure| !figure.of_runs.is_empty())
    }

    /// Figures of any other program, beside those that it prints.
    pub fn of_commands(&self) -> impl Iterator<Item = &'static RunFigure> {
        self.0.iter().copied().filter(|figure| !figure.of_commands.is_empty())
    }

    /// Names of the figures that are predicted.
    pub fn predicted(&self) -> Vec<&'static str> {
        self.of_runs().filter(|figure| figure.predicted.is_some()).map(|figure| figure.name).collect()
    }

    /// A figure by its name, or by one that it had before.
    pub fn find(&self, name: &str) -> Option<&'static RunFigure> {
        let by = |which: &dyn Fn(&RunFigure) -> bool| self.0.iter().copied().find(|figure| which(figure));
        by(&|figure| figure.name == name).or_else(|| by(&|figure| figure.old_names.contains(&name)))
    }

    /// What a figure is called now.
    pub fn name<'a>(&self, name: &'a str) -> &'a str {
        self.find(name).map_or(name, |figure| figure.name)
    }

    /// The column of a figure, under its name or under another that it has or had.
    pub fn column(&self, columns: &[String], name: &str) -> Option<usize> {
        let at = |wanted: &str| columns.iter().position(|column| column == wanted);
        let figure = || self.find(name);
        at(name).or_else(|| at(figure()?.name)).or_else(|| figure()?.old_names.iter().find_map(|old| at(old)))
    }

    /// A figure's unit; as the name ends where the registry does not have it.
    pub fn unit(&self, name: &str) -> &'static str {
        self.find(name).map_or_else(|| unit_by_name(name), |figure| figure.unit)
    }

    /// What a figure counts; as the name ends where the registry does not have it.
    pub fn kind(&self, name: &str) -> FigureKind {
        match (self.find(name), unit_by_name(name)) {
            (Some(figure), _) => figure.kind,
            (None, "1/s") => Rate,
            (None, "s" | "ms") if !name.ends_with(')') => Time,
            _ => Amount,
        }
    }

    /// Whether a figure follows the machine's pace: times, what is done per second, and what time costs.
    pub fn follows_pace(&self, name: &str) -> bool {
        self.kind(name) != Amount
    }

    /// Every figure that a result has.
    pub fn read(&self, result: &RunResult) -> impl Iterator<Item = (&'static str, f64)> {
        let read = |figure: &'static RunFigure| Some((figure.name, figure.read?(result)?));
        self.of_runs().filter_map(read).filter(|(_, value)| value.is_finite())
    }

    /// How repeats are joined, by name.
    pub fn joins(&self) -> BTreeMap<&'static str, JoinRepeats> {
        self.0.iter().map(|figure| (figure.name, figure.join)).collect()
    }

    /// Measured figures of a run under the names that they have now.
    pub fn renamed(&self, metrics: BTreeMap<String, f64>) -> BTreeMap<String, f64> {
        metrics.into_iter().map(|(name, value)| (self.name(&name).to_owned(), value)).collect()
    }
}

/// The unit that a name tells; empty where it tells none.
pub fn unit_by_name(name: &str) -> &'static str {
    if name.starts_with("seconds.") {
        return "s";
    }
    UNITS.iter().find(|(end, _)| name.ends_with(end)).map_or("", |(_, unit)| unit)
}
