//! The GPUs of this machine.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::ffi::Nvml;

/// The program that NVIDIA's driver comes with.
const SMI: &str = "nvidia-smi";
const QUERY: [&str; 2] =
    ["--query-gpu=index,uuid,name,memory.total,memory.free", "--format=csv,noheader,nounits"];
/// Where the driver shows, whatever else is installed.
const DRIVER: &str = "/dev/nvidiactl";

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its number, by its place on the bus.
    pub index: usize,
    /// What names it for ever.
    pub uuid: String,
    /// Its model.
    pub name: String,
    /// Its memory, where that is told.
    pub memory_bytes: Option<u64>,
    /// What is free of it now.
    pub free_bytes: Option<u64>,
}

/// Why nothing is known of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoGpus {
    /// There is no driver: no GPU can be used.
    NoDriver,
    /// There is a driver, but nobody who tells of its GPUs.
    NotTold(String),
}

/// Every GPU, as NVML tells, or else `nvidia-smi`.
pub fn gpus() -> Result<Vec<Gpu>, NoGpus> {
    let nvml = match Nvml::load() {
        Ok(nvml) => return Ok(nvml.gpus()),
        Err(problem) => problem,
    };
    match smi() {
        Ok(gpus) => Ok(gpus),
        Err(_) if !Path::new(DRIVER).exists() => Err(NoGpus::NoDriver),
        Err(problem) => Err(NoGpus::NotTold(format!("{nvml}; {SMI} {problem}"))),
    }
}

fn smi() -> Result<Vec<Gpu>, String> {
    let ran = Command::new(SMI).args(QUERY).stdin(Stdio::null()).output();
    let ran = ran.map_err(|error| format!("cannot be started: {error}"))?;
    if !ran.status.success() {
        return Err(format!("ended with {}", ran.status));
    }
    parse(&String::from_utf8_lossy(&ran.stdout))
}

/// What `nvidia-smi` prints: a line per GPU, memory in MiB.
fn parse(text: &str) -> Result<Vec<Gpu>, String> {
    let gpu = |line: &str| {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [index, uuid, name @ .., total, free] = &fields[..] else { return None };
        let bytes = |mib: &str| mib.parse::<u64>().ok().map(|mib| mib << 20);
        Some(Gpu {
            index: index.parse().ok()?,
            uuid: (*uuid).to_owned(),
            name: name.join(", "),
            memory_bytes: bytes(total),
            free_bytes: bytes(free),
        })
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| gpu(line).ok_or_else(|| format!("said {line:?}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nvidia_smi_prints_is_read() {
        let text = "0, GPU-aa-1, NVIDIA H200, 143771, 143000\n1, GPU-bb-2, NVIDIA H200, [N/A], [N/A]\n";
        let gpus = parse(text).unwrap();
        assert_eq!((gpus[0].index, &gpus[0].uuid[..], &gpus[0].name[..]), (0, "GPU-aa-1", "NVIDIA H200"));
        assert_eq!(gpus[0].memory_bytes, Some(143_771 << 20));
        assert_eq!((gpus[1].memory_bytes, gpus[1].free_bytes), (None, None));
        assert_eq!(parse("").unwrap(), []);
        assert!(parse("NVIDIA-SMI has failed").unwrap_err().contains("has failed"));
    }
}
