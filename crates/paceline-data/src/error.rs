//! What can be wrong with a dataset's files.

use std::path::{Path, PathBuf};

use crate::folders::Folders;

/// A dataset that could not be loaded.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum DataError {
    /// None of the folders has the file.
    #[error("{dataset}: file {file} (or {file}.gz) was not found in {}", list(tried))]
    NotFound {
        dataset: &'static str,
        file: String,
        tried: Vec<PathBuf>,
        /// Whether `paceline data get` fetches it; [`DatasetKind`](crate::DatasetKind) knows.
        fetched: bool,
    },
    /// The operating system or the decompressor failed.
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// A line is not what the format says.
    #[error("{}:{line}: expected {expected}, found {found}", path.display())]
    Line { path: PathBuf, line: usize, expected: String, found: String },
    /// An image cannot be decoded.
    #[error("{}: {problem}", path.display())]
    Image { path: PathBuf, problem: String },
    /// The content is not what the format says.
    #[error("{}: expected {expected}, found {found}", path.display())]
    Content { path: PathBuf, expected: String, found: String },
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    /// Other programs would not know what to do with it.
    #[error("{dataset} is a text: only samples with one class each are exported")]
    NotExported { dataset: &'static str },
}

fn list(folders: &[PathBuf]) -> String {
    if folders.is_empty() {
        return "any folder (none was given)".into();
    }
    folders.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl DataError {
    /// A file that none of the folders has.
    pub fn missing(dataset: &'static str, file: &str, folders: &Folders) -> Self {
        Self::NotFound { dataset, file: file.into(), tried: folders.0.clone(), fetched: false }
    }

    /// For `map_err` where a file is read.
    pub(crate) fn read(path: &Path) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::Read { path: path.to_owned(), source }
    }

    /// For `map_err` where a file is written.
    pub(crate) fn write(path: &Path) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::Write { path: path.to_owned(), source }
    }

    pub(crate) fn content(path: &Path, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self::Content { path: path.to_owned(), expected: expected.into(), found: found.into() }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> String {
        match self {
            DataError::NotFound { dataset, fetched, .. } => {
                let place = format!(
                    "put the files into a folder and name it with --data-dir DIR (tried as DIR/{dataset} and as \
                     DIR itself) or PACELINE_DATA"
                );
                let debian = if *dataset == "fashion-mnist" {
                    "; on Debian: apt-get install dataset-fashion-mnist"
                } else {
                    ""
                };
                if *fetched {
                    format!("`paceline data get {dataset}` fetches it; or {place}{debian}")
                } else {
                    place
                }
            }
            DataError::Read { .. } => {
                "check that the file is readable and complete, or fetch it again".into()
            }
            DataError::Content { .. } | DataError::Line { .. } => {
                "the file is damaged or of another kind: mend it or fetch it again".into()
            }
            DataError::Image { .. } => "replace the file or take it out of the folder".into(),
            DataError::Write { .. } => "choose another folder: existing files are not overwritten".into(),
            DataError::NotExported { .. } => "`paceline data` lists the datasets".into(),
        }
    }
}
