//! What a script takes is measured once, and answers for clusters that need not be there.

use std::path::PathBuf;
use std::process::Command;

use paceline_testing::fake_gpu;
use serde_json::Value;

use crate::script_studies::SCRIPT;
use crate::scripts::has_python;
use crate::support::{Ran, joined, run};

/// A folder with the script, and a library that tells of two GPUs.
struct Place(tempfile::TempDir, Option<PathBuf>);

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Each step takes longer than what it tells of: the rest is the way to the rank and back.
        let begin = "for step in range(args.steps):\n";
        let slower = SCRIPT.replace(begin, &format!("import time\n{begin}    time.sleep(0.003)\n"));
        assert_ne!(slower, SCRIPT);
        std::fs::write(folder.path().join("train.py"), slower).unwrap();
        let library = fake_gpu::nvml(folder.path());
        Self(folder, library)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, words: &str) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.args(words.split_whitespace()).current_dir(self.0.path()).env("PACELINE_PYTHON", "python3");
        command.envs(self.1.iter().map(|library| (fake_gpu::NVML, library)));
        command.env("CUDA_MPS_PIPE_DIRECTORY", self.path("no-pipes"));
        run(&mut command)
    }

    fn result(&self, words: &str) -> Value {
        let ran = self.run(words);
        assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
        ran.result()
    }

    fn refused(&self, words: &str) -> String {
        let ran = self.run(words);
        assert_ne!(ran.code, 0, "{words}: {}", ran.stdout);
        joined(&ran.stderr)
    }
}

const CLUSTER: &str = "[[host]]\ncount = 8\ncores = 2\nbandwidth = \"25gbit\"\nlatency = \"20us\"\n";

const STUDY: &str = r#"
sampler = "grid"
[workload]
script = "train.py"
args = "--steps 12"
[axes]
workers = [1, 2]
[[objectives]]
metric = "samples_per_s"
goal = "maximize"
[control]
every = 0
"#;

#[test]
fn a_measured_script_is_simulated_and_predicted_on_machines_that_are_not_there() {
    if !has_python() {
        return;
    }
    let place = Place::new();
    std::fs::write(place.path("cloud.toml"), CLUSTER).unwrap();
    std::fs::write(place.path("study.toml"), STUDY).unwrap();
    // A mistake in the script is told with its own words, and nothing is written of it.
    std::fs::write(place.path("bad.py"), "raise ValueError('no such thing')").unwrap();
    let told = place.refused("calibrate --quick --script bad.py --out here.toml");
    assert!(told.contains("bad.py could not be measured") && told.contains("no such thing"), "{told}");
    let text = std::fs::read_to_string(place.path("here.toml")).unwrap();
    assert!(text.contains("[[transport]]") && !text.contains("[[script]]"), "the machine was measured");

    let measured = place.result("calibrate --script train.py --workers 1,2 --out here.toml -- --steps 12");
    let script = &measured["script"];
    // The script's own accounts: 10 µs of data, 50 forward, 105 backward and copying, always.
    let median = |name: &str| script[name][0].as_f64().unwrap();
    assert!((median("alone-s") - 1.65e-4).abs() < 2e-5, "{script}");
    assert!((median("pass-s") - 1.65e-4).abs() < 2e-5, "{script}");
    assert_eq!((&script["samples"], &script["total-samples"]), (&4.0.into(), &48.into()), "{script}");
    assert_eq!((&script["params"], &script["framework"]), (&210.into(), &"plain Python".into()), "{script}");
    // 5 µs of copying in each of 12 steps.
    assert!((script["staging-s"].as_f64().unwrap() - 5e-6).abs() < 1e-9, "{script}");
    let tensors = script["tensor"].as_array().unwrap();
    assert_eq!((&tensors[0][0], &tensors[1][0]), (&"weight".into(), &"bias".into()));
    assert!(tensors[0][2].as_f64() > tensors[1][2].as_f64(), "the bias is ready first: {script}");
    assert_eq!(script["sharing"][1]["processes"], 2, "{script}");
    let text = std::fs::read_to_string(place.path("here.toml")).unwrap();
    assert!(text.contains("[[script]]") && text.contains("[[transport]]"), "what was there stays");

    let alone = place.result("simulate --script train.py --calibration here.toml --jitter off -- --steps 12");
    assert_eq!((&alone["steps"], &alone["samples"]), (&12.into(), &48.into()), "{alone}");
    assert_eq!(alone["origin"], "simulated");
    let compute = alone["ranks"][0]["compute_s"].as_f64().unwrap();
    assert!((compute - 12.0 * median("alone-s")).abs() < 1e-7, "a worker alone copies nothing: {alone}");
    let eight = "simulate --script train.py --workers 8 --cluster cloud.toml --calibration here.toml";
    let far = place.result(&format!("{eight} --steps 40 --trace -- --steps 12"));
    assert_eq!((&far["steps"], &far["hosts"][0]["count"]), (&40.into(), &8.into()), "{far}");
    // A message there and back takes 20 µs each way at least.
    assert!(far["seconds"]["train"].as_f64().unwrap() > 40.0 * (1.65e-4 + 4e-5), "{far}");
    let explained = place.run(&format!("explain {}", far["run"].as_str().unwrap()));
    assert_eq!(explained.code, 0, "{}", explained.stderr);

    let predicted = place.run("predict study.toml --calibration here.toml --json");
    assert!(predicted.stderr.contains("predicted from the calibration"), "{}", predicted.stderr);
    assert_eq!(predicted.result()["points"].as_array().unwrap().len(), 2);

    // Other arguments are another script; what it would learn is not known; how long it trains must be.
    let other = place.refused(&format!("{eight} -- --steps 13"));
    assert!(other.contains("`paceline calibrate --script") && other.contains("-- --steps 13"), "{other}");
    let learning = place.refused(&format!("{eight} --learn -- --steps 12"));
    assert!(learning.contains("--learn") && learning.contains("computes its gradients itself"), "{learning}");
    place.result("calibrate --script train.py --steps 6 --out here.toml -- --steps 14");
    let open = place.refused("simulate --script train.py --calibration here.toml -- --steps 14");
    assert!(open.contains("--steps") && open.contains("was ended when it was measured"), "{open}");
    place.result("simulate --script train.py --calibration here.toml --steps 9 -- --steps 14");
    if place.1.is_some() {
        // Two workers on one GPU were measured, four were not: they go on along the line.
        let words =
            "calibrate --script train.py --gpus 0 --workers 2 --steps 8 --out here.toml -- --steps 16";
        let shared = &place.result(words)["script"];
        assert_eq!((&shared["gpus"], &shared["sharing"][1]["processes"]), (&1.into(), &2.into()), "{shared}");
        let four = "simulate --script train.py --workers 4 --calibration here.toml --steps 9";
        let ran = place.run(&format!("{four} --gpus 0 -- --steps 16"));
        let told = "4 workers of the script on one GPU: up to 2 were measured";
        assert!(ran.code == 0 && ran.stderr.contains(told), "{}", ran.stderr);
        let apart = place.run(&format!("{four} --gpus 0,1,2,3 -- --steps 16"));
        assert!(apart.code == 0 && !apart.stderr.contains("on one GPU"), "{}", apart.stderr);
    }
    let misplaced = place.refused("calibrate --workers 2");
    assert!(misplaced.contains("--script"), "{misplaced}");
}
