//! MNIST and Fashion-MNIST: 28×28 grey images of ten classes, 60,000 to train and 10,000 to test.

use std::path::{Path, PathBuf};

use crate::dataset::{Dataset, Normalisation, Split};
use crate::error::DataError;
use crate::folders::Folders;
use crate::idx;
use crate::origin::{DownloadItem, File, Origin, Packing, Published};
use crate::registry::{DatasetKind, SampleForm};

pub(crate) const MNIST: DatasetKind = DatasetKind {
    name: "mnist",
    about: "handwritten digits, 28×28 (60,000 / 10,000)",
    form: SampleForm::Fixed { shape: SHAPE, classes: CLASSES },
    settings: &[],
    places: &["mnist"],
    origin: Origin::Published(Published {
        home: "http://yann.lecun.com/exdb/mnist",
        licence: "CC BY-SA 3.0",
        parcels: &[
            digits(0, &[image_file(0, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db")]),
            digits(1, &[label_file(1, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5")]),
            digits(2, &[image_file(2, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7")]),
            digits(3, &[label_file(3, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2")]),
        ],
    }),
    locate: |folders| locate(&MNIST, folders),
    load: |folders, _| load(&MNIST, folders, OF_DIGITS),
};

pub(crate) const FASHION: DatasetKind = DatasetKind {
    name: "fashion-mnist",
    about: "pieces of clothing, 28×28 (60,000 / 10,000)",
    form: SampleForm::Fixed { shape: SHAPE, classes: CLASSES },
    settings: &[],
    places: &["fashion-mnist"],
    origin: Origin::Published(Published {
        home: "https://github.com/zalandoresearch/fashion-mnist",
        licence: "MIT",
        parcels: &[
            clothes(0, &[image_file(0, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888")]),
            clothes(1, &[label_file(1, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9")]),
            clothes(2, &[image_file(2, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b")]),
            clothes(3, &[label_file(3, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34")]),
        ],
    }),
    locate: |folders| locate(&FASHION, folders),
    load: |folders, _| load(&FASHION, folders, OF_CLOTHES),
};

const fn digits(i: usize, files: &'static [File]) -> DownloadItem {
    let base = Some("https://ossci-datasets.s3.amazonaws.com/mnist/");
    DownloadItem { base, name: ZIPPED[i], packing: Packing::Gz, files }
}

const fn clothes(i: usize, files: &'static [File]) -> DownloadItem {
    let base = Some("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/");
    DownloadItem { base, name: ZIPPED[i], packing: Packing::Gz, files }
}

const fn image_file(i: usize, sha256: &'static str) -> File {
    let samples = if i == 0 { 60_000 } else { 10_000 };
    File { name: FILES[i], bytes: 16 + samples * 28 * 28, sha256 }
}

const fn label_file(i: usize, sha256: &'static str) -> File {
    let samples = if i == 1 { 60_000 } else { 10_000 };
    File { name: FILES[i], bytes: 8 + samples, sha256 }
}

const SHAPE: [usize; 3] = [28, 28, 1];
const CLASSES: usize = 10;
/// Images and labels to train, then to test.
const FILES: [&str; 4] = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];
/// The same, as they are published.
const ZIPPED: [&str; 4] = [
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
];
/// Mean and deviation of the training pixels.
const OF_DIGITS: (f32, f32) = (0.1307, 0.3081);
const OF_CLOTHES: (f32, f32) = (0.2860, 0.3530);

fn locate(source: &DatasetKind, folders: &Folders) -> Result<Vec<PathBuf>, DataError> {
    FILES.iter().map(|file| folders.find(source.name, source.places, file)).collect()
}

fn load(source: &DatasetKind, folders: &Folders, moments: (f32, f32)) -> Result<Dataset, DataError> {
    let files = locate(source, folders)?;
    // The large file takes as long as everything else together: decode the two side by side.
    let (train, test) = std::thread::scope(|scope| {
        let test = scope.spawn(|| split(&files[2], &files[3]));
        let train = split(&files[0], &files[1]);
        (train, test.join().expect("decoding does not panic"))
    });
    Ok(Dataset {
        name: source.name,
        shape: SHAPE,
        classes: CLASSES,
        positions: 1,
        train: train?,
        test: test?,
        normalisation: Normalisation::standard(255.0, &[moments]),
    })
}

fn split(images: &Path, labels: &Path) -> Result<Split, DataError> {
    let images = idx::read(images, &[None, Some(SHAPE[0]), Some(SHAPE[1])])?;
    let path = labels;
    let labels = idx::read(path, &[Some(images.sizes[0])])?;
    let classes: Vec<u16> = labels.bytes[labels.header..].iter().map(|&class| u16::from(class)).collect();
    if let Some((i, class)) = classes.iter().enumerate().find(|&(_, &class)| usize::from(class) >= CLASSES) {
        let (expected, found) = (format!("labels below {CLASSES}"), format!("{class} at sample {i}"));
        return Err(DataError::content(path, expected, found));
    }
    Ok(Split::bytes(images.bytes, images.header, SHAPE[0] * SHAPE[1], classes))
}
