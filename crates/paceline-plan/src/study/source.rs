//! Where in a study file a key stands, and mistakes with their place.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

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
