//! Tables as the workload: `explore --table` and `bench samplers`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::support::{Ran, run};

/// A table in which the cost follows the axes, and small learning rates are not accurate.
fn table() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let mut text = String::from("vm,cores,learning_rate,cost_usd,accuracy\n");
    for (i, vm) in ["small", "medium", "large"].iter().enumerate() {
        for cores in [1, 2, 4, 8, 16] {
            for (j, rate) in ["0.001", "0.01", "0.1"].iter().enumerate() {
                let cost = 1.0 + 0.3 * i as f64 + f64::from(cores - 4).abs() * 0.2 + 0.1 * j as f64;
                let accuracy = 0.8 + 0.08 * j as f64;
                text += &format!("{vm},{cores},{rate},{cost},{accuracy}\n");
            }
        }
    }
    let path = folder.path().join("runs.csv");
    fs::write(&path, text).unwrap();
    (folder, path)
}

fn explore(path: &PathBuf, words: &[&str]) -> Ran {
    let axes = ["--axis", "vm", "--axis", "cores", "--axis", "learning_rate"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(words).arg("--table").arg(path).args(axes).args(["--objective", "cost_usd"]);
    run(command.args(["--constraint", "accuracy >= 0.85"]))
}

#[test]
fn the_result_line_has_best_evaluations_and_history_in_the_tables_own_words() {
    let (_folder, path) = table();
    for sampler in ["bayes", "random", "lhs", "sobol", "grid", "fractional"] {
        let words =
            ["explore", "--minimize", "--sampler", sampler, "--budget", "20", "--seed", "3", "--json"];
        let ran = explore(&path, &words);
        assert_eq!(ran.code, 0, "{sampler}: {}", ran.stderr);
        let result = ran.result();
        let history = result["history"].as_array().unwrap();
        assert_eq!(result["evaluations"], history.len(), "{sampler}");
        assert!(history.len() == 20 || sampler == "fractional", "{sampler}: {}", history.len());
        for row in history {
            assert!(row["vm"].is_string() && row["cores"].is_number() && row["cost_usd"].is_number());
        }
        let mut distinct: Vec<String> = history.iter().map(Value::to_string).collect();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), history.len(), "{sampler}: no row twice");
        let feasible = |row: &&Value| row["accuracy"].as_f64().unwrap() >= 0.85;
        let cost = |row: &Value| row["cost_usd"].as_f64().unwrap();
        let best = history.iter().filter(feasible).map(cost).fold(f64::INFINITY, f64::min);
        assert_eq!(cost(&result["best"]), best, "{sampler}");
        assert_eq!(explore(&path, &words).stdout, ran.stdout, "{sampler}: the seed decides");
    }
    let bayes = explore(&path, &["explore", "--budget", "20", "--json"]).result();
    assert_eq!(bayes["regret"], 0.0, "{bayes}");
}

#[test]
fn regret_curves_are_printed_for_people_and_programs() {
    let (_folder, path) = table();
    let words = ["bench", "samplers", "--samplers", "random,bayes", "--repeats", "6", "--budget", "30"];
    let ran = explore(&path, &words);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("random") && ran.stdout.contains("bayes"), "{}", ran.stdout);
    let result = explore(&path, &[&words[..], &["--json"]].concat()).result();
    for curve in result["curves"].as_array().unwrap() {
        let regrets = curve["regrets"].as_array().unwrap();
        assert_eq!(regrets.len(), 6);
        let mean = |i: usize| regrets.iter().map(|r| r[i].as_f64().unwrap()).sum::<f64>() / 6.0;
        assert!((curve["mean_regret"][14].as_f64().unwrap() - mean(14)).abs() < 1e-12);
        assert!((curve["regret_at_30"]["mean"].as_f64().unwrap() - mean(29)).abs() < 1e-12);
        assert!(
            curve["evaluations_to_5_percent"]["low"].as_f64()
                <= curve["evaluations_to_5_percent"]["high"].as_f64()
        );
    }
}

#[test]
fn mistakes_name_the_flag_and_what_would_be_right() {
    let (_folder, path) = table();
    for (words, code, part) in [
        (&["explore", "--axis", "core"][..], 2, "did you mean `cores`?"),
        (&["explore", "--sampler", "bayse"], 2, "did you mean `bayes`?"),
        (&["explore", "--sampler", "halving"], 2, "begins with shortened runs"),
        (&["explore", "--constraint", "accuracy >"], 2, "is missing"),
        (&["explore", "--constraint", "speed > 1"], 2, "no such column"),
        (&["explore", "--budget", "0"], 2, "0 is not in 1..="),
    ] {
        let ran = explore(&path, words);
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{words:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(part), "{words:?}: {}", ran.stderr);
    }
    let ran = explore(&PathBuf::from("no-such-table.csv"), &["explore"]);
    assert_eq!(ran.code, 5);
    assert!(ran.stderr.contains("no-such-table.csv"), "{}", ran.stderr);
}
