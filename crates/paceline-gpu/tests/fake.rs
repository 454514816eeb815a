//! GPUs that are not there: a library in the place of NVML, a program in the place of NVIDIA's multi-process service.
//! What depends on the environment runs in a process of its own: this file's tests start themselves again.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use paceline_gpu::{Mps, MpsState, NoGpus, Nvml, gpus};
use paceline_testing::fake_gpu;

/// Runs one test of this file again, as `child`, in this environment.
fn again(test: &str, environment: &[(&str, &Path)], more: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env("FAKE_CHILD", "1");
    command.envs(environment.iter().copied()).envs(more.iter().copied());
    command.output().unwrap()
}

fn is_child() -> bool {
    std::env::var_os("FAKE_CHILD").is_some()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn nvml_tells_which_gpus_there_are_and_how_busy() {
    if is_child() {
        let nvml = Nvml::load().unwrap();
        let all = nvml.gpus();
        assert_eq!((nvml.count(), all.len()), (3, 3));
        assert_eq!((&all[2].name[..], &all[2].uuid[..], all[2].index), ("Fake H200", "GPU-0000-2", 2));
        assert_eq!((all[0].memory_bytes, all[0].free_bytes), (Some(81920 << 20), Some(70000 << 20)));
        let usage = nvml.usage(1);
        assert_eq!((usage.utilisation, usage.power_w), (Some(0.35), Some(250.0)));
        assert_eq!(usage.memory_used_bytes, Some(f64::from(81920 - 70000) * 1024.0 * 1024.0));
        assert_eq!(nvml.usage(3).utilisation, None, "there is no fourth one");
        assert_eq!(gpus().unwrap(), all);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = fake_gpu::nvml(folder.path()) else { return };
    let more = [("FAKE_GPUS", "3"), ("FAKE_GPU_BUSY", "35")];
    let ran = again("nvml_tells_which_gpus_there_are_and_how_busy", &[(fake_gpu::NVML, &library)], &more);
    assert!(ran.status.success(), "{}", text(&ran));
}

#[test]
fn without_nvml_nvidia_smi_is_asked_and_without_either_that_is_said() {
    if is_child() {
        match std::env::var("EXPECT").unwrap().as_str() {
            "smi" => {
                let all = gpus().unwrap();
                assert_eq!((all.len(), &all[0].name[..]), (1, "From smi"));
            }
            "error" => {
                let problem = Nvml::load().err().unwrap();
                assert!(problem.contains("error 9 of nvmlInit"), "{problem}");
            }
            _ if Path::new("/dev/nvidiactl").exists() => {
                assert!(matches!(gpus(), Err(NoGpus::NotTold(why)) if why.contains("cannot be loaded")));
            }
            _ => assert_eq!(gpus(), Err(NoGpus::NoDriver)),
        }
        return;
    }
    let name = "without_nvml_nvidia_smi_is_asked_and_without_either_that_is_said";
    let (nowhere, folder) = (Path::new("/nowhere/nvml.so"), tempfile::tempdir().unwrap());
    let path = folder.path();
    let none = again(name, &[(fake_gpu::NVML, nowhere), ("PATH", path)], &[("EXPECT", "none")]);
    assert!(none.status.success(), "{}", text(&none));
    fake_gpu::program(path, "nvidia-smi", "echo '0, GPU-x, From smi, 1000, 900'");
    let smi = again(name, &[(fake_gpu::NVML, nowhere), ("PATH", path)], &[("EXPECT", "smi")]);
    assert!(smi.status.success(), "{}", text(&smi));
    let Some(library) = fake_gpu::nvml(path) else { return };
    let more = [("EXPECT", "error"), ("FAKE_NVML_ERROR", "9")];
    let broken = again(name, &[(fake_gpu::NVML, &library)], &more);
    assert!(broken.status.success(), "{}", text(&broken));
}

fn alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // What has ended and was not waited for is there as well.
    stat.rsplit(") ").next().is_some_and(|rest| !stat.is_empty() && !rest.starts_with('Z'))
}

/// Whether a process ends within a time that is long enough on any machine.
fn ended(pid: &str) -> bool {
    let begun = Instant::now();
    while alive(pid) && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(10));
    }
    !alive(pid)
}

#[test]
fn the_multi_process_service_has_pipes_of_its_own_and_ends_with_its_servers() {
    if is_child() {
        let folder = std::env::var("FAKE_MPS").unwrap();
        let read = |name: &str| std::fs::read_to_string(Path::new(&folder).join(name)).unwrap();
        let (state, mps) = Mps::start();
        let mps = mps.expect("it starts");
        assert_eq!((&state, state.name()), (&MpsState::Started, "started"));
        let pids: Vec<String> = read("pids").split_whitespace().map(str::to_owned).collect();
        assert_eq!(pids[0], mps.pid().to_string());
        assert!(pids.iter().all(|pid| alive(pid)), "{pids:?}");
        let pipe = read("pipe").trim().to_owned();
        assert!(mps.variables().contains(&("CUDA_MPS_PIPE_DIRECTORY".into(), pipe.clone())));
        if std::env::var_os("END_HERE").is_some() {
            // As a launcher that is killed: nothing is dropped.
            std::mem::forget(mps);
            std::process::exit(0);
        }
        drop(mps);
        assert!(pids.iter().all(|pid| ended(pid)), "{pids:?}");
        assert!(!Path::new(&pipe).exists());
        return;
    }
    let name = "the_multi_process_service_has_pipes_of_its_own_and_ends_with_its_servers";
    let folder = tempfile::tempdir().unwrap();
    fake_gpu::program(folder.path(), "nvidia-cuda-mps-control", fake_gpu::MPS);
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
    let nobody = folder.path().join("no-pipes");
    let environment = [("FAKE_MPS", folder.path()), ("CUDA_MPS_PIPE_DIRECTORY", &nobody)];
    let ran = again(name, &environment, &[("PATH", &path)]);
    assert!(ran.status.success(), "{}", text(&ran));
    // The kernel ends it where nobody else does.
    let killed = again(name, &environment, &[("PATH", &path), ("END_HERE", "1")]);
    assert!(killed.status.success(), "{}", text(&killed));
    let pids = std::fs::read_to_string(folder.path().join("pids")).unwrap();
    assert!(ended(pids.split_whitespace().next().unwrap()), "it has outlived its parent");
}

#[test]
fn a_service_that_cannot_be_started_is_said_to_be_absent_and_one_that_runs_is_used() {
    if is_child() {
        let (state, mps) = Mps::start();
        assert!(mps.is_none());
        let expected = std::env::var("EXPECT").unwrap();
        assert!(format!("{state:?}").contains(&expected), "{state:?}");
        return;
    }
    let name = "a_service_that_cannot_be_started_is_said_to_be_absent_and_one_that_runs_is_used";
    let folder = tempfile::tempdir().unwrap();
    let (path, pipes) = (folder.path(), folder.path().join("pipes"));
    let try_it = |expected: &str| {
        let environment = [("PATH", path), ("CUDA_MPS_PIPE_DIRECTORY", &pipes)];
        let ran = again(name, &environment, &[("EXPECT", expected)]);
        assert!(ran.status.success(), "{expected}: {}", text(&ran));
    };
    try_it("is not on PATH");
    fake_gpu::program(path, "nvidia-cuda-mps-control", "exit 3");
    try_it("ended at once with exit status: 3");
    std::fs::create_dir(&pipes).unwrap();
    std::fs::write(pipes.join("control"), "").unwrap();
    try_it("Running");
}
