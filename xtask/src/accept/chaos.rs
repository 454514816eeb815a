//! Campaigns of faults: tests that play rounds, with more of them and the contract's deadlines.

use std::fs;

use serde_json::Value;

use super::{Line, Report, Setup};
use crate::process::{Outcome, cargo, root};

/// The seed where none is said.
const SEED: u64 = 1;

/// Rounds of faults, played by tests that are told how many and where to tell of each.
pub struct Campaign {
    /// Its name in `accept` and in the raw runs.
    name: &'static str,
    /// Its rounds where nothing is said.
    rounds: u64,
    tests: &'static [Played],
}

/// A test that plays rounds.
struct Played {
    /// Its binary.
    target: &'static str,
    /// What its name contains.
    name: &'static str,
    /// One of so many rounds of the campaign is one of each test of that name.
    every: u64,
    /// Tests of that name.
    tests: u64,
}

/// Random faults in runs of random plans.
pub const CHAOS: Campaign = Campaign {
    name: "chaos",
    rounds: 100,
    tests: &[Played { target: "chaos", name: "whatever_breaks", every: 1, tests: 1 }],
};

/// What somebody does who wants to break it: signals, damaged and special files, hostile peers, bad links.
pub const ATTACK: Campaign = Campaign {
    name: "attack",
    rounds: 300,
    tests: &[
        Played { target: "chaos", name: "an_attack_by_signals", every: 1, tests: 1 },
        Played { target: "conformance", name: "damaged_frames_of_a_peer", every: 10, tests: 5 },
        Played { target: "conformance", name: "peers_that_hold_the_key", every: 10, tests: 5 },
        Played { target: "cli", name: "a_link_that_heals", every: 30, tests: 1 },
    ],
};

/// Runs the rounds; each is a line of the log that the tests write.
pub fn measure(setup: &Setup, campaign: &Campaign) -> Outcome<Report> {
    let (name, seed) = (campaign.name, setup.seed.unwrap_or(SEED));
    let rounds = setup.rounds.unwrap_or(campaign.rounds);
    let folder = root().join("target").join(name);
    let log = folder.join(format!("seed-{seed}.ndjson"));
    let failed = |error: std::io::Error| format!("{}: {error}", log.display());
    fs::create_dir_all(&folder).and_then(|()| fs::write(&log, "")).map_err(failed)?;
    let mut wanted = 0;
    for played in campaign.tests {
        let own = rounds.div_ceil(played.every);
        wanted += own * played.tests;
        let mut test = cargo(&["test", "--workspace", "--profile", "checked", "--test", played.target]);
        test.args(["--", played.name, "--nocapture", "--test-threads=1"])
            .env("PACELINE_CHAOS_SEED", seed.to_string())
            .env("PACELINE_CHAOS_ROUNDS", own.to_string())
            .env("PACELINE_CHAOS_LOG", &log)
            .env("PACELINE_CHAOS_STRICT", "1");
        // Rounds that fail make the test fail; the log says which.
        test.status().map_err(|error| format!("cargo test could not be started: {error}"))?;
    }
    let text = fs::read_to_string(&log).map_err(failed)?;
    let runs: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let good = runs.iter().filter(|round| round["ok"] == true).count();
    let claim = format!("{name}, seed {seed}: rounds after which all that must hold does");
    let line = Line { claim, reached: good as f64, wanted: wanted as f64, at_most: false };
    Ok(Report { lines: vec![line], runs })
}
