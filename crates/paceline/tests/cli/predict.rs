//! `paceline predict`: what a study's runs will take, how right that was, and samplers that begin with it.

use std::fs;

use serde_json::Value;

use crate::support::{Ran, run};

struct Place(tempfile::TempDir);

const STUDY: &str = r#"
sampler = "SAMPLER"
repeats = 2
PRIOR

[workload]
data = "digits"
steps = 6
target-accuracy = 0.3

[axes]
workers = [1, 2]
strategy = ["ring-allreduce", "tree"]
batch = [8, 16]

[[objectives]]
metric = "samples_per_s"
goal = "maximize"

[budget]
runs = RUNS

[control]
every = 0
"#;

impl Place {
    fn new(sampler: &str, prior: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Every point twice, or a few that are chosen.
        let runs = if sampler == "grid" { "12" } else { "4" };
        let text = STUDY.replace("SAMPLER", sampler).replace("PRIOR", prior).replace("RUNS", runs);
        fs::write(folder.path().join("s.toml"), text).unwrap();
        Self(folder)
    }

    fn run(&self, words: &str) -> Ran {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.args(words.split(' ')).current_dir(self.0.path()).args(["--store", "store"]);
        run(&mut command)
    }

    fn result(&self, words: &str) -> Value {
        let ran = self.run(words);
        assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
        ran.result()
    }
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {value}"))
}

#[test]
fn every_point_is_predicted_with_an_interval_and_what_it_learns() {
    let place = Place::new("grid", "");
    let document = place.result("predict s.toml --json --quiet");
    assert_eq!((&document["origin"], &document["compared"]), (&"simulated".into(), &Value::Null));
    let points = document["points"].as_array().unwrap();
    // One worker has no strategy.
    assert_eq!(points.len(), 6);
    for point in points {
        for figure in ["step_s", "train_s", "total_s", "samples_per_s"] {
            let [middle, low, high] = [0, 1, 2].map(|i| number(point, &format!("/prediction/{figure}/{i}")));
            assert!(0.0 < low && low < middle && middle < high, "{figure}: {point}");
        }
        let workers = number(point, "/levels/workers");
        assert_eq!(number(point, "/prediction/sent_bytes") > 0.0, workers > 1.0, "{point}");
        assert!(number(point, "/prediction/final_accuracy") > 0.0, "{point}");
        // Without a calibration everything is a guess, and said to be.
        assert!(point["prediction"]["beyond"][0].as_str().unwrap().contains("round numbers"), "{point}");
    }
    let timed = place.result("predict s.toml --json --quiet --time-only");
    assert_eq!(timed["points"][0]["prediction"]["final_accuracy"], Value::Null);
    assert_eq!(timed["points"][0]["prediction"]["train_s"], points[0]["prediction"]["train_s"]);
    let told = place.run("predict s.toml --quiet --time-only");
    let lines: Vec<&str> = told.stdout.lines().collect();
    // The summary comes first, and what it rests on before anything else.
    assert_eq!(
        lines[..2],
        ["6 points predicted", "not calibrated: nothing was measured: times come from round numbers"]
    );
    assert!(lines[2].starts_with("fastest training: "), "{}", told.stdout);
    assert!(told.stdout.contains("not modelled: evaluations") && told.stdout.contains("buffers"));
    assert_eq!(
        told.stdout.matches("not calibrated").count(),
        1,
        "not again for every point: {}",
        told.stdout
    );
}

#[test]
fn predictions_are_compared_with_the_studys_runs() {
    let place = Place::new("grid", "");
    let early = place.run("predict s.toml --against");
    assert_eq!(early.code, 2, "nothing was measured yet: {}", early.stderr);
    place.result("explore s.toml --json --quiet");
    let document = place.result("predict s.toml --json --quiet --time-only --against");
    let compared = document["compared"].as_array().unwrap();
    let metrics: Vec<&str> = compared.iter().map(|c| c["metric"].as_str().unwrap()).collect();
    assert_eq!(metrics, ["step_s", "samples_per_s"]);
    for one in compared {
        let points = one["points"].as_array().unwrap();
        assert_eq!(number(one, "/comparison/points") as usize, points.len());
        assert!(points.len() == 6 && points.iter().all(|p| p["measured"].as_array().unwrap().len() == 2));
        for figure in ["mean_error", "p90_error", "rank_correlation", "regret", "noise_floor", "covered"] {
            assert!(number(one, &format!("/comparison/{figure}")).is_finite());
        }
    }
    let words = place.run("predict s.toml --quiet --time-only --against=s");
    assert!(words.stdout.contains("choosing by prediction costs"), "{}", words.stdout);
    assert_eq!(place.run("predict s.toml --against=other").code, 2);
}

