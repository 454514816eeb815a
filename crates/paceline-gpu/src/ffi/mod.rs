//! All that is `unsafe` here: calls of NVIDIA's library, and one before a child's program begins.

mod nvml;
mod parent;

pub use nvml::{GpuUsage, Nvml};
pub(crate) use parent::end_with_parent;
