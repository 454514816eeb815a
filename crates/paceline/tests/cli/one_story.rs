//! One question has one answer, whichever verb is asked; and what small things once went wrong.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::serve::Served;
use crate::support::{Ran, joined, run};

fn paceline(folder: &Path, words: &[&str]) -> Ran {
    run(Command::new(env!("CARGO_BIN_EXE_paceline"))
        .args(words)
        .current_dir(folder)
        .args(["--store", "store"]))
}

fn result(folder: &Path, words: &[&str]) -> Value {
    let ran = paceline(folder, &[words, &["--json"]].concat());
    assert_eq!(ran.code, 0, "{words:?}: {}", ran.stderr);
    ran.result()
}

/// A program whose time is a function of its arguments, and that some points never finish.
const STUDY: &str = r#"
sampler = "grid"
repeats = 3
[command]
run = ["sh", "-c", 'echo "time_s=$(( ({a} * 100 + {b} * 40 + {seed} * 7 % 11) ))"']
metrics = { time_s = 'time_s=(\d+)' }
[axes]
a = [1, 2, 3]
b = [1, 2]
[[objectives]]
metric = "time_s"
goal = "minimize"
[control]
every = 4
"#;

#[test]
fn status_analyze_report_and_serve_say_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("s.toml"), STUDY).unwrap();
    let explored = result(folder, &["explore", "s.toml"]);
    let (status, analysis) = (result(folder, &["status", "s"]), result(folder, &["analyze", "s"]));
    assert_eq!(explored["findings"], status["findings"]);
    assert_eq!(status["findings"], analysis["findings"]);
    assert_eq!((&status["noise"], &status["shares"]), (&analysis["noise"], &analysis["importance"]));
    let best = &analysis["best"]["configurations"][0];
    assert_eq!(status["best"]["metrics"]["time_s"], best["value"]);
    result(folder, &["report", "s", "--out", "out"]);
    let markdown = fs::read_to_string(folder.join("out/report.md")).unwrap();
    let page = Served::start(folder, &[]).get("/study/s", "");
    let words = paceline(folder, &["status", "s"]).stdout;
    // Of Markdown and HTML, the words without their signs.
    let plain = |text: &str| {
        let text =
            text.replace("&#39;", "'").replace("&quot;", "\"").replace("&gt;", ">").replace("&lt;", "<");
        joined(&text.replace(['\\', '*', '`', '_'], ""))
    };
    let (markdown, page) = (plain(&markdown), plain(&page));
    for finding in analysis["findings"].as_array().unwrap() {
        let sentence = plain(finding["sentence"].as_str().unwrap());
        assert!(markdown.contains(&sentence), "{sentence}\n{markdown}");
        assert!(page.contains(&sentence), "{sentence}\n{page}");
        if ["noise", "cannot-tell"].contains(&finding["kind"].as_str().unwrap()) {
            assert!(plain(&words).contains(&sentence), "{sentence}\n{words}");
        }
    }
}

#[test]
fn figures_in_sentences_are_those_of_the_table_below() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("s.toml"), STUDY).unwrap();
    paceline(folder.path(), &["explore", "s.toml"]);
    let text = paceline(folder.path(), &["analyze", "s"]).stdout;
    let sentence = text.lines().find(|line| line.starts_with("- The lowest")).unwrap();
    let figure = sentence.split_once(": ").unwrap().1.split_once(" with ").unwrap().0.replace(" s ", " ");
    let row = text.lines().skip_while(|line| !line.starts_with("Best configurations")).nth(2).unwrap();
    assert!(row.contains(&figure), "{figure} in {row}");
}

#[test]
fn a_study_whose_minutes_ran_out_is_out_of_time_and_ends_with_a_control() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let slow = STUDY.replace("echo", "sleep 0.1; echo") + "[budget]\nminutes = 0.02\n";
    fs::write(folder.join("s.toml"), slow).unwrap();
    let ran = paceline(folder, &["explore", "s.toml"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(joined(&ran.stderr).contains("the study's time is over"), "{}", ran.stderr);
    let status = paceline(folder, &["status", "s"]).stdout;
    assert!(status.starts_with("s: out of time"), "{status}");
    let exported = result(folder, &["export", "s", "--format", "json"]);
    let last = exported["runs"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["for"], "control", "{last}");
}

#[test]
fn status_counts_runs_as_the_bar_does() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let slow = STUDY.replace("echo", "sleep 0.1; echo") + "[budget]\nminutes = 0.02\n";
    fs::write(folder.join("s.toml"), slow).unwrap();
    paceline(folder, &["explore", "s.toml"]);
    // A warm-up, 18 points, controls at the start, after every four and at the end.
    let one = &result(folder, &["status"])["studies"][0];
    assert_eq!(one["expected"], 1 + 18 + 6, "{one}");
    assert!(one["ended"].as_u64().unwrap() < 25, "{one}");
    let text = paceline(folder, &["status"]).stdout;
    assert!(text.contains("/25"), "{text}");
}

#[test]
fn analyze_warns_when_runs_of_two_models_would_pass_for_repeats() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (model, batch) in [("mlp", "16"), ("mlp", "32"), ("softmax", "16"), ("softmax", "32")] {
        let words = ["train", "--model", model, "--batch", batch, "--steps", "3", "--quiet"];
        assert_eq!(paceline(folder, &words).code, 0);
    }
    let ran = paceline(folder, &["analyze", "--factor", "batch"]);
    assert!(
        joined(&ran.stdout).contains("these runs differ in model too, which is no --factor"),
        "{}",
        ran.stdout
    );
    let both = paceline(folder, &["analyze", "--factor", "batch", "--factor", "model"]);
    assert!(!both.stdout.contains("which is no --factor"), "{}", both.stdout);
}

#[test]
fn empty_levels_are_not_printed() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = String::from("workers,servers,sync,time_s\n");
    for i in 0..6 {
        text += &format!("1,,,{}\n2,1,bsp,{}\n2,2,asp,{}\n", 10 + i % 3, 5 + i % 2, 7 + i % 3);
    }
    fs::write(folder.path().join("t.csv"), text).unwrap();
    let words = "analyze --table t.csv --factor workers --factor servers --factor sync --response time_s";
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    let ran = run(command.args(words.split(' ')).current_dir(folder.path()));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(!ran.stdout.contains("servers ,") && !ran.stdout.contains("sync ,"), "{}", ran.stdout);
    assert!(ran.stdout.contains("workers 1  "), "one worker has no servers: {}", ran.stdout);
}

#[test]
fn compare_shows_one_speed_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let runs = ["16", "32"]
        .map(|batch| result(folder, &["train", "--batch", batch, "--steps", "40", "--workers", "2"]));
    let [a, b] = runs.each_ref().map(|run| run["run"].as_str().unwrap());
    for run in &runs {
        let told = result(folder, &["explain", run["run"].as_str().unwrap()]);
        assert_eq!(told["samples_per_s"], run["samples_per_s"], "{told}");
    }
    let page = Served::start(folder, &[]).get(&format!("/compare?a={a}&b={b}"), "");
    // The row of the table and the sentence above it have the same digits.
    let row = page.split("samples_per_s").nth(1).unwrap();
    let cell = row.split("<td").nth(1).unwrap().split_once('>').unwrap().1.split_once('<').unwrap().0;
    assert!(page.matches(&format!("{cell} samples/s")).count() >= 1, "{cell}: {page}");
}
