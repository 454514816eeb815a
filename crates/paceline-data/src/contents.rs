//! What is in a dataset, and how its files compare with the published ones.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::content;
use crate::error::DataError;
use crate::folders::Folders;
use crate::origin::Origin;
use crate::registry::{DatasetKind, DatasetSettings};

/// What a dataset holds.
#[derive(Serialize)]
pub struct DatasetContents {
    name: &'static str,
    about: &'static str,
    train_samples: usize,
    test_samples: usize,
    shape: [usize; 3],
    classes: usize,
    positions: usize,
    memory_bytes: usize,
    disk_bytes: u64,
    path: Option<PathBuf>,
    files: Vec<FileState>,
    home: Option<&'static str>,
    licence: Option<&'static str>,
    /// Whether samples stay on disk until their batch comes.
    #[serde(skip)]
    streamed: bool,
}

/// A file of a dataset.
#[derive(Serialize)]
pub struct FileState {
    path: PathBuf,
    bytes: u64,
    /// `verified`, `differs`, or `unknown` where no hash is known.
    hash: &'static str,
}

impl FileState {
    /// How a file compares with the published one of its name.
    pub fn of(source: &DatasetKind, path: &Path) -> Result<Self, DataError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        let published = source.origin.parcels().iter().find_map(|parcel| {
            let single = parcel.files.len() == 1 && parcel.name == name;
            parcel.files.iter().find(|file| single || file.name == name)
        });
        let hash = match published {
            Some(file) if content::sha256(path)?.1 == file.sha256 => "verified",
            Some(_) => "differs",
            None => "unknown",
        };
        let bytes = std::fs::metadata(path).map_or(0, |file| file.len());
        Ok(Self { path: path.to_owned(), bytes, hash })
    }
}

/// The folder of several files, or the one file or folder.
pub fn common_path(files: &[PathBuf]) -> Option<&Path> {
    match files {
        [] => None,
        [one] => Some(one),
        [first, ..] => first.parent(),
    }
}

impl DatasetContents {
    /// Loads the dataset and hashes its files.
    pub fn read(source: &DatasetKind, folders: &Folders) -> Result<Self, DataError> {
        let located = source.locate(folders)?;
        let dataset = source.load(folders, &DatasetSettings::default())?;
        let files = located.iter().filter(|path| path.is_file());
        let files = files.map(|path| FileState::of(source, path)).collect::<Result<Vec<_>, _>>()?;
        let (home, licence) = match source.origin {
            Origin::Published(published) => (Some(published.home), Some(published.licence)),
            Origin::BuiltIn { note } => (None, Some(note)),
            Origin::Yours => (None, None),
        };
        Ok(Self {
            name: source.name,
            about: source.about,
            train_samples: dataset.train.len(),
            test_samples: dataset.test.len(),
            shape: dataset.shape,
            classes: dataset.classes,
            positions: dataset.positions,
            memory_bytes: dataset.train.memory_bytes() + dataset.test.memory_bytes(),
            disk_bytes: files.iter().map(|file| file.bytes).sum(),
            path: common_path(&located).map(Path::to_owned),
            files,
            home,
            licence,
            streamed: dataset.train.streamed(),
        })
    }

    /// For people.
    pub fn text(&self) -> String {
        let [h, w, c] = self.shape;
        let mut text = format!("{}: {}\n\n", self.name, self.about);
        let mut line = |name: &str, value: String| text += &format!("{name:<10} {value}\n");
        line("samples", format!("{} to train, {} to test", self.train_samples, self.test_samples));
        line("shape", format!("{h}×{w}×{c}"));
        line("classes", self.classes.to_string());
        if self.positions > 1 {
            line("answers", format!("{} per sample: what comes next at each position", self.positions));
        }
        let streamed =
            if self.streamed { " (names only; images are decoded while training goes on)" } else { "" };
        line("memory", format!("{:.1} MB{streamed}", self.memory_bytes as f64 / 1e6));
        if let Some(path) = &self.path {
            line("lies in", path.display().to_string());
        }
        for file in &self.files {
            let name = file.path.file_name().unwrap_or_default().to_string_lossy();
            let hash = match file.hash {
                "verified" => "SHA-256 verified",
                "differs" => "SHA-256 differs from the published file's",
                _ => "no SHA-256 known",
            };
            line("file", format!("{name}, {} bytes, {hash}", file.bytes));
        }
        for (name, value) in [("licence", self.licence), ("source", self.home)] {
            if let Some(value) = value {
                line(name, value.into());
            }
        }
        text
    }
}
