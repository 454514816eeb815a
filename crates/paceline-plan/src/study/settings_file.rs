//! A file with the settings of one run: the keys of a study's `[workload]`, at its top level.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

use super::source::{StudyError, StudySource};
use crate::value::Value;

/// The settings of one run, as a file has them, and where in it they stand.
#[derive(Clone, Debug)]
pub struct SettingsFile {
    /// The text it was read from.
    pub source: StudySource,
    /// Values by key. A list is a text with commas, as flags take it.
    pub values: BTreeMap<String, Value>,
}

impl SettingsFile {
    /// Reads a file; whether its keys are settings is not known here.
    pub fn read(file: &str, text: &str) -> Result<Self, StudyError> {
        let source = StudySource { file: file.into(), text: text.into() };
        let read = toml::from_str::<BTreeMap<String, Entry>>(text);
        let entries = read.map_err(|error| source.toml_error(&error))?;
        let values = entries.into_iter().map(|(key, Entry(value))| (key, value)).collect();
        Ok(Self { source, values })
    }
}

/// One value, or a list of them.
struct Entry(Value);

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Entry;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, text in quotes, true, false, or a list of these")
            }
            fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Entry, E> {
                Ok(Entry(Value::Flag(flag)))
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Entry, E> {
                // As written: a seed may be beyond what a float tells apart.
                Ok(Entry(Value::Text(number.to_string())))
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Entry, E> {
                match number.is_finite() {
                    true => Ok(Entry(Value::Number(number))),
                    false => Err(E::custom("a finite number is needed")),
                }
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Entry, E> {
                Ok(Entry(Value::Text(text.into())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Entry, A::Error> {
                let mut words = Vec::new();
                while let Some(Entry(value)) = list.next_element()? {
                    words.push(value.to_string());
                }
                Ok(Entry(Value::Text(words.join(","))))
            }
        }
        deserializer.deserialize_any(OneOrMany)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_flags_would_be_given() {
        let text = "workers = 2\nlr = 1e-3\nseed = 18446744073709551\npin = true\nfreeze = [\"a\", \"b\"]\n";
        let read = SettingsFile::read("run.toml", text).unwrap();
        let shown: Vec<String> = read.values.iter().map(|(key, value)| format!("{key} {value}")).collect();
        assert_eq!(shown, ["freeze a,b", "lr 0.001", "pin true", "seed 18446744073709551", "workers 2"]);
    }

    #[test]
    fn mistakes_name_file_line_and_key() {
        let said = |text: &str| SettingsFile::read("run.toml", text).unwrap_err().to_string();
        assert!(
            said("workers = 2\nlr = 1979-05-27\n").starts_with("run.toml:2: lr: found "),
            "{}",
            said("lr = 1979-05-27")
        );
        assert!(said("workers = 2\n[workload]\nlr = 1\n").starts_with("run.toml:2: workload: "));
        assert!(said("workers = 2\nlr = \n").starts_with("run.toml:2: "), "{}", said("lr ="));
        assert!(said("a = inf\n").contains("a finite number is needed"));
    }
}
