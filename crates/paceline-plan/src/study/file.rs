//! The study file as users write it. Its JSON schema comes from these types.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::value::Value;

/// A study: what is run, over which axes, for which objectives, within which budget.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StudyFile {
    /// The study's name in the store; the file's name if left out.
    pub name: Option<String>,
    /// How points are chosen.
    #[serde(default = "sampler")]
    pub sampler: String,
    /// Where a sampler that learns begins (`bayes`): with what the simulator expects of every point.
    pub prior: Option<PriorFile>,
    /// The simulator's costs, as `paceline calibrate` wrote them; a path relative to this file.
    pub calibration: Option<String>,
    /// Seed of the sampler and of the order of runs.
    #[serde(default = "one")]
    pub seed: u64,
    /// How often each point is run; repeats differ in their seed and are spread over the study.
    #[serde(default = "one")]
    pub repeats: u64,
    /// Points whose objective varies by more than 5% between repeats are run up to so many times.
    pub max_repeats: Option<u64>,
    /// Conditions on axes (`servers <= workers`) and on what runs measure (`final_accuracy >= 0.9`).
    #[serde(default)]
    pub constraints: Vec<String>,
    /// Flags of `paceline train` that are the same in every run; or, as `[[workload]]`, several workloads, each with a
    /// `name` and flags of its own.
    pub workload: Option<WorkloadFile>,
    /// Flags that several workloads have in common; a workload's own come first.
    pub common: Option<FlagsFile>,
    /// Which points several workloads are run at.
    pub points: Option<PointsFile>,
    /// Another program as the workload.
    pub command: Option<CommandFile>,
    /// What varies.
    pub axes: AxesFile,
    /// What is wanted.
    pub objectives: Vec<Objective>,
    /// When the study ends.
    #[serde(default)]
    pub budget: BudgetFile,
    /// The control point.
    #[serde(default)]
    pub control: ControlFile,
    /// How answers of the trained networks are timed, where `infer.…` is wanted.
    #[serde(default)]
    pub infer: Infer,
    /// What runs cost, where `cost` is wanted.
    pub prices: Option<Prices>,
}

fn sampler() -> String {
    "bayes".into()
}

fn one() -> u64 {
    1
}

/// `[workload]`, or one `[[workload]]` after the other.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub enum WorkloadFile {
    /// Flags of the only one.
    One(FlagsFile),
    /// Flags of each, and its `name`.
    Several(Vec<FlagsFile>),
}

/// Which points several workloads are run at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PointsFile {
    /// The same for all: what is best for one can be compared with what is best for another.
    #[default]
    Paired,
    /// Each has a sampler of its own.
    Own,
}

/// Another program as the workload.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CommandFile {
    /// The program and its arguments; `{AXIS}`, `{seed}`, `{cores}`, `{paceline}` (this program) and `{folder}` (of the
    /// study file) are filled in.
    pub run: Vec<String>,
    /// A program that is run once before the first run; if it fails, nothing is run. `{paceline}` and `{folder}` are
    /// filled in.
    #[serde(default)]
    pub prepare: Vec<String>,
    /// How figures are read from what it prints on standard output.
    #[serde(default)]
    pub metrics: MetricsFile,
    /// Seconds after which a run is ended and counts as failed.
    pub timeout_s: Option<f64>,
}

/// How figures are read: `"json"` (the last line that is a JSON object), or a regular expression per figure whose
/// last match counts, its first group being the number.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(untagged)]
pub enum MetricsFile {
    /// The last line that is a JSON object.
    #[default]
    #[schemars(with = "String")]
    Json,
    /// A regular expression per figure.
    Patterns(BTreeMap<String, String>),
}

/// Flags of `paceline train`. What stands in the table `args` are arguments of the script, each a flag `args.NAME`.
#[derive(Clone, Debug, Default)]
pub struct FlagsFile(pub BTreeMap<String, Value>);

/// The axes, in the order in which they are written. What stands in the table `args` are arguments of the script, each
/// an axis `args.NAME`.
#[derive(Clone, Debug)]
pub struct AxesFile(pub Vec<(String, AxisFile)>);

/// The table, or the key before the dot, of a script's arguments.
const ARGUMENTS: &str = "args";

