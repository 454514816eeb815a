//! Other systems beside ours in one study (`paceline init --peer`): each ends well and gives the same figures.
//! `docs/peers.md` is made from the runs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use paceline_testing::process::{run_within, show};
use serde_json::{Map, Value, json};

use super::{Line, Report, Setup, peers};
use crate::process::Outcome;

/// Peers that the study always has.
const PEERS: [&str; 2] = ["torch-ddp", "tf-ps"];

/// What pip builds from source: the study has it where that works.
const BUILT: &str = "horovod";

/// Longest that building it may take.
const BUILD_LIMIT: Duration = Duration::from_secs(900);

/// How often `init` has each system run; `--rounds` says otherwise.
const REPEATS: u64 = 5;

/// Figures that every system has: fewer would be a name that has changed on one side only.
const FIGURES: f64 = 15.0;

/// Makes the study of all systems that are here.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let left_out = built(setup).err();
    let all: Vec<&str> = PEERS.into_iter().chain(left_out.is_none().then_some(BUILT)).collect();
    if let Some(why) = &left_out {
        println!("     without {BUILT}: {why}");
    }
    let folder = setup.work("peers");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let program = || {
        let mut program = setup.program();
        program.current_dir(&folder).env("PACELINE_STORE", "store");
        program.env("PACELINE_PYTHON", peers::python(setup));
        program
    };
    stdout(program().args(["init", "--peer", &all.join(","), "peers.toml"]))?;
    let repeats = setup.rounds.unwrap_or(REPEATS);
    let text = edited(&folder.join("peers.toml"), repeats)?;
    let run = |words: &[&str]| {
        let mut command = Command::new(peers::python(setup));
        stdout(
            command.arg(folder.join("peers-peers/run.py")).arg("--paceline").arg(&setup.binary).args(words),
        )
    };
    let versions: Value = serde_json::from_str(run(&["--prepare"])?.trim()).map_err(|e| e.to_string())?;
    let load = || fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned();
    let before = load();
    let told = stdout(program().args(["explore", "peers.toml", "--json", "--quiet"]))?;
    let version = stdout(program().arg("--version"))?.trim().to_owned();
    // A program with assertions on is slower: the folder that cargo leaves it in is its profile.
    let profile = setup.binary.parent().and_then(Path::file_name).map(|name| name.to_string_lossy());
    let about = json!({
        "paceline": version, "profile": profile, "versions": versions, "load": [before, load()],
        "left_out": left_out.map(|why| json!({BUILT: why})), "study": text,
    });
    let mut runs = vec![about];
    runs.extend(told.lines().filter_map(|line| kept(&serde_json::from_str(line).ok()?)));
    let lines = judged(&all, repeats, &runs)?;
    Ok(Report { lines, runs })
}

/// A run of the study, as it is kept.
fn kept(told: &Value) -> Option<Value> {
    let levels = told.get("levels").filter(|_| told["type"] == "run")?;
    Some(json!({
        "id": told["id"], "role": told["role"], "repeat": told["repeat"], "system": levels["system"],
        "model": levels["model"], "end": told["end"],
    }))
}

fn judged(peers: &[&str], repeats: u64, runs: &[Value]) -> Outcome<Vec<Line>> {
    let points: Vec<&Value> = runs.iter().filter(|run| run["role"] == "point").collect();
    let systems: BTreeSet<&str> = points.iter().filter_map(|run| run["system"].as_str()).collect();
    let well = |run: &&&Value| run["end"]["state"] == "ok";
    let mut lines = vec![Line::new("peers in one study with ours", peers.len() as f64, 2.0, false)];
    for system in &systems {
        let of_system = points.iter().filter(|run| run["system"] == *system).filter(well).count();
        let claim = format!("{system}: runs that ended well");
        lines.push(Line::new(&claim, of_system as f64, repeats as f64, false));
    }
    let figures = points.iter().filter_map(|run| run["end"]["metrics"].as_object());
    let names = |metrics: &Map<String, Value>| metrics.keys().cloned().collect::<BTreeSet<String>>();
    let common = figures.map(names).reduce(|a, b| &a & &b).unwrap_or_default();
    lines.push(Line::new("figures that every run of every system has", common.len() as f64, FIGURES, false));
    let page = crate::docs::peers_page(&json!({"runs": runs}))?;
    let shown = systems.iter().filter(|system| page.contains(&format!("| {system} |"))).count();
    lines.push(Line::new(
        "systems on the page made from the runs",
        shown as f64,
        peers.len() as f64 + 3.0,
        false,
    ));
    Ok(lines)
}

/// The study file with as many repeats.
fn edited(file: &Path, repeats: u64) -> Outcome<String> {
    let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let text = fs::read_to_string(file).map_err(|error| wrong(&error))?;
    let edited = text.replace(&format!("repeats = {REPEATS}\n"), &format!("repeats = {repeats}\n"));
    if !edited.contains(&format!("repeats = {repeats}\n")) {
        return Err(wrong(&"it is not what `init --peer` wrote when this measurement was made"));
    }
    fs::write(file, &edited).map_err(|error| wrong(&error))?;
    // Paths of this machine mean nothing elsewhere.
    Ok(edited.lines().filter(|line| !line.contains("run.py")).collect::<Vec<_>>().join("\n") + "\n")
}

/// Makes sure that Horovod can be imported; builds it where that is allowed.
fn built(setup: &Setup) -> Outcome {
    let python = peers::python(setup);
    let works = || {
        let tried = Command::new(&python).args(["-c", "import horovod.torch"]).output();
        tried.is_ok_and(|out| out.status.success())
    };
    if !works() && setup.installs && setup.python.is_none() {
        let pip = |words: &[&str]| {
            let mut command = Command::new(&python);
            command.args(["-m", "pip", "install", "--quiet"]).args(words);
            // It finds cmake beside Python.
            let path = std::env::var("PATH").unwrap_or_default();
            let bin = python.parent().unwrap_or(Path::new("")).display();
            command.env("PATH", format!("{bin}:{path}")).env("CMAKE_POLICY_VERSION_MINIMUM", "3.5");
            for (name, value) in [
                ("HOROVOD_WITH_GLOO", "1"),
                ("HOROVOD_WITHOUT_MPI", "1"),
                ("HOROVOD_WITH_PYTORCH", "1"),
                ("HOROVOD_WITHOUT_TENSORFLOW", "1"),
                ("HOROVOD_WITHOUT_MXNET", "1"),
            ] {
                command.env(name, value);
            }
            run_within(BUILD_LIMIT, &mut command)
        };
        pip(&["cmake", "setuptools", "wheel", "packaging"])?;
        pip(&["--no-build-isolation", BUILT]).map_err(|_| {
            format!(
                "pip could not build {BUILT} with this PyTorch (pip install --no-build-isolation {BUILT})"
            )
        })?;
    }
    if works() { Ok(()) } else { Err(format!("{BUILT}.torch cannot be imported")) }
}

/// What a program prints; it must end well.
fn stdout(command: &mut Command) -> Outcome<String> {
    let shown = show(command);
    let ended = command.output().map_err(|error| format!("`{shown}` could not be started: {error}"))?;
    if !ended.status.success() {
        let errors = String::from_utf8_lossy(&ended.stderr);
        return Err(format!("`{shown}` failed: {}\n{errors}", ended.status));
    }
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}
