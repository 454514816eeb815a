//! `--gpus`: which worker computes where, several on one, and machines on which that cannot be. The GPUs are not there: a
//! library stands in the place of NVIDIA's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use paceline_testing::fake_gpu;
use serde_json::Value;

use crate::scripts::has_python;
use crate::support::{PATIENCE, Ran, gone, joined, run};

struct Machine {
    folder: tempfile::TempDir,
    library: PathBuf,
    environment: Vec<(&'static str, String)>,
}

impl Machine {
    /// A machine with two GPUs; none, and a skip, where it cannot be made.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let library = fake_gpu::nvml(folder.path()).filter(|_| has_python())?;
        let pipes = folder.path().join("no-pipes").display().to_string();
        Some(Self { folder, library, environment: vec![("CUDA_MPS_PIPE_DIRECTORY", pipes)] })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn run(&self, words: &str) -> Ran {
        let (flags, args) =
            words.split_once(" -- ").map_or((words, None), |(flags, args)| (flags, Some(args)));
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.args(flags.split_whitespace()).arg("--store").arg(self.path().join("store"));
        command.args(args.iter().flat_map(|args| ["--"].into_iter().chain(args.split_whitespace())));
        command.env(fake_gpu::NVML, &self.library);
        command.env("PACELINE_PYTHON", "python3").envs(self.environment.iter().map(|(n, v)| (n, v)));
        run(command.current_dir(self.path()))
    }

    fn ok(&self, words: &str) -> Ran {
        let ran = self.run(words);
        assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
        ran
    }

    fn refused(&self, words: &str) -> String {
        let ran = self.run(words);
        assert_eq!(ran.code, 3, "{words}: {}", ran.stderr);
        joined(&ran.stderr)
    }
}

fn script() -> String {
    format!("{}/tests/cli/scripts/plain.py", env!("CARGO_MANIFEST_DIR"))
}

fn train(flags: &str, variable: &str) -> String {
    format!("train --script {} --json {flags} -- --steps 12 --environment {variable}", script())
}

/// What is told of the GPUs.
fn devices(ran: &Ran) -> Vec<Value> {
    let events = ran.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["type"] == "devices").collect()
}

