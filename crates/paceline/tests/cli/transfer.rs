//! What carries over: workloads of one study, several studies and tables analysed as one, techniques compared honestly.

use std::fs;

use serde_json::Value;

use crate::studies::Place;

fn study(data: &str, axes: &str, objective: &str) -> String {
    format!(
        "sampler = \"grid\"\nrepeats = 2\n[workload]\ndata = \"{data}\"\nmodel = \"mlp\"\nsteps = 4\ntransport = \"inproc\"\n\
         workers = 2\n[axes]\nbatch = [8, 16]\n{axes}\n[[objectives]]\nmetric = \"{objective}\"\ngoal = \"maximize\"\n\
         [control]\nevery = 4\n"
    )
}

fn levels(result: &Value, part: &str) -> Vec<String> {
    let all = result["each"].as_array().unwrap().iter();
    all.map(|one| one[part].as_str().unwrap().to_owned()).collect()
}

#[test]
fn several_studies_are_analysed_as_workloads_and_those_that_measured_something_else_are_refused() {
    let place = Place::new(&study("digits", "lr = [0.05, 0.1]", "samples_per_s"));
    // What is an axis of one study is a setting of the other: its default, here.
    fs::write(place.path().join("b.toml"), study("series", "", "samples_per_s")).unwrap();
    fs::write(place.path().join("c.toml"), study("series", "", "final_accuracy")).unwrap();
    for file in ["s.toml", "b.toml", "c.toml"] {
        place.result(&["explore", file]);
    }
    let result = place.result(&["analyze", "s", "b"]);
    assert_eq!(result["table"], "s, b");
    assert_eq!(levels(&result, "workload"), ["b", "s"]);
    let traits = result["transfer"]["traits"].as_array().unwrap();
    assert_eq!(traits.iter().map(|t| t["data"].as_str().unwrap()).collect::<Vec<_>>(), ["digits", "series"]);
    assert!(
        traits.iter().all(|t| t["model"] == "mlp" && t["wait_share"].as_f64().unwrap() > 0.0),
        "{traits:?}"
    );
    assert!(traits[0]["bytes_per_flop"].as_f64().unwrap() > 0.0, "{traits:?}");
    // The two at the default learning rate were run on both.
    assert_eq!(result["transfer"]["agreements"][0]["n"], 2, "{}", result["transfer"]);
    assert!(result["notes"].as_array().unwrap().is_empty(), "{}", result["notes"]);
    let refused = place.run(&["analyze", "s", "c"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("s wants to maximize samples_per_s, c to maximize final_accuracy"),
        "{}",
        refused.stderr
    );
    let twice = place.run(&["analyze", "s", "s"]);
    assert!(twice.code == 2 && twice.stderr.contains("s is there twice"), "{}", twice.stderr);
}

#[test]
fn a_study_of_workloads_begins_with_best_mattered_transfer_and_gaps_wherever_it_is_told() {
    let text = "sampler = \"grid\"\nrepeats = 3\n[common]\nsteps = 4\ntransport = \"inproc\"\n[[workload]]\nname = \"digits-mlp\"\n\
                data = \"digits\"\nmodel = \"mlp\"\n[[workload]]\nname = \"digits-softmax\"\ndata = \"digits\"\n\
                model = \"softmax\"\n[axes]\nworkers = [1, 2]\nbatch = [8, 16]\n[[objectives]]\n\
                metric = \"samples_per_s\"\ngoal = \"maximize\"\n[control]\nevery = 4\n";
    let place = Place::new(text);
    let explored = place.run(&["explore", "s.toml"]);
    assert_eq!(explored.code, 0, "{}", explored.stderr);
    let best = "The highest samples_per_s on each workload: digits-mlp: ";
    assert!(explored.stdout.contains(best), "{}", explored.stdout);
    assert!(explored.stdout.contains("the workloads' own aside"), "{}", explored.stdout);
    let status = place.result(&["status", "s"]);
    assert!(status["best"].is_null() && status["each"].as_array().unwrap().len() == 2, "{status}");
    assert_eq!(status["each"][1]["best"]["levels"]["workload"], "digits-softmax", "{status}");
    let analysed = place.result(&["analyze", "s"]);
    assert_eq!(status["findings"], analysed["findings"], "one story");
    let mut kinds: Vec<&str> =
        analysed["findings"].as_array().unwrap().iter().map(|f| f["kind"].as_str().unwrap()).collect();
    kinds.dedup();
    assert_eq!(kinds[..4], ["best", "shares", "transfer", "cannot-tell"], "{analysed}");
    let told = place.run(&["analyze", "s"]).stdout;
    assert!(told.contains(&format!("\nFindings\n- {best}")), "{told}");
    assert!(
        told.contains("Best configurations on digits-softmax")
            && !told.contains("\nWhat these runs do not tell\n"),
        "{told}"
    );
    let sources = analysed["anova"]["sources"].as_array().unwrap();
    assert!(sources.iter().all(|source| source["term"] != "workload"), "{sources:?}");
}

#[test]
fn techniques_are_compared_each_at_its_own_setting() {
    let place = Place::new("");
    let mut rows = String::from("strategy,lr,time_s\n");
    // The ring wants a greater rate than the server; at one rate for both, the server looks better.
    for repeat in 0..3 {
        for (strategy, lr, time) in [
            ("ring", 0.1, 0.50),
            ("ring", 0.3, 0.40),
            ("ring", 1.0, 0.70),
            ("ps", 0.1, 0.48),
            ("ps", 0.3, 0.60),
            ("local", 0.1, 0.45),
            ("local", 0.3, 0.401),
            ("local", 1.0, 0.52),
        ] {
            rows += &format!("{strategy},{lr},{}\n", time * (1.0 + 0.01 * (f64::from(repeat) - 1.0)));
        }
    }
    fs::write(place.path().join("t.csv"), rows).unwrap();
    let words = "analyze --table t.csv --factor strategy --factor lr --response log(time_s) --compare strategy --tune lr";
    let words: Vec<&str> = words.split(' ').collect();
    let result = place.result(&words);
    let one = &result["comparisons"][0];
    let chosen: Vec<(&str, &str, u64)> = one["levels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|l| {
            let setting = l["settings"][0].as_str().unwrap();
            (l["level"].as_str().unwrap(), setting, l["tried"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(chosen, [("ring", "lr 0.3", 3), ("local", "lr 0.3", 3), ("ps", "lr 0.1", 2)]);
    assert_eq!(one["method"], "leave-one-out");
    let told = place.run(&words).stdout;
    let sentence =
        told.lines().find(|line| line.starts_with("- strategy, each at its own best lr: ring 0.4 s ["));
    let sentence = sentence.unwrap_or_else(|| panic!("{told}"));
    assert!(sentence.contains("ring is better than ps by 20% ["), "{sentence}");
    assert!(sentence.contains("; local cannot be told from ring"), "{sentence}");
    assert!(
        sentence.ends_with("not all had as many settings to choose from: ring 3, local 3, ps 2"),
        "{sentence}"
    );
    assert!(told.contains("Differences between levels of strategy"), "{told}");
    for (wrong, part) in [
        (&["--compare", "strat"][..], "--compare strat: it is no --factor"),
        (&["--compare", "lr", "--tune", "lr"], "--tune lr: it is what --compare compares"),
        (&["--tune", "lr"], "--compare"),
    ] {
        let ran = place.run(&[&words[..words.len() - 4], wrong].concat());
        assert!(ran.code == 2 && ran.stderr.contains(part), "{wrong:?}: {}", ran.stderr);
    }
    // Two tables are two workloads.
    fs::copy(place.path().join("t.csv"), place.path().join("u.csv")).unwrap();
    let both = place.result(&[&words[..], &["--table", "u.csv"]].concat());
    assert_eq!(levels(&both, "workload"), ["t.csv", "u.csv"]);
    assert_eq!(both["comparisons"].as_array().unwrap().len(), 2);
}
