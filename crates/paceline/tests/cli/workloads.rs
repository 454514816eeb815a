//! Several workloads in one study: one file, one journal, one report.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use crate::studies::{Place, job_name, planned, survive};
use crate::support::run;

fn study(points: &str, sampler: &str) -> String {
    format!(
        r#"
        sampler = "{sampler}"
        points = "{points}"
        repeats = 2
        [common]
        steps = 6
        transport = "inproc"
        network = "1gbit,10us"
        [[workload]]
        name = "digits-mlp"
        data = "digits"
        model = "mlp"
        [[workload]]
        name = "series-mlp"
        data = "series"
        model = "mlp"
        steps = 4
        [axes]
        workers = [1, 2]
        batch = [8, 16, 32]
        [[objectives]]
        metric = "samples_per_s"
        goal = "maximize"
        [budget]
        runs = 16
        [control]
        every = 4
        "#
    )
}

/// Points of each workload, with how often they were run.
fn points(entries: &[Value]) -> BTreeMap<String, BTreeMap<String, usize>> {
    let mut points: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    let begun = entries.iter().filter(|e| e["entry"] == "begin" && e["job"]["role"] == "point");
    // A run that was killed begins again under its number.
    let jobs: BTreeMap<u64, &Value> = begun.map(|e| (e["job"]["id"].as_u64().unwrap(), &e["job"])).collect();
    for job in jobs.values() {
        let of = points.entry(job["workload"].as_str().unwrap().into()).or_default();
        *of.entry(job["levels"].to_string()).or_default() += 1;
    }
    points
}

#[test]
fn paired_workloads_resume_after_kills_with_each_point_exactly_once() {
    for (seed, study) in [(11, study("paired", "random")), (12, study("own", "random"))] {
        let planned = planned(&study);
        let place = Place::new(&study);
        survive(&place, seed, 4, &planned, false);
        let points = points(&place.entries());
        assert_eq!(points.len(), 2, "{points:?}");
        let [a, b] = ["digits-mlp", "series-mlp"].map(|name| &points[name]);
        assert_eq!((a.len(), b.len()), (4, 4), "{points:?}");
        assert!(a.values().chain(b.values()).all(|times| *times == 2), "{points:?}");
        assert_eq!(a == b, study.contains("paired"), "{points:?}");
    }
}

#[test]
fn a_learning_sampler_serves_several_workloads() {
    for of in ["paired", "own"] {
        let place = Place::new(&study(of, "bayes"));
        let result = place.result(&["explore", "s.toml"]);
        assert_eq!(result["failed"], 0, "{result}");
        let points = points(&place.entries());
        assert!(points.values().all(|own| own.values().sum::<usize>() == 8), "{points:?}");
    }
}

#[test]
fn runs_journal_exports_and_pages_carry_the_workload() {
    let place = Place::new(&study("paired", "random"));
    let explored = place.run(&["explore", "s.toml", "--report=out"]);
    assert_eq!(explored.code, 0, "{}", explored.stderr);
    assert!(explored.stderr.contains("digits-mlp, control") && explored.stderr.contains("series-mlp, batch"));
    for file in ["report.html", "report.md"] {
        let text = fs::read_to_string(place.path().join("out").join(file)).unwrap();
        assert!(text.contains("digits-mlp") && text.contains("series-mlp"), "{file}");
    }
    let begun: BTreeSet<String> =
        place.entries().iter().filter(|e| e["entry"] == "begin").map(job_name).collect();
    assert!(
        begun.iter().all(|name| name.starts_with("\"digits-mlp\"") || name.starts_with("\"series-mlp\""))
    );
    let analysed = place.result(&["analyze", "s"]);
    assert_eq!(analysed["transfer"]["workload"], "workload", "{analysed}");
    let traits = &analysed["transfer"]["traits"][1];
    assert_eq!((&traits["data"], &traits["model"]), (&"series".into(), &"mlp".into()), "{traits}");
    assert!(traits["bytes_per_flop"].as_f64().is_some_and(|bytes| bytes > 0.0), "{traits}");
    let plan = place.run(&["plan", "s.toml", "--no-probe"]);
    assert!(plan.stdout.contains("series-mlp, batch"), "{}", plan.stdout);
}

