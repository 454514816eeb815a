//! `cargo xtask test | docs | accept | study | bench | fuzz`: how this repository is tested and measured.
//!
//! - `test`: correctness; installs what it needs; no timing decides (see [`test`](mod@test))
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
mod peers;
mod process;
mod study;
mod test;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask test            format, docs, clippy, all tests, doc tests (installs what they need)
cargo xtask docs            writes docs/ out of the registries and the measurements
cargo xtask docs --check    fails if docs/ is out of date
cargo xtask accept [NAME…]  measurements against the contract and the peers; raw runs in bench/
cargo xtask accept --list   what there is to measure
cargo xtask accept chaos --seed N --rounds N  random faults, each followed by a look at all that must hold
cargo xtask study [NAME]    runs a study of studies/ again, and writes its page; --quick: a reduced run, nothing kept
cargo xtask bench           instruction counts of one training step per model (valgrind)
cargo xtask bench channels  every transport by size, buffer and payload; raw repeats in bench/channels/
cargo xtask fuzz [TARGET] [--seed N] [--runs N]  feeds parsers what nobody sent, from the corpus and a seed
cargo xtask fuzz --corpus   writes the well-formed part of the corpus";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["test"] => test::run(),
        ["docs"] => docs::write(),
        ["docs", "--check"] => docs::check(),
        ["accept", names @ ..] => accept::run(names),
        ["study", words @ ..] => study::run(words),
        ["bench"] => bench::run(),
        ["bench", "channels"] => channels::measure(),
        ["fuzz", words @ ..] => fuzz::run(words),
        ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            Ok(())
        }
        _ => {
            eprintln!("{HELP}");
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