/// One axis: a list of levels, or a table.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub enum AxisFile {
    /// The levels.
    List(Vec<Value>),
    /// Levels or a range, and where the axis is there at all.
    Table(AxisTable),
}

/// An axis with `values`, or with `from`, `to` and `count`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AxisTable {
    /// The levels.
    pub values: Option<Vec<Value>>,
    /// The least level of a range.
    pub from: Option<f64>,
    /// The greatest level of a range.
    pub to: Option<f64>,
    /// How many levels a range has.
    pub count: Option<u64>,
    /// How levels relate: for a range, how they are spread; otherwise how they are compared.
    pub scale: Option<ScaleFile>,
    /// Where the axis is there at all, e.g. `sync = "ssp"`.
    pub when: Option<String>,
}

/// Who expects something of points before any is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PriorFile {
    /// Virtual time.
    Simulator,
}

/// How levels relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScaleFile {
    /// By difference.
    Linear,
    /// By ratio.
    Log,
}

/// One objective.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename = "ObjectiveFile", rename_all = "kebab-case")]
pub struct Objective {
    /// A figure of the run, e.g. `time_to_accuracy_s`.
    pub metric: String,
    /// Whether less or more is better.
    pub goal: Goal,
}

/// Whether less or more is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// Less is better.
    Minimize,
    /// More is better.
    Maximize,
}

impl Goal {
    /// Whether `a` is better than `b`.
    pub fn better(self, a: f64, b: f64) -> bool {
        match self {
            Self::Minimize => a < b,
            Self::Maximize => a > b,
        }
    }

    /// The value as a loss: less is better.
    pub fn loss(self, value: f64) -> f64 {
        match self {
            Self::Minimize => value,
            Self::Maximize => -value,
        }
    }
}

/// When the study ends: whatever comes first.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct BudgetFile {
    /// Runs of sampled points, repeats included; controls, baseline and warm-up come on top.
    pub runs: Option<u64>,
    /// Minutes; no run is begun after them.
    pub minutes: Option<f64>,
    /// Where the one objective is a time of the training clock: a run whose clock is beyond so many times the best is
    /// ended, because it can no longer win; 0 for never. 3 if left out.
    pub give_up: Option<f64>,
}

/// The control point: one configuration that is run again and again, so that drift of the machine shows.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ControlFile {
    /// Runs between two controls; 0 for none.
    #[serde(default = "every")]
    pub every: u64,
    /// Its levels; the workload's defaults (for a command, each axis's first level) where left out.
    #[serde(default)]
    pub point: FlagsFile,
}

impl Default for ControlFile {
    fn default() -> Self {
        Self { every: every(), point: FlagsFile::default() }
    }
}

fn every() -> u64 {
    8
}

/// How answers of the trained networks are timed, after each run, by `paceline infer`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Infer {
    /// Samples that are answered together.
    pub batch: u32,
    /// Threads.
    pub threads: u32,
    /// Seconds of the measurement.
    pub seconds: f64,
}

impl Default for Infer {
    fn default() -> Self {
        Self { batch: 1, threads: 1, seconds: 0.5 }
    }
}

/// What runs cost, in any currency: `cost` is the sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Prices {
    /// Price of an hour of a run, whatever it consists of.
    pub run_hour: f64,
    /// Price of an hour of a worker; for `paceline train` only.
    pub worker_hour: f64,
    /// Price of an hour of a server; for `paceline train` only.
    pub server_hour: f64,
    /// Price of 10⁹ bytes that are sent; for `paceline train` only.
    pub gigabyte: f64,
}

impl Prices {
    /// Each price with its key.
    pub fn all(&self) -> [(&'static str, f64); 4] {
        [
            ("run-hour", self.run_hour),
            ("worker-hour", self.worker_hour),
            ("server-hour", self.server_hour),
            ("gigabyte", self.gigabyte),
        ]
    }
}

impl<'de> Deserialize<'de> for AxesFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table;
        impl<'de> Visitor<'de> for Table {
            type Value = AxesFile;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of axes, e.g. workers = [1, 2, 4]")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<AxesFile, A::Error> {
                let mut axes = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name != ARGUMENTS {
                        axes.push((name, map.next_value()?));
                        continue;
                    }
                    match map.next_value()? {
                        Arguments::Whole(axis) => axes.push((name, axis)),
                        Arguments::Each(each) => {
                            axes.extend(each.into_iter().map(|(own, axis)| (format!("{name}.{own}"), axis)));
                        }
                    }
                }
                Ok(AxesFile(axes))
            }
        }
        deserializer.deserialize_map(Table)
    }
}

