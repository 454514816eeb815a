//! The peers that we are measured beside.
//!
//! Their scripts lie beside the checkout (`../shared/peers`, or `PACELINE_PEER_SCRIPTS`); what they need
//! is installed into a virtual environment (`target/peers`, or `PACELINE_PEERS`).

use std::path::PathBuf;
use std::process::Command;

use crate::process::{self, Outcome, root};
use paceline_testing::install::packages;

/// The PyTorch version that figures refer to.
const TORCH: &str = "torch==2.13.0";

fn folder(variable: &str, default: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| root().join(default), PathBuf::from)
}

/// Where peers are installed.
fn home() -> PathBuf {
    folder("PACELINE_PEERS", "target/peers")
}

/// The peers' Python; where `probe` does not work in it, packages are installed.
pub fn python(probe: &str, packages: &[&str]) -> Outcome<PathBuf> {
    let venv = home().join("venv");
    let python = venv.join("bin/python");
    let works = Command::new(&python).args(["-c", probe]).output();
    if !works.is_ok_and(|out| out.status.success()) {
        process::run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        process::run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages))?;
    }
    Ok(python)
}

/// PyTorch, ready to run.
pub struct Torch {
    scripts: PathBuf,
    home: PathBuf,
}

impl Torch {
    /// Finds the scripts and installs PyTorch where it is missing (a download of some gigabytes).
    pub fn ready() -> Outcome<Self> {
        let scripts = folder("PACELINE_PEER_SCRIPTS", "../shared/peers");
        if !scripts.join("torch_ddp.py").is_file() {
            return Err(format!("no peer scripts in {}: set PACELINE_PEER_SCRIPTS", scripts.display()));
        }
        packages(&["dataset-fashion-mnist"])?;
        python("import torch, numpy, psutil", &[TORCH, "numpy", "psutil"])?;
        Ok(Self { scripts, home: home() })
    }

    /// A peer script; it puts itself into its own network namespace and priority.
    pub fn script(&self, name: &str) -> Command {
        let mut command = self.python();
        command.arg(self.scripts.join(name));
        command
    }

    /// A script of this repository, run the way the peers run.
    pub fn own_script(&self, path: &str) -> Command {
        let mut command = self.beside();
        command.arg(self.home.join("venv/bin/python")).arg(root().join(path)).env("PEERS", &self.home);
        command
    }

    /// Our own program, run the way the peers run.
    pub fn paceline(&self) -> Command {
        let mut command = self.beside();
        command.arg(root().join("target/release/paceline"));
        command
    }

    fn python(&self) -> Command {
        let mut command = Command::new(self.home.join("venv/bin/python"));
        command.env("PEERS", &self.home);
        command
    }

    fn beside(&self) -> Command {
        Command::new(self.scripts.join("beside.sh"))
    }
}
