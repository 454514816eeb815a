//! Random faults: the test `chaos` of the program, with more rounds and the contract's deadlines.

use std::fs;

use serde_json::Value;

use super::{Line, Report};
use crate::process::{Outcome, cargo, root};

/// The seed where none is said.
pub const SEED: u64 = 1;
/// The rounds where nothing is said.
pub const ROUNDS: u64 = 100;

/// `--seed N --rounds N`.
pub fn flags(words: &[&str]) -> Outcome<(u64, u64)> {
    let (mut seed, mut rounds) = (SEED, ROUNDS);
    let (pairs, rest) = words.as_chunks::<2>();
    for [flag, value] in pairs {
        let number = value.parse().map_err(|_| format!("{flag} needs a number, not {value}"))?;
        match *flag {
            "--seed" => seed = number,
            "--rounds" => rounds = number,
            other => return Err(format!("chaos has --seed and --rounds, not {other}")),
        }
    }
    if rest.is_empty() { Ok((seed, rounds)) } else { Err(format!("{} needs a number", rest[0])) }
}

/// Runs the rounds; each is a line of the log that the test writes.
pub fn measure(seed: u64, rounds: u64) -> Outcome<Report> {
    let folder = root().join("target/chaos");
    let log = folder.join(format!("seed-{seed}.ndjson"));
    let failed = |error: std::io::Error| format!("{}: {error}", log.display());
    fs::create_dir_all(&folder).and_then(|()| fs::write(&log, "")).map_err(failed)?;
    let mut test =
        cargo(&["test", "--profile", "checked", "-p", "paceline", "--test", "chaos", "--", "--nocapture"]);
    test.env("PACELINE_CHAOS_SEED", seed.to_string())
        .env("PACELINE_CHAOS_ROUNDS", rounds.to_string())
        .env("PACELINE_CHAOS_LOG", &log)
        .env("PACELINE_CHAOS_STRICT", "1");
    // Rounds that fail make the test fail; the log says which.
    test.status().map_err(|error| format!("cargo test could not be started: {error}"))?;
    let text = fs::read_to_string(&log).map_err(failed)?;
    let runs: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let good = runs.iter().filter(|round| round["ok"] == true).count();
    let claim = format!("chaos, seed {seed}: rounds after which all that must hold does");
    let line = Line { claim, reached: good as f64, wanted: rounds as f64, at_most: false };
    Ok(Report { lines: vec![line], runs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_numbers_with_names() {
        assert_eq!(flags(&[]), Ok((SEED, ROUNDS)));
        assert_eq!(flags(&["--rounds", "3", "--seed", "9"]), Ok((9, 3)));
        for wrong in [&["--seed"][..], &["--seed", "x"], &["--luck", "1"]] {
            assert!(flags(wrong).is_err(), "{wrong:?}");
        }
    }
}
