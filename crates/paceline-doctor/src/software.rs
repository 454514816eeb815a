//! GPUs and the Python of scripts.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::diagnosis::Diagnosis;

/// Time that Python has to say what it is.
const PYTHON_PATIENCE: Duration = Duration::from_secs(20);

/// Where GPUs and NVIDIA's multi-process service show.
pub(crate) struct GpuPlaces {
    pub driver: PathBuf,
    pub devices: PathBuf,
    pub mps: PathBuf,
}

impl Default for GpuPlaces {
    fn default() -> Self {
        let mps = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").filter(|v| !v.is_empty());
        Self {
            driver: "/proc/driver/nvidia/gpus".into(),
            devices: "/dev".into(),
            mps: mps.map_or("/tmp/nvidia-mps".into(), PathBuf::from),
        }
    }
}

/// GPUs, and whether several processes can share one.
pub(crate) fn gpus(places: &GpuPlaces) -> Vec<Diagnosis> {
    let gpus = fs::read_dir(&places.driver).into_iter().flatten().flatten();
    let models: Vec<String> = gpus
        .map(|gpu| {
            let text = fs::read_to_string(gpu.path().join("information")).unwrap_or_default();
            let name = text.lines().find_map(|line| line.strip_prefix("Model:")).unwrap_or("unknown");
            name.trim().to_owned()
        })
        .collect();
    if models.is_empty() {
        let found = "none that NVIDIA's driver knows; workers compute on cores";
        return vec![Diagnosis::absent("GPUs", found, "")];
    }
    let found = format!("{}: {}", models.len(), models.join(", "));
    let device = places.devices.join("nvidiactl");
    let gpu = match fs::File::open(&device) {
        Ok(_) => Diagnosis::ok("GPUs", found),
        Err(error) => Diagnosis::fails(
            "GPUs",
            format!("{found}, but {}: {error}", device.display()),
            "give the process the device (docker run --gpus all), or the user its group",
        ),
    };
    let mps = if places.mps.join("control").exists() {
        Diagnosis::ok("MPS", "the multi-process service runs: ranks on one GPU compute at the same time")
    } else {
        let found = "the multi-process service does not run: several ranks on one GPU take turns";
        Diagnosis::absent("MPS", found, "nvidia-cuda-mps-control -d, where ranks share a GPU")
    };
    vec![gpu, mps]
}

/// What Python says of itself; nothing is imported, so that it takes no second.
const ABOUT: &str = "import sys, importlib.metadata as m\n\
    def version(name):\n    try: return m.version(name)\n    except m.PackageNotFoundError: return '-'\n\
    print(sys.version.split()[0], version('torch'))";

/// The Python that runs scripts, and its PyTorch.
pub(crate) fn python() -> Diagnosis {
    let named = std::env::var("PACELINE_PYTHON").ok().filter(|name| !name.is_empty());
    let program = named.clone().unwrap_or_else(|| "python3".into());
    judge_python(&program, named.is_some(), said(&program))
}

/// What Python prints, within its time.
fn said(program: &str) -> Result<String, String> {
    let started = Command::new(program)
        .args(["-c", ABOUT])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = started.map_err(|error| error.to_string())?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begun.elapsed() < PYTHON_PATIENCE => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                // An error means that it has just ended.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it said nothing within {} s", PYTHON_PATIENCE.as_secs()));
            }
        }
    };
    let mut text = String::new();
    let read = child.stdout.take().map(|mut out| out.read_to_string(&mut text));
    match read {
        Some(Ok(_)) if status.success() => Ok(text),
        _ => Err(format!("it ended with {status}")),
    }
}

fn judge_python(program: &str, named: bool, said: Result<String, String>) -> Diagnosis {
    let mend = "only scripts (--script) need it; PACELINE_PYTHON names another Python";
    match said {
        Err(problem) if named => {
            Diagnosis::fails("Python", format!("PACELINE_PYTHON={program}: {problem}"), mend)
        }
        Err(problem) => Diagnosis::absent("Python", format!("{program}: {problem}"), mend),
        Ok(text) => match text.split_whitespace().collect::<Vec<_>>()[..] {
            [version, "-"] => {
                let found = format!("{program} {version} without PyTorch");
                Diagnosis::absent("Python", found, "for PyTorch scripts: pip install torch")
            }
            [version, torch] => Diagnosis::ok("Python", format!("{program} {version}, PyTorch {torch}")),
            _ => Diagnosis::absent("Python", format!("{program} is no Python"), mend),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;

    #[test]
    fn gpus_are_told_from_the_drivers_files() {
        let root = tempfile::tempdir().unwrap();
        let places = GpuPlaces {
            driver: root.path().join("gpus"),
            devices: root.path().join("dev"),
            mps: root.path().join("mps"),
        };
        assert_eq!(gpus(&places)[0].severity, Severity::Absent);
        let gpu = places.driver.join("0000:01:00.0");
        fs::create_dir_all(&gpu).unwrap();
        fs::write(gpu.join("information"), "Model: \t\t NVIDIA H200\nIRQ: 9\n").unwrap();
        let found = gpus(&places);
        assert_eq!(found[0].severity, Severity::Fails, "{found:?}");
        assert!(found[0].found.contains("1: NVIDIA H200, but") && found[1].found.contains("take turns"));
        for folder in [&places.devices, &places.mps] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(places.devices.join("nvidiactl"), "").unwrap();
        fs::write(places.mps.join("control"), "").unwrap();
        assert!(gpus(&places).iter().all(|one| one.severity == Severity::Ok));
    }

    #[test]
    fn python_is_missed_where_it_was_named() {
        let judge = |named, said: Result<&str, &str>| {
            judge_python("py", named, said.map(Into::into).map_err(Into::into)).severity
        };
        assert_eq!(judge(false, Ok("3.12.1 2.5.0\n")), Severity::Ok);
        assert_eq!(judge(false, Ok("3.12.1 -\n")), Severity::Absent);
        assert_eq!(judge(false, Err("no")), Severity::Absent);
        assert_eq!(judge(true, Err("no")), Severity::Fails);
        assert!(said("/nonexistent").is_err());
    }
}
