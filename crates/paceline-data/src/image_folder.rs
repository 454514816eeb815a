//! Images in folders, as ImageNet has them: `DIR/train/<class>/*.jpg` and `DIR/val/<class>/*.jpg`, JPEG or PNG
//! of any size. Only the names are kept in memory; images are decoded while training goes on.
//!
//! Training takes a random part of the image (8% to 100% of its area, sides of 3:4 to 4:3), resized to a
//! square and mirrored half of the time; evaluation the middle of the image after its short side was made
//! 8/7 of the square's.

use std::fs;
use std::path::{Path, PathBuf};

use paceline_random::Stream;

use crate::dataset::{Dataset, Normalisation, Split};
use crate::error::DataError;
use crate::folders::Folders;
use crate::origin::Origin;
use crate::picture::{self, Crop, Scratch};
use crate::registry::{DatasetKind, DatasetSettings, SampleForm};

pub(crate) const IMAGE_FOLDER: DatasetKind = DatasetKind {
    name: "image-folder",
    about: "your images: DIR/train/<class>/*.jpg and DIR/val/<class>/*.jpg, JPEG or PNG, streamed from disk",
    form: SampleForm::FromFiles("224×224×3, or --image-size N"),
    settings: &["image-size", "decoders"],
    places: &["image-folder"],
    origin: Origin::Yours,
    locate: |folders| root(folders).map(|root| vec![root]),
    load,
};

/// Side of the squares that images are made to.
const SIDE: usize = 224;
/// Endings of the files that count.
const ENDINGS: [&str; 3] = ["jpg", "jpeg", "png"];
/// Names of the folder to evaluate on.
const TEST: [&str; 3] = ["val", "valid", "test"];
/// Mean and deviation of ImageNet's channels, as is usual for photographs.
const MOMENTS: [(f32, f32); 3] = [(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)];
/// Share of an image's area that a training crop has at least.
const LEAST_AREA: f64 = 0.08;
/// Longest file that is read.
const FILE_BYTES: u64 = 256 << 20;

/// The images of a split, by name.
#[derive(Debug)]
pub(crate) struct Files {
    folders: Vec<PathBuf>,
    /// All file names, one after the other.
    names: String,
    ends: Vec<usize>,
    classes: Vec<u16>,
    side: usize,
    decoders: usize,
}

fn root(folders: &Folders) -> Result<PathBuf, DataError> {
    let whole = |place: &PathBuf| place.join("train").is_dir();
    let missing = || DataError::missing(IMAGE_FOLDER.name, "train/<class>/*.jpg", folders);
    folders.places(IMAGE_FOLDER.places).find(whole).ok_or_else(missing)
}

fn load(folders: &Folders, settings: &DatasetSettings) -> Result<Dataset, DataError> {
    let root = root(folders)?;
    let test = TEST.iter().map(|name| root.join(name)).find(|folder| folder.is_dir());
    let expected = "a folder val (or valid, or test) beside train";
    let test = test.ok_or_else(|| DataError::content(&root, expected, "none"))?;
    let classes = class_names(&root.join("train"))?;
    let side = settings.image_size.unwrap_or(SIDE);
    let files = |folder: &Path| files(folder, &classes, side, settings.decoders.unwrap_or(1));
    let (train, train_labels) = files(&root.join("train"))?;
    let (test, test_labels) = files(&test)?;
    Ok(Dataset {
        name: IMAGE_FOLDER.name,
        shape: [side, side, 3],
        classes: classes.len(),
        positions: 1,
        train: Split::files(train, train_labels),
        test: Split::files(test, test_labels),
        normalisation: Normalisation::standard(255.0, &MOMENTS),
    })
}

/// The entries of a folder, by name.
fn entries(folder: &Path) -> Result<Vec<String>, DataError> {
    let failed = DataError::read(folder);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(&failed)? {
        let name = entry.map_err(&failed)?.file_name();
        let name = name.into_string().map_err(|name| {
            DataError::content(&folder.join(name), "a file name in UTF-8", "another encoding")
        })?;
        if !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn class_names(folder: &Path) -> Result<Vec<String>, DataError> {
    let mut classes = entries(folder)?;
    classes.retain(|name| folder.join(name).is_dir());
    if classes.is_empty() || classes.len() > usize::from(u16::MAX) {
        let expected = format!("one folder per class, 1 to {}", u16::MAX);
        return Err(DataError::content(folder, expected, format!("{} folders", classes.len())));
    }
    Ok(classes)
}

fn files(
    folder: &Path,
    classes: &[String],
    side: usize,
    decoders: usize,
) -> Result<(Files, Vec<u16>), DataError> {
    for name in class_names(folder)? {
        if classes.binary_search(&name).is_err() {
            let found = format!("{name}, which train does not have");
            return Err(DataError::content(folder, "the classes of train", found));
        }
    }
    let (mut folders, mut names, mut ends, mut labels) = (Vec::new(), String::new(), Vec::new(), Vec::new());
    for (label, class) in classes.iter().enumerate() {
        let own = folder.join(class);
        let images = if own.is_dir() { entries(&own)? } else { Vec::new() };
        let is_image = |name: &&String| {
            name.rsplit_once('.')
                .is_some_and(|(_, ending)| ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known)))
        };
        for name in images.iter().filter(is_image) {
            names += name;
            ends.push(names.len());
            labels.push(label as u16);
        }
        folders.push(own);
    }
    if labels.is_empty() || u32::try_from(labels.len()).is_err() {
        let found = format!("{} in the folders of {} classes", labels.len(), classes.len());
        return Err(DataError::content(folder, "images (.jpg, .jpeg or .png)", found));
    }
    Ok((Files { folders, names, ends, classes: labels.clone(), side, decoders }, labels))
}

