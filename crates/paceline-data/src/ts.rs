//! Time series from `.ts` files: JapaneseVowels, BasicMotions, and any pair `NAME_TRAIN.ts`, `NAME_TEST.ts`.
//!
//! Each channel is standardised with the training series' mean and deviation. Series shorter than the
//! longest are filled up with zeros at the front, so that the last step is always a real one; missing values
//! become the channel's mean. A single channel gets a second one beside it that tells real steps (1) from
//! filled-up ones (0): one row of single numbers would be taken for a text.

use std::path::{Path, PathBuf};

use crate::content;
use crate::dataset::{Dataset, Normalisation, Split};
use crate::error::DataError;
use crate::folders::{Folders, listed};
use crate::origin::{DownloadItem, File, Origin, Packing, Published};
use crate::registry::{DatasetKind, SampleForm};
use crate::uea::{self, Series};

pub(crate) const JAPANESE_VOWELS: DatasetKind = DatasetKind {
    name: "japanese-vowels",
    about: "who speaks? series of up to 29 steps, 12 channels, 9 classes (270 / 370)",
    form: SampleForm::Fixed { shape: [1, 29, 12], classes: 9 },
    settings: &[],
    places: &["japanese-vowels", "JapaneseVowels", "timeseries"],
    origin: Origin::Published(Published {
        home: "https://www.timeseriesclassification.com/description.php?Dataset=JapaneseVowels",
        licence: "CC BY 4.0 (UCI)",
        parcels: &[
            parcel(&[File {
                name: VOWELS[0],
                bytes: 487_971,
                sha256: "68a430eabd919cc77f40b1f5f3bc0dcafacc1486bca9260785aeb7d262cc78cd",
            }]),
            parcel(&[File {
                name: VOWELS[1],
                bytes: 649_132,
                sha256: "b3d41d6a0ca3bcad3afb9ca7d4365382aa51341e2e58bae2a574babdda5b9462",
            }]),
        ],
    }),
    locate: |folders| named(&JAPANESE_VOWELS, VOWELS, folders),
    load: |folders, _| load(&JAPANESE_VOWELS, &named(&JAPANESE_VOWELS, VOWELS, folders)?),
};

pub(crate) const BASIC_MOTIONS: DatasetKind = DatasetKind {
    name: "basic-motions",
    about: "what does the wearer of a watch do? 100 steps, 6 channels, 4 classes (40 / 40)",
    form: SampleForm::Fixed { shape: [1, 100, 6], classes: 4 },
    settings: &[],
    places: &["basic-motions", "BasicMotions", "timeseries"],
    origin: Origin::Published(Published {
        home: "https://www.timeseriesclassification.com/description.php?Dataset=BasicMotions",
        licence: "none stated; cite the UEA multivariate archive, 2018 (arXiv:1811.00075)",
        parcels: &[
            parcel(&[File {
                name: MOTIONS[0],
                bytes: 227_790,
                sha256: "8dc43cc6306cb679c888c01e26f91772ac4441a916da43bac8b79734a538b9d6",
            }]),
            parcel(&[File {
                name: MOTIONS[1],
                bytes: 227_713,
                sha256: "79213102bc6fca1a398ad98ce1185dff0208fa3d1465e687f48288946b0ff8dc",
            }]),
        ],
    }),
    locate: |folders| named(&BASIC_MOTIONS, MOTIONS, folders),
    load: |folders, _| load(&BASIC_MOTIONS, &named(&BASIC_MOTIONS, MOTIONS, folders)?),
};

pub(crate) const TS: DatasetKind = DatasetKind {
    name: "ts",
    about: "your series: a pair DIR/NAME_TRAIN.ts, DIR/NAME_TEST.ts in the UEA format",
    form: SampleForm::FromFiles("1×steps×channels"),
    settings: &[],
    places: &["ts"],
    origin: Origin::Yours,
    locate: pair,
    load: |folders, _| load(&TS, &pair(folders)?),
};

const VOWELS: [&str; 2] = ["JapaneseVowels_TRAIN.ts", "JapaneseVowels_TEST.ts"];
const MOTIONS: [&str; 2] = ["BasicMotions_TRAIN.ts", "BasicMotions_TEST.ts"];
/// How the training file of a pair ends.
const TRAIN: &str = "_TRAIN.ts";
/// Most numbers of a split, padding included: 4 GiB of memory.
const NUMBERS: usize = 1 << 30;

