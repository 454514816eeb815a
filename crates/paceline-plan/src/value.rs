//! A level of an axis: a number, a word, or yes and no.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

/// One level of an axis, or one figure of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Yes or no.
    Flag(bool),
    /// A number; whole ones are written without a point.
    Number(f64),
    /// A word.
    Text(String),
}

impl Value {
    /// A cell of a table or a word of the command line: a number where it reads as a finite one.
    pub fn read(text: &str) -> Self {
        match text.trim() {
            "true" => Self::Flag(true),
            "false" => Self::Flag(false),
            other => match other.parse::<f64>() {
                Ok(number) if number.is_finite() => Self::Number(number),
                _ => Self::Text(other.into()),
            },
        }
    }

    /// The number, if it is one.
    pub fn number(&self) -> Option<f64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    /// What kind of value it is, in words.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Flag(_) => "yes or no",
            Self::Number(_) => "a number",
            Self::Text(_) => "text",
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => flag.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            // Whole numbers up to 2⁵³ are exact, and users write them without a point.
            Self::Number(n) if n.fract() == 0.0 && n.abs() <= 9e15 => serializer.serialize_i64(*n as i64),
            Self::Number(number) => serializer.serialize_f64(*number),
            Self::Text(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Value;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, text in quotes, true or false")
            }
            fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Value, E> {
                Ok(Value::Flag(flag))
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Value, E> {
                Ok(Value::Number(number as f64))
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Value, E> {
                Ok(Value::Number(number as f64))
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Value, E> {
                if number.is_finite() {
                    Ok(Value::Number(number))
                } else {
                    Err(E::custom("a finite number is needed"))
                }
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
                Ok(Value::Text(text.into()))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

impl schemars::JsonSchema for Value {
    fn schema_name() -> Cow<'static, str> {
        "Value".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": ["boolean", "number", "string"] })
    }
}

/// The name among `known` that is written most like `name`, if one is close.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = name.chars().count() / 3 + 1;
    let best = known.into_iter().map(|k| (distance(name, k), k)).min_by_key(|(d, _)| *d);
    best.filter(|(d, _)| *d <= limit).map(|(_, k)| k)
}

/// Edits (insert, delete, replace, swap neighbours) between two words.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let same = usize::from(a[i - 1] != b[j - 1]);
            let mut least = (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + same);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_written_without_a_point_and_read_back() {
        for (text, value) in [
            ("2", Value::Number(2.0)),
            ("0.5", Value::Number(0.5)),
            ("true", Value::Flag(true)),
            ("\"ps\"", Value::Text("ps".into())),
        ] {
            assert_eq!(serde_json::from_str::<Value>(text).unwrap(), value);
            assert_eq!(serde_json::to_string(&value).unwrap(), text);
        }
        assert_eq!(Value::read("0.00001"), Value::Number(1e-5));
        assert_eq!(Value::read("t2.small"), Value::Text("t2.small".into()));
        assert_eq!(Value::read("nan"), Value::Text("nan".into()));
    }

    #[test]
    fn the_nearest_name_is_found_and_strangers_are_not() {
        let known = ["transport", "workers", "servers"];
        assert_eq!(nearest("transprot", known), Some("transport"));
        assert_eq!(nearest("wrkers", known), Some("workers"));
        assert_eq!(nearest("colour", known), None);
    }
}