#[test]
fn workers_take_gpus_in_turn_and_the_record_has_what_they_did() {
    let Some(machine) = Machine::new() else { return };
    let ran = machine.ok(&train("--workers 3 --gpus 0,GPU-0000-1 --name three", "CUDA_VISIBLE_DEVICES"));
    // Rank 0's output is shown.
    assert!(ran.stderr.contains("CUDA_VISIBLE_DEVICES is 0"), "{}", ran.stderr);
    assert!(ran.stderr.contains("GPU 0 (Fake H200, 85.9 GB): workers 0, 2"), "{}", ran.stderr);
    assert!(ran.stderr.contains("MPS is not used"), "{}", ran.stderr);
    let told = &devices(&ran)[0];
    assert_eq!((&told["gpus"][1]["ranks"], &told["mps"]), (&serde_json::json!([1]), &"absent".into()));
    let shown = machine.ok("show three").stdout;
    for part in ["MPS was not used", "GPUs", "Fake H200", "0, 2"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let document = machine.ok("show three --json").result();
    let gpu = &document["script"]["gpus"][0];
    assert_eq!((&gpu["utilisation_percent"], &gpu["power_w"]), (&50.0.into(), &250.0.into()), "{gpu}");
    assert_eq!((&gpu["workers"], &gpu["name"]), (&serde_json::json!([0, 2]), &"Fake H200".into()));
    assert_eq!(gpu["memory_used_bytes"].as_f64(), Some(f64::from(81920 - 70000) * 1024.0 * 1024.0));
    let exported = machine.ok("export three --format prometheus").stdout;
    assert!(exported.contains("paceline_gpu_power_w{"), "{exported}");
    // Plans with GPUs are other plans; without, nothing has changed.
    let hash =
        |flags: &str| machine.ok(&format!("train --script {} {flags} --dry-run --json", script())).result();
    let (with, without) = (hash("--gpus 0"), hash(""));
    assert_ne!(with["plan_sha256"], without["plan_sha256"]);
    assert_eq!(with["plan"]["script"]["gpus"], serde_json::json!(["0"]));
    assert!(without["plan"]["script"]["gpus"].is_null());
    // The command line gives the same run again.
    let again = with["labels"]["command"].as_str().unwrap();
    assert!(again.contains("--gpus 0"), "{again}");
}

#[test]
fn what_cannot_be_given_is_refused_before_anything_starts() {
    let Some(mut machine) = Machine::new() else { return };
    let train = |flags: &str| format!("train --script {} {flags}", script());
    for (flags, told) in [
        ("--gpus 0,x", "--gpus 0,x: \"x\" is neither the number of a GPU"),
        ("--gpus 0,0", "0 is there twice"),
        ("--workers 2 --gpus 0,2", "there is no GPU 2: this machine has 0 (Fake H200, GPU-0000-0), 1"),
        ("--gpus GPU-ffff", "there is no GPU GPU-ffff"),
        ("--workers 2 --strategy ddp-nccl", "NCCL needs a GPU for each of 2 workers, and --gpus names none"),
        ("--workers 2 --strategy ddp-nccl --gpus 1", "and --gpus names 1; --strategy ddp-gloo takes any"),
    ] {
        let said = machine.refused(&train(flags));
        assert!(said.contains(told), "{flags}: {said}");
    }
    assert!(machine.run("train --gpus 0").stderr.contains("--script"), "GPUs are for scripts");
    assert!(machine.run(&train("--mps off")).stderr.contains("--gpus"), "MPS is for GPUs");
    machine.environment.push(("FAKE_GPU_FREE_MIB", "1000".into()));
    let full = machine.refused(&train("--workers 2 --gpus 0"));
    assert!(full.contains("GPU 0 has 1000 MiB of free memory") && full.contains("fewer workers"), "{full}");
    if !Path::new("/dev/nvidiactl").exists() {
        machine.environment.extend([("PATH", "/usr/bin:/bin".into()), ("PACELINE_NVML", "/nowhere".into())]);
        machine.library = "/nowhere".into();
        let none = machine.refused(&train("--gpus 0"));
        assert!(none.contains("this machine has no NVIDIA driver"), "{none}");
    }
    // Without --gpus a machine without NVML is as it was.
    machine.ok(&format!("{} -- --steps 4", train("")));
}

#[test]
fn several_workers_of_a_gpu_share_it_by_a_service_that_ends_with_the_run() {
    let Some(mut machine) = Machine::new() else { return };
    let folder = machine.path().display().to_string();
    fake_gpu::program(machine.path(), "nvidia-cuda-mps-control", fake_gpu::MPS);
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    machine.environment.extend([("PATH", path), ("FAKE_MPS", folder.clone())]);
    let ran = machine.ok(&train("--workers 2 --gpus 1 --name shared", "CUDA_MPS_PIPE_DIRECTORY"));
    let read = |name: &str| std::fs::read_to_string(Path::new(&folder).join(name)).unwrap();
    let pipe = read("pipe").trim().to_owned();
    assert!(ran.stderr.contains(&format!("CUDA_MPS_PIPE_DIRECTORY is {pipe}")), "{}", ran.stderr);
    assert!(ran.stderr.contains("MPS was started"), "{}", ran.stderr);
    assert!(!Path::new(&pipe).exists(), "its pipes are gone");
    for pid in read("pids").split_whitespace() {
        let (pid, begun): (u32, _) = (pid.parse().unwrap(), Instant::now());
        while !gone(pid) && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(gone(pid), "{pid} goes on");
    }
    assert!(machine.ok("show shared").stdout.contains("MPS was used (started)"));
    // A GPU each needs none; and it can be left out.
    std::fs::remove_file(Path::new(&folder).join("pids")).unwrap();
    machine.ok(&train("--workers 2 --gpus 0,1", "HOME"));
    let off = machine.ok(&train("--workers 2 --gpus 1 --mps off", "HOME"));
    assert!(off.stderr.contains("MPS is not used (--mps off)"), "{}", off.stderr);
    assert!(!Path::new(&folder).join("pids").exists(), "nobody has started it");
}

#[test]
fn explain_tells_gpus_from_the_host_that_they_wait_for() {
    let Some(mut machine) = Machine::new() else { return };
    // Nearly all of the time the script is in its step: the rest is what GPUs say.
    let script = machine.path().join("busy.py");
    let text = crate::script_studies::SCRIPT.replace("\"forward_ns\": 50_000", "\"forward_ns\": 50_000_000");
    std::fs::write(&script, text).unwrap();
    for (busy, cause) in [("97", "gpu"), ("20", "host")] {
        machine.environment.retain(|(name, _)| *name != "FAKE_GPU_BUSY");
        machine.environment.push(("FAKE_GPU_BUSY", busy.into()));
        machine.ok(&format!("train --script {} --gpus 0 --name busy-{busy} -- --steps 12", script.display()));
        let explained = machine.ok(&format!("explain busy-{busy} --json")).result();
        assert_eq!(explained["verdict"]["cause"], cause, "{explained}");
        let words = machine.ok(&format!("explain busy-{busy}")).stdout;
        assert!(joined(&words).contains("GPUs"), "{words}");
    }
}
