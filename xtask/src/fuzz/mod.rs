//! `cargo xtask fuzz`: parsers against bytes that nobody sent, on the stable toolchain.
//!
//! A target is one file and one line of [`TARGETS`]. Its inputs are the files in `xtask/corpus/NAME/` and mutations
//! of them, each a function of (seed, number): what fails can be replayed. Tests run a bounded number of them.
//!
//! - `frame`, `handshake`, `manifest`, `pipeline`, `study`: the targets
//! - `mutate`: an input out of the corpus, a seed and a number

mod frame;
mod handshake;
mod manifest;
mod mutate;
mod pipeline;
mod study;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use crate::process::{Outcome, root};

/// Something that parses what comes from outside.
pub struct Target {
    /// Its name, and that of its corpus.
    pub name: &'static str,
    /// What it parses.
    pub about: &'static str,
    /// Parses an input and checks what must hold of any; whether the input was well-formed.
    pub run: fn(&[u8]) -> bool,
    /// The beginning of its corpus: well-formed inputs, but for those of strangers.
    pub seeds: fn() -> Vec<(&'static str, Vec<u8>)>,
    /// Inputs of its run in the tests.
    pub bounded: u64,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target {
        name: "frame",
        about: "frames of a connection",
        run: frame::run,
        seeds: frame::seeds,
        bounded: 20_000,
    },
    Target {
        name: "handshake",
        about: "who knocks, and what becomes of two ends whose bytes are altered on the way",
        run: handshake::run,
        seeds: handshake::seeds,
        bounded: 20_000,
    },
    Target {
        name: "manifest",
        about: "a checkpoint's manifest and files",
        run: manifest::run,
        seeds: manifest::seeds,
        bounded: 20_000,
    },
    Target {
        name: "pipeline",
        about: "the table of a pipeline's program",
        run: pipeline::run,
        seeds: pipeline::seeds,
        bounded: 20_000,
    },
    Target { name: "study", about: "a study file", run: study::run, seeds: study::seeds, bounded: 2_000 },
];

fn corpus(target: &Target) -> PathBuf {
    root().join("xtask/corpus").join(target.name)
}

/// The committed inputs of a target, in the order of their names.
fn inputs(target: &Target) -> Outcome<Vec<(String, Vec<u8>)>> {
    let folder = corpus(target);
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut all = Vec::new();
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        all.push((name, fs::read(&path).map_err(failed)?));
    }
    all.sort();
    if all.is_empty() { Err(format!("{} is empty", folder.display())) } else { Ok(all) }
}

/// Runs a target over its corpus and over so many mutations; how many of these were well-formed. What makes it panic
/// is kept in `target/fuzz/`.
fn drive(target: &Target, seed: u64, runs: u64) -> Outcome<u64> {
    let all = inputs(target)?;
    let corpus: Vec<&[u8]> = all.iter().map(|(_, input)| &input[..]).collect();
    let mut accepted = 0;
    let committed = all.iter().map(|(name, input)| (format!("of the corpus: {name}"), input.clone()));
    let made = (0..runs).map(|n| (format!("number {n} of seed {seed}"), mutate::input(&corpus, seed, n)));
    for (what, input) in committed.chain(made) {
        match catch_unwind(AssertUnwindSafe(|| (target.run)(&input))) {
            Ok(well_formed) => accepted += u64::from(well_formed),
            Err(_) => {
                let kept = root().join("target/fuzz");
                let file = kept.join(format!("{}-{}", target.name, what.replace([' ', ':'], "-")));
                let written = fs::create_dir_all(&kept).and_then(|()| fs::write(&file, &input));
                let place = written.map_or_else(|e| e.to_string(), |()| file.display().to_string());
                return Err(format!("{}: input {what} panics; it is in {place}", target.name));
            }
        }
    }
    Ok(accepted)
}

/// `cargo xtask fuzz`.
pub fn run(words: &[&str]) -> Outcome {
    if words == ["--corpus"] {
        return write_corpus();
    }
    let (mut names, mut seed, mut runs) = (Vec::new(), 1, None);
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let number = |rest: &mut std::slice::Iter<'_, &str>| {
            rest.next().and_then(|n| n.parse().ok()).ok_or_else(|| format!("{word} needs a number"))
        };
        match *word {
            "--seed" => seed = number(&mut rest)?,
            "--runs" => runs = Some(number(&mut rest)?),
            name => names.push(name),
        }
    }
    let known = |name: &&str| TARGETS.iter().any(|t| t.name == *name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        let all: Vec<_> = TARGETS.iter().map(|t| t.name).collect();
        return Err(format!("there is no target {unknown}; there are {}", all.join(", ")));
    }
    for target in TARGETS.iter().filter(|t| names.is_empty() || names.contains(&t.name)) {
        let runs = runs.unwrap_or(50 * target.bounded);
        println!("{}: {}, seed {seed}, {runs} inputs", target.name, target.about);
        let accepted = drive(target, seed, runs)?;
        println!("{}: no panic; {accepted} inputs were well-formed", target.name);
    }
    Ok(())
}

fn write_corpus() -> Outcome {
    for target in TARGETS {
        let folder = corpus(target);
        for (name, bytes) in (target.seeds)() {
            let written = fs::create_dir_all(&folder).and_then(|()| fs::write(folder.join(name), bytes));
            written.map_err(|e| format!("{}: {e}", folder.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_holds_every_well_formed_input_and_they_are_accepted() {
        for target in TARGETS {
            let committed = inputs(target).unwrap();
            for (name, bytes) in (target.seeds)() {
                let kept = committed.iter().find(|(n, _)| n == name);
                assert!(
                    kept.is_some_and(|(_, b)| *b == bytes),
                    "{}/{name}: cargo xtask fuzz --corpus",
                    target.name
                );
                let accepted = !name.starts_with("stranger");
                assert_eq!((target.run)(&bytes), accepted, "{}/{name}", target.name);
            }
        }
    }

    #[test]
    fn what_nobody_sent_does_no_harm() {
        for target in TARGETS {
            let runs = target.bounded;
            let accepted = drive(target, 7, runs).unwrap();
            let tried = accepted > 0 && accepted < runs;
            assert!(tried, "{}: {accepted} of {runs} were well-formed: nothing is tried", target.name);
        }
    }

    #[test]
    fn a_target_that_panics_is_told_with_what_to_replay() {
        fn fragile(input: &[u8]) -> bool {
            assert!(input.len() < 3, "too long");
            true
        }
        let target = Target { name: "frame", about: "", run: fragile, seeds: Vec::new, bounded: 0 };
        let said = drive(&target, 3, 10).unwrap_err();
        assert!(said.contains("input of the corpus") && said.contains("target/fuzz/frame-"), "{said}");
    }
}
