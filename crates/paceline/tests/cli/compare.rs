//! `paceline compare`: what it says of a copy and of a worse rule, its page, and how it goes on.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::{Ran, run, signal};

fn example(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/strategies");
    folder.join(format!("{name}.toml")).canonicalize().unwrap().display().to_string()
}

/// Small, and never short of time: what it does follows from its seeds alone.
const SMALL: &str =
    "--budget 1000 --workers 0 --virtual-workers 4 --steps 40 --seeds 5 --against ring-allreduce";

fn command(folder: &Path, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.arg("compare").args(words.split_whitespace()).arg("--store").arg(folder.join("store"));
    command
}

fn compare(folder: &Path, words: &str) -> Ran {
    let ran = run(&mut command(folder, words));
    assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
    ran
}

fn verdicts(findings: &Value) -> Vec<&str> {
    let all = findings["differences"].as_array().unwrap();
    all.iter().map(|difference| difference["verdict"].as_str().unwrap()).collect()
}

#[test]
fn a_copy_is_the_same_bit_for_bit_and_the_page_follows_from_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let mine = folder.path().join("mine.toml");
    let text = std::fs::read_to_string(example("ring-allreduce")).unwrap();
    std::fs::write(&mine, text.replace("ring all-reduce", "<b>mine</b>")).unwrap();
    let words =
        format!("{} {SMALL} --json --quiet --out {}", mine.display(), folder.path().join("a").display());
    let first = compare(folder.path(), &words).result();
    assert_eq!(verdicts(&first), ["same"; 8], "{first}");
    assert!(first["differences"].as_array().unwrap().iter().all(|d| d["identical"] == true), "{first}");
    // Nothing is left to do: the second time only writes the page again.
    let again =
        format!("{} {SMALL} --json --quiet --out {}", mine.display(), folder.path().join("b").display());
    assert_eq!(compare(folder.path(), &again).result(), first);
    let read = |of: &str, name: &str| std::fs::read_to_string(folder.path().join(of).join(name)).unwrap();
    for name in ["compare.html", "compare.md", "differences.csv", "runs.csv", "charts/curves.svg"] {
        assert_eq!(read("a", name), read("b", name), "{name}");
    }
    let page = read("a", "compare.html");
    assert!(page.contains("&lt;b&gt;mine&lt;/b&gt;") && !page.contains("<b>mine</b>"));
    assert!(page.contains("bit for bit") && read("a", "compare.md").contains("## How it was made"));
    let runs = read("a", "runs.csv");
    assert!(runs.contains("paceline simulate") && runs.contains("--learn"), "{runs}");
}

#[test]
fn a_rule_that_follows_one_workers_data_is_found_to_be_worse_where_data_are_split_by_label() {
    let folder = tempfile::tempdir().unwrap();
    let ran = compare(folder.path(), &format!("stepwise:naive {SMALL} --json --quiet"));
    let findings = ran.result();
    let of = |by_label: bool| {
        let all = findings["differences"].as_array().unwrap().iter();
        all.filter(move |d| d["cell"]["by_label"] == by_label && d["figure"] == "accuracy")
            .map(|d| d["verdict"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(of(true), ["worse", "worse"], "{}", findings["differences"]);
    assert!(!of(false).contains(&"better".to_owned()), "{}", findings["differences"]);
    let text = compare(folder.path(), &format!("stepwise:naive {SMALL} --quiet")).stdout;
    assert!(text.contains("Where it loses:") && text.contains("split by label"), "{text}");
}

#[test]
fn few_workers_are_compared_in_real_runs_that_the_store_keeps() {
    let folder = tempfile::tempdir().unwrap();
    let words = format!(
        "{} --budget 1000 --workers 2 --virtual-workers 0 --steps 8 --seeds 3 --against ring-allreduce --json --quiet",
        example("ring-allreduce")
    );
    let findings = compare(folder.path(), &words).result();
    let accuracies = findings["differences"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|d| d["figure"] == "accuracy")
        .collect::<Vec<_>>();
    assert_eq!(accuracies.len(), 4);
    assert!(accuracies.iter().all(|d| d["identical"] == true && d["n"] == 3), "{findings}");
    let standings = findings["standings"].as_array().unwrap();
    assert!(standings.iter().all(|s| s["cell"]["clock"] == "real" && s["n"] == 3), "{findings}");
    let listed = run(Command::new(env!("CARGO_BIN_EXE_paceline"))
        .args(["runs", "--json", "--limit", "200", "--store"])
        .arg(folder.path().join("store")));
    // Three rounds of two strategies in four cells, and the four runs that were timed first.
    assert_eq!(listed.stdout.matches("\"run\":").count(), 28, "{}", listed.stdout);
}

#[test]
fn what_cannot_be_compared_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.toml");
    std::fs::write(&broken, "name = \"b\"\n[[round]]\ndo = [{ update = \"x\" }]\n").unwrap();
    let broken = broken.display().to_string();
    for (words, why) in [
        (broken.as_str(), "does not sum to one"),
        ("rung", "is neither a strategy file"),
        ("gossip --against stepwise:x", "there is no such variant"),
        ("gossip --workers 1", "at least 2"),
        ("gossip --workers 0 --virtual-workers 0", "nothing to compare"),
        ("gossip --budget 0", "minutes"),
        ("no-such-file.toml", "no-such-file.toml"),
    ] {
        let ran = run(&mut command(folder.path(), words));
        assert!([2, 3].contains(&ran.code), "{words}: {} {}", ran.code, ran.stderr);
        assert!(ran.stderr.contains(why), "{words}: {}", ran.stderr);
        assert!(!folder.path().join("store").exists(), "{words}");
    }
}

#[test]
fn an_interrupted_comparison_goes_on_and_comes_to_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    let words = format!("gossip {SMALL} --json --quiet");
    let wanted = compare(&whole, &words).result();
    let mut child = command(&parts, &words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // Once its journal is there, it can be interrupted at any moment.
    let begun = || {
        let folders = std::fs::read_dir(parts.join("store/comparisons")).into_iter().flatten().flatten();
        folders
            .map(|folder| folder.path().join("journal.ndjson"))
            .any(|path| std::fs::read_to_string(path).is_ok_and(|text| text.contains("\"entry\":\"extent\"")))
    };
    for _ in 0..2400 {
        if begun() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(begun(), "no journal within two minutes");
    assert!(signal("INT", child.id()));
    let code = child.wait().unwrap().code();
    // It may have been over already.
    assert!([Some(130), Some(0)].contains(&code), "{code:?}");
    let findings = compare(&parts, &words).result();
    assert_eq!(findings["differences"], wanted["differences"]);
    assert_eq!(findings["standings"], wanted["standings"]);
}
