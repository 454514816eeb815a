//! Running other programs.

use std::path::PathBuf;
use std::process::{Command, Stdio};

pub use paceline_testing::process::{Outcome, cargo, root, run};
use paceline_testing::process::{show, target};

/// The program as `cargo build --release` leaves it.
pub fn program() -> PathBuf {
    target().join("release/paceline")
}

/// Lets a command find the datasets that lie beside the checkout, unless it was told of others.
pub fn with_data(command: &mut Command) {
    let shared = root().join("../shared/data");
    if std::env::var_os("PACELINE_DATA").is_none() && shared.is_dir() {
        command.env("PACELINE_DATA", shared);
    }
}

/// The CPU's name and number of cores: a figure without its machine says little.
pub fn machine() -> serde_json::Value {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    let cores = info.lines().filter(|line| line.starts_with("processor")).count();
    serde_json::json!({"cpu": model.trim_start_matches([' ', '\t', ':']), "cores": cores})
}

/// The commit that is checked out; empty where that cannot be said.
pub fn commit() -> String {
    let git = Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(root()).output();
    git.map(|said| String::from_utf8_lossy(&said.stdout).trim().to_owned()).unwrap_or_default()
}

/// Runs a command and returns the last line of its standard output, as JSON.
pub fn last_json(command: &mut Command) -> Outcome<serde_json::Value> {
    let shown = show(command);
    let output = command.stderr(Stdio::piped()).output();
    let output = output.map_err(|error| format!("`{shown}` could not be started: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{shown}` failed: {}\n{errors}", output.status));
    }
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    serde_json::from_str(last)
        .map_err(|error| format!("`{shown}`: its last line is no JSON ({error}): {last}"))
}
