//! The verbs, one file each.

pub mod bench;
pub mod data;
pub mod explore;
pub mod home;
pub mod model;
pub mod train;