/// The archive packs its sets in other ways than single files; a mirror has them plain.
const fn parcel(files: &'static [File]) -> DownloadItem {
    DownloadItem { base: None, name: files[0].name, packing: Packing::Plain, files }
}

fn named(source: &DatasetKind, files: [&str; 2], folders: &Folders) -> Result<Vec<PathBuf>, DataError> {
    files.iter().map(|file| folders.find(source.name, source.places, file)).collect()
}

/// The only pair in a folder, or the pair of a training file that was named itself.
fn pair(folders: &Folders) -> Result<Vec<PathBuf>, DataError> {
    for place in folders.places(TS.places) {
        let is_train = |name: &str| name.ends_with(TRAIN) || name.ends_with("_TRAIN.ts.gz");
        let train = if place.is_file() { vec![place.clone()] } else { listed(&place, is_train) };
        match &train[..] {
            [] => {}
            [train] => {
                let name = train.to_string_lossy();
                let other = |test: &str| {
                    let stem = name.strip_suffix(TRAIN).or_else(|| name.strip_suffix("_TRAIN.ts.gz"))?;
                    Some(PathBuf::from(format!("{stem}{test}"))).filter(|path| path.is_file())
                };
                let test = other("_TEST.ts").or_else(|| other("_TEST.ts.gz"));
                let expected = "a name NAME_TRAIN.ts, and NAME_TEST.ts beside it";
                let test = test.ok_or_else(|| DataError::content(train, expected, "none"))?;
                return Ok(vec![train.clone(), test]);
            }
            several => {
                let names: Vec<_> =
                    several.iter().filter_map(|p| p.file_name()).map(|n| n.to_string_lossy()).collect();
                let expected = "one file NAME_TRAIN.ts (or name one as --data-dir DIR/NAME_TRAIN.ts)";
                return Err(DataError::content(&place, expected, names.join(", ")));
            }
        }
    }
    Err(DataError::missing(TS.name, "NAME_TRAIN.ts", folders))
}

fn load(source: &DatasetKind, files: &[PathBuf]) -> Result<Dataset, DataError> {
    let read = |path: &Path| uea::parse(&content::text(path)?, path);
    let (train, mut test) = (read(&files[0])?, read(&files[1])?);
    let content = |expected: String, found: String| DataError::content(&files[1], expected, found);
    if test.channels != train.channels {
        return Err(content(format!("{} channels, as to train", train.channels), test.channels.to_string()));
    }
    // The test file may list the classes in another order.
    let place = |class: &String| train.classes.iter().position(|known| known == class);
    let places: Option<Vec<usize>> = test.classes.iter().map(place).collect();
    let Some(places) = places else {
        let expected = format!("the classes {}, as to train", train.classes.join(" "));
        return Err(content(expected, test.classes.join(" ")));
    };
    test.labels.iter_mut().for_each(|label| *label = places[usize::from(*label)] as u16);
    let steps = train.longest().max(test.longest());
    let largest = train.labels.len().max(test.labels.len());
    if largest.checked_mul(steps * train.channels).is_none_or(|numbers| numbers > NUMBERS) {
        let expected = "at most 4 GiB with all series as long as the longest".into();
        return Err(content(expected, format!("{largest} series of {steps} steps")));
    }
    let moments = moments(&train);
    Ok(Dataset {
        name: source.name,
        shape: [1, steps, train.channels.max(2)],
        classes: train.classes.len(),
        positions: 1,
        train: split(&train, steps, &moments),
        test: split(&test, steps, &moments),
        normalisation: Normalisation::default(),
    })
}

/// Mean and reciprocal deviation of each channel; missing values do not count.
fn moments(series: &Series) -> Vec<(f64, f64)> {
    (0..series.channels)
        .map(|c| {
            let values = || {
                let all = series.numbers.iter().skip(c).step_by(series.channels);
                all.filter(|v| !v.is_nan()).map(|&v| f64::from(v))
            };
            let count = values().count().max(1) as f64;
            let mean = values().sum::<f64>() / count;
            let variance = values().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
            (mean, if variance > 0.0 { 1.0 / variance.sqrt() } else { 1.0 })
        })
        .collect()
}

