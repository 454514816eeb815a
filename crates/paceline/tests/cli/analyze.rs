//! Tables analysed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{Ran, datasets, paceline, run};

/// Two models, one of which gains from a second server; three repeats; a control in between.
fn table(folder: &Path) -> PathBuf {
    let mut text = String::from("run,model,servers,sync,step_s,accuracy,kind\n");
    let wobble = |i: usize| 1.0 + 0.004 * ((i * 7919 % 11) as f64 - 5.0);
    let mut i = 0;
    for repeat in 0..3 {
        for model in ["lenet", "mlp"] {
            for servers in [1, 2] {
                for sync in ["asp", "bsp"] {
                    let gain = if model == "lenet" && servers == 2 { 0.69 } else { 1.0 };
                    let step = if model == "lenet" { 0.2 } else { 0.05 } * gain * wobble(i);
                    let accuracy = if sync == "bsp" { 0.97 } else { 0.95 };
                    text += &format!("r{i},{model},{servers},{sync},{step},{accuracy},\n");
                    i += 1;
                }
            }
        }
        text += &format!("c{repeat},lenet,1,bsp,{},0.97,control\n", 0.2 * (1.0 + 0.01 * f64::from(repeat)));
    }
    let path = folder.join("runs.csv");
    fs::write(&path, text).unwrap();
    path
}

fn analyze(path: &Path, words: &[&str]) -> Ran {
    run(Command::new(env!("CARGO_BIN_EXE_paceline")).arg("analyze").arg("--table").arg(path).args(words))
}

const ASKED: [&str; 12] = [
    "--factor",
    "model",
    "--factor",
    "servers",
    "--factor",
    "sync",
    "--response",
    "log(step_s)",
    "--id",
    "run",
    "--control",
    "kind",
];

