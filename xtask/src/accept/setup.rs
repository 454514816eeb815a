//! What a measurement runs with: the program, Python, folders, and flags of its own.

use std::path::PathBuf;
use std::process::Command;

use paceline_testing::process::target;

use super::options::Options;
use crate::process::{self, Outcome, root};

/// Where raw runs are kept, from the repository's root.
const RUNS: &str = "bench/accept";

/// The environment of a measurement.
#[derive(Default)]
pub struct Setup {
    /// `paceline`: an absolute path.
    pub binary: PathBuf,
    /// Whether the program may be built, and packages installed.
    pub installs: bool,
    /// The Python of `--python`.
    pub python: Option<PathBuf>,
    /// Where raw runs are kept.
    pub out: PathBuf,
    /// The earlier program of `before`.
    pub before: Option<PathBuf>,
    /// The one part that is measured.
    pub only: Option<String>,
    /// The seed of a campaign.
    pub seed: Option<u64>,
    /// The rounds of a campaign.
    pub rounds: Option<u64>,
}

impl Setup {
    /// Resolves what was asked for; a program that is not there is refused.
    pub fn new(options: &Options) -> Outcome<Self> {
        let absolute = |flag: &str, path: &str| {
            std::path::absolute(path).map_err(|error| format!("{flag} {path}: {error}"))
        };
        let binary = match options.binary {
            Some(path) => std::fs::canonicalize(path).map_err(|error| format!("--binary {path}: {error}"))?,
            None => process::program(),
        };
        let python = match options.python {
            Some(program) if !paceline_testing::process::exists(program, "--version") => {
                return Err(format!("--python {program}: `{program} --version` does not work"));
            }
            // A name is looked up in PATH; a path must not depend on the current folder.
            Some(program) if program.contains('/') => Some(absolute("--python", program)?),
            program => program.map(PathBuf::from),
        };
        let out = match options.out {
            Some(folder) => absolute("--out", folder)?,
            None => root().join(RUNS),
        };
        Ok(Self {
            binary,
            installs: options.binary.is_none(),
            python,
            out,
            before: options.before.map(|path| absolute("--before", path)).transpose()?,
            only: options.only.map(str::to_owned),
            seed: options.seed,
            rounds: options.rounds,
        })
    }

    /// The program.
    pub fn program(&self) -> Command {
        Command::new(&self.binary)
    }

    /// `paceline train`, with the datasets that lie beside the checkout.
    pub fn train(&self, data: &str, model: &str) -> Command {
        self.paceline("train", data, model)
    }

    /// A verb with the flags of `train`, with the same datasets.
    pub fn paceline(&self, verb: &str, data: &str, model: &str) -> Command {
        let mut command = self.program();
        command.args([verb, "--quiet", "--data", data, "--model", model]);
        process::with_data(&mut command);
        command
    }

    /// A folder for what a measurement keeps beside its raw runs: in `bench/`, or in the folder of `--out`.
    pub fn kept(&self, name: &str) -> PathBuf {
        if self.out == root().join(RUNS) { root().join("bench").join(name) } else { self.out.join(name) }
    }

    /// Where a measurement leaves files that nobody needs afterwards.
    pub fn work(&self, name: &str) -> PathBuf {
        target().join(format!("accept-{name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_goes_to_bench_or_to_the_folder_that_was_asked_for() {
        let of = |words: &[&str]| {
            let options = Options::parse(words, super::super::MEASUREMENTS).unwrap();
            let setup = Setup::new(&options).unwrap();
            (setup.out.clone(), setup.kept("prediction"), setup.installs)
        };
        assert_eq!(of(&[]), (root().join("bench/accept"), root().join("bench/prediction"), true));
        let carried = of(&["--out", "/runs", "--binary", "/bin/sh"]);
        assert_eq!(carried, ("/runs".into(), "/runs/prediction".into(), false));
    }
}
