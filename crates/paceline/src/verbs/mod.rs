//! The verbs, one file each.

pub mod analyze;
pub mod bench;
pub mod data;
pub mod home;
pub mod infer;
pub mod join;
pub mod listen;
pub mod model;
pub mod report;
pub mod resume;
pub mod train;
pub mod weights;
