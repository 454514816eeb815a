//! The wheel, as somebody without Rust installs it.

use std::path::Path;
use std::process::Command;

use paceline_testing::{Need, has_programs, skip, wheel};

use crate::support::{Ran, run};

/// A virtual environment, and nothing else in `PATH`.
struct Environment<'a>(&'a Path);

impl Environment<'_> {
    fn run(&self, program: &str, words: &[&str]) -> Ran {
        let programs = self.0.join("bin");
        let mut command = Command::new(programs.join(program));
        command.args(words).current_dir(self.0).env("PATH", &programs);
        for name in ["CARGO", "CARGO_HOME", "RUSTUP_HOME", "PYTHONPATH"] {
            command.env_remove(name);
        }
        run(&mut command)
    }

    fn ok(&self, program: &str, words: &[&str]) -> String {
        let ran = self.run(program, words);
        assert_eq!(ran.code, 0, "{program} {words:?}: {}", ran.stderr);
        ran.stdout
    }
}

#[test]
fn a_wheel_in_a_fresh_virtual_environment_is_the_command_and_the_package() {
    if !has_programs(&["python3", "strip"]) {
        return;
    }
    let can = Command::new("python3").args(["-c", "import venv, ensurepip, tomllib"]).output().unwrap();
    if !can.status.success() {
        return skip(Need::System, "python3 from 3.11 on, with venv (Debian: python3-venv)");
    }
    let folder = tempfile::tempdir().unwrap();
    let wheel = wheel::pack(Path::new(env!("CARGO_BIN_EXE_paceline")), folder.path()).unwrap();
    let name = wheel.file_name().unwrap().to_string_lossy();
    let version = env!("CARGO_PKG_VERSION");
    let tag = name.strip_prefix(&format!("paceline-{version}-py3-none-")).unwrap_or_else(|| panic!("{name}"));
    let machine = std::env::consts::ARCH;
    assert!(tag.contains("linux_") && tag.ends_with(&format!("_{machine}.whl")), "{name}");

    let home = folder.path().join("environment");
    let made = run(Command::new("python3").args(["-m", "venv"]).arg(&home));
    assert_eq!(made.code, 0, "{}", made.stderr);
    let fresh = Environment(&home);
    let wheel = wheel.to_str().unwrap();
    fresh.ok(
        "python",
        &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", wheel],
    );

    assert_eq!(fresh.ok("paceline", &["--version"]), format!("paceline {version}\n"));
    assert!(fresh.ok("paceline", &["--help"]).contains("Usage: paceline"));
    let trained = fresh.run("paceline", &["train", "--quiet", "--no-record", "--steps", "2"]);
    assert_eq!(trained.result()["steps"], 2, "{}", trained.stderr);
    // Typed, and the modules of a script; `paceline.torch` needs PyTorch, and says so.
    let look = "import paceline, paceline.attach, pathlib\n\
                folder = pathlib.Path(paceline.__file__).parent\n\
                assert (folder / 'py.typed').is_file() and (folder / 'torch/__init__.py').is_file(), folder\n\
                print(paceline.__version__, paceline.attach.attach([('weight', (2,))]))";
    assert_eq!(fresh.ok("python", &["-c", look]), format!("{version} None\n"));
    let there = fresh.ok("python", &["-m", "pip", "--disable-pip-version-check", "check"]);
    assert!(there.contains("No broken requirements"), "{there}");
    fresh.ok("python", &["-m", "pip", "uninstall", "--yes", "--quiet", "paceline"]);
    assert!(!home.join("bin/paceline").exists());
}
