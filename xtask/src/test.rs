//! `cargo xtask test`: everything that decides whether a change is right.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::docs;
use crate::process::{self, Outcome, cargo, exists, root};

/// Debian packages that tests read from.
const PACKAGES: &[&str] = &["dataset-fashion-mnist"];

/// The one profile that everything is built with.
const PROFILE: &str = "checked";

/// Installs what is missing, then checks and tests.
pub fn run() -> Outcome {
    packages(PACKAGES)?;
    let (readers, browser) = (readers(), browser());
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
        process::run(readers.tell(browser.tell(&mut cargo(&[
            "nextest",
            "run",
            "--workspace",
            "--cargo-profile",
            PROFILE,
        ]))))?;
    } else {
        println!("cargo-nextest is not here: plain `cargo test`, without the 120 s limit for hung tests");
        let test = ["test", "--workspace", "--profile", PROFILE, "--all-targets"];
        process::run(readers.tell(browser.tell(&mut cargo(&test))))?;
    }
    Ok(())
}

/// What reads the exports: TensorBoard's own reader and pyarrow, by name from PyPI.
const READERS: &[&str] = &["tensorboard", "pyarrow"];

/// A Python that has the [`READERS`]; none where they cannot be installed.
struct Readers(Option<PathBuf>);

impl Readers {
    /// Names the Python to the tests.
    fn tell<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        if let Some(python) = &self.0 {
            command.env("PACELINE_TEST_PYTHON", python);
        }
        command
    }
}

/// Makes a virtual environment with the readers once, in `target/readers`. Without a network the tests that need it
/// are skipped with a message.
fn readers() -> Readers {
    let home = root().join("target/readers");
    let python = home.join("bin/python");
    let works = || {
        let imports = "import pyarrow.parquet, tensorboard.backend.event_processing.event_accumulator";
        let tried = Command::new(&python).args(["-c", imports]).output();
        tried.is_ok_and(|out| out.status.success())
    };
    if !works() {
        let made = process::run(Command::new("python3").args(["-m", "venv"]).arg(&home)).and_then(|()| {
            process::run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(READERS))
        });
        if let Err(error) = made {
            println!("exports will not be read back: {error}");
            return Readers(None);
        }
    }
    Readers(works().then_some(python))
}

/// What drives the browser, by name and version from npm.
const DRIVER: &str = "playwright-core@1.65.0";

/// A folder with the [`DRIVER`] of Debian's Chromium; none where one of them cannot be had.
struct Browser(Option<PathBuf>);

impl Browser {
    /// Names the folder to the tests.
    fn tell<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        if let Some(folder) = &self.0 {
            command.env("PACELINE_TEST_BROWSER", folder);
        }
        command
    }
}

/// Installs Chromium and its driver once, the latter in `target/browser`. Where that cannot be done, the tests that need
/// a browser are skipped, and it is said what is missing.
fn browser() -> Browser {
    let home = root().join("target/browser");
    let driver = || {
        if home.join("node_modules/playwright-core").is_dir() {
            return Ok(());
        }
        if !exists("npm", "--version") {
            return Err("npm is missing".to_owned());
        }
        std::fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
        let quiet = ["install", "--no-save", "--no-audit", "--no-fund", "--loglevel=error", "--prefix"];
        process::run(Command::new("npm").args(quiet).arg(&home).arg(DRIVER))
    };
    let node = || if exists("node", "--version") { Ok(()) } else { Err("node is missing".to_owned()) };
    match packages(&["chromium"]).and_then(|()| node()).and_then(|()| driver()) {
        Ok(()) => Browser(Some(home)),
        Err(missing) => {
            println!("pages will not be looked at in a browser: {missing}");
            Browser(None)
        }
    }
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
