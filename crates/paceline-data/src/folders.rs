//! Where files are looked for.

use std::path::{Path, PathBuf};

use crate::error::DataError;

/// Folders that may hold datasets, the preferred one first. One of them may also be a dataset's own folder,
/// or its file.
#[derive(Clone, Debug, Default)]
pub struct Folders(pub Vec<PathBuf>);

impl Folders {
    /// Everywhere that a dataset may lie: in each folder's own folder for it, then in the folder itself.
    pub(crate) fn places<'a>(&'a self, names: &'static [&'static str]) -> impl Iterator<Item = PathBuf> + 'a {
        self.0
            .iter()
            .flat_map(move |folder| names.iter().map(|name| folder.join(name)).chain([folder.clone()]))
    }

    /// The path of `file` or `file.gz` of a dataset.
    pub(crate) fn find(
        &self,
        dataset: &'static str,
        names: &'static [&'static str],
        file: &str,
    ) -> Result<PathBuf, DataError> {
        let found = self.places(names).find_map(|place| plain_or_zipped(&place, file));
        found.ok_or_else(|| DataError::missing(dataset, file, self))
    }
}

/// The path of `file` or `file.gz` in a folder.
pub(crate) fn plain_or_zipped(folder: &Path, file: &str) -> Option<PathBuf> {
    [folder.join(file), folder.join(format!("{file}.gz"))].into_iter().find(|path| path.is_file())
}

/// The entries of a folder whose names `fits` accepts, in order; none if it cannot be read.
pub(crate) fn listed(folder: &Path, fits: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter(|entry| fits(&entry.file_name().to_string_lossy()));
    let mut found: Vec<_> = named.map(|entry| entry.path()).collect();
    found.sort_unstable();
    found
}
