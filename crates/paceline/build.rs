//! Tells the program which commit and compiler it was built from.

use std::process::Command;

fn main() {
    let said = |program: &str, words: &[&str]| {
        let out = Command::new(program).args(words).output().ok().filter(|out| out.status.success())?;
        Some(String::from_utf8_lossy(&out.stdout).trim().to_owned()).filter(|text| !text.is_empty())
    };
    let commit = said("git", &["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]);
    let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let unknown = || "unknown".to_owned();
    println!("cargo::rustc-env=PACELINE_COMMIT={}", commit.unwrap_or_else(unknown));
    println!("cargo::rustc-env=PACELINE_RUSTC={}", said(&compiler, &["--version"]).unwrap_or_else(unknown));
    // The log of HEAD grows with every commit; a checkout without git has none.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) =
            said("git", &["rev-parse", "--git-path", file]).filter(|p| std::path::Path::new(p).exists())
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
}
