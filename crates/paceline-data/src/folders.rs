//! Where files are looked for.

use std::path::PathBuf;

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
        for place in self.places(names) {
            for name in [file.to_owned(), format!("{file}.gz")] {
                let path = place.join(name);
                if path.is_file() {
                    return Ok(path);
                }
            }
        }
        Err(DataError::NotFound { dataset, file: file.into(), tried: self.0.clone() })
    }
}
