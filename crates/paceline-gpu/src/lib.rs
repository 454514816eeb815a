//! NVIDIA GPUs of this machine: which there are, how busy they are, and several processes on one of them.
//!
//! # Layout
//! - `ffi`: all that is unsafe; NVIDIA's management library (NVML), loaded when it is asked for: nothing here is linked with it
//! - `inventory`: the GPUs, as NVML or else `nvidia-smi` tells of them
//! - `mps`: the multi-process service, started for a run and ended with it
//!
//! # Deliberately absent
//! CUDA: scripts compute, this program never does so on a GPU. Other makers' devices.

#[allow(
    unsafe_code,
    reason = "calls of a C library that is loaded when it is asked for, and one between fork and exec"
)]
mod ffi;
mod inventory;
mod mps;

pub use ffi::{GpuUsage, Nvml};
pub use inventory::{Gpu, NoGpus, gpus};
pub use mps::{Mps, MpsState};
