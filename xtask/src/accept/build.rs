//! What building and testing a fresh clone of `HEAD` takes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use paceline_record::process::children_cpu_seconds;
use serde_json::{Value, json};

use super::{Line, Report, Setup, number};
use crate::process::{self, Outcome, cargo, commit, machine, root};

/// What can be measured alone.
pub const PARTS: &[&str] = &["release", "test", "warm"];

/// The name of the measurement, and of its raw runs.
pub const NAME: &str = "build";

/// Builds a release, runs the tests, and runs them again. Runs of parts that are not measured now are kept.
pub fn measure(setup: &Setup) -> Outcome<Report> {
    let wanted = |part: &str| setup.only.as_deref().is_none_or(|only| only == part);
    let checkout = Checkout::new()?;
    let mut runs = earlier(setup)?;
    runs.retain(|run| !run["part"].as_str().is_some_and(wanted));
    if wanted("release") {
        let mut run = checkout.time("release", &["build", "--release"])?;
        run["stripped_bytes"] = checkout.stripped()?.into();
        runs.push(run);
    }
    // Warm is what follows a cold one.
    if wanted("test") || wanted("warm") {
        let cold = checkout.time("test", &["xtask", "test"])?;
        if wanted("test") {
            runs.push(cold);
        }
    }
    if wanted("warm") {
        runs.push(checkout.time("warm", &["xtask", "test"])?);
    }
    runs.sort_by_key(|run| PARTS.iter().position(|part| run["part"] == *part));
    Ok(Report { lines: lines(&runs)?, runs })
}

/// The lines of the parts that were measured, with the commit of each.
fn lines(runs: &[Value]) -> Outcome<Vec<Line>> {
    let mut lines = Vec::new();
    for run in runs {
        let at = run["commit"].as_str().unwrap_or_default();
        let mut line = |claim: &str, reached: f64, wanted: f64| {
            lines.push(Line { claim: format!("{claim}, at {at}"), reached, wanted, at_most: true });
        };
        let minutes = |path: &str| Ok::<_, String>(number(run, path)? / 60.0);
        match run["part"].as_str() {
            Some("release") => {
                line("cold release build: CPU minutes", minutes("/cpu_s")?, 7.0);
                line("stripped binary: MB", number(run, "/stripped_bytes")? / 1e6, 25.0);
            }
            Some("test") => line("cold `cargo xtask test`: CPU minutes", minutes("/cpu_s")?, 30.0),
            Some("warm") => line("warm `cargo xtask test`, 2 idle cores: minutes", minutes("/wall_s")?, 12.0),
            other => return Err(format!("{NAME} has no part {other:?}")),
        }
    }
    Ok(lines)
}

/// The runs that are kept.
fn earlier(setup: &Setup) -> Outcome<Vec<Value>> {
    let path = setup.out.join(format!("{NAME}.json"));
    if !path.exists() {
        return Ok(Vec::new());
    }
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = fs::read_to_string(&path).map_err(|error| failed(&error))?;
    let document: Value = serde_json::from_str(&text).map_err(|error| failed(&error))?;
    Ok(document["runs"].as_array().cloned().unwrap_or_default())
}

/// A clone of `HEAD` with a target folder of its own; removed when dropped.
struct Checkout(PathBuf);

impl Checkout {
    fn new() -> Outcome<Self> {
        let checkout = Self(std::env::temp_dir().join(format!("paceline-build-{}", std::process::id())));
        process::run(Command::new("git").args(["clone", "--quiet"]).arg(root()).arg(&checkout.0))?;
        Ok(checkout)
    }

    /// Runs cargo in the clone.
    fn time(&self, part: &str, words: &[&str]) -> Outcome<Value> {
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load: f64 = load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0);
        if load > 0.5 {
            println!("     the machine is not idle: a load of {load} before `{part}`");
        }
        let mut command = cargo(words);
        if part == "warm" {
            command = on_two_cores(&command);
        }
        let (cpu, begun) = (children_cpu_seconds(), Instant::now());
        // Neither what was built elsewhere nor what a user has set is part of a stranger's clone.
        command.current_dir(&self.0).env_remove("RUSTC_WRAPPER").env_remove("PACELINE_DATA");
        process::run(command.env("CARGO_TARGET_DIR", self.0.join("target")))?;
        Ok(json!({
            "part": part, "command": format!("cargo {}", words.join(" ")), "commit": commit(), "machine": machine(),
            "load_before": load, "wall_s": begun.elapsed().as_secs_f64(), "cpu_s": children_cpu_seconds() - cpu,
        }))
    }

    /// Bytes of the program without symbols.
    fn stripped(&self) -> Outcome<u64> {
        let (program, stripped) = (self.0.join("target/release/paceline"), self.0.join("target/stripped"));
        process::run(Command::new("strip").arg("-o").arg(&stripped).arg(&program))?;
        let file = fs::metadata(&stripped).map_err(|error| format!("{}: {error}", stripped.display()))?;
        Ok(file.len())
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("xtask: {}: {error}", self.0.display());
        }
    }
}

/// The command with its words and variables, on the first two cores that this process may use.
fn on_two_cores(command: &Command) -> Command {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or("0-1");
    let mut pinned = Command::new("taskset");
    pinned.arg("--cpu-list").arg(first_two(allowed)).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => pinned.env(name, value),
            None => pinned.env_remove(name),
        };
    }
    pinned
}

/// Of a list like `3,5-7`: `3,5`.
fn first_two(list: &str) -> String {
    let numbers = list.trim().split(',').flat_map(|range| {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        from.parse().unwrap_or(0)..=to.parse::<usize>().unwrap_or(0)
    });
    numbers.take(2).map(|core| core.to_string()).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_run_has_two_of_the_cores_that_are_allowed() {
        for (list, two) in [("\t0-15", "0,1"), ("3,5-7\n", "3,5"), ("1-1,9", "1,9"), ("4", "4")] {
            assert_eq!(first_two(list), two);
        }
        let pinned = on_two_cores(Command::new("cargo").args(["xtask", "test"]).env_remove("A"));
        assert!(paceline_testing::process::show(&pinned).ends_with(" cargo xtask test"), "{pinned:?}");
        assert_eq!(pinned.get_envs().count(), 1);
    }

    #[test]
    fn each_part_has_its_lines_and_names_its_commit() {
        let release =
            json!({"part": "release", "commit": "a1", "cpu_s": 300.0, "stripped_bytes": 24_000_000});
        let warm = json!({"part": "warm", "commit": "b2", "cpu_s": 9000.0, "wall_s": 780.0});
        let lines = lines(&[release, warm]).unwrap();
        let said: Vec<_> = lines.iter().map(|l| (l.claim.as_str(), l.reached, l.holds())).collect();
        assert_eq!(
            said,
            [
                ("cold release build: CPU minutes, at a1", 5.0, true),
                ("stripped binary: MB, at a1", 24.0, true),
                ("warm `cargo xtask test`, 2 idle cores: minutes, at b2", 13.0, false),
            ]
        );
        assert!(super::lines(&[json!({"part": "debug"})]).is_err());
    }
}
