//! What the tests of every crate share: a skip that `cargo xtask test` counts. The program of this crate is `cargo xtask`.
//!
//! - [`skip`]: a test, or a part of one, is left out for want of a [`Need`]
//! - [`process`]: running other programs
//! - [`fake_gpu`]: GPUs that are not there
//! - [`install`]: what tests can use is installed where the user may
//! - [`wheel`]: the program and the Python package in one file for pip
//! - `main.rs`: the words of `cargo xtask`; `suite.rs`: its `test`; `tally.rs`: the closing summary
//!
//! Deliberately absent: dependencies. `cargo xtask test` starts within seconds of a fresh clone.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tools for developers")]

pub mod fake_gpu;
pub mod install;
pub mod process;
pub mod wheel;

use std::fmt::{self, Display};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// The words of `cargo xtask`.
pub const HELP: &str = "\
cargo xtask test            format, clippy, doc tests, all tests; installs what they can use where the user may;
                            ends with what was skipped and `N passed, M failed, K skipped`
cargo xtask test --quick    the loop while editing: format and the fast tests
cargo xtask wheel           builds the program and packs it with the Python package, for pip install ./FILE.whl;
                            prints where it lies (target/wheel)
    --binary PROGRAM        packs this program: nothing is built
cargo xtask docs            writes docs/ out of the registries and the measurements
cargo xtask docs --check    fails if docs/ is out of date
cargo xtask accept [NAME…]  measurements against the contract and the peers; raw runs in bench/accept/
    --list                  lists the measurements and what each needs; where that is missing, it is not measured
    --binary PATH           measures this program: nothing is built or installed
    --python PROGRAM        runs the peers with this Python instead of a virtual environment
    --out DIR               writes raw runs to DIR
cargo xtask accept chaos --seed N --rounds N  random faults, each followed by a look at all that must hold
cargo xtask accept attack --seed N --rounds N  signals, damaged files, hostile peers and bad links, likewise
cargo xtask accept build --only release|test|warm  one part of what building and testing a fresh clone takes
cargo xtask study [NAME]    runs a study of studies/ again, and writes its page; --quick: a reduced run, nothing kept
    --from STORE            takes in the runs of a store that another machine made
    --binary PROGRAM        with this program: nothing is built
cargo xtask bench           instruction counts of one training step per model (valgrind)
cargo xtask bench channels  every transport by size, buffer and payload; raw repeats in bench/channels/
cargo xtask fuzz [TARGET] [--seed N] [--runs N]  feeds parsers what nobody sent, from the corpus and a seed
cargo xtask fuzz --corpus   writes the well-formed part of the corpus";

/// The environment variable that names the file of skips; without it a skip is only printed.
pub const SKIPS: &str = "PACELINE_SKIPS";

/// What a stranger's machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// Files of real datasets and tables.
    Datasets,
    /// A package of Debian's.
    DebianPackage,
    /// The rights of root.
    Root,
    /// A program, a kernel's or a file system's ability.
    System,
    /// Chromium with its driver.
    Browser,
    /// Packages from PyPI.
    PythonPackages,
}

impl Need {
    /// Every need, in the order of the summary.
    pub const ALL: &[Self] =
        &[Self::Datasets, Self::DebianPackage, Self::Root, Self::System, Self::Browser, Self::PythonPackages];

    fn text(self) -> &'static str {
        match self {
            Self::Datasets => "real datasets (PACELINE_DATA)",
            Self::DebianPackage => "Debian packages",
            Self::Root => "root",
            Self::System => "programs and system features",
            Self::Browser => "a browser (Chromium, node, playwright-core)",
            Self::PythonPackages => "Python packages",
        }
    }
}

impl Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// A test of which something was left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Skip {
    /// What it lacks.
    pub need: Need,
    /// The test's binary, as nextest names it.
    pub binary: String,
    /// The test's name within its binary.
    pub test: String,
    /// What exactly is missing.
    pub detail: String,
}

