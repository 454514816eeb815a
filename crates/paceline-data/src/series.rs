//! Made-up time series: each class has its own three rhythms, each sample its own phases, length and noise.

use paceline_random::{Purpose, Stream};

use crate::dataset::{Dataset, Normalisation, Split};
use crate::origin::Origin;
use crate::registry::{DatasetKind, SampleForm};

pub(crate) const SERIES: DatasetKind = DatasetKind {
    name: "series",
    about: "made up: rhythms with noise, 32 steps, 3 channels, 6 classes (2,000 / 500)",
    form: SampleForm::Fixed { shape: [1, STEPS, CHANNELS], classes: CLASSES },
    settings: &[],
    places: &[],
    origin: Origin::BuiltIn { note: "made up by the program" },
    locate: |_| Ok(Vec::new()),
    load: |_, _| Ok(make(2_000, 500)),
};

const STEPS: usize = 32;
const CHANNELS: usize = 3;
const CLASSES: usize = 6;
/// The set is a constant: a run's seed chooses its order, not its content.
const SEED: u64 = 2;

fn make(train: usize, test: usize) -> Dataset {
    let all = Stream::new(SEED, Purpose::Synthetic);
    Dataset {
        name: SERIES.name,
        shape: [1, STEPS, CHANNELS],
        classes: CLASSES,
        positions: 1,
        train: split(all, 1, train),
        test: split(all, 2, test),
        normalisation: Normalisation::default(),
    }
}

fn split(all: Stream, which: u64, samples: usize) -> Split {
    let size = STEPS * CHANNELS;
    let (mut numbers, mut labels) = (vec![0.0; samples * size], Vec::with_capacity(samples));
    for (i, series) in numbers.chunks_exact_mut(size).enumerate() {
        let draw = all.fork(which).fork(i as u64);
        let class = draw.below(0, CLASSES as u64);
        // Up to a quarter of the steps are missing at the front.
        let first = draw.below(1, STEPS as u64 / 4 + 1) as usize;
        let (phase, noise) = (draw.uniform(2, 0.0, std::f64::consts::TAU), draw.fork(1));
        for step in first..STEPS {
            for channel in 0..CHANNELS {
                let rhythm = all.fork(0).fork(class).uniform(channel as u64, 0.25, 1.6);
                let clean = (rhythm * step as f64 + phase * (channel + 1) as f64).sin();
                let at = step * CHANNELS + channel;
                series[at] = (1.3 * clean + 0.4 * noise.normal(at as u64)) as f32;
            }
        }
        labels.push(class as u16);
    }
    Split::numbers(numbers, size, labels)
}
