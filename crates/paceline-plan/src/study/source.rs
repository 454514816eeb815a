//! Where in a study file a key stands, and mistakes with their place.

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};

use super::file::StudyFile;
use crate::value::nearest;

/// A mistake in a study file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {key}{}{problem}", if key.is_empty() { "" } else { ": " })]
pub struct StudyError {
    /// The file.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The key at fault, e.g. `axes.workers`.
    pub key: String,
    /// What is wrong and what would be right.
    pub problem: String,
}

/// Mistakes after which a file is not read on.
const MOST: usize = 100;

/// The text of a study file.
#[derive(Clone, Debug)]
pub struct StudySource {
    /// The file's name.
    pub file: String,
    /// What is in it.
    pub text: String,
}

impl StudySource {
    /// A mistake at a key such as `axes.workers`, `constraints[1]` or `objectives[0].metric`; where the key is not
    /// there, at the nearest one around it.
    pub fn error(&self, key: &str, problem: impl Into<String>) -> StudyError {
        let line = self.line_of(key);
        StudyError { file: self.file.clone(), line, key: key.into(), problem: problem.into() }
    }

    /// The file, as far as it can be read, and every mistake of the reader: what holds one is taken out, and the rest
    /// is read again.
    pub(super) fn read(&self) -> (Option<StudyFile>, Mistakes<'_>) {
        let mut mistakes = Mistakes { source: self, all: Vec::new(), unfit: Vec::new() };
        let (mut root, syntax) = DeTable::parse_recoverable(&self.text);
        if !syntax.is_empty() {
            mistakes.all = syntax.iter().take(MOST).map(|error| self.toml_error(error)).collect();
            mistakes.all.dedup();
            return (None, mistakes);
        }
        loop {
            let error = match StudyFile::deserialize(Deserializer::from(root.clone())) {
                Ok(file) => return (Some(file), mistakes),
                Err(error) => error,
            };
            let mut mistake = self.toml_error(&error);
            let Some(at) = error.span().map(|span| span.start).filter(|_| mistakes.all.len() < MOST) else {
                mistakes.all.push(mistake);
                return (None, mistakes);
            };
            let missing = error.message().strip_prefix("missing field ").map(|name| name.trim_matches('`'));
            let filled = missing.and_then(|name| fill_in(root.get_mut(), at, name));
            if let Some(Place::Root) = filled {
                (mistake.key, mistake.line) = (String::new(), 1);
            }
            let unfit = match (filled, missing) {
                (Some(Place::Root), Some(name)) => Some(name.to_owned()),
                (Some(Place::Entry), _) => Some(mistake.key.clone()),
                _ => take_out(root.get_mut(), at),
            };
            // What is missing because it was taken out was told.
            let whole = |name: &str| format!("{}.{name}", mistake.key).trim_start_matches('.').to_owned();
            let told = missing.is_some_and(|name| mistakes.unfit.contains(&whole(name)));
            if !told {
                mistakes.all.push(mistake);
            }
            let Some(key) = unfit else { return (None, mistakes) };
            mistakes.unfit.push(key);
        }
    }

    /// A mistake that the TOML reader found.
    pub(super) fn toml_error(&self, error: &toml::de::Error) -> StudyError {
        let at = error.span().map_or(0, |span| span.start);
        let key = DeTable::parse(&self.text).ok().and_then(|root| key_at(root.get_ref(), at));
        let key = key.unwrap_or_default();
        let problem = in_words(error.message());
        StudyError { file: self.file.clone(), line: self.line_at(at), key, problem }
    }

    fn line_at(&self, offset: usize) -> usize {
        1 + self.text.as_bytes()[..offset.min(self.text.len())].iter().filter(|b| **b == b'\n').count()
    }

    fn line_of(&self, key: &str) -> usize {
        let Ok(root) = DeTable::parse(&self.text) else { return 1 };
        let mut parts = Vec::new();
        for part in key.split('.') {
            let (name, indices) = part.split_once('[').unwrap_or((part, ""));
            parts.push(Step::Key(name));
            let indices = indices.split('[').filter_map(|i| i.trim_end_matches(']').parse().ok());
            parts.extend(indices.map(Step::Index));
        }
        let mut at = 0;
        let mut here: Option<Found<'_, '_>> = Some(Found::Table(root.get_ref()));
        for part in parts {
            let next = match (here, part) {
                (Some(Found::Table(table)), Step::Key(name)) => table
                    .iter()
                    .find(|(key, _)| key.get_ref() == name)
                    .map(|(key, value)| (key.span(), value)),
                (Some(Found::Value(DeValue::Array(array))), Step::Index(i)) => {
                    array.get(i).map(|value| (value.span(), value))
                }
                _ => None,
            };
            let Some((span, value)) = next else { break };
            at = span.start;
            here = Some(match value.get_ref() {
                DeValue::Table(table) => Found::Table(table),
                other => Found::Value(other),
            });
        }
        self.line_at(at)
    }
}

/// The mistakes of a study file so far.
pub(super) struct Mistakes<'s> {
    source: &'s StudySource,
    pub all: Vec<StudyError>,
    /// Keys that were taken out or filled in because of a mistake: what follows from that is none.
    unfit: Vec<String>,
}

impl Mistakes<'_> {
    /// A mistake at a key, unless it follows from another one there.
    pub fn add(&mut self, key: &str, problem: &str) {
        if !self.unfit.iter().any(|other| key.starts_with(other.as_str()) || other.starts_with(key)) {
            self.all.push(self.source.error(key, problem));
        }
    }

    pub fn need(&mut self, holds: bool, key: &str, problem: &str) {
        if !holds {
            self.add(key, problem);
        }
    }

    /// What was read, or else a mistake.
    pub fn take<T>(&mut self, read: Result<T, StudyError>) -> Option<T> {
        read.map_err(|error| self.add(&error.key, &error.problem)).ok()
    }
}

