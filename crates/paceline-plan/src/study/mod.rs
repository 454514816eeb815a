//! A study: a space, a budget, a sampler, and what its runs are. Read from TOML; mistakes name file, line and
//! key, and say what would be right.

mod file;
mod settings_file;
mod source;

use std::collections::BTreeMap;

use crate::expression::Condition;
use crate::space::{Axis, Scale, Space, SpaceError};
use crate::value::Value;

pub use file::{
    AxisFile, AxisTable, FlagsFile, Goal, Infer, MetricsFile, Objective, PointsFile, Prices, PriorFile,
    ScaleFile, StudyFile, WorkloadFile,
};
pub use settings_file::SettingsFile;
use source::Mistakes;
pub use source::{StudyError, StudySource};

/// What a study's runs are.
#[derive(Clone, Debug)]
pub enum Workload {
    /// `paceline train` with these flags.
    Train(BTreeMap<String, Value>),
    /// Another program and its arguments, with placeholders; one that is run before all runs, if any; how figures are
    /// read from its output; and the seconds that a run may take.
    #[allow(missing_docs, reason = "the text above says what they are")]
    Command { run: Vec<String>, prepare: Vec<String>, metrics: MetricsFile, timeout_s: Option<f64> },
}

/// One of several workloads.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedWorkload {
    /// Its name.
    pub name: String,
    /// Its flags of `paceline train`, common ones included.
    pub flags: BTreeMap<String, Value>,
    /// Those that stand in `[common]`.
    pub inherited: Vec<String>,
}

/// A study, read and checked as far as it can be without knowing what can be run.
#[derive(Clone, Debug)]
pub struct Study {
    /// Its name in the store.
    pub name: String,
    /// The sampler's name.
    pub sampler: String,
    /// Who expects something of points before any is run.
    pub prior: Option<PriorFile>,
    /// The simulator's costs: a file, relative to the study's.
    pub calibration: Option<String>,
    /// Seed of the sampler and of the order of runs.
    pub seed: u64,
    /// How often each point is run.
    pub repeats: u64,
    /// How often noisy points may be run.
    pub max_repeats: u64,
    /// What its runs are; with several workloads, those of the first.
    pub workload: Workload,
    /// Its workloads, where they have names; a part has all of them too.
    pub workloads: Vec<NamedWorkload>,
    /// Of a part (`Study::parts`): which of the workloads it is.
    pub part: Option<usize>,
    /// Which points they are run at.
    pub points: PointsFile,
    /// Axes, and constraints on them.
    pub space: Space,
    /// Conditions on what runs measure, with their number in the file.
    pub outcomes: Vec<(usize, Condition)>,
    /// What is wanted.
    pub objectives: Vec<Objective>,
    /// Runs of sampled points.
    pub runs: Option<u64>,
    /// Minutes after which no run is begun.
    pub minutes: Option<f64>,
    /// A run whose clock is beyond so many times the best is ended; 0 for never.
    pub give_up: f64,
    /// Runs between two controls; 0 for none.
    pub control_every: u64,
    /// Levels of the control point.
    pub control: BTreeMap<String, Value>,
    /// How answers of the trained networks are timed, where that is wanted.
    pub infer: Infer,
    /// What runs cost.
    pub prices: Option<Prices>,
    /// The text it was read from.
    pub source: StudySource,
}

/// The JSON schema of study files.
pub fn schema() -> serde_json::Value {
    serde_json::to_value(schemars::schema_for!(StudyFile)).expect("a schema is plain data")
}

/// A run beyond so many times the best can no longer win, whatever the machine does meanwhile.
const GIVE_UP: f64 = 3.0;

const NAMES: &str =
    "letters, digits, `-`, `_` and `.` are possible, up to 64, the first one a letter or digit";
const OF_WORKLOADS: &str = "is what the names of [[workload]] are called: give the axis another name";

/// Names that are safe as a folder's.
fn good_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= 64 && name.chars().all(good) && !name.starts_with(['.', '-'])
}

impl Study {
    /// Reads a study file; `stem` names the study where the file does not.
    pub fn read(file: &str, stem: &str, text: &str) -> Result<Self, StudyError> {
        let (study, mistakes) = Self::read_with_mistakes(file, stem, text);
        match mistakes.into_iter().next() {
            Some(first) => Err(first),
            None => Ok(study.expect("what has no mistake is a study")),
        }
    }

