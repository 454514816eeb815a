//! What a measurement cannot do without.

use std::fmt::{self, Display};

use paceline_testing::install::packages;
use paceline_testing::process::{cargo, exists, in_path, show};
use paceline_testing::{is_root, network_namespaces};

use super::{Setup, peers, samplers};
use crate::process::{Outcome, root, with_data};

/// One need. Where the setup allows it, what is missing is installed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Need {
    /// The program that is measured.
    Paceline,
    /// An earlier one to compare it with.
    Before,
    /// This many cores.
    Cores(usize),
    /// Cargo, and the sources to build.
    Cargo,
    /// The rights of root.
    Root,
    /// Network namespaces.
    Namespaces,
    /// A program in `PATH`.
    Program(&'static str),
    /// A compiler in `PATH`, and a header that it finds. (MPI's may be there without.)
    Header(&'static str, &'static str),
    /// Modules that the peers' Python can import.
    Python(&'static str),
    /// A GPU that the peers' PyTorch computes on.
    Cuda,
    /// A peer's script.
    Script(&'static str),
    /// A dataset that the program finds.
    Dataset(&'static str),
    /// Tables of runs made by others.
    Tables,
    /// A file of the repository.
    File(&'static str),
    /// The first, or else the second.
    Or(&'static Need, &'static Need),
}

/// Debian packages of programs and datasets.
const DEBIAN: &[(Need, &str)] = &[
    (Need::Program("mpirun"), "openmpi-bin"),
    (Need::Header("mpicc", "mpi.h"), "libopenmpi-dev"),
    (Need::Program("java"), "default-jre-headless"),
    (Need::Program("ip"), "iproute2"),
    (Need::Program("tc"), "iproute2"),
    (Need::Dataset("fashion-mnist"), "dataset-fashion-mnist"),
];

impl Need {
    /// Why it is not met; installs what can be installed.
    pub fn missing(self, setup: &Setup) -> Option<String> {
        let why = self.check(setup).err()?;
        let package = DEBIAN.iter().find(|(need, _)| *need == self).map(|(_, package)| *package);
        match package.filter(|_| setup.installs) {
            None => Some(why),
            Some(package) => packages(&[package]).and_then(|()| self.check(setup)).err(),
        }
    }

    fn check(self, setup: &Setup) -> Outcome {
        let met = |met: bool, why: String| if met { Ok(()) } else { Err(why) };
        match self {
            Self::Paceline => met(setup.binary.is_file(), format!("{} is not there", setup.binary.display())),
            Self::Before => {
                let why = "--before names an earlier paceline to compare with".into();
                met(setup.before.as_ref().is_some_and(|path| path.is_file()), why)
            }
            Self::Cores(wanted) => {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                met(cores >= wanted, format!("{wanted} cores are needed, {cores} are here"))
            }
            Self::Cargo => {
                let (command, manifest) = (cargo(&["--version"]), root().join("Cargo.toml"));
                let program = show(&command).replace(" --version", "");
                met(exists(&program, "--version"), format!("{program} does not work"))?;
                met(manifest.is_file(), format!("{} is not there", manifest.display()))
            }
            Self::Root => met(is_root(), "this user is not root".into()),
            Self::Namespaces => {
                network_namespaces().map_err(|(need, missing)| format!("{missing}: {need} needed"))
            }
            Self::Program(name) => met(in_path(name), format!("{name} is not in PATH")),
            Self::Header(compiler, header) => {
                let mut command = std::process::Command::new(compiler);
                command.args(["-fsyntax-only", "-include", header, "-x", "c", "/dev/null"]);
                let found = command.output().is_ok_and(|out| out.status.success());
                met(found, format!("{compiler} finds no {header}"))
            }
            Self::Python(modules) => peers::import(setup, modules),
            Self::Cuda => {
                let asks = "import torch, sys; sys.exit(not torch.cuda.is_available())";
                let mut command = std::process::Command::new(peers::python(setup));
                let found = command.args(["-c", asks]).output().is_ok_and(|out| out.status.success());
                met(found, "PyTorch finds no GPU".into())
            }
            Self::Script(name) => {
                let scripts = peers::scripts();
                let why = format!("no {name} in {}: set PACELINE_PEER_SCRIPTS", scripts.display());
                met(scripts.join(name).is_file(), why)
            }
            Self::Dataset(name) => {
                let mut command = setup.program();
                with_data(command.args(["data", "path", name]));
                let found = command.output().is_ok_and(|out| out.status.success());
                met(found, format!("the dataset {name} is not there: set PACELINE_DATA"))
            }
            Self::Tables => samplers::tables().map(drop),
            Self::File(path) => {
                let path = root().join(path);
                met(path.is_file(), format!("{} is not there", path.display()))
            }
            Self::Or(first, second) => match first.check(setup) {
                Ok(()) => Ok(()),
                Err(why) => second.check(setup).map_err(|other| format!("{why}, and {other}")),
            },
        }
    }
}

impl Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paceline => write!(f, "paceline"),
            Self::Before => write!(f, "an earlier paceline"),
            Self::Cores(count) => write!(f, "{count} cores"),
            Self::Cargo => write!(f, "cargo"),
            Self::Root => write!(f, "root"),
            Self::Namespaces => write!(f, "network namespaces"),
            Self::Program(name) | Self::Script(name) | Self::File(name) => write!(f, "{name}"),
            Self::Header(compiler, header) => write!(f, "{compiler} with {header}"),
            Self::Python(modules) => write!(f, "Python ({modules})"),
            Self::Cuda => write!(f, "a GPU"),
            Self::Dataset(name) => write!(f, "dataset {name}"),
            Self::Tables => write!(f, "tables of runs"),
            Self::Or(first, second) => write!(f, "{first} or {second}"),
        }
    }
}