#[test]
fn bayes_begins_with_the_point_that_the_simulator_likes_best() {
    let place = Place::new("bayes", "prior = \"simulator\"");
    let predicted = place.result("predict s.toml --json --quiet --time-only");
    let points = predicted["points"].as_array().unwrap();
    let rate = |point: &&Value| number(point, "/prediction/samples_per_s/0");
    let best = points.iter().max_by(|a, b| rate(a).total_cmp(&rate(b))).unwrap();
    place.result("explore s.toml --json --quiet");
    let journal = fs::read_to_string(place.0.path().join("store/studies/s/journal.ndjson")).unwrap();
    let entries: Vec<Value> =
        journal.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["entry"].clone()).collect();
    let prior: Vec<&Value> = entries.iter().filter(|entry| entry["entry"] == "prior").collect();
    assert_eq!(prior.len(), 1);
    assert_eq!(prior[0]["figures"].as_array().unwrap().len(), 6);
    let first = entries.iter().find(|e| e["entry"] == "begin" && e["job"]["role"] == "point").unwrap();
    let level = |axis: usize| first["job"]["levels"][axis].as_u64().unwrap() as usize;
    let levels = [[1, 2][level(0)], [8, 16][level(2)]];
    assert_eq!(levels.map(f64::from), ["workers", "batch"].map(|a| number(best, &format!("/levels/{a}"))));
}

#[test]
fn a_prior_that_cannot_be_is_named_with_its_line() {
    for (sampler, prior, says) in [
        ("random", "prior = \"simulator\"", "belongs to `sampler = \"bayes\"`"),
        ("bayes", "prior = \"oracle\"", "simulator"),
        ("bayes", "prior = \"simulator\"\ncalibration = \"nowhere.toml\"", "nowhere.toml"),
    ] {
        let ran = Place::new(sampler, prior).run("explore s.toml --quiet");
        assert!([3, 5].contains(&ran.code) && ran.stderr.contains(says), "{says}: {}", ran.stderr);
    }
}

#[test]
fn what_a_study_needs_is_measured_once_and_predictions_rest_on_it() {
    let place = Place::new("grid", "");
    let file = place.0.path().join("s.toml");
    let text = fs::read_to_string(&file).unwrap().replace("\"digits\"", "\"series\"\nmodel = \"gru\"");
    fs::write(&file, text).unwrap();
    let calibrate = |words: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_paceline"));
        let ran = run(command.args(format!("calibrate {words}").split(' ')).current_dir(place.0.path()));
        assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
        ran
    };
    calibrate("--quick --out here.toml --quiet");
    let before = place.run("predict s.toml --time-only --calibration here.toml");
    let command = "`paceline calibrate --study s.toml --out here.toml`";
    assert!(before.stderr.contains("here.toml lacks 2 passes of this study"), "{}", before.stderr);
    assert!(before.stderr.contains(command), "{}", before.stderr);
    assert!(before.stdout.contains("not calibrated: passes of gru on 1×32×3"), "{}", before.stdout);

    let planned = calibrate("--study s.toml --out here.toml --dry-run").result();
    assert_eq!((&planned["known"], planned["missing"].as_array().unwrap().len()), (&0.into(), 2));
    let first = calibrate("--study s.toml --out here.toml --quick").result();
    assert_eq!(first["added"][1]["model"], "gru");
    assert_eq!(first["added"][1]["batch"], 16);
    assert!(number(&first, "/added/1/pass_s") > 0.0 && number(&first, "/added/1/seconds") > 0.0);
    let again = calibrate("--study s.toml --out here.toml");
    assert_eq!((&again.result()["known"], &again.result()["added"]), (&2.into(), &Value::Array(Vec::new())));
    assert!(again.stderr.contains("all were measured before"), "{}", again.stderr);

    let after = place.run("predict s.toml --time-only --calibration here.toml");
    assert!(!after.stderr.contains("lacks") && !after.stdout.contains("not calibrated"), "{}", after.stdout);
    // The same by `predict` itself, for one batch more.
    let more = fs::read_to_string(&file).unwrap().replace("[8, 16]", "[8, 16, 24]");
    fs::write(&file, more).unwrap();
    let ran = place.run("predict s.toml --time-only --calibration here.toml --calibrate");
    assert!(ran.stderr.contains("2 measured before, 1 to measure"), "{}", ran.stderr);
    assert!(ran.code == 0 && !ran.stdout.contains("not calibrated"), "{}", ran.stdout);
    let without = place.run("predict s.toml --calibrate");
    assert!(without.code == 3 && without.stderr.contains("--calibrate"), "{}", without.stderr);
}