/// A script's arguments: all of them as one, or each with its name, in the order in which they are written.
enum Arguments<T> {
    Whole(T),
    Each(Vec<(String, T)>),
}

impl<'de> Deserialize<'de> for Arguments<AxisFile> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Arguments<AxisFile>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an axis for each argument, e.g. args.lr = [0.01, 0.1], or a list of whole texts")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
                let levels = Deserialize::deserialize(SeqAccessDeserializer::new(seq))?;
                Ok(Arguments::Whole(AxisFile::List(levels)))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                entries(map).map(Arguments::Each)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl<'de> Deserialize<'de> for Arguments<Value> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Arguments<Value>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text in quotes, e.g. \"--epochs 1\", or a value for each argument")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Arguments::Whole(Value::Text(text.into())))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                entries(map).map(Arguments::Each)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// The entries of a table, in their order.
fn entries<'de, T: Deserialize<'de>, A: MapAccess<'de>>(mut map: A) -> Result<Vec<(String, T)>, A::Error> {
    let mut all = Vec::new();
    while let Some(entry) = map.next_entry()? {
        all.push(entry);
    }
    Ok(all)
}

impl<'de> Deserialize<'de> for FlagsFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table;
        impl<'de> Visitor<'de> for Table {
            type Value = FlagsFile;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of flags of paceline train, e.g. workers = 2")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FlagsFile, A::Error> {
                let mut flags = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name != ARGUMENTS {
                        flags.insert(name, map.next_value()?);
                        continue;
                    }
                    match map.next_value()? {
                        Arguments::Whole(text) => drop(flags.insert(name, text)),
                        Arguments::Each(each) => {
                            flags.extend(
                                each.into_iter().map(|(own, value)| (format!("{name}.{own}"), value)),
                            );
                        }
                    }
                }
                Ok(FlagsFile(flags))
            }
        }
        deserializer.deserialize_map(Table)
    }
}

/// The schema of a table whose entries are `T`s, and whose `args` may be a table of them.
fn with_arguments<T: JsonSchema>(generator: &mut SchemaGenerator, about: &str) -> Schema {
    let one = generator.subschema_for::<T>();
    json_schema!({
        "description": about,
        "type": "object",
        "properties": {
            "args": {
                "description": "All arguments of the script, or a table with each of them.",
                "anyOf": [one, { "type": "object", "additionalProperties": one }],
            },
        },
        "additionalProperties": one,
    })
}

impl JsonSchema for AxesFile {
    fn schema_name() -> Cow<'static, str> {
        "Axes".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        with_arguments::<AxisFile>(generator, "The axes, in the order in which they are written.")
    }
}

impl JsonSchema for FlagsFile {
    fn schema_name() -> Cow<'static, str> {
        "Flags".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        with_arguments::<Value>(generator, "Flags of `paceline train`.")
    }
}

impl<'de> Deserialize<'de> for AxisFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = AxisFile;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of levels, e.g. [1, 2, 4], or a range { from = 1, to = 8, count = 4 }")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<AxisFile, A::Error> {
                Deserialize::deserialize(SeqAccessDeserializer::new(seq)).map(AxisFile::List)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<AxisFile, A::Error> {
                Deserialize::deserialize(MapAccessDeserializer::new(map)).map(AxisFile::Table)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl<'de> Deserialize<'de> for WorkloadFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = WorkloadFile;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table [workload], or several [[workload]]")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<WorkloadFile, A::Error> {
                Deserialize::deserialize(SeqAccessDeserializer::new(seq)).map(WorkloadFile::Several)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WorkloadFile, A::Error> {
                Deserialize::deserialize(MapAccessDeserializer::new(map)).map(WorkloadFile::One)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl<'de> Deserialize<'de> for MetricsFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = MetricsFile;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"json\", or a table with a regular expression per figure")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<MetricsFile, E> {
                match text {
                    "json" => Ok(MetricsFile::Json),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<MetricsFile, A::Error> {
                Deserialize::deserialize(MapAccessDeserializer::new(map)).map(MetricsFile::Patterns)
            }
        }
        deserializer.deserialize_any(Either)
    }
}
