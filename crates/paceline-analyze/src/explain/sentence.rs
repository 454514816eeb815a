//! Sentences whose numbers are figures: a number gets into one only with a name and its exact value.

use std::collections::BTreeMap;
use std::ops::Deref;

use serde::{Serialize, Serializer};

use crate::chart::ChartUnit;
use crate::table::number;

/// Numbers by their names, in the units that the names end with (shares are parts of 1).
pub type ExactFigures = BTreeMap<String, f64>;

/// A sentence, and the exact values of the numbers in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sentence {
    text: String,
    figures: ExactFigures,
}

/// What takes the place of a `{}`.
pub(super) enum Part {
    Figure {
        id: String,
        value: f64,
        text: String,
    },
    /// What users or machines are called, quoted.
    Name(String),
    Words(&'static str),
    Sentence(Sentence),
}

impl Sentence {
    /// A template without numbers, whose `{}` are taken by the parts in their order.
    pub(super) fn new<const N: usize>(template: &'static str, parts: [Part; N]) -> Self {
        debug_assert!(!has_number(template), "a number that is no figure: {template}");
        let mut pieces = template.split("{}");
        let mut sentence = Self { text: pieces.next().unwrap_or_default().into(), ..Self::default() };
        for part in parts {
            sentence.add(part);
            let piece = pieces.next();
            debug_assert!(piece.is_some(), "more parts than places: {template}");
            sentence.text += piece.unwrap_or_default();
        }
        debug_assert!(pieces.next().is_none(), "more places than parts: {template}");
        sentence
    }

    /// What somebody else has put into words, with the exact values of its numbers.
    pub(super) fn told(text: String, figures: impl IntoIterator<Item = (String, f64)>) -> Self {
        Self { text, figures: figures.into_iter().collect() }
    }

    fn add(&mut self, part: Part) {
        match part {
            Part::Figure { id, value, text } => {
                self.text += &text;
                self.figures.insert(id, value);
            }
            Part::Name(name) => self.text += &format!("`{name}`"),
            Part::Words(words) => {
                debug_assert!(!has_number(words), "a number that is no figure: {words}");
                self.text += words;
            }
            Part::Sentence(other) => {
                self.text += &other.text;
                self.figures.extend(other.figures);
            }
        }
    }

    /// The one, then the other.
    pub(super) fn then(mut self, other: Self) -> Self {
        self.add(Part::Sentence(other));
        self
    }

    /// The exact values of the numbers in it.
    pub fn figures(&self) -> &ExactFigures {
        &self.figures
    }
}

impl Deref for Sentence {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl std::fmt::Display for Sentence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Sentence {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.text)
    }
}

/// Whether a number stands in a text; digits of a word, as in `fp16`, are none.
fn has_number(text: &str) -> bool {
    let before = std::iter::once(' ').chain(text.chars());
    before.zip(text.chars()).any(|(before, c)| c.is_ascii_digit() && !before.is_ascii_alphanumeric())
}

fn figure(id: impl Into<String>, value: f64, text: String) -> Part {
    Part::Figure { id: id.into(), value, text }
}

/// A part of something, in percent.
pub(super) fn percent(id: impl Into<String>, share: f64) -> Part {
    let hundred = 100.0 * share;
    let digits = usize::from(hundred.abs() < 0.95 && hundred != 0.0);
    figure(id, share, format!("{hundred:.digits$}%"))
}

pub(super) fn seconds(id: impl Into<String>, value: f64) -> Part {
    figure(id, value, show_seconds(value))
}

/// Something without a unit: how many times, or per second.
pub(super) fn plain(id: impl Into<String>, value: f64) -> Part {
    figure(id, value, if value.abs() < 1e7 { number(value) } else { format!("{value:.0}") })
}

pub(super) fn count(id: impl Into<String>, value: usize) -> Part {
    figure(id, value as f64, value.to_string())
}

/// A number of things, with the right word.
pub(super) fn counted(id: &str, value: usize, one: &'static str, many: &'static str) -> Part {
    let words = Part::Words(if value == 1 { one } else { many });
    Part::Sentence(Sentence::new("{} {}", [count(id, value), words]))
}

pub(super) fn megabytes(id: impl Into<String>, bytes: f64) -> Part {
    figure(id, bytes, format!("{} MB", number(1e-6 * bytes)))
}

pub(super) fn gigabits(id: impl Into<String>, bits_per_s: f64) -> Part {
    figure(id, bits_per_s, format!("{} Gbit/s", number(1e-9 * bits_per_s)))
}

pub(super) fn name(text: &str) -> Part {
    Part::Name(text.to_owned())
}

pub(super) fn show_seconds(value: f64) -> String {
    ChartUnit::Seconds.show(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_sentence_are_its_figures() {
        let one = Sentence::new("{} takes {}", [count("rank", 3), seconds("step_s", 0.0123)]);
        let both = one.then(Sentence::new(", {} of it on {}", [percent("share", 0.004), name("h7")]));
        assert_eq!(&*both, "3 takes 12.3 ms, 0.4% of it on `h7`");
        let figures: Vec<_> = both.figures().iter().map(|(id, value)| (id.as_str(), *value)).collect();
        assert_eq!(figures, [("rank", 3.0), ("share", 0.004), ("step_s", 0.0123)]);
        assert_eq!(serde_json::to_string(&both).unwrap(), "\"3 takes 12.3 ms, 0.4% of it on `h7`\"");
    }

    #[test]
    fn digits_of_words_are_no_numbers() {
        assert!(!has_number("--compression fp16") && has_number("every 8 steps") && has_number("(3)"));
    }
}
