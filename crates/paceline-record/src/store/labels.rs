//! What people call a run, and where it belongs. None of it is part of the plan: runs that differ in labels alone are
//! repeats of each other.

use paceline_plan::printable_lines;
use serde::{Deserialize, Serialize};

use super::read::LAST;

/// What people call a run, and where it belongs. Given when the run begins; name, tags and note can be edited later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "snake_case")]
pub struct RunLabels {
    /// Its name; several runs may have the same.
    pub name: Option<String>,
    /// Its tags, by the alphabet.
    pub tags: Vec<String>,
    /// What somebody noted about it.
    pub note: Option<String>,
    /// The study that it belongs to.
    pub study: Option<String>,
    /// Which of its study's workloads it is.
    pub workload: Option<String>,
    /// The command line that gives the same plan again.
    pub command: Option<String>,
}

impl RunLabels {
    /// Adds tags. Each is there once, by the alphabet.
    pub fn add_tags(&mut self, tags: &[String]) {
        self.tags.extend_from_slice(tags);
        self.tags.sort();
        self.tags.dedup();
    }

    /// Its tags as the store has them; none where there are none.
    pub(super) fn tags_json(&self) -> Option<String> {
        let text = || serde_json::to_string(&self.tags).expect("words are plain data");
        (!self.tags.is_empty()).then(text)
    }
}

/// Most characters of a name or a tag.
const LONGEST_WORD: usize = 64;

/// Most characters of a note.
const LONGEST_NOTE: usize = 4096;

fn word(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_alphanumeric() || "-_.:/=+@".contains(c);
    let begins = text.chars().next().is_some_and(char::is_alphanumeric);
    if begins && text.chars().all(good) && text.chars().count() <= LONGEST_WORD {
        return Ok(text.into());
    }
    Err(format!(
        "letters, digits and `-_.:/=+@` are possible, up to {LONGEST_WORD}, the first one a letter or digit"
    ))
}

/// A run's name, or what names can be.
pub fn run_name(text: &str) -> Result<String, String> {
    match text {
        LAST => Err(format!("`{LAST}` stands for the latest run")),
        text => word(text),
    }
}

/// A tag, or what tags can be.
pub fn run_tag(text: &str) -> Result<String, String> {
    word(text)
}

/// A note, or what notes can be.
pub fn run_note(text: &str) -> Result<String, String> {
    if text.chars().count() > LONGEST_NOTE {
        return Err(format!("at most {LONGEST_NOTE} characters are possible"));
    }
    let odd = printable_lines(text) != text;
    if odd { Err("a note has no control characters".into()) } else { Ok(text.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_tags_are_words_that_no_shell_changes() {
        for good in ["baseline", "lr=0.1", "größe-2", "2024/a:b", &"x".repeat(64)] {
            assert_eq!(run_name(good).as_deref(), Ok(good));
            assert_eq!(run_tag(good).as_deref(), Ok(good));
        }
        for bad in ["", "two words", "-x", "a,b", "a$b", "\u{1b}[1m", "last", &"x".repeat(65)] {
            assert!(run_name(bad).is_err(), "{bad}");
        }
        assert_eq!(run_tag("last").as_deref(), Ok("last"), "only names stand for runs");
    }

    #[test]
    fn notes_may_have_lines_and_no_escapes() {
        assert!(run_note("first, \"quoted\"\nsecond").is_ok());
        assert!(run_note("\u{1b}[31m").is_err());
        assert!(run_note(&"x".repeat(4097)).is_err());
    }

    #[test]
    fn a_tag_is_there_once() {
        let mut labels = RunLabels::default();
        labels.add_tags(&["b".into(), "a".into()]);
        labels.add_tags(&["b".into()]);
        assert_eq!(labels.tags, ["a", "b"]);
    }
}
