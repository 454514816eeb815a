//! Datasets: where they lie, how they are decoded, and which samples a step gets.
//!
//! Pixels stay bytes in memory; the network normalises each batch with the dataset's scale and shift. Series
//! are numbers, texts are tokens, and large images stay on disk until their batch comes.
//!
//! # Layout
//! - `registry`: every dataset by name; one file each: `digits`, `mnist`, `mnist_views`, `cifar`, `image_folder`,
//!   `ts`, `text`, and made-up ones: `synthetic`, `series`, `letters`, `views`
//! - [`origin`]: where datasets come from: addresses, hashes, licences
//! - `contents`: what is in a dataset, for people and programs
//! - `dataset`: a loaded dataset
//! - `reader`: reading samples, varied for training by `augment`; `decoders` decode ahead what lies on disk
//! - [`content`], `idx`, `uea`, `picture`: files, gzipped or not, and their formats
//! - `numpy`: datasets as files for other programs
//! - `folders`: where files are looked for
//! - [`order`]: the global batch of each step, the same for any number of workers
//! - `sharding`: which samples each worker holds, where they are not drawn from the whole
//! - `error`: what can be wrong with files
//! - `example`: small files in the real formats, for tests and measurements (feature `example`)
//!
//! # Deliberately absent
//! Training; the environment (folders are given); downloads (`paceline-fetch`).

#![forbid(unsafe_code)]

mod augment;
mod cifar;
pub mod content;
mod contents;
mod dataset;
mod decoders;
mod digits;
mod error;
#[cfg(any(test, feature = "example"))]
pub mod example;
mod folders;
mod idx;
mod image_folder;
mod letters;
mod mnist;
mod mnist_views;
mod numpy;
pub mod order;
pub mod origin;
mod picture;
mod reader;
mod registry;
mod series;
mod sharding;
mod synthetic;
mod text;
mod ts;
mod uea;
mod views;

pub use contents::{DatasetContents, FileState, common_path};
pub use dataset::{Dataset, Normalisation, Split};
pub use error::DataError;
pub use folders::Folders;
pub use numpy::{NumpyFile, export};
pub use order::Order;
pub use origin::Origin;
pub use reader::{Reader, Sample, SampleVariation};
pub use registry::{BadSetting, DATASETS, DatasetKind, DatasetSettings, SampleForm};
pub use sharding::Sharding;