    /// Reads a study file as far as it can be, and finds every mistake in it.
    pub fn read_with_mistakes(file: &str, stem: &str, text: &str) -> (Option<Self>, Vec<StudyError>) {
        let source = StudySource { file: file.into(), text: text.into() };
        let (raw, mut mistakes) = source.read();
        let Some(raw) = raw else { return (None, mistakes.all) };
        let name = raw.name.unwrap_or_else(|| stem.into());
        mistakes.need(good_name(&name), "name", NAMES);
        mistakes.need((1..=1000).contains(&raw.repeats), "repeats", "must be between 1 and 1000");
        let max_repeats = raw.max_repeats.unwrap_or(raw.repeats);
        let range = raw.repeats..=1000.max(raw.repeats);
        mistakes.need(range.contains(&max_repeats), "max-repeats", "must be between `repeats` and 1000");
        let noise = "noise shows only in repeats: set `repeats` to at least 2";
        mistakes.need(max_repeats <= raw.repeats || raw.repeats >= 2, "max-repeats", noise);
        let example =
            "at least one is needed: [[objectives]] with metric = \"final_accuracy\" and goal = \"maximize\"";
        mistakes.need(!raw.objectives.is_empty(), "objectives", example);
        mistakes.need(raw.budget.runs != Some(0), "budget.runs", "at least 1 is needed");
        let minutes = raw.budget.minutes.is_none_or(|m| m > 0.0 && m.is_finite());
        mistakes.need(minutes, "budget.minutes", "must be a number above 0");
        if raw.prior.is_some() {
            mistakes.need(raw.sampler == "bayes", "prior", "belongs to `sampler = \"bayes\"`");
            let one = matches!(raw.workload, Some(WorkloadFile::One(_)));
            let predictable = raw.objectives.len() == 1 && one;
            mistakes.need(
                predictable,
                "prior",
                "needs one objective, and runs of one workload of paceline train ([workload])",
            );
        }
        let give_up = raw.budget.give_up.unwrap_or(GIVE_UP);
        let times = "must be at least 1 (times the best), or 0 for never";
        mistakes.need(give_up == 0.0 || give_up >= 1.0 && give_up.is_finite(), "budget.give-up", times);
        let fits = (1..=4096).contains(&raw.infer.batch) && (1..=1024).contains(&raw.infer.threads);
        mistakes.need(fits, "infer", "`batch` must be between 1 and 4096, `threads` between 1 and 1024");
        let seconds = (0.01..=3600.0).contains(&raw.infer.seconds);
        mistakes.need(seconds, "infer.seconds", "must be between 0.01 and 3600 seconds");
        let space = space(&source, &raw.axes.0, &raw.constraints, &mut mistakes);
        let several = matches!(raw.workload, Some(WorkloadFile::Several(_)));
        for (key, there) in [("common", raw.common.is_some()), ("points", raw.points.is_some())] {
            mistakes.need(!there || several, key, "belongs to several workloads, each a table [[workload]]");
        }
        let mut workloads = Vec::new();
        let workload = match (raw.workload, raw.command) {
            (Some(WorkloadFile::One(flags)), None) => Some(Workload::Train(flags.0)),
            (Some(WorkloadFile::Several(tables)), None) => {
                workloads = named(tables, &raw.common.unwrap_or_default().0, &mut mistakes);
                workloads.first().map(|first| Workload::Train(first.flags.clone()))
            }
            (None, Some(command)) => {
                if let Some((space, _)) = &space {
                    mistakes.take(check_command(&source, &command, space));
                }
                let file::CommandFile { run, prepare, metrics, timeout_s } = command;
                Some(Workload::Command { run, prepare, metrics, timeout_s })
            }
            (None, None) => {
                mistakes.add("", "a table [workload] (flags of paceline train) or [command] is missing");
                None
            }
            (Some(_), Some(_)) => {
                mistakes.add("command", "a study has either a [workload] or a [command], not both");
                None
            }
        };
        let (Some((space, outcomes)), Some(workload)) = (space, workload) else {
            return (None, mistakes.all);
        };
        mistakes.take(check_prices(&source, raw.prices.as_ref(), &workload));
        let study = Self {
            name,
            sampler: raw.sampler,
            prior: raw.prior,
            calibration: raw.calibration,
            seed: raw.seed,
            repeats: raw.repeats,
            max_repeats,
            workload,
            workloads,
            part: None,
            points: raw.points.unwrap_or_default(),
            space,
            outcomes,
            objectives: raw.objectives,
            runs: raw.budget.runs,
            minutes: raw.budget.minutes,
            give_up,
            control_every: raw.control.every,
            control: raw.control.point.0,
            infer: raw.infer,
            prices: raw.prices,
            source: source.clone(),
        };
        study.check_levels(&mut mistakes);
        (Some(study), mistakes.all)
    }