impl Files {
    /// The path of image `i`.
    pub(crate) fn path(&self, i: usize) -> PathBuf {
        let first = if i == 0 { 0 } else { self.ends[i - 1] };
        self.folders[usize::from(self.classes[i])].join(&self.names[first..self.ends[i]])
    }

    pub(crate) fn decoders(&self) -> usize {
        self.decoders
    }

    /// Bytes of a decoded sample.
    pub(crate) fn sample_bytes(&self) -> usize {
        self.side * self.side * 3
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.names.len() + size_of_val(&self.ends[..]) + size_of_val(&self.classes[..])
    }

    /// The error of an image that cannot be decoded.
    pub(crate) fn damaged(&self, i: usize, problem: String) -> DataError {
        DataError::Image { path: self.path(i), problem }
    }

    /// Reads image `i`, varied by `draws` if there are any.
    pub(crate) fn read(
        &self,
        i: usize,
        draws: Option<Stream>,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<(), DataError> {
        let path = self.path(i);
        let failed = DataError::read(&path);
        let length = fs::metadata(&path).map_err(&failed)?.len();
        if length > FILE_BYTES {
            return Err(self.damaged(i, format!("a file of {length} bytes (at most {FILE_BYTES})")));
        }
        let bytes = paceline_files::read(&path).map_err(failed)?;
        let picture = picture::decode(&bytes).map_err(|problem| self.damaged(i, problem))?;
        let (crop, mirrored) = match draws {
            Some(draws) => {
                (random_crop(picture.width, picture.height, draws), draws.fork(1).below(0, 2) == 1)
            }
            None => (middle(picture.width, picture.height), false),
        };
        picture.resize(crop, self.side, mirrored, scratch, out);
        Ok(())
    }
}

/// The square in the middle whose side is 7/8 of the short one: what is left of an image whose short side
/// was made 256 when 224 × 224 pixels are cut out.
fn middle(width: usize, height: usize) -> Crop {
    let side = (width.min(height) * 7 / 8).max(1);
    Crop { left: (width - side) / 2, top: (height - side) / 2, width: side, height: side }
}

/// A part of random size, shape and place.
fn random_crop(width: usize, height: usize, draws: Stream) -> Crop {
    for attempt in 0..10 {
        let draws = draws.fork(2 + attempt);
        let area = (width * height) as f64 * draws.uniform(0, LEAST_AREA, 1.0);
        let ratio = draws.uniform(1, (0.75f64).ln(), (4.0f64 / 3.0).ln()).exp();
        let (w, h) = ((area * ratio).sqrt().round() as usize, (area / ratio).sqrt().round() as usize);
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let (left, top) =
                (draws.below(2, (width - w + 1) as u64), draws.below(3, (height - h + 1) as u64));
            return Crop { left: left as usize, top: top as usize, width: w, height: h };
        }
    }
    middle(width, height)
}

#[cfg(test)]
mod tests {
    use paceline_random::Purpose;

    use super::*;
    use crate::example;
    use crate::reader::{Reader, Sample, SampleVariation};

    fn loaded(folder: &Path, decoders: usize) -> Result<Dataset, DataError> {
        let settings =
            DatasetSettings { image_size: Some(16), decoders: Some(decoders), ..DatasetSettings::default() };
        load(&Folders(vec![folder.to_owned()]), &settings)
    }

