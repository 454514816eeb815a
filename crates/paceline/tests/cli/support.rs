//! Shared by the tests of the program: running it and reading what it says.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// Where the tests' runs are recorded.
pub const STORE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/store");

/// What the program did.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// The last line of standard output.
    pub fn result(&self) -> Value {
        let last = self.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {last:?}\n{}", self.stderr))
    }
}

/// Runs the program with words separated by spaces, away from the user's settings.
pub fn paceline(words: &str) -> Ran {
    run(Command::new(env!("CARGO_BIN_EXE_paceline")).args(words.split_whitespace()))
}

pub fn run(command: &mut Command) -> Ran {
    let out = command.env("PACELINE_STORE", STORE).output().expect("the program starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: out.status.code().unwrap_or(-1), stdout: text(out.stdout), stderr: text(out.stderr) }
}

/// The folder of real datasets, or `None` with a message where there is none.
pub fn datasets(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("PACELINE_DATA").map(PathBuf::from);
    let folder = folder.filter(|f| f.join(name).is_dir());
    if folder.is_none() {
        eprintln!("skipped: PACELINE_DATA names no folder with {name}");
    }
    folder
}
