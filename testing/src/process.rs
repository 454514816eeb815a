//! Running other programs.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A step that failed, in words.
pub type Outcome<T = ()> = Result<T, String>;

/// The one profile that tests and developers' tools are built with.
pub const PROFILE: &str = "checked";

/// The repository's root; the current folder where a program was carried away from its repository.
pub fn root() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it lies in the repository");
    root_or(built, std::env::current_dir)
}

fn root_or(built: &Path, here: impl FnOnce() -> std::io::Result<PathBuf>) -> PathBuf {
    if built.join("Cargo.toml").is_file() { built.into() } else { here().unwrap_or_else(|_| ".".into()) }
}

/// Where cargo builds.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// `cargo` as it was started, in the repository's root.
pub fn cargo(words: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(words).current_dir(root());
    // Set by `cargo run` for us. Build scripts look at them: packages would be built again at every change from
    // `cargo xtask` to plain `cargo` and back.
    for (name, _) in std::env::vars_os() {
        let known = name.to_string_lossy();
        if known.starts_with("CARGO_PKG_") || known.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs a command to its end, its output going to the terminal.
pub fn run(command: &mut Command) -> Outcome {
    let shown = announce(command);
    ended(&shown, command.status())
}

/// Runs a command that is killed at a time limit.
pub fn run_within(limit: Duration, command: &mut Command) -> Outcome {
    let shown = announce(command);
    let mut child = command.spawn().map_err(|error| format!("`{shown}` could not be started: {error}"))?;
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(None) if begun.elapsed() < limit => std::thread::sleep(Duration::from_millis(50)),
            Ok(None) => {
                // An error means that it has just ended.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("`{shown}` took longer than {} s", limit.as_secs()));
            }
            Ok(Some(status)) => return ended(&shown, Ok(status)),
            Err(error) => return ended(&shown, Err(error)),
        }
    }
}

/// Prints a command as it would be typed.
pub fn announce(command: &Command) -> String {
    let shown = show(command);
    println!("$ {shown}");
    shown
}

fn ended(shown: &str, status: std::io::Result<ExitStatus>) -> Outcome {
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{shown}` failed: {status}")),
        Err(error) => Err(format!("`{shown}` could not be started: {error}")),
    }
}

/// Whether a file of this name lies in a folder of `PATH`.
pub fn in_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Whether a program can be started.
pub fn exists(program: &str, probe: &str) -> bool {
    let status = Command::new(program).arg(probe).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// A command's words.
pub fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_is_started_without_what_a_run_of_cargo_sets() {
        // Tests are started by cargo, which has set them here too.
        let removed: Vec<_> = cargo(&["build"])
            .get_envs()
            .filter(|(_, value)| value.is_none())
            .map(|(name, _)| name.to_string_lossy().into_owned())
            .collect();
        for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION"] {
            assert!(removed.iter().any(|removed| removed == name), "{name}: {removed:?}");
        }
    }

    #[test]
    fn a_program_away_from_its_repository_works_in_the_current_folder() {
        let here = || Ok("/elsewhere".into());
        assert_eq!(root_or(&root(), here), root());
        assert_eq!(root_or(Path::new("/nonexistent/repository"), here), Path::new("/elsewhere"));
    }

    #[test]
    fn a_command_that_takes_too_long_is_killed() {
        let late = run_within(Duration::from_millis(100), Command::new("sleep").arg("600"));
        assert_eq!(late, Err("`sleep 600` took longer than 0 s".to_owned()));
        assert_eq!(run_within(Duration::from_secs(60), &mut Command::new("true")), Ok(()));
        assert!(run_within(Duration::from_secs(60), &mut Command::new("false")).is_err());
        assert!(run_within(Duration::from_secs(60), &mut Command::new("/nonexistent")).is_err());
    }
}
