//! Text, character by character: what comes next at each position?
//!
//! A sample is a window of characters; the first 90% of the text are trained on, the rest is evaluated.
//! Windows do not overlap; training begins each one up to a window later, drawn anew in every step.

use std::path::{Path, PathBuf};

use crate::content;
use crate::dataset::{Dataset, Normalisation, Split};
use crate::error::DataError;
use crate::folders::{Folders, listed};
use crate::origin::{DownloadItem, File, Origin, Packing, Published};
use crate::registry::{DatasetKind, DatasetSettings, SampleForm};

pub(crate) const TINYSHAKESPEARE: DatasetKind = DatasetKind {
    name: "tinyshakespeare",
    about: "scenes by Shakespeare, 1.1 million characters, 65 different ones",
    form: SampleForm::FromFiles("1×64×1, or --window N"),
    settings: &["window"],
    places: &["tinyshakespeare", "text"],
    origin: Origin::Published(Published {
        home: "https://github.com/karpathy/char-rnn",
        licence: "the text is in the public domain",
        parcels: &[DownloadItem {
            base: Some("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/"),
            name: "input.txt",
            packing: Packing::Plain,
            files: &[File {
                name: FILE,
                bytes: 1_115_394,
                sha256: "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            }],
        }],
    }),
    locate: |folders| shakespeare(folders).map(|path| vec![path]),
    load: |folders, settings| {
        let path = shakespeare(folders)?;
        dataset(&TINYSHAKESPEARE, &content::text(&path)?, &path, settings)
    },
};

pub(crate) const TEXT: DatasetKind = DatasetKind {
    name: "text",
    about: "your text: a file, or all files DIR/*.txt, in UTF-8",
    form: SampleForm::FromFiles("1×64×1, or --window N"),
    settings: &["window"],
    places: &["text"],
    origin: Origin::Yours,
    locate: files,
    load: |folders, settings| {
        let files = files(folders)?;
        let texts: Result<Vec<String>, DataError> = files.iter().map(|path| content::text(path)).collect();
        dataset(&TEXT, &texts?.concat(), &files[0], settings)
    },
};

const FILE: &str = "tinyshakespeare.txt";
const WINDOW: usize = 64;
const CHARACTERS: usize = 1 << 16;

/// The file by its own name, or by the name that its publisher gives it.
fn shakespeare(folders: &Folders) -> Result<PathBuf, DataError> {
    let DatasetKind { name, places, .. } = TINYSHAKESPEARE;
    folders.find(name, places, FILE).or_else(|missing| {
        let published = folders.places(places).filter(|place| place.ends_with(name));
        published.map(|place| place.join("input.txt")).find(|path| path.is_file()).ok_or(missing)
    })
}

/// A file that was named itself, or the text files of a folder.
fn files(folders: &Folders) -> Result<Vec<PathBuf>, DataError> {
    for place in folders.places(TEXT.places) {
        if place.is_file() {
            return Ok(vec![place]);
        }
        let mut texts = listed(&place, |name| name.ends_with(".txt") || name.ends_with(".txt.gz"));
        texts.retain(|path| path.is_file());
        if !texts.is_empty() {
            return Ok(texts);
        }
    }
    Err(DataError::missing(TEXT.name, "*.txt", folders))
}

/// The dataset that a text makes; `path` is for error messages.
pub(crate) fn dataset(
    source: &DatasetKind,
    text: &str,
    path: &Path,
    settings: &DatasetSettings,
) -> Result<Dataset, DataError> {
    let window = settings.window.unwrap_or(WINDOW);
    let content = |expected: String, found: String| DataError::content(path, expected, found);
    let mut alphabet: Vec<char> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for character in text.chars() {
        if places.insert(character, 0).is_none() {
            alphabet.push(character);
        }
    }
    if alphabet.len() > CHARACTERS {
        let found = alphabet.len().to_string();
        return Err(content(format!("at most {CHARACTERS} different characters"), found));
    }
    alphabet.sort_unstable();
    places.extend(alphabet.iter().enumerate().map(|(i, &character)| (character, i as u16)));
    let mut train: Vec<u16> = text.chars().map(|character| places[&character]).collect();
    let all = train.len();
    let test = train.split_off(all - all / 10);
    if test.len() <= window || train.len() <= window {
        let least = 10 * (window + 1);
        return Err(content(format!("at least {least} characters for windows of {window}"), all.to_string()));
    }
    Ok(Dataset {
        name: source.name,
        shape: [1, window, 1],
        classes: alphabet.len(),
        positions: window,
        train: Split::tokens(train, window, true),
        test: Split::tokens(test, window, false),
        normalisation: Normalisation::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::{Reader, Sample, SampleVariation};

    fn windows(split: &Split, look: SampleVariation) -> Vec<Vec<u16>> {
        let ids: Vec<u32> = (0..split.len() as u32).collect();
        let mut all = Vec::new();
        let take = &mut |_: usize, sample: Sample<'_>| {
            if let Sample::Tokens(tokens) = sample {
                all.push(tokens.to_vec());
            }
        };
        Reader::default().read(split, look, &ids, take).unwrap();
        all
    }

    #[test]
    fn windows_follow_each_other_and_training_shifts_them() {
        let text: String = ('a'..='z').cycle().take(1000).collect();
        let settings = DatasetSettings { window: Some(8), ..DatasetSettings::default() };
        let dataset = dataset(&TEXT, &text, Path::new("t"), &settings).unwrap();
        assert_eq!((dataset.shape, dataset.classes, dataset.positions), ([1, 8, 1], 26, 8));
        assert_eq!((dataset.train.len(), dataset.test.len()), (899 / 8, 99 / 8));
        let plain = windows(&dataset.test, SampleVariation::Plain);
        assert_eq!(plain[0], (900 % 26..).take(9).map(|i| i % 26).collect::<Vec<u16>>());
        assert_eq!(plain[0][8], plain[1][0]);
        let training = |seed, step| windows(&dataset.train, SampleVariation::Training { seed, step });
        assert_eq!(training(1, 5), training(1, 5));
        assert_ne!(training(1, 5), training(1, 6));
        assert_ne!(training(1, 5), training(2, 5));
        assert!(training(1, 5).iter().all(|w| w.len() == 9 && w[1] == (w[0] + 1) % 26));
        assert_eq!(windows(&dataset.test, SampleVariation::Training { seed: 1, step: 1 }), plain);
        assert_eq!(dataset.train.labels().first(), Some(&0));
        assert_eq!(dataset.train.labels().last(), Some(&9));
        assert!(dataset.train.labels().is_sorted());
    }

    #[test]
    fn a_file_a_folder_and_other_letters_are_read_and_short_or_foreign_texts_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let load = |path: &Path| TEXT.load(&Folders(vec![path.into()]), &DatasetSettings::default());
        assert!(load(folder.path()).unwrap_err().to_string().contains("*.txt"));
        std::fs::write(folder.path().join("b.txt"), "ж€".repeat(400)).unwrap();
        std::fs::write(folder.path().join("a.txt"), "x").unwrap();
        std::fs::write(folder.path().join("c.md"), [0xff]).unwrap();
        assert_eq!(load(folder.path()).unwrap().classes, 3);
        assert_eq!(load(&folder.path().join("b.txt")).unwrap().classes, 2);
        let short = load(&folder.path().join("a.txt")).unwrap_err().to_string();
        assert!(short.contains("at least 650 characters for windows of 64, found 1"), "{short}");
        let foreign = load(&folder.path().join("c.md")).unwrap_err().to_string();
        assert!(foreign.contains("UTF-8, found byte 0xff in line 1"), "{foreign}");
    }
}
