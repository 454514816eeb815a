//! Random faults in runs of random strategies and transports; after each, everything that must hold is looked at (U1
//! to U6 below), and the run is gone on with to its exact end. A round is a function of (seed, number).
//!
//! `PACELINE_CHAOS_SEED`, `PACELINE_CHAOS_ROUNDS` and `PACELINE_CHAOS_LOG` say how much and where to tell of it;
//! `cargo xtask accept chaos` sets them, and `PACELINE_CHAOS_STRICT` for deadlines that a busy machine may miss.

#![allow(clippy::print_stderr, reason = "rounds are told of as they are made")]

mod fault;
mod files;
mod scene;
mod signals;
mod terminal;
mod verdict;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::json;

use fault::Fault;
use scene::Draws;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Plays rounds of a campaign, each told of as a line of the log; fails if one of them does.
fn play(campaign: &str, rounds: u64, draw: fn(u64, &mut Draws) -> Fault) {
    let seed = setting("PACELINE_CHAOS_SEED", 1);
    let rounds = setting("PACELINE_CHAOS_ROUNDS", rounds);
    let mut log = std::env::var_os("PACELINE_CHAOS_LOG")
        .map(|path| std::fs::File::options().append(true).create(true).open(path).unwrap());
    let mut failed = Vec::new();
    for round in 0..rounds {
        let mut draws = Draws::new(seed, round);
        let fault = draw(round, &mut draws);
        let scene = fault.scene(&mut draws);
        let what = format!("{campaign}, seed {seed}, round {round}: {fault:?} in `{}`", scene.words);
        eprintln!("{what}");
        let played = catch_unwind(AssertUnwindSafe(|| fault.play(&scene, &mut draws)));
        let (told, ok) = match played {
            Ok(told) => (told, true),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                (
                    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).into())).unwrap_or_default(),
                    false,
                )
            }
        };
        eprintln!("  {}: {told}", if ok { "ok" } else { "FAILED" });
        if let Some(log) = &mut log {
            let line = json!({"seed": seed, "round": round, "fault": format!("{fault:?}"), "run": format!("{} {}", scene.words, scene.saving), "ok": ok, "told": told});
            writeln!(log, "{line}").unwrap();
        }
        if !ok {
            failed.push(format!("{what}\n  {told}"));
        }
    }
    assert!(failed.is_empty(), "{} of {rounds} rounds failed:\n{}", failed.len(), failed.join("\n"));
}

// Without a setting each kind of fault comes once.
#[test]
fn whatever_breaks_leaves_nothing_wrong_behind_and_the_run_can_go_on() {
    play("chaos", Fault::KINDS, Fault::draw);
}

#[test]
fn an_attack_by_signals_and_damaged_or_special_files_leaves_nothing_wrong_behind() {
    play("attack", Fault::ATTACK, Fault::draw_attack);
}
