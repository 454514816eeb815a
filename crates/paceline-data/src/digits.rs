//! The built-in dataset: 1,797 handwritten digits of 8×8 pixels (see `assets/README.md`).

use std::io::Read;

use flate2::read::GzDecoder;

use crate::dataset::{Dataset, Normalisation, Split};
use crate::origin::Origin;
use crate::registry::{DatasetKind, SampleForm};

const SIDE: usize = 8;
const PIXELS: usize = SIDE * SIDE;
const SHAPE: [usize; 3] = [SIDE, SIDE, 1];
const CLASSES: usize = 10;

pub(crate) const DIGITS: DatasetKind = DatasetKind {
    name: "digits",
    about: "built in: handwritten digits, 8×8 (1,438 / 359)",
    form: SampleForm::Fixed { shape: SHAPE, classes: CLASSES },
    settings: &[],
    places: &[],
    origin: Origin::BuiltIn { note: "UCI optical digits, as scikit-learn ships them; CC BY 4.0" },
    locate: |_| Ok(Vec::new()),
    load: |_, _| Ok(load()),
};

fn load() -> Dataset {
    let mut text = String::new();
    GzDecoder::new(&include_bytes!("../assets/digits.csv.gz")[..])
        .read_to_string(&mut text)
        .expect("the built-in file is whole");
    let rows = text.lines().map(|line| {
        line.split(',').map(|v| v.trim().parse::<f32>().expect("the built-in file holds numbers") as u8)
    });
    let (mut train, mut test) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    for (i, row) in rows.enumerate() {
        let (pixels, labels) = if i % 5 == 4 { &mut test } else { &mut train };
        pixels.extend(row);
        labels.push(u16::from(pixels.pop().expect("a label ends each row")));
    }
    Dataset {
        name: DIGITS.name,
        shape: SHAPE,
        classes: CLASSES,
        positions: 1,
        train: Split::bytes(train.0, 0, PIXELS, train.1),
        test: Split::bytes(test.0, 0, PIXELS, test.1),
        normalisation: Normalisation::standard(16.0, &[(0.3058, 0.3764)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fifth_row_is_the_test_split() {
        let digits = load();
        assert_eq!((digits.train.len(), digits.test.len()), (1438, 359));
        let all = digits.train.labels().iter().chain(digits.test.labels());
        let mut counts = [0; 10];
        all.for_each(|&label| counts[usize::from(label)] += 1);
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        assert!((0..digits.train.len()).all(|i| digits.train.image(i).unwrap().iter().all(|&p| p <= 16)));
    }
}
