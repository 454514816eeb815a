//! The peers that we are measured beside.
//!
//! Their scripts lie beside the checkout (`../shared/peers`, or `PACELINE_PEER_SCRIPTS`); what they need is installed
//! into a virtual environment (`target/peers`, or `PACELINE_PEERS`), unless `--python` names a Python that has it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Setup;
use crate::process::{self, Outcome, root, with_data};

/// What pip installs for a module where its name alone does not say it: versions that figures refer to.
const REQUIREMENTS: &[(&str, &str)] = &[
    ("torch", "torch==2.13.0"),
    ("torchft", "torchft-nightly==2026.10.26"),
    ("tensorflow", "tensorflow-cpu==2.21.0"),
    ("optuna", "optuna==5.0.0"),
    ("transformers", "transformers==5.22.2"),
    ("accelerate", "accelerate==1.15.0"),
    ("lightning", "lightning==2.6.6"),
];

/// Where peers are installed.
fn home() -> PathBuf {
    std::env::var_os("PACELINE_PEERS").map_or_else(|| root().join("target/peers"), PathBuf::from)
}

/// Where the peers' scripts lie.
pub fn scripts() -> PathBuf {
    std::env::var_os("PACELINE_PEER_SCRIPTS").map_or_else(|| root().join("../shared/peers"), PathBuf::from)
}

/// The peers' Python.
pub fn python(setup: &Setup) -> PathBuf {
    setup.python.clone().unwrap_or_else(|| home().join("venv/bin/python"))
}

/// Makes modules importable; installs them where that is allowed (torch is a download of some gigabytes).
pub fn import(setup: &Setup, modules: &str) -> Outcome {
    let python = python(setup);
    let works = || {
        let tried = Command::new(&python).args(["-c", &format!("import {modules}")]).output();
        tried.is_ok_and(|out| out.status.success())
    };
    if !works() && setup.installs && setup.python.is_none() {
        process::run(Command::new("python3").args(["-m", "venv"]).arg(home().join("venv")))?;
        if !works() {
            let known = |name| REQUIREMENTS.iter().find(|(module, _)| *module == name);
            let requirements =
                modules.split(", ").map(|name| known(name).map_or(name, |(_, version)| version));
            process::run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(requirements))?;
        }
    }
    if works() { Ok(()) } else { Err(format!("{} cannot import {modules}", python.display())) }
}

/// The peers, ready to run.
pub struct Peers<'a> {
    setup: &'a Setup,
    scripts: PathBuf,
    /// Where Fashion-MNIST lies, if anywhere.
    fashion: Option<PathBuf>,
    /// Whether commands can be put into a network namespace and priority of their own.
    isolated: bool,
}

impl<'a> Peers<'a> {
    /// Finds out how commands can be run here.
    pub fn new(setup: &'a Setup) -> Outcome<Self> {
        let (scripts, home) = (scripts(), home());
        std::fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
        let mut probe = Command::new(scripts.join("beside.sh"));
        let isolated = probe.arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        if !isolated {
            println!("     beside.sh does not work here: both sides run without it");
        }
        let mut path = setup.program();
        with_data(path.args(["data", "path", "fashion-mnist"]));
        let found = path.output().ok().filter(|out| out.status.success());
        let fashion = found.map(|out| String::from_utf8_lossy(&out.stdout).trim().into());
        Ok(Self { setup, scripts, fashion, isolated })
    }

    /// A peer script; it puts itself into its own network namespace and priority.
    pub fn script(&self, name: &str) -> Command {
        let mut command = Command::new(python(self.setup));
        command.arg(self.scripts.join(name)).env("PEERS", home());
        if let Some(fashion) = self.fashion.as_ref().filter(|_| std::env::var_os("FASHION_MNIST").is_none()) {
            command.env("FASHION_MNIST", fashion);
        }
        if !self.isolated {
            // As if it had done so.
            command.env("PEER_NETNS", "1");
        }
        command
    }

    /// A script of this repository, run the way the peers run.
    pub fn own_script(&self, path: &str) -> Command {
        let mut command = self.beside(&python(self.setup));
        command.arg(root().join(path)).env("PEERS", home());
        command
    }

    /// Our own program, run the way the peers run.
    pub fn paceline(&self) -> Command {
        self.beside(&self.setup.binary)
    }

    fn beside(&self, program: &Path) -> Command {
        if !self.isolated {
            return Command::new(program);
        }
        let mut command = Command::new(self.scripts.join("beside.sh"));
        command.arg(program);
        command
    }
}
