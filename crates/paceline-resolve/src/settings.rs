//! The settings of one run, whoever wrote them: a command line, a study's point, a script.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use paceline_data::Folders;
use paceline_plan::{PlanError, Value, nearest};
use paceline_record::Recording;

use crate::environment::data_folders;
use crate::registries::Registries;
use crate::table::{RunSetting, SettingKind, SettingSection, SettingTable, words_of};

/// Flags of `paceline train` that are no settings: they say where and how, not what is run.
const OTHER_FLAGS: &[&str] =
    &["store", "no-record", "listen", "key-file", "join-timeout", "config", "dry-run", "name", "tag", "note"];

/// How a setting begins that is an argument of the script: `args.lr` is its `--lr`.
pub const SCRIPT_ARGUMENT: &str = "args.";

/// Marks a switch of the script that is taken away.
const ABSENT_ARGUMENT: &str = "\u{0}";

/// Whether something can be the name of a script's argument.
fn argument_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

/// A setting that does not exist, or whose value cannot be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingError(String);

/// Settings by name, as users write them. What is absent has its default.
#[derive(Clone)]
pub struct PlanSettings {
    table: Arc<SettingTable>,
    given: BTreeMap<String, OsString>,
}

impl PartialEq for PlanSettings {
    fn eq(&self, other: &Self) -> bool {
        self.given == other.given
    }
}

impl fmt::Debug for PlanSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.given.fmt(f)
    }
}

impl PlanSettings {
    /// Nothing is given of what is in a table.
    pub fn new(table: &Arc<SettingTable>) -> Self {
        Self { table: Arc::clone(table), given: BTreeMap::new() }
    }

    /// What can be named.
    pub fn registries(&self) -> &Registries {
        &self.table.registries
    }