    /// The study of each workload alone, in the order of the file; of one workload, the study itself.
    pub fn parts(&self) -> Vec<Self> {
        if self.workloads.is_empty() {
            return vec![self.clone()];
        }
        let part = |(i, one): (usize, &NamedWorkload)| Self {
            workload: Workload::Train(one.flags.clone()),
            part: Some(i),
            ..self.clone()
        };
        self.workloads.iter().enumerate().map(part).collect()
    }

    /// The workload that a part is of.
    pub fn workload_name(&self) -> Option<&str> {
        Some(&self.workloads.get(self.part?)?.name)
    }

    /// Where a flag of the workload stands in the file.
    pub fn workload_key(&self, flag: &str) -> String {
        match self.part {
            Some(i) if self.workloads[i].inherited.iter().any(|name| name == flag) => {
                format!("common.{flag}")
            }
            Some(i) => format!("workload[{i}].{flag}"),
            None => format!("workload.{flag}"),
        }
    }

    /// The same with other names of figures; those of axes stay.
    pub fn renamed(mut self, rename: &dyn Fn(&str) -> String) -> Self {
        let is_axis = |name: &str| self.space.axes().iter().any(|axis| axis.name == name);
        let figure = |name: &str| if is_axis(name) { name.to_owned() } else { rename(name) };
        self.objectives.iter_mut().for_each(|objective| objective.metric = rename(&objective.metric));
        let outcomes = self.outcomes.into_iter();
        self.outcomes = outcomes.map(|(i, condition)| (i, condition.renamed(&figure))).collect();
        self
    }

    /// Whether settings are axes or not, and the control's levels are levels.
    fn check_levels(&self, mistakes: &mut Mistakes<'_>) {
        let axis = |name: &str| self.space.axes().iter().find(|axis| axis.name == name);
        for part in self.parts() {
            let Workload::Train(flags) = &part.workload else { continue };
            for name in flags.keys().filter(|name| axis(name).is_some()) {
                mistakes.add(&part.workload_key(name), "is an axis too: leave one of them out");
            }
        }
        let free = self.workloads.is_empty() || axis("workload").is_none();
        mistakes.need(free, "axes.workload", OF_WORKLOADS);
        for (name, value) in &self.control {
            let key = format!("control.point.{name}");
            let Some(axis) = axis(name) else {
                mistakes.add(&key, "is not an axis; what never varies belongs into [workload]");
                continue;
            };
            if matches!(self.workload, Workload::Command { .. }) && !axis.levels.contains(value) {
                let levels: Vec<_> = axis.levels.iter().map(ToString::to_string).collect();
                let levels = levels.join(", ");
                mistakes.add(&key, &format!("{value} is not a level of the axis; levels: {levels}"));
            }
        }
    }

    /// Every figure that objectives and conditions name, with where they do.
    pub fn figures(&self) -> Vec<(String, &str)> {
        let wanted = self.objectives.iter().enumerate();
        let wanted = wanted.map(|(i, o)| (format!("objectives[{i}].metric"), o.metric.as_str()));
        let is_axis = |name: &str| self.space.axes().iter().any(|axis| axis.name == name);
        let limits = self.outcomes.iter().flat_map(|(i, condition)| {
            let names = condition.names().into_iter().filter(|name| !is_axis(name));
            names.map(move |name| (format!("constraints[{i}]"), name)).collect::<Vec<_>>()
        });
        wanted.chain(limits).collect()
    }
}

/// Workloads with the flags that they have in common.
fn named(
    tables: Vec<FlagsFile>,
    common: &BTreeMap<String, Value>,
    mistakes: &mut Mistakes<'_>,
) -> Vec<NamedWorkload> {
    let mut all: Vec<NamedWorkload> = Vec::new();
    for (i, FlagsFile(mut own)) in tables.into_iter().enumerate() {
        let key = format!("workload[{i}]");
        let name = match own.remove("name") {
            Some(name) => name.to_string(),
            None => {
                mistakes.add(&key, "the key `name` is missing: one of several workloads needs a name");
                format!("workload-{i}")
            }
        };
        mistakes.need(good_name(&name), &format!("{key}.name"), NAMES);
        let new = all.iter().all(|other| other.name != name);
        mistakes.need(new, &format!("{key}.name"), "another workload has this name");
        let inherited = common.keys().filter(|flag| !own.contains_key(*flag)).cloned().collect();
        let flags = common.clone().into_iter().chain(own).collect();
        all.push(NamedWorkload { name, flags, inherited });
    }
    mistakes.need(!all.is_empty(), "workload", "at least one [[workload]] is needed");
    all
}

