//! Datasets: where they lie, how they are decoded, and which samples a step gets.
//!
//! Pixels stay bytes in memory; the network normalises each batch with the dataset's scale and shift.
//!
//! # Layout
//! - [`registry`]: every dataset by name; one file each: `digits`, `mnist`, `synthetic`
//! - [`dataset`]: a loaded dataset
//! - [`idx`]: the IDX format of the MNIST family
//! - [`folders`]: where files are looked for
//! - [`order`]: the global batch of each step, the same for any number of workers
//! - [`sharding`]: which samples each worker holds, where they are not drawn from the whole
//! - [`error`]: what can be wrong with files
//!
//! # Deliberately absent
//! Training; the environment (folders are given); downloads.

#![forbid(unsafe_code)]

pub mod dataset;
mod digits;
pub mod error;
pub mod folders;
pub mod idx;
mod mnist;
pub mod order;
pub mod registry;
pub mod sharding;
mod synthetic;

pub use dataset::{Dataset, Normalisation, Split};
pub use error::DataError;
pub use folders::Folders;
pub use order::Order;
pub use registry::{DATASETS, Source, find};
pub use sharding::Sharding;
