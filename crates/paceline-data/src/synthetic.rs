//! Made-up images: each class has a smooth pattern, each sample is its class's pattern, shifted, faded
//! and covered with noise. Learnable, endless, and the same everywhere.

use paceline_random::{Purpose, Stream};

use crate::dataset::{Dataset, Normalisation, Split};
use crate::origin::Origin;
use crate::registry::{DatasetKind, SampleForm};

pub(crate) const GREY: DatasetKind = DatasetKind {
    name: "synthetic",
    about: "made up: patterns with noise, 28×28 (10,000 / 2,000)",
    form: SampleForm::Fixed { shape: GREY_SHAPE, classes: CLASSES },
    settings: &[],
    places: &[],
    origin: ORIGIN,
    locate: |_| Ok(Vec::new()),
    load: |_, _| Ok(make(GREY.name, GREY_SHAPE, 10_000, 2_000)),
};

pub(crate) const COLOUR: DatasetKind = DatasetKind {
    name: "synthetic-colour",
    about: "made up: patterns with noise, 32×32×3 (10,000 / 2,000)",
    form: SampleForm::Fixed { shape: COLOUR_SHAPE, classes: CLASSES },
    settings: &[],
    places: &[],
    origin: ORIGIN,
    locate: |_| Ok(Vec::new()),
    load: |_, _| Ok(make(COLOUR.name, COLOUR_SHAPE, 10_000, 2_000)),
};

const GREY_SHAPE: [usize; 3] = [28, 28, 1];
const COLOUR_SHAPE: [usize; 3] = [32, 32, 3];
const CLASSES: usize = 10;
const ORIGIN: Origin = Origin::BuiltIn { note: "made up by the program" };
/// The set is a constant: a run's seed chooses its order, not its content.
const SEED: u64 = 1;

fn make(name: &'static str, shape: [usize; 3], train: usize, test: usize) -> Dataset {
    let all = Stream::new(SEED, Purpose::Synthetic);
    Dataset {
        name,
        shape,
        classes: CLASSES,
        positions: 1,
        train: split(shape, all, 1, train),
        test: split(shape, all, 2, test),
        normalisation: Normalisation::standard(255.0, &vec![(0.5, 0.25); shape[2]]),
    }
}

/// Brightness of a class's pattern: three waves whose direction and phase belong to the class.
fn pattern(class: Stream, channel: usize, y: f64, x: f64) -> f64 {
    (0..3)
        .map(|wave| {
            let draw = |k: u64| class.fork(channel as u64).fork(wave).unit(k);
            let (fy, fx) = (0.25 + 0.6 * draw(0), 0.25 + 0.6 * draw(1));
            (fy * y + fx * x + std::f64::consts::TAU * draw(2)).sin()
        })
        .sum::<f64>()
        / 3.0
}

fn split([h, w, c]: [usize; 3], all: Stream, which: u64, samples: usize) -> Split {
    let patterns: Vec<f64> = (0..CLASSES)
        .flat_map(|class| {
            let class = all.fork(0).fork(class as u64);
            // Larger than the image by the shift of a sample.
            (0..h + 4).flat_map(move |y| {
                (0..w + 4).flat_map(move |x| (0..c).map(move |k| pattern(class, k, y as f64, x as f64)))
            })
        })
        .collect();
    let (row, size) = ((w + 4) * c, (h + 4) * (w + 4) * c);
    let draws = all.fork(which);
    let (mut bytes, mut labels) = (Vec::with_capacity(samples * h * w * c), Vec::with_capacity(samples));
    for i in 0..samples {
        let draw = draws.fork(i as u64);
        let class = draw.below(0, CLASSES as u64) as usize;
        let (dy, dx) = (draw.below(1, 5) as usize, draw.below(2, 5) as usize);
        let contrast = draw.uniform(3, 40.0, 90.0);
        let noise = draw.fork(1);
        for y in 0..h {
            for x in 0..w * c {
                let clean = patterns[class * size + (y + dy) * row + dx * c + x];
                let noise = noise.uniform((y * w * c + x) as u64, -60.0, 60.0);
                bytes.push((127.5 + contrast * clean + noise).clamp(0.0, 255.0) as u8);
            }
        }
        labels.push(class as u16);
    }
    Split::bytes(bytes, 0, h * w * c, labels)
}
