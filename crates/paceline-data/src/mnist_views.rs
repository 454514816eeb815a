//! MNIST for six devices, each of which sees a sixth of an image: three columns and two rows of views, 14×10 pixels each.
//! A blank column on each side makes the width divisible.

use crate::dataset::{Dataset, Split};
use crate::error::DataError;
use crate::folders::Folders;
use crate::mnist::MNIST;
use crate::registry::{DatasetKind, SampleForm};

pub(crate) const MNIST_VIEWS: DatasetKind = DatasetKind {
    name: "mnist-views",
    about: "MNIST with a blank column on each side, 28×30: cut 3×2, a view for each of six devices (60,000 / 10,000)",
    form: SampleForm::Fixed { shape: SHAPE, classes: 10 },
    settings: &[],
    places: MNIST.places,
    origin: MNIST.origin,
    locate: MNIST.locate,
    load: |folders, _| load(folders),
};

/// Pixels of a row of MNIST.
const ROW: usize = 28;
const SHAPE: [usize; 3] = [28, ROW + 2, 1];

fn load(folders: &Folders) -> Result<Dataset, DataError> {
    let mnist = (MNIST.load)(folders, &Default::default())?;
    Ok(Dataset {
        name: MNIST_VIEWS.name,
        shape: SHAPE,
        train: widened(&mnist.train),
        test: widened(&mnist.test),
        ..mnist
    })
}

/// The same images with a black pixel before and behind each row.
fn widened(split: &Split) -> Split {
    let mut bytes = Vec::with_capacity(split.len() * SHAPE[0] * SHAPE[1]);
    for row in (0..split.len()).filter_map(|i| split.image(i)).flat_map(|image| image.chunks_exact(ROW)) {
        bytes.push(0);
        bytes.extend_from_slice(row);
        bytes.push(0);
    }
    Split::bytes(bytes, 0, SHAPE[0] * SHAPE[1], split.labels().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_lie_in_the_middle_and_labels_stay() {
        let image: Vec<u8> = (0..2 * 784).map(|i| (1 + i % 250) as u8).collect();
        let wide = widened(&Split::bytes(image.clone(), 0, 784, vec![7, 3]));
        assert_eq!(wide.labels(), [7, 3]);
        let second = wide.image(1).unwrap();
        assert_eq!(second.len(), 28 * 30);
        for (wide, row) in second.chunks_exact(30).zip(image[784..].chunks_exact(28)) {
            assert_eq!((wide[0], &wide[1..29], wide[29]), (0, row, 0));
        }
    }
}
