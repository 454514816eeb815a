//! The verbs, one file each.

pub mod analyze;
pub mod bench;
pub mod calibrate;
pub mod check;
pub mod data;
pub mod explain;
pub mod explore;
pub mod export;
pub mod home;
pub mod infer;
pub mod init;
pub mod join;
pub mod listen;
pub mod model;
pub mod overhead;
pub mod plan;
pub mod predict;
pub mod report;
pub mod resume;
pub mod runs;
pub mod show;
pub mod simulate;
pub mod status;
pub mod store;
pub mod train;
pub mod weights;
