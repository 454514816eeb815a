//! Made-up views: six devices look at one object, each from its own side. A sample is their pictures, 16×16 pixels in
//! colour, three beside and two below each other. No device can tell all classes apart: the first two see every
//! class, but faintly; the next two see only which half of the classes it is, the last two only whether it is even. Now and
//! then somebody stands in the way.

use paceline_random::{Purpose, Stream};

use crate::dataset::{Dataset, Normalisation, Split};
use crate::origin::Origin;
use crate::registry::{DatasetKind, SampleForm};

pub(crate) const VIEWS: DatasetKind = DatasetKind {
    name: "views",
    about: "made up: one object seen by six devices, 16×16×3 each, together 32×48×3 (3,000 / 600)",
    form: SampleForm::Fixed { shape: SHAPE, classes: CLASSES },
    settings: &[],
    places: &[],
    origin: Origin::BuiltIn { note: "made up by the program" },
    locate: |_| Ok(Vec::new()),
    load: |_, _| Ok(make(3_000, 600)),
};

const SIDE: usize = 16;
const COLOURS: usize = 3;
const COLUMNS: usize = 3;
const ROWS: usize = 2;
const SHAPE: [usize; 3] = [ROWS * SIDE, COLUMNS * SIDE, COLOURS];
const CLASSES: usize = 4;
/// Pixels by which an object may be off the middle.
const SHIFT: usize = 2;
/// How often a device's view is hidden.
const HIDDEN: f64 = 0.1;
/// The set is a constant: a run's seed chooses its order, not its content.
const SEED: u64 = 4;

fn make(train: usize, test: usize) -> Dataset {
    let all = Stream::new(SEED, Purpose::Synthetic);
    Dataset {
        name: VIEWS.name,
        shape: SHAPE,
        classes: CLASSES,
        positions: 1,
        train: split(all, 1, train),
        test: split(all, 2, test),
        normalisation: Normalisation::standard(255.0, &[(0.5, 0.2); COLOURS]),
    }
}

/// Which of its pictures a device sees of a class, and how strong it is.
fn picture(device: usize, class: usize) -> (usize, f64) {
    match device / 2 {
        0 => (class, 40.0),
        1 => (class / 2, 80.0),
        _ => (class % 2, 80.0),
    }
}

/// Brightness of a picture: two waves whose direction and phase belong to it.
fn brightness(picture: Stream, y: usize, x: usize, colour: usize) -> f64 {
    let wave = |wave: u64| {
        let draw = |k: u64| picture.fork(colour as u64).fork(wave).unit(k);
        let (fy, fx) = (0.2 + 0.5 * draw(0), 0.2 + 0.5 * draw(1));
        (fy * y as f64 + fx * x as f64 + std::f64::consts::TAU * draw(2)).sin()
    };
    (wave(0) + wave(1)) / 2.0
}

fn split(all: Stream, which: u64, samples: usize) -> Split {
    let (devices, wide) = (ROWS * COLUMNS, SIDE + SHIFT);
    let pictures: Vec<f64> = (0..devices * CLASSES)
        .flat_map(|i| {
            let stream = all.fork(0).fork(i as u64);
            let pixel = move |at: usize| (at / COLOURS / wide, at / COLOURS % wide, at % COLOURS);
            (0..wide * wide * COLOURS).map(move |at| {
                let (y, x, colour) = pixel(at);
                brightness(stream, y, x, colour)
            })
        })
        .collect();
    let [h, w, _] = SHAPE;
    let (mut bytes, mut labels) = (vec![0; samples * h * w * COLOURS], Vec::with_capacity(samples));
    for (i, image) in bytes.chunks_exact_mut(h * w * COLOURS).enumerate() {
        let draw = all.fork(which).fork(i as u64);
        let class = draw.below(0, CLASSES as u64) as usize;
        for device in 0..devices {
            let own = draw.fork(1 + device as u64);
            let (shown, strength) = picture(device, class);
            let strength = if own.unit(0) < HIDDEN { 0.0 } else { strength };
            let (dy, dx) = (own.below(1, SHIFT as u64 + 1) as usize, own.below(2, SHIFT as u64 + 1) as usize);
            let (noise, clean) = (own.fork(1), (device * CLASSES + shown) * wide * wide * COLOURS);
            // Devices are numbered down the columns.
            let (top, left) = (device % ROWS * SIDE, device / ROWS * SIDE);
            for y in 0..SIDE {
                for x in 0..SIDE * COLOURS {
                    let clean = pictures[clean + ((y + dy) * wide + dx) * COLOURS + x];
                    let noise = noise.uniform((y * SIDE * COLOURS + x) as u64, -80.0, 80.0);
                    let value = (127.5 + strength * clean + noise).clamp(0.0, 255.0);
                    image[((top + y) * w + left) * COLOURS + x] = value as u8;
                }
            }
        }
        labels.push(class as u16);
    }
    Split::bytes(bytes, 0, h * w * COLOURS, labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean picture of a device over the samples of a class.
    fn mean(split: &Split, device: usize, class: u16) -> Vec<f64> {
        let w = SHAPE[1] * COLOURS;
        let (top, left) = (device % ROWS * SIDE, device / ROWS * SIDE * COLOURS);
        let samples: Vec<&[u8]> =
            (0..split.len()).filter(|&i| split.label(i) == class).map(|i| split.image(i).unwrap()).collect();
        (0..SIDE * SIDE * COLOURS)
            .map(|at| (top + at / (SIDE * COLOURS)) * w + left + at % (SIDE * COLOURS))
            .map(|at| samples.iter().map(|s| f64::from(s[at])).sum::<f64>() / samples.len() as f64)
            .collect()
    }

    #[test]
    fn no_device_but_the_faint_ones_sees_every_class_and_together_they_do() {
        let split = split(Stream::new(SEED, Purpose::Synthetic), 1, 1_000);
        let apart = |device: usize, a: u16, b: u16| {
            let (a, b) = (mean(&split, device, a), mean(&split, device, b));
            (a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / a.len() as f64).sqrt()
        };
        // The mean of noise within ±80 over a quarter of 1,000 samples is off by about 3, so that two are apart by about 4.
        for (device, a, b, sees) in [
            (0, 0, 1, true),
            (0, 0, 2, true),
            (1, 2, 3, true),
            (2, 0, 2, true),
            (3, 1, 3, true),
            (4, 0, 1, true),
            (5, 2, 3, true),
            (2, 0, 1, false),
            (3, 2, 3, false),
            (4, 0, 2, false),
            (5, 1, 3, false),
        ] {
            let apart = apart(device, a, b);
            assert_eq!(apart > 10.0, sees, "device {device}, classes {a} and {b}: {apart}");
        }
    }

    #[test]
    fn the_set_is_always_the_same() {
        let (a, b) = (make(20, 10), make(20, 10));
        assert!(
            (0..20).all(|i| a.train.image(i) == b.train.image(i) && a.train.label(i) == b.train.label(i))
        );
        assert_ne!(a.train.image(0), a.test.image(0));
    }
}
