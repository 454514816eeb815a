//! The verbs, one file each.

pub mod analyze;
pub mod bench;
pub mod data;
pub mod explain;
pub mod export;
pub mod home;
pub mod infer;
pub mod join;
pub mod listen;
pub mod model;
pub mod overhead;
pub mod report;
pub mod resume;
pub mod runs;
pub mod serve;
pub mod show;
pub mod store;
pub mod train;
pub mod weights;