    fn read(
        reader: &mut Reader,
        split: &Split,
        look: SampleVariation,
        ids: &[u32],
    ) -> Result<Vec<(Vec<u8>, u16)>, String> {
        let mut all = Vec::new();
        let take = &mut |place: usize, sample: Sample<'_>| {
            assert_eq!(place, all.len());
            if let Sample::Bytes(bytes, class) = sample {
                all.push((bytes.to_vec(), class));
            }
        };
        reader.read(split, look, ids, take).map_err(|error| format!("{error}; {}", error.hint()))?;
        Ok(all)
    }

    #[test]
    fn images_are_the_same_whoever_decodes_them_and_whatever_was_asked_for_before() {
        let folder = tempfile::tempdir().unwrap();
        example::images(folder.path(), 12, 4, 3, 40).unwrap();
        let few = loaded(folder.path(), 1).unwrap();
        assert_eq!((few.shape, few.classes, few.train.len(), few.test.len()), ([16, 16, 3], 3, 12, 4));
        assert_eq!(few.train.labels(), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
        let many = loaded(folder.path(), 3).unwrap();
        let look = |step| SampleVariation::Training { seed: 1, step };
        let (a, b) = (&mut Reader::default(), &mut Reader::default());
        for step in 0..4 {
            let ids: Vec<u32> = (0..5).map(|i| (i * 7 + step as u32) % 12).collect();
            // One is told in time, the other is told something wrong.
            a.ahead(&few.train, look(step), &ids);
            a.ahead(&few.train, look(step + 1), &[1, 2, 3]);
            b.ahead(&many.train, look(step + 100), &[4, 5]);
            let got = read(a, &few.train, look(step), &ids).unwrap();
            assert_eq!(got, read(b, &many.train, look(step), &ids).unwrap());
            let labels: Vec<u16> = ids.iter().map(|&id| few.train.label(id as usize)).collect();
            assert_eq!(got.iter().map(|(_, class)| *class).collect::<Vec<_>>(), labels);
        }
        let plain = read(a, &few.test, SampleVariation::Plain, &[0, 1, 2, 3]).unwrap();
        assert_eq!(
            plain,
            read(&mut Reader::default(), &many.test, SampleVariation::Plain, &[0, 1, 2, 3]).unwrap()
        );
        let once = read(a, &few.train, look(1), &[0]).unwrap();
        assert_ne!(once, read(a, &few.train, look(2), &[0]).unwrap(), "crops differ from step to step");
    }

    #[test]
    fn a_damaged_image_is_named_and_a_png_in_disguise_is_read() {
        let folder = tempfile::tempdir().unwrap();
        example::images(folder.path(), 6, 3, 3, 40).unwrap();
        let damaged = folder.path().join("train/class001/00001.jpg");
        let whole = fs::read(&damaged).unwrap();
        let dataset = loaded(folder.path(), 2).unwrap();
        let first = |ids: &[u32]| read(&mut Reader::default(), &dataset.train, SampleVariation::Plain, ids);
        for (bytes, problem) in
            [(&whole[..whole.len() - 20], "breaks off"), (b"<html>", "neither"), (b"", "neither")]
        {
            fs::write(&damaged, bytes).unwrap();
            let error = first(&[0, 1, 2, 3]).unwrap_err();
            assert!(error.contains("train/class001/00001.jpg") && error.contains(problem), "{error}");
            assert!(error.contains("take it out of the folder"), "{error}");
        }
        fs::remove_file(&damaged).unwrap();
        assert!(first(&[2]).unwrap_err().contains("00001.jpg"));

        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, 20, 20);
        encoder.set_color(png::ColorType::Grayscale);
        encoder.write_header().unwrap().write_image_data(&[77; 400]).unwrap();
        fs::write(&damaged, bytes).unwrap();
        assert!(first(&[2]).unwrap()[0].0.iter().all(|&b| b == 77));
    }

    #[test]
    fn folders_without_what_is_needed_are_refused_with_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let message = || loaded(folder.path(), 1).unwrap_err().to_string();
        assert!(message().contains("train/<class>/*.jpg"), "{}", message());
        fs::create_dir_all(folder.path().join("train/cat")).unwrap();
        assert!(message().contains("val (or valid, or test)"), "{}", message());
        fs::create_dir_all(folder.path().join("val/dog")).unwrap();
        assert!(message().contains("0 in the folders of 1 classes"), "{}", message());
        fs::write(folder.path().join("train/cat/a.JPG"), "").unwrap();
        assert!(message().contains("dog, which train does not have"), "{}", message());
    }

    #[test]
    fn damaged_bytes_anywhere_are_an_error_or_an_image_but_never_a_hang() {
        let folder = tempfile::tempdir().unwrap();
        example::images(folder.path(), 1, 1, 1, 24).unwrap();
        let path = folder.path().join("train/class000/00000.jpg");
        let whole = fs::read(&path).unwrap();
        let dataset = loaded(folder.path(), 1).unwrap();
        let mut reader = Reader::default();
        let draws = Stream::new(1, Purpose::Bench);
        for case in 0..300 {
            let mut bytes = whole.clone();
            for k in 0..1 + case % 4 {
                let draws = draws.fork(case).fork(k);
                let at = draws.below(0, bytes.len() as u64) as usize;
                bytes[at] = draws.below(1, 256) as u8;
            }
            fs::write(&path, bytes).unwrap();
            let _ =
                read(&mut reader, &dataset.train, SampleVariation::Training { seed: 1, step: case }, &[0]);
        }
    }

    #[test]
    fn crops_lie_within_the_image_whatever_its_size() {
        let mut different = std::collections::BTreeSet::new();
        for (width, height) in [(1, 1), (1, 500), (500, 1), (3, 2), (640, 480)] {
            for seed in 0..200 {
                let crop = random_crop(width, height, Stream::new(seed, Purpose::Augment));
                for Crop { left, top, width: w, height: h } in [crop, middle(width, height)] {
                    assert!(w > 0 && h > 0 && left + w <= width && top + h <= height);
                }
                different.insert((crop.left, crop.top, crop.width, crop.height));
            }
        }
        assert!(different.len() > 200);
        assert_eq!(middle(256, 512), Crop { left: 16, top: 144, width: 224, height: 224 });
    }
}
