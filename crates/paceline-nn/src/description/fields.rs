//! The settings of one layer in a description.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The largest size that a setting can have.
const LARGEST: usize = 1 << 16;

/// What is wrong at which place of the text.
#[derive(Debug)]
pub(crate) struct Problem {
    pub at: usize,
    pub what: String,
}

impl Problem {
    pub fn new(at: usize, what: impl Into<String>) -> Self {
        Self { at, what: what.into() }
    }

    /// The same, naming the layer.
    pub fn of(self, layer: &str) -> Self {
        Self { what: format!("layer `{layer}`: {}", self.what), ..self }
    }
}

/// A layer's settings; each is taken by the one who knows it, and what is left over is refused.
pub(crate) struct Fields<'a> {
    table: &'a DeTable<'a>,
    place: usize,
    /// What `"classes"` stands for.
    classes: usize,
    /// The settings that were asked for.
    asked: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    pub fn new(table: &'a DeTable<'a>, place: usize, classes: usize) -> Self {
        Self { table, place, classes, asked: Vec::new() }
    }

    pub fn place(&self) -> usize {
        self.place
    }

    /// The dataset's number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    fn take(&mut self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.asked.push(key);
        self.table.get(key)
    }

    /// A text, and where it stands.
    pub fn text(&mut self, key: &'static str) -> Result<Option<(String, usize)>, Problem> {
        self.take(key).map(|value| text(key, value)).transpose()
    }

    /// A text or a list of texts.
    pub fn texts(&mut self, key: &'static str) -> Result<Option<Vec<(String, usize)>>, Problem> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.get_ref() {
            DeValue::Array(values) => values.iter().map(|v| text(key, v)).collect::<Result<_, _>>().map(Some),
            _ => Ok(Some(vec![text(key, value)?])),
        }
    }

    /// `true` or `false`.
    pub fn flag(&mut self, key: &'static str) -> Result<Option<bool>, Problem> {
        let wrong = |value: &Spanned<DeValue<'_>>| wrong(value, key, "true or false");
        self.take(key).map(|value| value.get_ref().as_bool().ok_or_else(|| wrong(value))).transpose()
    }

    /// A number, and where it stands.
    pub fn real(&mut self, key: &'static str) -> Result<Option<(f64, usize)>, Problem> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let number = match value.get_ref() {
            DeValue::Float(number) => number.as_str().parse().ok(),
            DeValue::Integer(number) => number.as_str().parse().ok(),
            _ => None,
        };
        number.map(|v| Some((v, value.span().start))).ok_or_else(|| wrong(value, key, "a number"))
    }

    pub fn size(&mut self, key: &'static str) -> Result<Option<usize>, Problem> {
        let classes = self.classes;
        self.take(key).map(|value| size(key, value, classes)).transpose()
    }

    /// A size that cannot be left out.
    pub fn needed(&mut self, key: &'static str) -> Result<usize, Problem> {
        let place = self.place;
        self.size(key)?.ok_or_else(|| Problem::new(place, format!("needs `{key}`")))
    }

    /// A vertical and a horizontal size, `[a, b]`, or one for both.
    pub fn sides(&mut self, key: &'static str) -> Result<Option<[usize; 2]>, Problem> {
        let classes = self.classes;
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.get_ref() {
            DeValue::Array(values) => match values.iter().collect::<Vec<_>>()[..] {
                [a, b] => Ok(Some([size(key, a, classes)?, size(key, b, classes)?])),
                _ => Err(wrong(value, key, "one size or two, [vertical, horizontal]")),
            },
            _ => size(key, value, classes).map(|n| Some([n, n])),
        }
    }

    pub fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&str, T)]) -> Result<T, Problem> {
        let words = || choices.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        let place = self.place;
        let (word, at) = self
            .text(key)?
            .ok_or_else(|| Problem::new(place, format!("needs `{key}`, one of {}", words())))?;
        let found = choices.iter().find(|(choice, _)| *choice == word).map(|(_, value)| *value);
        found.ok_or_else(|| Problem::new(at, format!("`{key}` is `{word}`, not one of {}", words())))
    }

    /// Refuses what nobody asked for.
    pub fn finish(self) -> Result<(), Problem> {
        let left = self.table.keys().find(|key| !self.asked.contains(&key.get_ref().as_ref()));
        match left {
            None => Ok(()),
            Some(key) => {
                let known = self.asked.join(", ");
                Err(Problem::new(
                    key.span().start,
                    format!("has no setting `{}`; it takes {known}", key.get_ref()),
                ))
            }
        }
    }
}

fn wrong(value: &Spanned<DeValue<'_>>, key: &str, wanted: &str) -> Problem {
    Problem::new(value.span().start, format!("`{key}` must be {wanted}"))
}

fn text(key: &str, value: &Spanned<DeValue<'_>>) -> Result<(String, usize), Problem> {
    let found = value.get_ref().as_str().map(|text| (text.to_owned(), value.span().start));
    found.ok_or_else(|| wrong(value, key, "a text in quotation marks"))
}

fn size(key: &str, value: &Spanned<DeValue<'_>>, classes: usize) -> Result<usize, Problem> {
    let found = match value.get_ref() {
        DeValue::Integer(number) => usize::from_str_radix(number.as_str(), number.radix()).ok(),
        DeValue::String(word) if word == "classes" => return Ok(classes),
        _ => None,
    };
    let wanted = || format!("a whole number from 0 to {LARGEST}, or \"classes\"");
    found.filter(|&n| n <= LARGEST).ok_or_else(|| wrong(value, key, &wanted()))
}
