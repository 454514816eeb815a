//! What is sampled of a GPU, where NVIDIA's NVML is there.

use paceline_gpu::{GpuUsage, Nvml};

use super::{Metric, gauge};

/// A GPU at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuReading(pub GpuUsage);

impl GpuReading {
    /// All GPUs of this machine, by number.
    pub fn all(nvml: &Nvml) -> Vec<(String, Self)> {
        (0..nvml.count()).map(|index| (index.to_string(), Self(nvml.usage(index)))).collect()
    }
}

/// Metrics of a GPU.
pub static GPU: &[Metric<GpuReading>] = &[
    gauge("utilisation_percent", "%", "part of the last moment in which something was computed, by anybody")
        .read("NVML", |r| r.0.utilisation.map(|part| 100.0 * part)),
    gauge("memory_used_bytes", "bytes", "memory in use, by everybody")
        .read("NVML", |r| r.0.memory_used_bytes),
    gauge("memory_total_bytes", "bytes", "memory of the GPU").read("NVML", |r| r.0.memory_total_bytes),
    gauge("power_w", "W", "what it draws").read("NVML", |r| r.0.power_w),
];
