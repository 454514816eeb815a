//! Memory for tensors, lent as slices: private pages, or memory files that several processes map.
//!
//! # Layout
//! - `mapping`: pages that are mapped, and memory files of sealed size; all that is unsafe about them
//! - `storage`: numbers in such pages, and who allocates them
//!
//! # Deliberately absent
//! How processes agree on whose turn it is, how descriptors travel.

#![deny(unsafe_code)]

mod mapping;
mod storage;

pub use mapping::{Mapping, TensorPart};
pub use storage::{Allocator, TensorStorage};
