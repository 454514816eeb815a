//! `cargo xtask bench`: instruction counts, which do not depend on what else the machine is doing.
//!
//! Counted with `valgrind --tool=callgrind`, whose CPU has no AVX-512: the AVX2 kernels are counted.

use std::fs;
use std::process::Command;

use serde_json::json;

use crate::process::{self, Outcome, cargo, root};
use paceline_testing::install::packages;

const MODELS: &[(&str, u64)] = &[("mlp", 200), ("lenet", 6)];

/// Instructions per training sample, as the difference between a longer and a shorter run.
pub fn run() -> Outcome {
    packages(&["valgrind"])?;
    process::run(&mut cargo(&["build", "--release"]))?;
    let mut rows = Vec::new();
    for &(model, steps) in MODELS {
        let (short, long) = (count(model, steps)?, count(model, 2 * steps)?);
        let samples = steps * 32;
        let each = (long - short) as f64 / samples as f64;
        println!("{model:<10} {each:>14.0} instructions per sample");
        rows.push(json!({"model": model, "batch": 32, "instructions_per_sample": each}));
    }
    let path = root().join("bench/instructions.json");
    fs::write(&path, serde_json::to_string_pretty(&rows).expect("plain data") + "\n")
        .map_err(|error| format!("{}: {error}", path.display()))
}

fn count(model: &str, steps: u64) -> Outcome<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(root().join("target/release/paceline"))
        .args(["train", "--quiet", "--data", "digits", "--batch", "32", "--eval-every", "1000000"])
        .args(["--model", model, "--steps", &steps.to_string()])
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let counted = text.lines().find_map(|line| line.split_once("Collected :")).map(|(_, n)| n.trim().parse());
    match counted {
        Some(Ok(count)) => Ok(count),
        _ => Err(format!("valgrind counted nothing:\n{text}")),
    }
}
