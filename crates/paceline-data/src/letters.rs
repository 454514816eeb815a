//! Made-up text: words of an invented language, frequent ones and rare ones. What comes next is partly
//! certain (within a word) and partly not (which word), so that there is something to learn and an end to it.

use std::path::Path;

use paceline_random::{Purpose, Stream};

use crate::origin::Origin;
use crate::registry::{DatasetKind, SampleForm};
use crate::text;

pub(crate) const LETTERS: DatasetKind = DatasetKind {
    name: "letters",
    about: "made up: words of an invented language, 60,000 characters",
    form: SampleForm::FromFiles("1×64×1, or --window N"),
    settings: &["window"],
    places: &[],
    origin: Origin::BuiltIn { note: "made up by the program" },
    locate: |_| Ok(Vec::new()),
    load: |_, settings| text::dataset(&LETTERS, &make(60_000), Path::new("letters"), settings),
};

/// The set is a constant: a run's seed chooses its order, not its content.
const SEED: u64 = 3;
const WORDS: u64 = 120;

fn make(length: usize) -> String {
    let all = Stream::new(SEED, Purpose::Synthetic);
    let letter = |from: &[u8], draw: u64| char::from(from[(draw % from.len() as u64) as usize]);
    let words: Vec<String> = (0..WORDS)
        .map(|i| {
            let draws = all.fork(i);
            let syllables = 1 + draws.below(0, 3);
            let syllable = |k: u64| {
                [letter(b"bdfgklmnprstvz", draws.at(1 + 2 * k)), letter(b"aeiou", draws.at(2 + 2 * k))]
            };
            (0..syllables).flat_map(syllable).collect()
        })
        .collect();
    let choice = all.fork(WORDS);
    let mut text = String::with_capacity(length);
    for turn in 0.. {
        // The square makes the first words more frequent.
        let word = &words[(choice.unit(2 * turn).powi(2) * WORDS as f64) as usize];
        let end = if choice.below(2 * turn + 1, 8) == 0 { ". " } else { " " };
        if text.len() + word.len() + end.len() > length {
            break;
        }
        text += word;
        text += end;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_always_the_same_and_of_about_the_length_asked_for() {
        let text = make(60_000);
        assert!((59_900..=60_000).contains(&text.len()) && text == make(60_000));
        let dataset = LETTERS.load(&crate::Folders::default(), &crate::DatasetSettings::default()).unwrap();
        assert_eq!(dataset.classes, 21);
        assert!(dataset.train.len() > 800 && dataset.test.len() > 80);
    }
}
