//! `cargo xtask test`: everything that decides whether a change is right.

use std::process::{Command, Stdio};

use crate::docs;
use crate::process::{self, Outcome, cargo, exists};

/// Debian packages that tests read from.
const PACKAGES: &[&str] = &["dataset-fashion-mnist"];

/// The one profile that everything is built with.
const PROFILE: &str = "checked";

/// Installs what is missing, then checks and tests.
pub fn run() -> Outcome {
    packages(PACKAGES)?;
    process::run(&mut cargo(&["fmt", "--all", "--check"]))?;
    println!("$ cargo xtask docs --check");
    docs::check()?;
    process::run(&mut cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--profile",
        PROFILE,
        "--",
        "-D",
        "warnings",
    ]))?;
    // Doc tests first: the last summary printed is that of the tests proper.
    process::run(&mut cargo(&["test", "--workspace", "--profile", PROFILE, "--doc"]))?;
    if exists("cargo-nextest", "--version") {
        process::run(&mut cargo(&["nextest", "run", "--workspace", "--cargo-profile", PROFILE]))?;
    } else {
        println!("cargo-nextest is not here: plain `cargo test`, without the 120 s limit for hung tests");
        process::run(&mut cargo(&["test", "--workspace", "--profile", PROFILE, "--all-targets"]))?;
    }
    Ok(())
}

/// Installs Debian packages where they are missing; without the right to, says how.
pub fn packages(names: &[&str]) -> Outcome {
    let installed = |name: &&&str| {
        let query = Command::new("dpkg-query")
            .args(["--show", "--showformat=${db:Status-Status}", name])
            .stderr(Stdio::null())
            .output();
        query.is_ok_and(|out| out.stdout == b"installed")
    };
    let missing: Vec<&str> = names.iter().filter(|name| !installed(name)).copied().collect();
    if missing.is_empty() {
        return Ok(());
    }
    let command = format!("apt-get update && apt-get install -y {}", missing.join(" "));
    let id = Command::new("id").arg("-u").output().map_err(|error| format!("id: {error}"))?;
    if id.stdout.trim_ascii() != b"0" {
        return Err(format!("the tests need Debian packages; as root: {command}"));
    }
    process::run(Command::new("sh").args(["-c", &command]).env("DEBIAN_FRONTEND", "noninteractive"))
}