/// Where something was filled in.
enum Place {
    Root,
    /// An entry of a list of tables.
    Entry,
}

/// Fills in what every study, or every objective, has, so that the rest can be read; nothing where it is there, or
/// where there is nothing to stand for it.
fn fill_in(root: &mut DeTable<'_>, at: usize, name: &str) -> Option<Place> {
    let (key, value, place) = match name {
        "axes" => ("axes", DeValue::Table(DeTable::new()), Place::Root),
        "objectives" => ("objectives", DeValue::Array(DeArray::new()), Place::Root),
        "goal" => ("goal", DeValue::String("minimize".into()), Place::Entry),
        "metric" => ("metric", DeValue::String("wall_s".into()), Place::Entry),
        _ => return None,
    };
    let table = match place {
        Place::Root => Some(root),
        Place::Entry => root.iter_mut().find_map(|(_, value)| match value.get_mut() {
            DeValue::Array(entries) => {
                entries.iter_mut().find_map(|entry| match entry.span().contains(&at) {
                    true => {
                        if let DeValue::Table(table) = entry.get_mut() {
                            Some(table)
                        } else {
                            None
                        }
                    }
                    false => None,
                })
            }
            _ => None,
        }),
    };
    let table = table.filter(|table| !table.contains_key(key))?;
    table.insert(Spanned::new(0..0, key.into()), Spanned::new(0..0, value));
    Some(place)
}

/// Takes out the innermost entry around a place in the text; which one.
fn take_out(table: &mut DeTable<'_>, at: usize) -> Option<String> {
    let holds = |span: Range<usize>| span.contains(&at);
    let mut found = None;
    for (key, value) in table.iter_mut() {
        let inner = match value.get_mut() {
            DeValue::Table(inner) => take_out(inner, at).map(|inner| format!(".{inner}")),
            DeValue::Array(array) => {
                array.iter_mut().enumerate().find_map(|(i, item)| match item.get_mut() {
                    DeValue::Table(inner) => take_out(inner, at).map(|inner| format!("[{i}].{inner}")),
                    _ => None,
                })
            }
            _ => None,
        };
        if let Some(inner) = inner {
            return Some(format!("{}{inner}", key.get_ref()));
        }
        if holds(key.span()) || holds(value.span()) {
            found = Some(key.get_ref().to_string());
        }
    }
    let key = found?;
    table.remove(key.as_str());
    Some(key)
}

enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

#[derive(Clone, Copy)]
enum Found<'a, 'i> {
    Table(&'a DeTable<'i>),
    Value(&'a DeValue<'i>),
}

/// The innermost key around a place in the text.
fn key_at(table: &DeTable<'_>, at: usize) -> Option<String> {
    let holds = |span: Range<usize>| span.contains(&at);
    for (key, value) in table {
        if holds(key.span()) || holds(value.span()) {
            let inner = within(value, at);
            return Some(format!("{}{}", key.get_ref(), inner));
        }
        // The span of a table is its header's: what stands below it is found through its keys.
        if let DeValue::Table(inner) = value.get_ref()
            && let Some(found) = key_at(inner, at)
        {
            return Some(format!("{}.{found}", key.get_ref()));
        }
        if let DeValue::Array(_) = value.get_ref() {
            let inner = within(value, at);
            if !inner.is_empty() {
                return Some(format!("{}{inner}", key.get_ref()));
            }
        }
    }
    None
}

fn within(value: &Spanned<DeValue<'_>>, at: usize) -> String {
    match value.get_ref() {
        DeValue::Table(table) => key_at(table, at).map(|key| format!(".{key}")).unwrap_or_default(),
        DeValue::Array(array) => {
            let inside = |item: &Spanned<DeValue<'_>>| {
                let deeper = within(item, at);
                (item.span().contains(&at) || !deeper.is_empty()).then_some(deeper)
            };
            let found = array.iter().enumerate().find_map(|(i, item)| Some((i, inside(item)?)));
            found.map(|(i, deeper)| format!("[{i}]{deeper}")).unwrap_or_default()
        }
        _ => String::new(),
    }
}

/// The reader's message, in the words of a user.
fn in_words(message: &str) -> String {
    let quoted =
        |text: &str| -> Vec<String> { text.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    let names = quoted(message);
    if message.starts_with("unknown field") && names.len() > 1 {
        let (name, possible) = (&names[0], &names[1..]);
        let hint = nearest(name, possible.iter().map(String::as_str));
        let hint = hint.map(|n| format!("did you mean `{n}`? ")).unwrap_or_default();
        return format!("there is no key `{name}`; {hint}possible: {}", possible.join(", "));
    }
    if message.starts_with("unknown variant") && names.len() > 1 {
        return format!("`{}` is not possible; possible: {}", names[0], names[1..].join(", "));
    }
    if let Some(name) = message.strip_prefix("missing field ") {
        return format!("the key {name} is missing");
    }
    let mut words = message.to_owned();
    for (technical, plain) in [
        ("expected u64", "expected a whole number"),
        ("expected f64", "expected a number"),
        ("expected a sequence", "expected a list in [ ]"),
        ("expected a map", "expected a table"),
        ("expected struct ", "expected a table for "),
        ("invalid type: ", "found "),
        ("invalid value: ", "found "),
    ] {
        words = words.replace(technical, plain);
    }
    words
}
