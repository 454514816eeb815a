//! `examples/three-nodes`: three nodes as network namespaces with limits, and what the record says of each beside what
//! the kernel counted; the files for Docker, checked by linters.

use std::path::{Path, PathBuf};
use std::process::Command;

use paceline_testing::install::{LINTERS, reason};
use paceline_testing::process::root;
use paceline_testing::{Need, has_network_namespaces, has_programs, skip};
use serde_json::Value;

use crate::control_groups::ControlGroup;
use crate::machines::PROGRAM;
use crate::support::{joined, paceline, run};

/// Half a core, and what 512 MiB are.
const LIMITS: (f64, f64) = (0.5, 536_870_912.0);

fn example(file: &str) -> PathBuf {
    root().join("examples/three-nodes").join(file)
}

/// Whether two figures are within 5%, said with what they are.
fn close(what: &str, recorded: f64, kernel: f64) {
    let off = (recorded / kernel - 1.0).abs();
    assert!(off < 0.05, "{what}: the record says {recorded}, the kernel {kernel}");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2]
}

#[test]
fn what_is_recorded_of_each_node_is_what_its_control_group_and_interface_count() {
    if !has_network_namespaces() || !has_programs(&["tc", "nsenter", "awk", "dd", "mktemp"]) {
        return;
    }
    if ControlGroup::new(&["cpu", "memory"]).is_none() {
        return;
    }
    // On a disk: memory that looks like one is not counted.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = folder.path().join("store").display().to_string();
    let words =
        "--quiet --model lenet --data synthetic --steps 45 --batch 256 --eval-every 100000 --sample-hz 20";
    let name = format!("paceline-trio-test-{}", std::process::id());
    let ran = run(Command::new("sh")
        .arg(example("three-nodes.sh"))
        .args([PROGRAM, &store])
        .args(words.split(' '))
        .envs([("RATE", "1gbit"), ("WRITE_MB", "128"), ("NAME", &name)]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let lines: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [result, nodes @ ..] = &lines[..] else { panic!("{}", ran.stdout) };
    assert_eq!((&result["type"], nodes.len()), (&"result".into(), 3), "{}", ran.stdout);
    assert_eq!(result["ranks"].as_array().unwrap().len(), 3);

    let exported = paceline(&format!("export last --format json --store {store}"));
    let tables = serde_json::from_str::<Value>(&exported.stdout).unwrap()["tables"].clone();
    let shown = paceline(&format!("show last --json --store {store}")).result();
    for (i, node) in nodes.iter().enumerate() {
        let samples: Vec<&Value> =
            tables["samples"].as_array().unwrap().iter().filter(|row| row["rank"] == i).collect();
        let column =
            |name: &str| -> Vec<f64> { samples.iter().filter_map(|row| row[name].as_f64()).collect() };
        let last = |name: &str| *column(name).last().unwrap_or_else(|| panic!("{name} of node {i}"));
        let kernel = |name: &str| node[name].as_f64().unwrap();
        close("CPU time", last("cgroup_cpu_s"), kernel("cpu_s"));
        close("memory", median(column("cgroup_memory_bytes")), kernel("memory_median_bytes"));
        assert_eq!((last("cgroup_cpu_limit"), last("cgroup_memory_limit_bytes")), LIMITS);
        let address = format!("({})", node["address"].as_str().unwrap());
        let interfaces = tables["interfaces"].as_array().unwrap();
        let own =
            |row: &&Value| row["interface"] == "eth0" && row["host"].as_str().unwrap().contains(&address);
        let wire = interfaces.iter().rfind(own).unwrap();
        for name in ["received_bytes", "sent_bytes"] {
            close(name, wire[name].as_f64().unwrap(), kernel(name));
        }
        match kernel("disk_write_bytes") {
            0.0 => skip(Need::System, "a disk that control groups count"),
            written => close("disk", last("cgroup_disk_write_bytes"), written),
        }
        // As `docker stats` would: the same figures, while the run trained.
        let summary = &shown["nodes"][i];
        assert!(summary["host"].as_str().unwrap().contains(&address), "{summary}");
        let used = last("cgroup_cpu_s") - column("cgroup_cpu_s")[0];
        assert!((summary["cpu_s"].as_f64().unwrap() - used).abs() < 1e-6, "{summary}");
        assert_eq!(summary["cpu_limit"], LIMITS.0, "{summary}");
        assert!(summary["sent_bytes"].as_f64().unwrap() > 1e8, "{summary}");
        // A quota holds over time, but for the part of a period that was begun.
        assert!(summary["cpu_percent"].as_f64().unwrap() < 60.0, "{summary}");
    }
    let text = paceline(&format!("show last --store {store}")).stdout;
    assert!(text.contains("\nMachines\n") && text.contains("(10.78.0.3)"), "{text}");
    let left = Command::new("ip").args(["netns", "list"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&left.stdout).contains(&name), "namespaces are left");
}

#[test]
fn the_script_says_how_it_is_used() {
    let ran = run(Command::new("sh").arg(example("three-nodes.sh")));
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(joined(&ran.stderr).contains("usage: three-nodes.sh PROGRAM STORE"), "{}", ran.stderr);
}

/// What must hold of the compose file beyond being YAML.
const COMPOSE: &str = r#"
import sys, yaml
from pathlib import Path
path = Path(sys.argv[1])
document = yaml.safe_load(path.read_text())
services = document["services"]
assert list(services) == ["node0", "node1", "node2"], services
for rank, (name, node) in enumerate(services.items()):
    environment = node["environment"]
    assert environment["RANK"] == str(rank) and environment["WORLD_SIZE"] == str(len(services)), name
    assert environment["MASTER_ADDR"] in services and environment["MASTER_PORT"].isdigit(), name
    assert all(isinstance(value, str) for value in environment.values()), name
    assert node["volumes"] == ["store:/store"] and "store" in document["volumes"], name
    assert node["cpus"] == 0.5 and node["mem_limit"] == "512m", name
    context = (path.parent / node["build"]["context"]).resolve()
    assert (context / "Cargo.lock").is_file() and (context / node["build"]["dockerfile"]).is_file(), name
    print(node["command"])
"#;

#[test]
fn the_files_for_docker_please_their_linters() {
    let Some(python) = std::env::var_os(LINTERS).map(PathBuf::from) else {
        return skip(Need::PythonPackages, reason(LINTERS));
    };
    let check = |command: &mut Command| {
        let ran = run(command);
        assert_eq!(ran.code, 0, "{command:?}: {}{}", ran.stdout, ran.stderr);
        ran.stdout
    };
    let beside = |name: &str| python.with_file_name(name);
    check(Command::new(beside("hadolint")).arg(example("Dockerfile")));
    let rules = "{extends: default, rules: {line-length: {max: 130}}}";
    check(Command::new(beside("yamllint")).args(["--strict", "-d", rules]).arg(example("compose.yaml")));
    let commands = check(Command::new(&python).args(["-c", COMPOSE]).arg(example("compose.yaml")));
    for command in commands.lines() {
        // What the containers are told is what the program takes.
        let ran = paceline(&format!("{command} --engine none --dry-run").replace("--engine torchrun ", ""));
        assert_eq!(ran.code, 0, "{command}: {}", ran.stderr);
    }
    let dockerfile = std::fs::read_to_string(example("Dockerfile")).unwrap();
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap();
    let image = format!("FROM rust:{}-", version.trim_matches('"'));
    assert!(dockerfile.contains(&image), "the compiler of the image: {image}");
    assert!(Path::new(&example("README.md")).is_file());
}
