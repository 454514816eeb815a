//! The verbs, one file each.

pub mod bench;
pub mod calibrate;
pub mod data;
pub mod home;
pub mod model;
pub mod simulate;
pub mod train;
