//! The verbs, one file each.

pub mod bench;
pub mod calibrate;
pub mod data;
pub mod home;
pub mod infer;
pub mod join;
pub mod listen;
pub mod model;
pub mod resume;
pub mod simulate;
pub mod train;
pub mod weights;
