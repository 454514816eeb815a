//! The wheel: the Python package with the stripped program as its command, for machines without Rust.
//!
//! `python/build_wheel.py` packs it, with the platform tag that maturin gives. Maturin itself compiles before it packs;
//! here a program that is there is packed, the tests' own too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{Outcome, cargo, in_path, root, run, show, target};

/// Builds the program for release and packs it.
pub fn release() -> Outcome {
    run(&mut cargo(&["build", "--release", "--package", "paceline"]))?;
    of(&target().join("release/paceline"))
}

/// Packs a program into `target/wheel`; prints where the wheel lies and its size.
pub fn of(program: &Path) -> Outcome {
    let wheel = pack(program, &target().join("wheel"))?;
    let size = fs::metadata(&wheel).map_err(|error| format!("{}: {error}", wheel.display()))?.len();
    println!("{} ({:.1} MB)", wheel.display(), size as f64 / 1e6);
    println!("hint: pip install {}", wheel.display());
    Ok(())
}

/// Strips a program and packs it with the Python package into a folder; where the wheel lies.
pub fn pack(program: &Path, folder: &Path) -> Outcome<PathBuf> {
    for (name, package) in [("python3", "python3"), ("strip", "binutils")] {
        if !in_path(name) {
            return Err(format!("{name} is not in PATH; on Debian it is in the package {package}"));
        }
    }
    let stripped = folder.join("paceline");
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    said(Command::new("strip").arg("-o").arg(&stripped).arg(program))?;
    // Without -B, Python would leave compiled files in the sources.
    let packer = root().join("python/build_wheel.py");
    let packed = said(Command::new("python3").arg("-B").arg(packer).arg(&stripped).arg(folder));
    let _ = fs::remove_file(&stripped);
    packed.map(PathBuf::from)
}

/// What a command says on standard output, without the line's end.
fn said(command: &mut Command) -> Outcome<String> {
    let shown = show(command);
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("`{shown}` could not be started: {error}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{shown}` failed: {}", errors.trim_end()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_program_of_this_version_is_refused() {
        let folder = target().join(format!("tmp/wheel-{}", std::process::id()));
        let none = pack(Path::new("/nonexistent"), &folder).expect_err("there is no such program");
        // Where there is no Python or strip, that is what is said.
        assert!(none.contains("/nonexistent") || none.contains("is not in PATH"), "{none}");
        if in_path("python3") && in_path("strip") {
            let other = pack(Path::new("/bin/true"), &folder).expect_err("that is another program");
            assert!(other.contains("python/pyproject.toml has"), "{other}");
        }
        assert!(fs::read_dir(&folder).is_ok_and(|mut left| left.next().is_none()));
        fs::remove_dir_all(&folder).unwrap();
    }
}
