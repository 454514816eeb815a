//! MNIST and Fashion-MNIST: 28×28 grey images of ten classes, 60,000 to train and 10,000 to test.

use crate::dataset::{Dataset, Normalisation, Split};
use crate::error::DataError;
use crate::folders::Folders;
use crate::idx;
use crate::registry::Source;

pub(crate) const MNIST: Source = Source {
    name: "mnist",
    about: "handwritten digits, 28×28 (60,000 / 10,000)",
    shape: SHAPE,
    classes: CLASSES,
    files: &FILES,
    load: |folders| load("mnist", folders, (0.5, 0.5)),
};

pub(crate) const FASHION: Source = Source {
    name: "fashion-mnist",
    about: "pieces of clothing, 28×28 (60,000 / 10,000)",
    shape: SHAPE,
    classes: CLASSES,
    files: &FILES,
    load: |folders| load("fashion-mnist", folders, (0.5, 0.5)),
};

const SHAPE: [usize; 3] = [28, 28, 1];
const CLASSES: usize = 10;
/// Images and labels to train, then to test.
const FILES: [&str; 4] = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];

fn load(name: &'static str, folders: &Folders, moments: (f32, f32)) -> Result<Dataset, DataError> {
    let split = |images, labels| split(name, folders, images, labels);
    // The large file takes as long as everything else together: decode the two side by side.
    let (train, test) = std::thread::scope(|scope| {
        let test = scope.spawn(|| split(FILES[2], FILES[3]));
        let train = split(FILES[0], FILES[1]);
        (train, test.join().expect("decoding does not panic"))
    });
    let normalisation = Normalisation::standard(255.0, &[moments]);
    Ok(Dataset { name, shape: SHAPE, classes: CLASSES, train: train?, test: test?, normalisation })
}

fn split(
    name: &'static str,
    folders: &Folders,
    images: &'static str,
    labels: &'static str,
) -> Result<Split, DataError> {
    let images = idx::read(&folders.find(name, images)?, &[None, Some(SHAPE[0]), Some(SHAPE[1])])?;
    let path = folders.find(name, labels)?;
    let labels = idx::read(&path, &[Some(images.sizes[0])])?;
    let classes = labels.bytes[labels.header..].to_vec();
    if let Some((i, class)) = classes.iter().enumerate().find(|&(_, &class)| usize::from(class) >= CLASSES) {
        let (expected, found) = (format!("labels below {CLASSES}"), format!("{class} at sample {i}"));
        return Err(DataError::Content { path, expected, found });
    }
    Ok(Split::new(images.bytes, images.header, SHAPE[0] * SHAPE[1], classes))
}
