//! Running other programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A step that failed, in words.
pub type Outcome<T = ()> = Result<T, String>;

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_owned()
}

/// `cargo` as it was started, in the repository's root.
pub fn cargo(words: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(words).current_dir(root());
    command
}

/// The program as `cargo build --release` leaves it.
pub fn program() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    target.join("release/paceline")
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

/// Runs a command to its end, its output going to the terminal.
pub fn run(command: &mut Command) -> Outcome {
    let shown = show(command);
    println!("$ {shown}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{shown}` failed: {status}")),
        Err(error) => Err(format!("`{shown}` could not be started: {error}")),
    }
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

/// Whether a program can be started.
pub fn exists(program: &str, probe: &str) -> bool {
    let status = Command::new(program).arg(probe).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
