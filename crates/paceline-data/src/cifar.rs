//! CIFAR-10 in its binary form: 32×32 colour images of ten classes, in files of up to 10,000. A record is the
//! label, then the red, the green and the blue plane. Whichever of the five training files are there are used.
//!
//! Training shifts each image by up to 4 pixels and mirrors half of them.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::augment::Jitter;
use crate::content;
use crate::dataset::{Dataset, Normalisation, Split};
use crate::error::DataError;
use crate::folders::{Folders, plain_or_zipped};
use crate::origin::{DownloadItem, File, Origin, Packing, Published};
use crate::registry::{DatasetKind, DatasetSettings, SampleForm};

pub(crate) const CIFAR: DatasetKind = DatasetKind {
    name: "cifar-10",
    about: "photographs, 32×32×3 (50,000 / 10,000, or those of the files that are there)",
    form: SampleForm::Fixed { shape: SHAPE, classes: CLASSES },
    settings: &[],
    places: &["cifar-10", "cifar-10-batches-bin", "cifar-10-subset"],
    origin: Origin::Published(Published {
        home: "https://www.cs.toronto.edu/~kriz/cifar.html",
        licence: "none stated; cite A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        parcels: &[DownloadItem {
            base: Some("https://www.cs.toronto.edu/~kriz/"),
            name: "cifar-10-binary.tar.gz",
            packing: Packing::TarGz,
            files: &[
                file("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
                file("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
                file("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
                file("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
                file("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
                file("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
            ],
        }],
    }),
    locate: |folders| locate(folders).map(|(train, test)| [train, vec![test]].concat()),
    load,
};

const fn file(name: &'static str, sha256: &'static str) -> File {
    File { name, bytes: (MOST * RECORD) as u64, sha256 }
}

const SHAPE: [usize; 3] = [32, 32, 3];
const PIXELS: usize = 32 * 32;
const CLASSES: usize = 10;
const RECORD: usize = 1 + 3 * PIXELS;
/// Most images of a file.
const MOST: usize = 10_000;
/// Mean and deviation of the training images' channels.
const MOMENTS: [(f32, f32); 3] = [(0.4914, 0.2470), (0.4822, 0.2435), (0.4465, 0.2616)];

/// The training files that are there, and the test file, all in one place.
fn locate(folders: &Folders) -> Result<(Vec<PathBuf>, PathBuf), DataError> {
    let missing = |file: &str| DataError::missing(CIFAR.name, file, folders);
    for place in folders.places(CIFAR.places) {
        let here = |name: &str| plain_or_zipped(&place, name);
        let train: Vec<_> = (1..=5).filter_map(|n| here(&format!("data_batch_{n}.bin"))).collect();
        if !train.is_empty() {
            let test = here("test_batch.bin").ok_or_else(|| missing("test_batch.bin"))?;
            return Ok((train, test));
        }
    }
    Err(missing("data_batch_1.bin"))
}

fn load(folders: &Folders, _: &DatasetSettings) -> Result<Dataset, DataError> {
    let (train, test) = locate(folders)?;
    let jitter = Jitter { shape: SHAPE, pad: 4, mirror: true };
    Ok(Dataset {
        name: CIFAR.name,
        shape: SHAPE,
        classes: CLASSES,
        positions: 1,
        train: split(&train)?.jittered(jitter),
        test: split(&[test])?,
        normalisation: Normalisation::standard(255.0, &MOMENTS),
    })
}

fn split(files: &[PathBuf]) -> Result<Split, DataError> {
    let (mut images, mut labels) = (Vec::new(), Vec::new());
    for path in files {
        read(path, &mut images, &mut labels)?;
    }
    Ok(Split::bytes(images, 0, 3 * PIXELS, labels))
}

/// Appends a file's images, pixel by pixel instead of plane by plane.
fn read(path: &Path, images: &mut Vec<u8>, labels: &mut Vec<u16>) -> Result<(), DataError> {
    let content = |expected: String, found: String| DataError::content(path, expected, found);
    let (mut from, mut record, mut count) = (content::open(path)?, Vec::with_capacity(RECORD), 0);
    loop {
        record.clear();
        let got =
            from.by_ref().take(RECORD as u64).read_to_end(&mut record).map_err(DataError::read(path))?;
        if got == 0 {
            break;
        }
        if got < RECORD {
            let found = format!("{got} bytes in record {count} (the file is truncated)");
            return Err(content(format!("records of {RECORD} bytes"), found));
        }
        if usize::from(record[0]) >= CLASSES {
            let found = format!("{} in record {count}", record[0]);
            return Err(content(format!("labels below {CLASSES}"), found));
        }
        if count == MOST {
            return Err(content(format!("at most {MOST} records"), "more".into()));
        }
        count += 1;
        labels.push(u16::from(record[0]));
        let planes = &record[1..];
        images.extend((0..PIXELS).flat_map(|i| [planes[i], planes[PIXELS + i], planes[2 * PIXELS + i]]));
    }
    if count == 0 {
        return Err(content(format!("records of {RECORD} bytes"), "an empty file".into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(label: u8) -> Vec<u8> {
        let mut record = vec![label];
        (0..3u8).for_each(|plane| record.extend((0..PIXELS).map(|i| (i % 80) as u8 + 80 * plane)));
        record
    }

    #[test]
    fn whichever_training_files_are_there_are_read_zipped_or_not() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("cifar-10");
        std::fs::create_dir(&own).unwrap();
        let folders = Folders(vec![folder.path().to_owned()]);
        let load = || load(&folders, &DatasetSettings::default());
        assert!(load().unwrap_err().to_string().contains("data_batch_1.bin"));
        std::fs::write(own.join("data_batch_2.bin"), [record(3), record(9)].concat()).unwrap();
        assert!(load().unwrap_err().to_string().contains("test_batch.bin"));
        let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut zip, &record(1)).unwrap();
        std::fs::write(own.join("test_batch.bin.gz"), zip.finish().unwrap()).unwrap();
        std::fs::write(own.join("data_batch_5.bin"), record(0)).unwrap();
        let dataset = load().unwrap();
        assert_eq!(dataset.train.labels(), [3, 9, 0]);
        assert_eq!(dataset.test.labels(), [1]);
        assert_eq!(dataset.train.image(1).unwrap()[..6], [0, 80, 160, 1, 81, 161]);
    }

    #[test]
    fn damaged_files_are_named_with_the_record() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data_batch_1.bin");
        let message = |bytes: Vec<u8>| {
            std::fs::write(&path, bytes).unwrap();
            split(std::slice::from_ref(&path)).unwrap_err().to_string()
        };
        assert!(message(vec![]).contains("an empty file"));
        assert!(message([record(1), vec![1; 5]].concat()).contains("5 bytes in record 1 (the file is trunc"));
        assert!(message([record(1), record(10)].concat()).contains("labels below 10, found 10 in record 1"));
        assert!(message(record(1).repeat(MOST + 1)).contains("at most 10000 records"));
    }
}
