//! Small datasets in the real formats, made up from a seed: what tests and measurements train on where the
//! real files are not there.

use std::fs;
use std::io;
use std::path::Path;

use jpeg_encoder::{ColorType, Encoder};
use paceline_random::{Purpose, Stream};

fn draws(which: u64) -> Stream {
    Stream::new(4, Purpose::Synthetic).fork(which)
}

/// CIFAR-10's binary files with `train` and `test` images of which the label can be learnt, in `folder`.
pub fn cifar(folder: &Path, train: usize, test: usize) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, count) in [("data_batch_1.bin", train), ("test_batch.bin", test)] {
        let draw = draws(count as u64);
        let mut bytes = Vec::with_capacity(count * 3073);
        for i in 0..count {
            let label = i % 10;
            bytes.push(label as u8);
            for plane in 0..3 {
                let colour = 25.0 * ((label * (plane + 1)) % 10) as f64;
                let noise = draw.fork(i as u64).fork(plane as u64);
                bytes.extend((0..1024).map(|k| (colour + noise.uniform(k, 0.0, 25.0)) as u8));
            }
        }
        fs::write(folder.join(name), bytes)?;
    }
    Ok(())
}

/// A pair `Waves_TRAIN.ts`, `Waves_TEST.ts` with series of 6 to 12 steps, 2 channels and 3 classes.
pub fn series(folder: &Path, train: usize, test: usize) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, count) in [("Waves_TRAIN.ts", train), ("Waves_TEST.ts", test)] {
        let mut text = String::from(
            "# made up\n@problemName Waves\n@timeStamps false\n@missing false\n@univariate false\n\
             @dimensions 2\n@equalLength false\n@classLabel true slow middle fast\n@data\n",
        );
        for i in 0..count {
            let draw = draws(i as u64);
            let (class, steps) = (i % 3, 6 + draw.below(0, 7));
            for channel in 0..2u64 {
                let value = |t| {
                    let clean = (t as f64 * (0.3 + class as f64) + channel as f64).sin();
                    format!("{:.4}", clean + draw.fork(channel).uniform(t, -0.2, 0.2))
                };
                text += &(0..steps).map(value).collect::<Vec<_>>().join(",");
                text += ":";
            }
            text += ["slow\n", "middle\n", "fast\n"][class];
        }
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}

/// A text of at least `length` characters in `path`.
pub fn text(path: &Path, length: usize) -> io::Result<()> {
    let words = ["the", "wheel", "in", "front", "breaks", "wind", "and", "turns", "away"];
    let draw = draws(0);
    let mut text = String::new();
    for i in 0.. {
        if text.len() >= length {
            break;
        }
        text += words[draw.below(i, words.len() as u64) as usize];
        text += if draw.below(i, 63) < 9 { ".\n" } else { " " };
    }
    fs::write(path, text)
}

/// An image folder: `train` and `test` JPEGs in all, of `classes` classes, of about `side` × `side` pixels; what
/// is to be recognised is their colour and stripes.
pub fn images(folder: &Path, train: usize, test: usize, classes: usize, side: usize) -> io::Result<()> {
    for (split, count) in [("train", train), ("val", test)] {
        for class in 0..classes {
            fs::create_dir_all(folder.join(split).join(format!("class{class:03}")))?;
        }
        for i in 0..count {
            let (class, draw) = (i % classes, draws(i as u64).fork(count as u64));
            // Sizes differ, as they do in real folders.
            let (width, height) = (side + draw.below(0, side as u64 / 4 + 1) as usize, side);
            let stripes = 4.0 + 3.0 * class as f64;
            let mut rgb = Vec::with_capacity(width * height * 3);
            for y in 0..height {
                for x in 0..width {
                    let wave = (x as f64 / width as f64 * stripes + draw.uniform(1, 0.0, 6.3)).sin();
                    for k in 0..3 {
                        let colour = 40.0 + 170.0 * ((class * (k + 2) + k) % classes) as f64 / classes as f64;
                        let shade = colour + 30.0 * wave + 10.0 * (y as f64 / height as f64);
                        rgb.push(shade.clamp(0.0, 255.0) as u8);
                    }
                }
            }
            let path = folder.join(split).join(format!("class{class:03}/{i:05}.jpg"));
            let file = io::BufWriter::new(fs::File::create(path)?);
            let size = |n: usize| u16::try_from(n).map_err(io::Error::other);
            Encoder::new(file, 90)
                .encode(&rgb, size(width)?, size(height)?, ColorType::Rgb)
                .map_err(io::Error::other)?;
        }
    }
    Ok(())
}
