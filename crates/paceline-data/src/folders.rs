//! Where files are looked for.

use std::path::PathBuf;

use crate::error::DataError;

/// Folders that may hold datasets, the preferred one first.
#[derive(Clone, Debug, Default)]
pub struct Folders(pub Vec<PathBuf>);

impl Folders {
    /// The path of `file` or `file.gz` of a dataset: in `folder/<dataset>`, then in `folder` itself.
    pub fn find(&self, dataset: &'static str, file: &'static str) -> Result<PathBuf, DataError> {
        let places = self.0.iter().flat_map(|folder| [folder.join(dataset), folder.clone()]);
        for place in places {
            for name in [file.to_owned(), format!("{file}.gz")] {
                let path = place.join(name);
                if path.is_file() {
                    return Ok(path);
                }
            }
        }
        Err(DataError::NotFound { dataset, file, tried: self.0.clone() })
    }
}