/// The space, and the conditions that are not on axes alone.
fn space(
    source: &StudySource,
    axes: &[(String, AxisFile)],
    constraints: &[String],
    mistakes: &mut Mistakes<'_>,
) -> Option<(Space, Vec<(usize, Condition)>)> {
    let read: Vec<Axis> =
        axes.iter().filter_map(|(name, axis)| mistakes.take(read_axis(source, name, axis))).collect();
    let (mut on_axes, mut numbers, mut outcomes) = (Vec::new(), Vec::new(), Vec::new());
    for (i, text) in constraints.iter().enumerate() {
        let parsed =
            Condition::parse(text).map_err(|e| source.error(&format!("constraints[{i}]"), e.to_string()));
        let Some(condition) = mistakes.take(parsed) else { continue };
        // A condition without any axis is about what runs measure; one that names an axis and something else might
        // be either, so only figures that look like figures count.
        let is_axis = |name: &&str| axes.iter().any(|(axis, _)| axis == *name);
        let names = condition.names();
        if names.iter().any(is_axis) && !names.iter().any(|n| n.contains('_')) || names.iter().all(is_axis) {
            numbers.push(i);
            on_axes.push(condition);
        } else {
            outcomes.push((i, condition));
        }
    }
    if read.len() < axes.len() {
        return None;
    }
    let located = |error: SpaceError| {
        let at = error.subject.strip_prefix("constraints[").and_then(|rest| {
            let i: usize = rest.trim_end_matches(']').parse().ok()?;
            Some(format!("constraints[{}]", numbers.get(i)?))
        });
        source.error(&at.unwrap_or(error.subject), error.problem)
    };
    let space = mistakes.take(Space::new(read, on_axes).map_err(located))?;
    let none = space.points(crate::space::ENUMERABLE).is_some_and(|points| points.is_empty());
    mistakes.need(!none, "constraints", "no combination of levels meets all of them");
    (!none).then_some((space, outcomes))
}

/// Levels that a range may have.
const MOST_LEVELS: u64 = 10_000;

fn read_axis(source: &StudySource, name: &str, axis: &AxisFile) -> Result<Axis, StudyError> {
    let key = format!("axes.{name}");
    let fail = |problem: &str| Err(source.error(&key, problem));
    let table = match axis {
        AxisFile::List(levels) => {
            return match levels.len() {
                0 => fail("at least one level is needed"),
                _ => Ok(Axis::new(name, levels.clone())),
            };
        }
        AxisFile::Table(table) => table,
    };
    let (levels, range) = match (&table.values, table.from, table.to, table.count) {
        (Some(values), None, None, None) if values.is_empty() => return fail("at least one level is needed"),
        (Some(values), None, None, None) => (values.clone(), false),
        (None, Some(from), Some(to), Some(count)) => {
            if !(from.is_finite() && to.is_finite() && from < to) {
                return fail("`from` must be a number below `to`");
            }
            if !(2..=MOST_LEVELS).contains(&count) {
                return fail("`count` must be between 2 and 10000");
            }
            let log = table.scale == Some(ScaleFile::Log);
            if log && from <= 0.0 {
                return fail("a logarithmic range starts above 0");
            }
            (spread(from, to, count, log), true)
        }
        _ => {
            return fail(
                "either `values = […]`, or all of `from`, `to` and `count`, \
                 e.g. { from = 0.001, to = 0.1, count = 5, scale = \"log\" }",
            );
        }
    };
    let mut read = Axis::new(name, levels);
    if let Some(scale) = table.scale {
        let numbers: Option<Vec<f64>> = read.levels.iter().map(Value::number).collect();
        let Some(numbers) = numbers else { return fail("`scale` belongs to numbers") };
        if scale == ScaleFile::Log && numbers.iter().any(|n| *n <= 0.0) {
            return fail("a logarithmic scale needs levels above 0");
        }
        read.scale = if scale == ScaleFile::Log { Scale::Log } else { Scale::Linear };
    } else if range {
        read.scale = Scale::Linear;
    }
    if let Some(when) = &table.when {
        read.when =
            Some(Condition::parse(when).map_err(|e| source.error(&format!("{key}.when"), e.to_string()))?);
    }
    Ok(read)
}

