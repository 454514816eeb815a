//! `cargo xtask test`: everything that decides whether a change is right.
//!
//! Tests run as on a stranger's machine: without the user's datasets, store and key. With `PACELINE_DATA` set, those
//! that were skipped for want of real datasets are run once more with it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use paceline_testing::process::{Outcome, PROFILE, announce, cargo, exists, run, target};
use paceline_testing::{Need, SKIPS, install};

use crate::tally::Tally;

/// Debian packages that tests use: what they read from, and engines that start processes. A group is there or it is not.
const PACKAGES: &[&[&str]] =
    &[&["dataset-fashion-mnist"], &["openmpi-bin"], &["munge", "slurmctld", "slurmd", "slurm-client"]];

/// What a user may have set for runs of their own.
const SETTINGS: &[&str] = &["PACELINE_DATA", "PACELINE_STORE", "PACELINE_MIRROR", "PACELINE_KEY_FILE"];

/// Installs what is missing where the user may, then checks and tests.
pub fn whole() -> Outcome<ExitCode> {
    let mut settings = vec![
        installed(install::PYTHON, install::readers()),
        installed(install::LINTERS, install::linters()),
        installed(install::BROWSER, install::browser()),
    ];
    for missing in PACKAGES.iter().filter_map(|group| install::packages(group).err()) {
        println!("{missing}");
    }
    format()?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--profile", PROFILE, "--", "-D", "warnings"];
    run(&mut cargo(&clippy))?;
    run(&mut cargo(&["test", "--workspace", "--profile", PROFILE, "--doc"]))?;
    let mut tally = tests("default", &settings, &BTreeSet::new())?;
    if let Some(data) = std::env::var_os("PACELINE_DATA") {
        let names: BTreeSet<String> = tally.lacking(Need::Datasets).into_iter().map(Into::into).collect();
        if !names.is_empty() {
            println!("\nOnce more with real datasets ({}): {} tests", data.display(), names.len());
            settings.push(("PACELINE_DATA".into(), data.into()));
            tally.replace(tests("default", &settings, &names)?, &names);
        }
    }
    Ok(close(&tally))
}

/// Checks the format and runs the fast tests: the profile `quick` of `.config/nextest.toml`.
pub fn quick() -> Outcome<ExitCode> {
    format()?;
    if !exists("cargo-nextest", "--version") {
        return Err(
            "--quick needs cargo-nextest (cargo install cargo-nextest); cargo xtask test does without".into(),
        );
    }
    let tally = tests("quick", &[], &BTreeSet::new())?;
    println!("\nSlow tests were left out (.config/nextest.toml): cargo xtask test runs them.");
    Ok(close(&tally))
}

fn format() -> Outcome {
    run(&mut cargo(&["fmt", "--all", "--check"]))
}

fn close(tally: &Tally) -> ExitCode {
    print!("\n{}", tally.summary());
    if tally.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A setting of the tests: where something was installed, or why it was not.
fn installed(variable: &str, place: Outcome<PathBuf>) -> (String, PathBuf) {
    match place {
        Ok(place) => (variable.into(), place),
        Err(missing) => {
            println!("{missing}");
            (format!("{variable}{}", install::MISSING), missing.into())
        }
    }
}

/// Runs all tests of a nextest profile, or those of these names.
fn tests(profile: &str, settings: &[(String, PathBuf)], names: &BTreeSet<String>) -> Outcome<Tally> {
    let nextest = exists("cargo-nextest", "--version");
    let mut command = if nextest {
        let mut command =
            cargo(&["nextest", "run", "--workspace", "--cargo-profile", PROFILE, "--profile", profile]);
        if !names.is_empty() {
            let each: Vec<String> = names.iter().map(|name| format!("test(={name})")).collect();
            command.arg("--filterset").arg(each.join(" | "));
        }
        command
    } else {
        println!("cargo-nextest is not here: plain `cargo test`, without the time limit for hung tests");
        let mut command =
            cargo(&["test", "--workspace", "--profile", PROFILE, "--all-targets", "--no-fail-fast"]);
        if !names.is_empty() {
            command.args(["--", "--exact"]).args(names);
        }
        command
    };
    let (skips, home) = (target().join("skipped.tsv"), target().join("tmp/home"));
    let bad = |path: &PathBuf, error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(&home).map_err(|error| bad(&home, error))?;
    fs::write(&skips, "").map_err(|error| bad(&skips, error))?;
    for name in SETTINGS {
        command.env_remove(name);
    }
    // Datasets in the user's data directory are not a stranger's.
    command
        .env("XDG_DATA_HOME", &home)
        .env(SKIPS, &skips)
        .envs(settings.iter().map(|(name, value)| (name, value)));
    let report = target().join("nextest").join(profile).join("junit.xml");
    // The report of an earlier run says nothing of this one.
    let _ = fs::remove_file(&report);
    let (ran, output) = if nextest { (run(&mut command), String::new()) } else { echoed(&mut command)? };
    let skips = fs::read_to_string(&skips).map_err(|error| bad(&skips, error))?;
    let tally = if nextest {
        let report = fs::read_to_string(&report).map_err(|error| bad(&report, error));
        report.and_then(|report| Tally::from_junit(&report, &skips))
    } else {
        Ok(Tally::from_cargo(&output, &skips))
    };
    match (ran, tally) {
        // A build that failed, or a program that ended without a word of its tests.
        (Err(message), Ok(tally)) if tally.is_good() => Err(message),
        (Err(message), Err(_)) => Err(message),
        (_, tally) => tally,
    }
}

/// Runs a command; what it prints goes to the terminal and is returned.
fn echoed(command: &mut Command) -> Outcome<(Outcome, String)> {
    let shown = announce(command);
    let failed = |error: std::io::Error| format!("`{shown}`: {error}");
    let (reader, writer) = std::io::pipe().map_err(failed)?;
    command.stdin(Stdio::null()).stdout(writer.try_clone().map_err(failed)?).stderr(writer);
    let mut child = command.spawn().map_err(failed)?;
    // The ends of the pipe that the command holds would keep it open.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut text = String::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.map_err(failed)?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        text += &line;
        text.push('\n');
    }
    let status = child.wait().map_err(failed)?;
    let ran = if status.success() { Ok(()) } else { Err(format!("`{shown}` failed: {status}")) };
    Ok((ran, text))
}
