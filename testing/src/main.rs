//! `cargo xtask test | wheel | docs | accept | study | bench | fuzz`: how this repository is tested and measured.
//!
//! `test` is here (see `suite.rs`), `wheel` in this crate's library. The other words are those of the package `xtask`, which needs the whole workspace:
//! it is built in the tests' profile when it is asked for.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool for developers")]

mod suite;
mod tally;

use std::process::{Command, ExitCode};

use paceline_testing::process::{Outcome, PROFILE, cargo, run, target};
use paceline_testing::{HELP, wheel};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["test"] => suite::whole(),
        ["test", "--quick"] => suite::quick(),
        ["wheel"] => wheel::release().map(|()| ExitCode::SUCCESS),
        ["wheel", "--binary", program] => wheel::of(program.as_ref()).map(|()| ExitCode::SUCCESS),
        ["docs" | "accept" | "study" | "bench" | "fuzz", ..] => measure(&words),
        ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            eprintln!("{HELP}");
            Ok(ExitCode::from(2))
        }
    };
    done.unwrap_or_else(|message| {
        eprintln!("xtask: {message}");
        ExitCode::FAILURE
    })
}

/// Builds the package `xtask` and runs it.
fn measure(words: &[&str]) -> Outcome<ExitCode> {
    // With a test among the targets, cargo unifies features as `cargo xtask test` does: what that has built is used.
    run(&mut cargo(&["build", "--workspace", "--profile", PROFILE, "--bin", "xtask", "--test", "carried"]))?;
    let program = target().join(PROFILE).join("xtask");
    let status = Command::new(&program).args(words).status();
    let status = status.map_err(|error| format!("{}: {error}", program.display()))?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}