    /// Settings with these values.
    pub fn from_values<'v>(
        table: &Arc<SettingTable>,
        values: impl IntoIterator<Item = (&'v String, &'v Value)>,
    ) -> Result<Self, SettingError> {
        let mut all = Self::new(table);
        values.into_iter().try_for_each(|(name, value)| all.set(name, value))?;
        Ok(all)
    }

    /// Gives a setting a value; `false` takes it away.
    pub fn set(&mut self, name: &str, value: &Value) -> Result<(), SettingError> {
        let table = Arc::clone(&self.table);
        if name.strip_prefix(SCRIPT_ARGUMENT).is_some_and(argument_name) {
            match value {
                Value::Flag(false) => self.given.insert(name.into(), ABSENT_ARGUMENT.into()),
                Value::Flag(true) => self.given.insert(name.into(), OsString::new()),
                value => self.given.insert(name.into(), value.to_string().into()),
            };
            return Ok(());
        }
        let Some(setting) = table.find(name) else {
            let known = self.table.iter().map(|setting| setting.name).chain(OTHER_FLAGS.iter().copied());
            let hint = nearest(name, known).map(|near| format!("; did you mean `{near}`?"));
            let hint = hint.unwrap_or_else(|| "; `paceline train --help` lists every flag".into());
            return Err(SettingError(format!("paceline train has no flag --{name}{hint}")));
        };
        let switch = matches!(setting.kind, SettingKind::Switch);
        let flag = || format!("--{name} <{}>", setting.value_name);
        let text = match (value, setting.bare) {
            (Value::Flag(false), _) => {
                self.given.remove(name);
                return Ok(());
            }
            (Value::Flag(true), _) if switch => String::new(),
            (Value::Flag(true), Some(bare)) => bare.into(),
            (Value::Flag(true), None) => {
                let problem = format!("a value is required for '{}' but none was supplied", flag());
                return Err(SettingError(problem));
            }
            (value, _) if switch => {
                let problem = format!("unexpected value '{value}' for '--{name}' found");
                return Err(SettingError(problem));
            }
            (value, _) => value.to_string(),
        };
        if let Err(problem) = setting.check(&text) {
            let between = if matches!(setting.kind, SettingKind::Name(_)) { ";" } else { ":" };
            return Err(SettingError(format!("invalid value '{text}' for '{}'{between} {problem}", flag())));
        }
        self.put(name, text);
        Ok(())
    }

    /// The same, with other settings that win: also over those that cannot be given together with them.
    pub fn overridden_by(mut self, other: &Self) -> Self {
        let table = Arc::clone(&self.table);
        for (name, text) in &other.given {
            let excludes = table.find(name).and_then(|setting| setting.conflicts);
            self.given.retain(|known, _| {
                let excluded = table.find(known).and_then(|setting| setting.conflicts);
                Some(known.as_str()) != excludes && Some(name.as_str()) != excluded
            });
            self.given.insert(name.clone(), text.clone());
        }
        self
    }

    /// The same without some of them.
    pub(crate) fn without(&self, names: &[&str]) -> Self {
        let mut less = self.clone();
        less.given.retain(|name, _| !names.contains(&name.as_str()));
        less
    }

    /// Settings that are given, in the order of help texts: each with its text.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&RunSetting, &OsStr)> {
        self.table.iter().filter_map(|setting| Some((setting, self.given.get(setting.name)?.as_os_str())))
    }

    /// Gives a setting a text that was checked already, or that is a path.
    pub fn put(&mut self, name: &str, text: impl Into<OsString>) {
        self.given.insert(name.into(), text.into());
    }

    /// What the script is started with: its arguments, and those that are settings of their own (`args.NAME`) behind them.
    pub(crate) fn script_args(&self) -> Result<Vec<String>, PlanError> {
        let mut words = self.read("args", words_of)?.unwrap_or_default();
        for (name, text) in &self.given {
            let Some(name) = name.strip_prefix(SCRIPT_ARGUMENT) else { continue };
            let flag = format!("--{name}");
            match text.to_str() {
                Some(ABSENT_ARGUMENT) => words.retain(|word| *word != flag),
                Some("") => words.push(flag),
                Some(text) => words.extend([flag, text.to_owned()]),
                None => {}
            }
        }
        Ok(words)
    }

    /// The settings of strategies and consistency models that are given.
    pub(crate) fn parameters(&self) -> BTreeMap<String, String> {
        let own = self.table.iter().filter(|setting| setting.section == SettingSection::Parameters);
        let text = |name: &str| Some((name.to_owned(), self.text(name)?.to_owned()));
        own.filter_map(|setting| text(setting.name)).collect()
    }

    /// Whether a setting is given.
    pub fn given(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    /// The path of a setting, if it is given.
    pub fn path(&self, name: &str) -> Option<&Path> {
        self.given.get(name).map(Path::new)
    }

    /// Where datasets are looked for.
    pub fn data_folders(&self) -> Folders {
        data_folders(self.path("data-dir"))
    }

    /// What is recorded of the run.
    pub fn recording(&self) -> Result<Recording, PlanError> {
        let (sample_hz, trace) = (self.required("sample-hz")?, self.required("trace")?);
        Ok(Recording { sample_hz, trace, ..Recording::default() })
    }

    /// A setting's text, or its default.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let given = self.given.get(name).map(|text| text.to_str().unwrap_or("\u{fffd}"));
        given.or_else(|| self.table.find(name)?.default)
    }

    /// A setting's value or its default, if it has either.
    pub(crate) fn optional<T: FromStr<Err: ToString>>(&self, name: &str) -> Result<Option<T>, PlanError> {
        self.read(name, |text| text.parse::<T>().map_err(|error| error.to_string()))
    }

    /// The same, read by a function.
    pub(crate) fn read<T>(
        &self,
        name: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, PlanError> {
        let refuse = |text: &str, problem: String| PlanError::new(&format!("--{name}"), text, problem);
        self.text(name).map(|text| read(text).map_err(|problem| refuse(text, problem))).transpose()
    }

    /// A setting's value, or its default.
    pub(crate) fn required<T: FromStr<Err: ToString>>(&self, name: &str) -> Result<T, PlanError> {
        self.optional(name)?.ok_or_else(|| PlanError::new(&format!("--{name}"), "", "is needed"))
    }

    /// Refuses settings that cannot be given together, and those that need another one.
    pub(crate) fn check_pairs(&self) -> Result<(), PlanError> {
        let given = |name: &Option<&'static str>| name.filter(|name| self.given(name));
        let argument = self.given.keys().find_map(|name| name.strip_prefix(SCRIPT_ARGUMENT));
        if let Some(argument) = argument.filter(|_| !self.given("script")) {
            let flag = format!("--{argument}");
            return Err(PlanError::new("--args", flag, "is an argument of a script: it needs --script"));
        }
        for setting in self.table.iter().filter(|setting| self.given(setting.name)) {
            let value = self.given.get(setting.name).map(OsString::as_os_str).unwrap_or(OsStr::new(""));
            let refuse = |problem: String| {
                Err(PlanError::new(&format!("--{}", setting.name), value.to_string_lossy(), problem))
            };
            if let Some(other) = given(&setting.conflicts) {
                return refuse(format!("cannot be used with --{other}"));
            }
            if let Some(other) = setting.requires.filter(|name| !self.given(name)) {
                return refuse(format!("needs --{other}"));
            }
        }
        Ok(())
    }
}
