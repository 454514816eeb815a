//! `cargo xtask test | docs | accept | study | bench | fuzz`: how this repository is tested and measured.
//!
//! `test` is here (see `suite.rs`). The other words are those of the package `xtask`, which needs the whole workspace:
//! it is built in the tests' profile when it is asked for.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool for developers")]

mod suite;
mod tally;

use std::process::{Command, ExitCode};

use paceline_testing::process::{Outcome, PROFILE, cargo, run, target};

const HELP: &str = "\
cargo xtask test            format, clippy, doc tests, all tests; installs what they can use where the user may;
                            ends with what was skipped and `N passed, M failed, K skipped`
cargo xtask test --quick    the loop while editing: format and the fast tests
cargo xtask docs            writes docs/ out of the registries and the measurements
cargo xtask docs --check    fails if docs/ is out of date
cargo xtask accept [NAME…]  measurements against the contract and the peers; raw runs in bench/
cargo xtask accept --list   what there is to measure
cargo xtask accept chaos --seed N --rounds N  random faults, each followed by a look at all that must hold
cargo xtask accept attack --seed N --rounds N  signals, damaged files, hostile peers and bad links, likewise
cargo xtask study [NAME]    runs a study of studies/ again, and writes its page; --quick: a reduced run, nothing kept
cargo xtask bench           instruction counts of one training step per model (valgrind)
cargo xtask bench channels  every transport by size, buffer and payload; raw repeats in bench/channels/
cargo xtask fuzz [TARGET] [--seed N] [--runs N]  feeds parsers what nobody sent, from the corpus and a seed
cargo xtask fuzz --corpus   writes the well-formed part of the corpus";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["test"] => suite::whole(),
        ["test", "--quick"] => suite::quick(),
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
    run(&mut cargo(&["build", "--workspace", "--profile", PROFILE, "--bin", "xtask"]))?;
    let program = target().join(PROFILE).join("xtask");
    let status = Command::new(&program).args(words).status();
    let status = status.map_err(|error| format!("{}: {error}", program.display()))?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}