fn split(series: &Series, steps: usize, moments: &[(f64, f64)]) -> Split {
    let channels = series.channels.max(2);
    let size = steps * channels;
    let mut numbers = vec![0.0; size * series.labels.len()];
    for (i, target) in numbers.chunks_exact_mut(size).enumerate() {
        let own = series.series(i);
        let real = size - own.len() / series.channels * channels;
        for (to, own) in target[real..].chunks_exact_mut(channels).zip(own.chunks_exact(series.channels)) {
            // Where there is one channel, what stays of this is the sign of a real step.
            to.fill(1.0);
            for (to, (value, (mean, factor))) in to.iter_mut().zip(own.iter().zip(moments)) {
                *to = if value.is_nan() { 0.0 } else { ((f64::from(*value) - mean) * factor) as f32 };
            }
        }
    }
    Split::numbers(numbers, size, series.labels.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DatasetSettings;
    use crate::reader::{Reader, Sample, SampleVariation};

    fn write(folder: &Path, name: &str, classes: &str, lines: &str) {
        let text = format!("@univariate false\n@dimensions 2\n@classLabel true {classes}\n@data\n{lines}");
        std::fs::write(folder.join(name), text).unwrap();
    }

    fn series(split: &Split, i: u32) -> (Vec<f32>, u16) {
        let mut got = None;
        let take = &mut |_: usize, sample: Sample<'_>| {
            if let Sample::Numbers(numbers, class) = sample {
                got = Some((numbers.to_vec(), class));
            }
        };
        Reader::default().read(split, SampleVariation::Plain, &[i], take).unwrap();
        got.unwrap()
    }

    #[test]
    fn channels_are_standardised_and_short_series_are_filled_up_at_the_front() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "A_TRAIN.ts", "x y", "1,3:5,5:x\n1,3,1,3:5,5,5,5:y\n");
        write(folder.path(), "A_TEST.ts", "y x", "5:6:x\n");
        let dataset = TS.load(&Folders(vec![folder.path().into()]), &DatasetSettings::default()).unwrap();
        assert_eq!((dataset.shape, dataset.classes), ([1, 4, 2], 2));
        assert_eq!(series(&dataset.train, 0), (vec![0.0, 0.0, 0.0, 0.0, -1.0, 0.0, 1.0, 0.0], 0));
        assert_eq!(series(&dataset.test, 0), (vec![0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0, 1.0], 0));

        let named = folder.path().join("A_TRAIN.ts");
        assert_eq!(pair(&Folders(vec![named])).unwrap().len(), 2);
        write(folder.path(), "B_TRAIN.ts", "x", "1:1:x\n");
        let error = pair(&Folders(vec![folder.path().into()])).unwrap_err().to_string();
        assert!(error.contains("A_TRAIN.ts, B_TRAIN.ts"), "{error}");
        let error = pair(&Folders(vec![folder.path().join("B_TRAIN.ts")])).unwrap_err().to_string();
        assert!(error.contains("NAME_TEST.ts beside it"), "{error}");
    }

    #[test]
    fn a_single_channel_gets_one_that_tells_real_steps() {
        let folder = tempfile::tempdir().unwrap();
        for (name, lines) in [("A_TRAIN.ts", "1,3:x\n1:x\n3:x\n"), ("A_TEST.ts", "3:x\n")] {
            std::fs::write(folder.path().join(name), format!("@classLabel true x\n@data\n{lines}")).unwrap();
        }
        let dataset = TS.load(&Folders(vec![folder.path().into()]), &DatasetSettings::default()).unwrap();
        assert_eq!(dataset.shape, [1, 2, 2]);
        assert_eq!(series(&dataset.train, 0).0, [-1.0, 1.0, 1.0, 1.0]);
        assert_eq!(series(&dataset.test, 0).0, [0.0, 0.0, 1.0, 1.0]);
    }

    #[test]
    fn pairs_that_do_not_belong_together_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let folders = Folders(vec![folder.path().into()]);
        write(folder.path(), "A_TRAIN.ts", "x y", "1,3:5,5:x\n");
        write(folder.path(), "A_TEST.ts", "x z", "1,3:5,5:x\n");
        let error = TS.load(&folders, &DatasetSettings::default()).unwrap_err().to_string();
        assert!(error.contains("A_TEST.ts: expected the classes x y, as to train, found x z"), "{error}");
    }
}
