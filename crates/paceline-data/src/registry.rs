//! Every dataset by name. To add one: write its file, then add its line to [`DATASETS`].

use std::path::PathBuf;

use paceline_registry::Registry;

use crate::dataset::Dataset;
use crate::error::DataError;
use crate::folders::Folders;
use crate::origin::Origin;
use crate::{cifar, digits, image_folder, letters, mnist, mnist_views, series, synthetic, text, ts, views};

/// A dataset that users can name.
pub struct DatasetKind {
    /// The name on the command line, and of its folder.
    pub name: &'static str,
    /// One line for help texts and tables.
    pub about: &'static str,
    /// What a sample looks like.
    pub form: SampleForm,
    /// The settings that it takes, by their flags.
    pub settings: &'static [&'static str],
    /// Names of its folder within a folder of datasets, the preferred one first.
    pub places: &'static [&'static str],
    /// Where it comes from.
    pub origin: Origin,
    /// Finds what it is made of.
    pub locate: fn(&Folders) -> Result<Vec<PathBuf>, DataError>,
    /// Loads it. The settings have been checked.
    pub load: fn(&Folders, &DatasetSettings) -> Result<Dataset, DataError>,
}

paceline_registry::entries!(DatasetKind, DATASETS);

/// What a sample looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleForm {
    /// Always the same: height, width and channels, and the number of classes.
    #[allow(missing_docs, reason = "the text above says what they are")]
    Fixed { shape: [usize; 3], classes: usize },
    /// The files decide; in words.
    FromFiles(&'static str),
}

/// What a dataset is asked for beyond its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatasetSettings {
    /// Side of the squares that images are made to.
    pub image_size: Option<usize>,
    /// Characters of a window of text.
    pub window: Option<usize>,
    /// Threads that decode images.
    pub decoders: Option<usize>,
}

/// A setting that cannot be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{flag} {value}: {problem}")]
pub struct BadSetting {
    /// The flag.
    pub flag: String,
    /// Its value.
    pub value: usize,
    /// Why not.
    pub problem: String,
}

impl DatasetKind {
    /// Files, or the folder, that it is made of; none for a built-in one.
    pub fn locate(&self, folders: &Folders) -> Result<Vec<PathBuf>, DataError> {
        (self.locate)(folders).map_err(|error| self.fetchable(error))
    }

    fn fetchable(&self, mut error: DataError) -> DataError {
        if let DataError::NotFound { fetched, .. } = &mut error {
            *fetched = !self.origin.parcels().is_empty();
        }
        error
    }

    /// Whether it takes these settings; otherwise, which dataset of a registry does.
    pub fn check(&self, settings: &DatasetSettings, datasets: &Registry<Self>) -> Result<(), BadSetting> {
        let all = [
            ("image-size", settings.image_size, 8..=1024),
            ("window", settings.window, 2..=4096),
            ("decoders", settings.decoders, 1..=64),
        ];
        for (name, value, range) in all {
            let Some(value) = value else { continue };
            let refuse = |problem| Err(BadSetting { flag: format!("--{name}"), value, problem });
            if !self.settings.contains(&name) {
                let owners = datasets.iter().filter(|s| s.settings.contains(&name)).map(|s| s.name);
                return refuse(format!("belongs to --data {}", owners.collect::<Vec<_>>().join(", ")));
            }
            if !range.contains(&value) {
                return refuse(format!("must be between {} and {}", range.start(), range.end()));
            }
        }
        Ok(())
    }

    /// Loads it, looking for files in `folders`. The settings must have been checked.
    pub fn load(&self, folders: &Folders, settings: &DatasetSettings) -> Result<Dataset, DataError> {
        (self.load)(folders, settings).map_err(|error| self.fetchable(error))
    }
}

/// Every dataset.
pub static DATASETS: &[DatasetKind] = &[
    digits::DIGITS,
    mnist::MNIST,
    mnist::FASHION,
    cifar::CIFAR,
    image_folder::IMAGE_FOLDER,
    ts::JAPANESE_VOWELS,
    ts::BASIC_MOTIONS,
    ts::TS,
    text::TINYSHAKESPEARE,
    text::TEXT,
    synthetic::GREY,
    synthetic::COLOUR,
    series::SERIES,
    letters::LETTERS,
    views::VIEWS,
    mnist_views::MNIST_VIEWS,
];

#[cfg(test)]
mod tests {
    use paceline_testing::{Need, skip};

    use super::*;

    #[test]
    fn pixels_of_real_images_become_numbers_of_mean_0_and_deviation_1() {
        // Digits are always here.
        let own = std::env::var_os("PACELINE_DATA").map(Into::into);
        let folders = Folders(own.into_iter().chain(["/usr/share/datasets".into()]).collect());
        for name in ["digits", "mnist", "fashion-mnist", "cifar-10"] {
            let source = Registry::<DatasetKind>::default().find(name).unwrap();
            let Ok(dataset) = source.load(&folders, &DatasetSettings::default()) else {
                assert_ne!(name, "digits");
                match name {
                    "fashion-mnist" => skip(Need::DebianPackage, "dataset-fashion-mnist"),
                    _ => skip(Need::Datasets, name),
                }
                continue;
            };
            let (scale, shift) = (&dataset.normalisation.scale, &dataset.normalisation.shift);
            let samples = (0..1000.min(dataset.train.len())).filter_map(|i| dataset.train.image(i));
            let numbers: Vec<f64> = samples
                .flat_map(|bytes| bytes.iter().enumerate())
                .map(|(i, byte)| {
                    f64::from(f32::from(*byte) * scale[i % scale.len()] + shift[i % shift.len()])
                })
                .collect();
            let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
            let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / numbers.len() as f64;
            assert!(
                mean.abs() < 0.1 && (variance.sqrt() - 1.0).abs() < 0.1,
                "{name}: {mean}, {}",
                variance.sqrt()
            );
        }
    }

    #[test]
    fn settings_belong_to_datasets_and_have_ranges() {
        let images = DatasetSettings { image_size: Some(32), ..DatasetSettings::default() };
        let all = Registry::<DatasetKind>::default();
        let check = |name: &str, settings| all.find(name).unwrap().check(settings, &all);
        assert_eq!(check("image-folder", &images), Ok(()));
        let error = check("mnist", &images).unwrap_err().to_string();
        assert_eq!(error, "--image-size 32: belongs to --data image-folder");
        let window = DatasetSettings { window: Some(1), ..DatasetSettings::default() };
        let error = check("text", &window).unwrap_err().to_string();
        assert_eq!(error, "--window 1: must be between 2 and 4096");
        assert_eq!(check("digits", &DatasetSettings::default()), Ok(()));
    }

    #[test]
    fn names_are_told_apart() {
        for (i, source) in DATASETS.iter().enumerate() {
            assert!(DATASETS[..i].iter().all(|other| other.name != source.name));
        }
    }
}