#[test]
fn every_mistake_of_workloads_is_told_with_its_line() {
    let place = Place::new(
        r#"
points = "each"
[common]
epochs = "many"
[[workload]]
data = "digits"
[[workload]]
name = "b"
modl = "mlp"
[[workload]]
name = "b"
lr = 0.1
[axes]
lr = [0.1, 0.2]
[[objectives]]
metric = "time_to_accuracy_s"
goal = "minimize"
"#,
    );
    let checked = run(&mut place.command(&["check", "s.toml"]));
    assert_eq!(checked.code, 3, "{}", checked.stderr);
    for told in [
        "s.toml:2: points: `each` is not possible; possible: paired, own",
        "s.toml:5: workload[0]: the key `name` is missing",
        "s.toml:11: workload[2].name: another workload has this name",
        "s.toml:12: workload[2].lr: is an axis too",
    ] {
        assert!(checked.stderr.contains(told), "{told}\n{}", checked.stderr);
    }
    let place = Place::new(&study("paired", "grid").replace("steps = 4", "modl = \"mlp\""));
    let checked = run(&mut place.command(&["check", "s.toml"]));
    assert!(
        checked.stderr.contains("workload[1].modl") && checked.stderr.contains("model"),
        "{}",
        checked.stderr
    );
    let place = Place::new(
        "[common]\nsteps = 3\n[workload]\nepochs = 1\n[axes]\nlr = [0.1]\n[[objectives]]\nmetric = \"wall_s\"\ngoal = \"minimize\"\n",
    );
    let checked = run(&mut place.command(&["check", "s.toml"]));
    assert!(checked.stderr.contains("s.toml:1: common: belongs to several workloads"), "{}", checked.stderr);
}

#[test]
fn points_of_several_workloads_are_predicted() {
    let place = Place::new(&study("paired", "grid"));
    let predicted = place.result(&["predict", "s.toml", "--time-only"]);
    let points = predicted["points"].as_array().unwrap();
    assert_eq!(points.len(), 12, "{predicted}");
    assert_eq!(points.iter().filter(|p| p["levels"]["workload"] == "series-mlp").count(), 6);
}

#[test]
fn several_studies_are_analysed_and_reported_as_one() {
    let one = |data: &str, name: &str| {
        let study = study("own", "grid").replace("repeats = 2", &format!("name = \"{name}\"\nrepeats = 2"));
        let (head, rest) = study.split_once("[common]").unwrap();
        let (_, axes) = rest.split_once("[axes]").unwrap();
        let head = head.replace("points = \"own\"", "");
        format!(
            "{head}[workload]\nsteps = 4\ntransport = \"inproc\"\ndata = \"{data}\"\nmodel = \"mlp\"\n[axes]{axes}"
        )
    };
    let place = Place::new(&one("digits", "a"));
    fs::write(place.path().join("b.toml"), one("series", "b")).unwrap();
    for file in ["s.toml", "b.toml"] {
        place.result(&["explore", file]);
    }
    let analysed = place.result(&["analyze", "a", "b"]);
    assert_eq!(analysed["transfer"]["agreements"].as_array().unwrap().len(), 1, "{analysed}");
    let reported = place.run(&["report", "a", "b", "--out", "both"]);
    assert_eq!(reported.code, 0, "{}", reported.stderr);
    let text = fs::read_to_string(place.path().join("both/report.md")).unwrap();
    for told in ["Does it carry over?", "paceline explore s.toml", "paceline explore b.toml", "series"] {
        assert!(text.contains(told), "{told}\n{text}");
    }
    let mixed = place.run(&["report", "a", "nowhere"]);
    assert_eq!(mixed.code, 2, "{}", mixed.stderr);
    assert!(mixed.stderr.contains("nowhere"), "{}", mixed.stderr);
}