/// `count` levels between two numbers, both included; whole where the steps are.
fn spread(from: f64, to: f64, count: u64, log: bool) -> Vec<Value> {
    let last = (count - 1) as f64;
    let at = |i: u64| {
        let share = i as f64 / last;
        let exact = if log { from * (to / from).powf(share) } else { from + (to - from) * share };
        match i {
            0 => from,
            i if i == count - 1 => to,
            // Twelve digits: what a user would write, not the noise of the arithmetic.
            _ => format!("{exact:.11e}").parse().unwrap_or(exact),
        }
    };
    (0..count).map(|i| Value::Number(at(i))).collect()
}

/// Placeholders that are the same in every run of a study: this program, and the folder of the study file.
pub const OF_STUDIES: [&str; 2] = ["paceline", "folder"];

/// Every axis appears in the command, and every placeholder is an axis.
fn check_command(source: &StudySource, command: &file::CommandFile, space: &Space) -> Result<(), StudyError> {
    let fail = |key: &str, problem: &str| Err(source.error(key, problem));
    let Some(program) = command.run.first().filter(|p| !p.is_empty()) else {
        return fail("command.run", "the program is missing, e.g. [\"python3\", \"train.py\", \"{lr}\"]");
    };
    if command.timeout_s.is_some_and(|s| !(s > 0.0 && s.is_finite())) {
        return fail("command.timeout-s", "must be a number of seconds above 0");
    }
    if placeholders(program).next().is_some() {
        return fail("command.run", "the program itself cannot be a placeholder");
    }
    for axis in space.axes() {
        let bad = match axis.name.chars().find(|c| !in_placeholder(*c)) {
            Some(' ') => "has a space".into(),
            Some(c) => format!("has `{}`", crate::printable(c.encode_utf8(&mut [0; 4]))),
            None if axis.name.is_empty() => "is empty".into(),
            None => continue,
        };
        let problem =
            format!("the name {bad}: an axis of a command is named with letters, digits, `-` and `_` only");
        return fail(&format!("axes.{}", axis.name), &problem);
    }
    let used: Vec<&str> = command.run.iter().flat_map(|word| placeholders(word)).collect();
    let names: Vec<&str> = space.axes().iter().map(|a| a.name.as_str()).collect();
    let known = |name: &str| ["seed", "cores"].contains(&name) || OF_STUDIES.contains(&name);
    if let Some(name) = used.iter().find(|n| !known(n) && !names.contains(n)) {
        let hint = crate::value::nearest(name, names.iter().copied());
        let hint = hint.map(|n| format!("; did you mean {{{n}}}?")).unwrap_or_default();
        return fail("command.run", &format!("{{{name}}} is not an axis{hint}"));
    }
    if let Some(name) =
        command.prepare.iter().flat_map(|word| placeholders(word)).find(|n| !OF_STUDIES.contains(n))
    {
        let problem = format!("{{{name}}} cannot be filled in: it is run once, before any axis has a level");
        return fail("command.prepare", &problem);
    }
    if let Some(unused) = names.iter().find(|name| !used.contains(name)) {
        let problem = format!("the command does not use it: write {{{unused}}} where its level belongs");
        return fail(&format!("axes.{unused}"), &problem);
    }
    Ok(())
}

/// Prices are prices, and belong to what the runs are.
fn check_prices(
    source: &StudySource,
    prices: Option<&Prices>,
    workload: &Workload,
) -> Result<(), StudyError> {
    let Some(prices) = prices else { return Ok(()) };
    if let Some((key, _)) = prices.all().iter().find(|(_, price)| !(*price >= 0.0 && price.is_finite())) {
        return Err(source.error(&format!("prices.{key}"), "must be a number of at least 0"));
    }
    if prices.all().iter().all(|(_, price)| *price == 0.0) {
        let problem = "nothing costs anything: give one of run-hour, worker-hour, server-hour and gigabyte";
        return Err(source.error("prices", problem));
    }
    let of_train = prices.all().into_iter().find(|(key, price)| *key != "run-hour" && *price > 0.0);
    if let (Workload::Command { .. }, Some((key, _))) = (workload, of_train) {
        let problem = "nothing is known about the command's workers and bytes: use run-hour";
        return Err(source.error(&format!("prices.{key}"), problem));
    }
    Ok(())
}

/// Whether a name in `{…}` can have this character.
fn in_placeholder(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '_')
}

/// The names in `{…}` of a word.
pub fn placeholders(word: &str) -> impl Iterator<Item = &str> {
    let name = |part: &str| -> bool { !part.is_empty() && part.chars().all(in_placeholder) };
    word.split('{')
        .skip(1)
        .filter_map(|rest| rest.split_once('}'))
        .map(|(name, _)| name)
        .filter(move |n| name(n))
}
