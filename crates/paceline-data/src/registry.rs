//! Every dataset by name. To add one: write its file, then add its line to [`DATASETS`].

use crate::dataset::Dataset;
use crate::error::DataError;
use crate::folders::Folders;
use crate::{digits, mnist, synthetic};

/// A dataset that users can name.
pub struct Source {
    /// The name on the command line, and of its folder.
    pub name: &'static str,
    /// One line for help texts and tables.
    pub about: &'static str,
    /// Height, width and channels of a sample.
    pub shape: [usize; 3],
    /// Number of classes.
    pub classes: usize,
    pub(crate) files: &'static [&'static str],
    pub(crate) load: fn(&Folders) -> Result<Dataset, DataError>,
}

impl Source {
    /// The files it is made of; none for a built-in one.
    pub fn files(&self) -> &'static [&'static str] {
        self.files
    }

    /// Loads it, looking for files in `folders`.
    pub fn load(&self, folders: &Folders) -> Result<Dataset, DataError> {
        (self.load)(folders)
    }
}

/// Every dataset.
pub const DATASETS: &[Source] =
    &[digits::DIGITS, mnist::MNIST, mnist::FASHION, synthetic::GREY, synthetic::COLOUR];

/// The dataset of that name.
pub fn find(name: &str) -> Option<&'static Source> {
    DATASETS.iter().find(|s| s.name == name)
}