impl Skip {
    fn here(need: Need, detail: String) -> Self {
        let variable = |name| std::env::var(name).ok();
        let test = variable("NEXTEST_TEST_NAME")
            .or_else(|| std::thread::current().name().map(str::to_owned))
            .unwrap_or_default();
        let binary = variable("NEXTEST_BINARY_ID").unwrap_or_else(|| {
            let file = std::env::current_exe().unwrap_or_default();
            let stem = file.file_stem().unwrap_or_default().to_string_lossy();
            stem.rsplit_once('-').map_or(&*stem, |(name, _hash)| name).to_owned()
        });
        Self { need, binary, test, detail }
    }

    /// A line of the file of skips.
    fn line(&self) -> String {
        let Self { need, binary, test, detail } = self;
        format!("{need}\t{binary}\t{test}\t{}\n", detail.replace(['\t', '\n'], " "))
    }

    /// The skip that a line of the file tells of.
    pub fn parse(line: &str) -> Option<Self> {
        let [need, binary, test, detail] = line.splitn(4, '\t').collect::<Vec<_>>().try_into().ok()?;
        let need = *Need::ALL.iter().find(|known| known.text() == need)?;
        Some(Self { need, binary: binary.into(), test: test.into(), detail: detail.into() })
    }

    fn append(&self, file: &Path) -> std::io::Result<()> {
        // Tests are processes of their own: one write per line keeps lines whole.
        OpenOptions::new().create(true).append(true).open(file)?.write_all(self.line().as_bytes())
    }
}

/// Counts the running test as skipped, wholly or in part: `detail` says what is missing.
pub fn skip(need: Need, detail: impl Display) {
    let skip = Skip::here(need, detail.to_string());
    eprintln!("skipped: needs {need}: {}", skip.detail);
    if let Some(file) = std::env::var_os(SKIPS) {
        skip.append(file.as_ref()).unwrap_or_else(|e| panic!("{SKIPS}={}: {e}", file.display()));
    }
}

/// Whether this process has the rights of root.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// Whether these programs can be found; counts a skip for those that cannot.
pub fn has_programs(names: &[&str]) -> bool {
    let missing: Vec<&str> = names.iter().copied().filter(|name| !process::in_path(name)).collect();
    if !missing.is_empty() {
        skip(Need::System, missing.join(", "));
    }
    missing.is_empty()
}

/// Whether network namespaces can be made with `ip`; counts a skip where they cannot.
pub fn has_network_namespaces() -> bool {
    network_namespaces().inspect_err(|(need, missing)| skip(*need, missing)).is_ok()
}

/// Makes and removes a network namespace; what is missing where that fails.
pub fn network_namespaces() -> Result<(), (Need, &'static str)> {
    if !is_root() {
        return Err((Need::Root, "network namespaces"));
    }
    if !process::in_path("ip") {
        return Err((Need::System, "ip"));
    }
    let name = format!("paceline-probe-{}", std::process::id());
    let ip = |verb: &str| {
        let out = std::process::Command::new("ip").args(["netns", verb, &name]).output();
        out.is_ok_and(|out| out.status.success())
    };
    if ip("add") && ip("del") { Ok(()) } else { Err((Need::System, "network namespaces")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_names_the_running_test_and_survives_its_file() {
        let folder = process::root().join("target/tmp");
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join(format!("skips-{}", std::process::id()));
        for need in Need::ALL {
            Skip::here(*need, "two\tlines\nof detail".into()).append(&file).unwrap();
        }
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let skips: Vec<Skip> = text.lines().filter_map(Skip::parse).collect();
        assert_eq!(skips.iter().map(|skip| skip.need).collect::<Vec<_>>(), Need::ALL);
        for skip in skips {
            assert_eq!(skip.binary.replace('-', "_"), "paceline_testing");
            assert_eq!(skip.test, "tests::a_skip_names_the_running_test_and_survives_its_file");
            assert_eq!(skip.detail, "two lines of detail");
        }
    }

    fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }

    #[test]
    fn no_other_crate_skips_by_itself_or_looks_beside_the_checkout() {
        let mut files = Vec::new();
        sources(&process::root().join("crates"), &mut files);
        assert!(files.len() > 100);
        for (path, text) in files {
            assert!(!text.contains("\"skipped: "), "{path}: a skip is counted by paceline_testing::skip");
            assert!(!text.contains("../shared"), "{path}: a stranger's clone has nothing beside it");
        }
    }
}
