//! GPUs that are not there: a library in the place of NVIDIA's NVML, and programs in the place of NVIDIA's own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Need, skip};

/// The variable with which the program is told where NVML lies.
pub const NVML: &str = "PACELINE_NVML";

/// As many GPUs as `FAKE_GPUS` says (2), each with 80 GiB, of which `FAKE_GPU_FREE_MIB` are free (70000); `FAKE_GPU_BUSY`
/// percent of the time at work (50), 250 W.
const LIBRARY: &str = r#"
#include <stdio.h>
#include <stdlib.h>
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned gpu, memory; } rates;
static unsigned setting(const char *name, unsigned usual) {
    const char *text = getenv(name);
    return text ? (unsigned)atoi(text) : usual;
}
int nvmlInit_v2(void) { return (int)setting("FAKE_NVML_ERROR", 0); }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = setting("FAKE_GPUS", 2); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(size_t)(index + 1); return 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned length) {
    (void)device; snprintf(text, length, "Fake H200"); return 0;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    snprintf(text, length, "GPU-0000-%zu", (size_t)device - 1); return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, memory *info) {
    (void)device;
    info->total = 81920ull << 20;
    info->free = (unsigned long long)setting("FAKE_GPU_FREE_MIB", 70000) << 20;
    info->used = info->total - info->free;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, rates *busy) {
    (void)device; busy->gpu = setting("FAKE_GPU_BUSY", 50); busy->memory = 10; return 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { (void)device; *milliwatts = 250000; return 0; }
"#;

/// Builds the library in a folder; none, and a skip, where there is no C compiler.
pub fn nvml(folder: &Path) -> Option<PathBuf> {
    let (source, library) = (folder.join("nvml.c"), folder.join("libnvidia-ml.so.1"));
    fs::write(&source, LIBRARY).expect("the folder can be written");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).output();
    match built {
        Ok(ran) if ran.status.success() => Some(library),
        Ok(ran) => panic!("cc: {}", String::from_utf8_lossy(&ran.stderr)),
        Err(_) => {
            skip(Need::System, "cc, a C compiler");
            None
        }
    }
}

/// Writes a program of this name into a folder, for PATH.
pub fn program(folder: &Path, name: &str, shell: &str) {
    let file = folder.join(name);
    fs::write(&file, format!("#!/bin/sh\n{shell}\n")).expect("the folder can be written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("the file is ours");
}

/// What stands in the place of `nvidia-cuda-mps-control -f`: it is there when its `control` is, and leaves its number and
/// that of a server that it has started in the folder `$FAKE_MPS`.
pub const MPS: &str = "[ \"$1\" = -f ] || exit 2\n\
    sleep 1000 & echo $$ $! > \"$FAKE_MPS/pids\"\n\
    echo \"$CUDA_MPS_PIPE_DIRECTORY\" > \"$FAKE_MPS/pipe\"\n\
    touch \"$CUDA_MPS_PIPE_DIRECTORY/control\"\n\
    wait";