fn sentences(result: &Value, kind: &str) -> Vec<String> {
    let findings = result["findings"].as_array().unwrap().iter().filter(|f| f["kind"] == kind);
    findings.map(|f| f["sentence"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn findings_tell_what_matters_what_does_not_and_where_it_depends() {
    let folder = tempfile::tempdir().unwrap();
    let path = table(folder.path());
    let ran = analyze(&path, &[&ASKED[..], &["--json"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let result = ran.result();
    let effects = sentences(&result, "effect");
    // 1 − 0.25 / √0.69 is 69.9%.
    assert!(effects[0].starts_with("model mlp instead of lenet cuts step_s by 69.7%"), "{effects:?}");
    let together = sentences(&result, "together");
    assert!(
        together.len() == 1
            && together[0].contains("servers")
            && together[0].contains("model lenet")
            && together[0].contains("with model mlp, no sure effect"),
        "{together:?}"
    );
    let none = sentences(&result, "no-effect");
    assert!(none.len() == 1 && none[0].starts_with("sync has no effect worth a word"), "{none:?}");
    let effect = result["findings"].as_array().unwrap().iter().find(|f| f["kind"] == "effect").unwrap();
    assert_eq!(effect["runs"].as_array().unwrap().len(), 24, "each finding names its runs");
    assert_eq!(result["noise"]["controls"]["n"], 3);
    let text = analyze(&path, &ASKED);
    assert!(text.stdout.contains("Findings\n- The lowest step_s of 8 configurations: "), "{}", text.stdout);
    assert_eq!(text.stdout, analyze(&path, &ASKED).stdout, "the same words every time");
}

#[test]
fn fronts_workloads_and_workers_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = table(folder.path());
    let more = ["--maximize", "accuracy", "--workload", "model", "--workers", "servers", "--json"];
    let result = analyze(&path, &[&ASKED[..], &more].concat()).result();
    let front = result["front"].as_array().unwrap();
    assert!(front.iter().any(|p| p["configuration"].as_str().unwrap().contains("bsp")), "{front:?}");
    assert_eq!(result["transfer"]["losses"].as_array().unwrap().len(), 2);
    assert_eq!(result["scaling"].as_array().unwrap().len(), 4);
}

#[test]
fn mistakes_name_the_flag_and_what_would_be_right() {
    let folder = tempfile::tempdir().unwrap();
    let path = table(folder.path());
    for (words, code, part) in [
        (
            &["--factor", "modle", "--response", "step_s"][..],
            2,
            "there is no such column; columns: run, model",
        ),
        (&["--factor", "model", "--response", "sync"], 2, "line 2 has `asp`, not a number"),
        (&["--factor", "model", "--response", "sqrt(step_s)"], 2, "neither a column nor `log(column)`"),
        (&["--factor", "model", "--response", "step_s", "--workload", "sync"], 2, "it is no --factor"),
        (&["--factor", "model", "--response", "step_s", "--workers", "model"], 2, "not numbers"),
        (&["--factor", "model"], 2, "--response: name at least one column"),
    ] {
        let ran = analyze(&path, words);
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{words:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(part), "{words:?}: {}", ran.stderr);
    }
    let ran = analyze(Path::new("no-such-table.csv"), &["--factor", "a", "--response", "b"]);
    assert_eq!(ran.code, 5);
    assert!(ran.stderr.contains("no-such-table.csv"), "{}", ran.stderr);
}

#[test]
fn a_report_is_one_page_that_loads_nothing_with_charts_and_their_numbers_beside() {
    let folder = tempfile::tempdir().unwrap();
    let (path, out) = (table(folder.path()), folder.path().join("out"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.arg("report").arg("--table").arg(&path).args(ASKED).args(["--maximize", "accuracy"]);
    let ran = run(command.args(["--workload", "model", "--workers", "servers", "--json", "--out"]).arg(&out));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let files = ran.result()["files"].as_array().unwrap().len();
    assert_eq!(files, 2 + 2 * 13, "the page, Markdown, and thirteen charts: {}", ran.stdout);
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("default-src 'none'") && page.contains("Plotly"), "{}", page.len());
    let markdown = fs::read_to_string(out.join("report.md")).unwrap();
    for part in ["not known: the table does not tell", "--workload model --workers servers"] {
        assert!(page.contains(part) && markdown.contains(part), "{part}: {markdown}");
    }
    for id in
        ["history", "main-effects", "interactions", "half-normal", "parallel", "slice", "contour", "scaling"]
    {
        assert!(page.contains(&format!("<figure id=\"{id}\"")), "{id}");
        assert!(markdown.contains(&format!("charts/{id}.svg")), "{id}");
        let numbers = fs::read_to_string(out.join(format!("charts/{id}.csv"))).unwrap();
        assert!(
            numbers.starts_with("panel,series,x,y,low,high,label\n") && numbers.lines().count() > 1,
            "{id}"
        );
    }
}

#[test]
fn recorded_runs_are_analysed_by_what_differs_between_their_plans() {
    let store = tempfile::tempdir().unwrap();
    let place = format!("--store {}", store.path().display());
    for i in 0..8 {
        let (batch, lr) = ([16, 64][i % 2], ["0.01", "0.05"][i / 2 % 2]);
        let ran = paceline(&format!("train --quiet --epochs 1 --batch {batch} --lr {lr} --seed {i} {place}"));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
    }
    let result = paceline(&format!("analyze --response final_accuracy --json {place}")).result();
    let best = &result["best"]["configurations"][0];
    assert_eq!(best["runs"].as_array().unwrap().len(), 2, "seeds are repeats, no factor: {best}");
    let terms: Vec<&str> =
        result["anova"]["sources"].as_array().unwrap().iter().map(|s| s["term"].as_str().unwrap()).collect();
    assert!(terms.contains(&"batch") && terms.contains(&"lr") && !terms.contains(&"seed"), "{terms:?}");
    let ran = paceline(&format!("analyze --response speed {place}"));
    assert!(
        ran.code == 2 && ran.stderr.contains("results have ") && ran.stderr.contains("samples_per_s"),
        "{}",
        ran.stderr
    );
    let ran = paceline(&format!("analyze --factor sped {place}"));
    assert!(ran.code == 2 && ran.stderr.contains("no plan of these runs"), "{}", ran.stderr);
}

#[test]
fn the_lynceus_table_is_analysed_as_statsmodels_does() {
    let Some(folder) = datasets("tables") else { return };
    let path = folder.join("tables/lynceus_rnn.csv");
    let factors = ["vm_flavor", "total_cores", "learning_rate", "batch_size", "synchronism"];
    let mut words: Vec<&str> = factors.iter().flat_map(|f| ["--factor", f]).collect();
    words.extend(["--response", "log(training_time_s)", "--json"]);
    let result = analyze(&path, &words).result();
    let fixture = include_str!("../../../paceline-analyze/tests/fixtures/statistics.json");
    let fixture: Value = serde_json::from_str(fixture).unwrap();
    let wanted = fixture["lynceus"]["sources"].as_array().unwrap();
    let found = result["anova"]["sources"].as_array().unwrap();
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(wanted) {
        let close = |a: &Value, b: &Value| (a.as_f64().unwrap() / b.as_f64().unwrap() - 1.0).abs() < 1e-6;
        assert!(found["term"] == wanted["term"] && close(&found["f"], &wanted["F"]), "{found} {wanted}");
        assert!(close(&found["sum_sq"], &wanted["sum_sq"]) && close(&found["p"], &wanted["p"]));
    }
}

#[test]
fn a_table_of_too_many_rows_is_refused_at_once_and_a_sample_is_offered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.csv");
    let row = |i: u64| format!("{},{},{}\n", ["a", "b"][i as usize % 2], i % 4093, 1 + i % 2 + i * 7919 % 11);
    fs::write(&path, String::from("f,n,time_s\n") + &(0..100_001).map(row).collect::<String>()).unwrap();
    let asked = ["--factor", "f", "--factor", "n", "--response", "time_s"];
    let refused = analyze(&path, &asked);
    assert_eq!((refused.code, refused.stdout.as_str()), (2, ""));
    for part in ["100001 rows; at most 100000", "--sample 50000"] {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    let sampled = |rows: &str, seed: &str| {
        let ran = analyze(&path, &[&asked[..], &["--sample", rows, "--seed", seed]].concat());
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.stdout
    };
    let one = sampled("3000", "1");
    assert!(
        one.starts_with("large.csv: time_s in 3000 runs\nnote: a sample of 3000 of the table's 100001 rows"),
        "{one}"
    );
    assert!(one.contains("- f a instead of b cuts time_s by "), "{one}");
    assert_eq!(one, sampled("3000", "1"), "the seed decides");
    assert_ne!(one, sampled("3000", "2"));
    // Whoever wants all rows gets them. What takes the square of the rows would end at the test's time limit.
    assert!(sampled("200000", "1").starts_with("large.csv: time_s in 100001 runs\n\nFindings"));
    assert_eq!(analyze(&path, &[&asked[..], &["--sample", "0"]].concat()).code, 2);
}
