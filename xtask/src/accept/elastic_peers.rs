//! What a kill costs others: torchrun's elastic restart and torchft, beside our own runs.

use paceline_statistics::median;
use serde_json::{Value, json};

use super::peers::{self, Peers};
use super::survive::{WAYS, kill};
use super::{Line, Setup};
use crate::process::{Outcome, last_json};

/// The peers' loop.
const LOOP: &str = "bench/peers/torch_survive.py";
/// Steps that count as going on, on all sides.
pub const WINDOW: u64 = 20;
/// Rounds in which each side has its turn, and kills of each.
const ROUNDS: u64 = 2;
const KILLS: u64 = 4;

/// What is measured beside ours: the words of its loop.
const SIDES: [(&str, &str); 3] = [
    ("torchrun", "--system torchrun"),
    ("torchft", "--system torchft"),
    // As soon as a lighthouse can notice it without taking a slow replica for a lost one.
    ("torchft, 500 ms", "--system torchft --heartbeat-timeout-ms 500"),
];

/// Kills workers of all of them, in turn.
pub fn measure(setup: &Setup, runs: &mut Vec<Value>) -> Outcome {
    peers::import(setup, "torch, torchft")?;
    let peers = Peers::new(setup)?;
    for round in 0..setup.rounds.unwrap_or(ROUNDS) {
        for (side, words) in SIDES {
            let mut command = peers.own_script(LOOP);
            command.args(words.split(' ')).args(["--batch", "128", "--kills", &KILLS.to_string()]);
            let result = last_json(command.args(["--seed", &round.to_string()]))?;
            println!("     {side}: {}", result["lost_s"]);
            runs.push(json!({"part": "peers", "side": side, "round": round, "lost_s": result["lost_s"], "result": result}));
        }
        for way in &WAYS {
            let own = (0..2 * KILLS)
                .map(|n| kill(setup, way, 1000 * (round + 1) + n))
                .collect::<Outcome<Vec<_>>>()?;
            let lost: Vec<f64> = own.iter().filter_map(|run| run["lost_s"].as_f64()).collect();
            println!("     paceline, {}: {lost:?}", way.part);
            runs.push(json!({"part": "peers", "side": way.part, "round": round, "lost_s": lost}));
        }
    }
    Ok(())
}

/// Ours beside each of the others.
pub fn lines(runs: &[Value]) -> Vec<Line> {
    let of = |side: &str| {
        let own = runs.iter().filter(|run| run["side"] == side).filter_map(|run| run["lost_s"].as_array());
        own.flatten().filter_map(Value::as_f64).collect::<Vec<_>>()
    };
    let mut lines = Vec::new();
    for way in &WAYS {
        let own = of(way.part);
        for (side, part) in [("torchrun", 0.1), ("torchft", 1.0), ("torchft, 500 ms", 1.0)] {
            let theirs = of(side);
            if own.is_empty() || theirs.is_empty() {
                continue;
            }
            let (ours, most) = (median(&own), median(&theirs));
            let tenth = if part < 1.0 { "a tenth of " } else { "" };
            let claim = format!(
                "{}: seconds lost per kill, median of {}, beside {tenth}{side}'s {most:.2} ({})",
                way.part,
                own.len(),
                theirs.len()
            );
            lines.push(Line { claim, reached: ours, wanted: part * most, at_most: true });
        }
    }
    lines
}
