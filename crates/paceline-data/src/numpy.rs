//! Datasets as NumPy's files, so that other programs train on the same numbers.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::dataset::{Dataset, Normalisation, Samples, Split};
use crate::error::DataError;
use crate::reader::{Reader, Sample, SampleVariation};

/// A file of an exported dataset.
#[derive(Serialize)]
pub struct NumpyFile {
    path: PathBuf,
    shape: Vec<usize>,
    /// NumPy's name of the numbers.
    numbers: &'static str,
}

/// Samples that are read at a time.
const CHUNK: usize = 256;

/// Writes `train-x.npy`, `train-y.npy`, `test-x.npy` and `test-y.npy` into a folder: samples as networks see them
/// (normalised, samples × height × width × channels), and their classes. Existing files are not overwritten.
pub fn export(dataset: &Dataset, folder: &Path) -> Result<Vec<NumpyFile>, DataError> {
    if matches!(dataset.train.samples, Samples::Tokens(_)) {
        return Err(DataError::NotExported { dataset: dataset.name });
    }
    std::fs::create_dir_all(folder).map_err(DataError::write(folder))?;
    let mut files = Vec::new();
    for (name, split) in [("train", &dataset.train), ("test", &dataset.test)] {
        let [h, w, c] = dataset.shape;
        let shape = vec![split.len(), h, w, c];
        files.push(array(folder, format!("{name}-x.npy"), "float32", shape, &mut |out, path| {
            samples(split, &dataset.normalisation, path, out)
        })?);
        files.push(array(folder, format!("{name}-y.npy"), "int64", vec![split.len()], &mut |out, path| {
            let write = |label: &u16| out.write_all(&i64::from(*label).to_le_bytes());
            split.labels().iter().try_for_each(write).map_err(DataError::write(path))
        })?);
    }
    Ok(files)
}

type Output = BufWriter<File>;

/// A file with its header; `fill` writes the numbers.
fn array(
    folder: &Path,
    name: String,
    numbers: &'static str,
    shape: Vec<usize>,
    fill: &mut dyn FnMut(&mut Output, &Path) -> Result<(), DataError>,
) -> Result<NumpyFile, DataError> {
    let path = folder.join(name);
    let file =
        OpenOptions::new().write(true).create_new(true).open(&path).map_err(DataError::write(&path))?;
    let mut out = BufWriter::new(file);
    out.write_all(&header(numbers, &shape)).map_err(DataError::write(&path))?;
    fill(&mut out, &path)?;
    out.flush().map_err(DataError::write(&path))?;
    Ok(NumpyFile { path, shape, numbers })
}

/// The head of version 1.0 of the format: as long as a multiple of 64 bytes.
fn header(numbers: &str, shape: &[usize]) -> Vec<u8> {
    const FIXED: usize = 10;
    let code = if numbers == "int64" { "<i8" } else { "<f4" };
    let sides: String = shape.iter().map(|side| format!("{side}, ")).collect();
    let words = format!("{{'descr': '{code}', 'fortran_order': False, 'shape': ({sides}), }}");
    let length = (FIXED + words.len() + 1).next_multiple_of(64) - FIXED;
    let mut head = b"\x93NUMPY\x01\x00".to_vec();
    head.extend((length as u16).to_le_bytes());
    head.extend(format!("{words:<width$}\n", width = length - 1).bytes());
    head
}

fn samples(split: &Split, scale: &Normalisation, path: &Path, out: &mut Output) -> Result<(), DataError> {
    let all: Vec<u32> = (0..split.len() as u32).collect();
    let mut reader = Reader::default();
    for ids in all.chunks(CHUNK) {
        let mut written = Ok(());
        reader.read(split, SampleVariation::Plain, ids, &mut |_, sample| {
            let mut write = |number: f32| {
                if written.is_ok() {
                    written = out.write_all(&number.to_le_bytes());
                }
            };
            match sample {
                Sample::Bytes(bytes, _) => {
                    let channels = scale.scale.len();
                    for (i, byte) in bytes.iter().enumerate() {
                        let k = i % channels;
                        write(f32::from(*byte) * scale.scale[k] + scale.shift[k]);
                    }
                }
                Sample::Numbers(numbers, _) => numbers.iter().for_each(|number| write(*number)),
                Sample::Tokens(_) => {}
            }
        })?;
        written.map_err(DataError::write(path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset(train: Split, test: Split, normalisation: Normalisation) -> Dataset {
        Dataset { name: "few", shape: [1, 2, 1], classes: 3, positions: 1, train, test, normalisation }
    }

    fn numbers(path: &Path) -> (String, Vec<f32>) {
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
        let end = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        assert_eq!(end % 64, 0, "NumPy maps arrays that begin at a multiple of 64 bytes");
        let head = String::from_utf8(bytes[10..end].to_vec()).unwrap();
        (head, bytes[end..].chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect())
    }

    #[test]
    fn samples_are_written_as_networks_see_them_and_nothing_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let few = dataset(
            Split::bytes(vec![0, 2, 4, 6], 0, 2, vec![2, 1]),
            Split::bytes(vec![8, 10], 0, 2, vec![0]),
            Normalisation { scale: vec![0.5], shift: vec![-1.0] },
        );
        let files = export(&few, folder.path()).unwrap();
        assert_eq!(files.len(), 4);
        let (head, values) = numbers(&folder.path().join("train-x.npy"));
        assert!(head.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1, 2, 1, ), }"));
        assert!(head.ends_with(" \n") || head.ends_with("}\n"), "{head:?}");
        assert_eq!(values, [-1.0, 0.0, 1.0, 2.0]);
        assert_eq!(numbers(&folder.path().join("test-x.npy")).1, [3.0, 4.0]);
        let labels = std::fs::read(folder.path().join("train-y.npy")).unwrap();
        assert!(labels.ends_with(&[2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]));
        assert!(matches!(export(&few, folder.path()), Err(DataError::Write { .. })));
    }

    #[test]
    fn series_are_written_as_they_are_and_texts_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let series = || Split::numbers(vec![0.25, -3.0], 2, vec![1]);
        export(&dataset(series(), series(), Normalisation::default()), folder.path()).unwrap();
        assert_eq!(numbers(&folder.path().join("test-x.npy")).1, [0.25, -3.0]);
        let text = || Split::tokens(vec![1, 2, 3, 4, 5], 2, false);
        let refused = export(&dataset(text(), text(), Normalisation::default()), folder.path());
        assert!(matches!(refused, Err(DataError::NotExported { dataset: "few" })));
    }
}
