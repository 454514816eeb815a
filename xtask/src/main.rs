//! `cargo xtask docs | accept | study | bench | fuzz`: how this repository is documented and measured. `cargo xtask` is
//! the program of `paceline-testing`, which has `test`, and builds this one when it is asked for.
//!
//! - `docs`: the pages in `docs/`, out of the registries and the measurements (see [`docs`])
//! - `accept`: what needs time or a quiet machine; raw runs go to `bench/` (see [`accept`])
//! - `study`: runs a study of `studies/` again (see [`study`])
//! - `bench`: instruction counts of the kernels (see [`bench`]), or channels (see [`channels`])
//! - `fuzz`: parsers against bytes that nobody sent (see [`fuzz`])

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool for developers")]

mod accept;
mod bench;
mod channels;
mod docs;
mod fuzz;
mod process;
mod study;
mod synthetic;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["docs"] => docs::write(),
        ["docs", "--check"] => docs::check(),
        ["accept", words @ ..] => accept::run(words),
        ["study", words @ ..] => study::run(words),
        ["bench"] => bench::run(),
        ["bench", "channels"] => channels::measure(),
        ["fuzz", words @ ..] => fuzz::run(words),
        ["help" | "--help" | "-h"] => {
            println!("{}", paceline_testing::HELP);
            Ok(())
        }
        _ => {
            eprintln!("xtask: `{}` is not understood: cargo xtask help", words.join(" "));
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
