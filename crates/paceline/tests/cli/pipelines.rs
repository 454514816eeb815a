//! `paceline model show --stages`: schedules of pipelines, drawn, written, read and checked.

use std::fs;

use serde_json::Value;

use crate::support::{paceline, result};

fn shown(words: &str) -> Value {
    result(&format!("model show {words} --json"))
}

fn refusal(words: &str) -> String {
    let ran = paceline(&format!("model show {words}"));
    assert_eq!(ran.code, 3, "{words}: {}", ran.stderr);
    ran.stderr
}

#[test]
fn a_schedule_is_drawn_with_bubble_and_slots_without_any_model() {
    let ran = paceline("model show --stages 4 --micro-batches 8");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(
        ran.stdout.starts_with("1f1b, 4 stages, 8 micro-batches: bubble 27.3%, balance 100.0%, 2.91 times")
    );
    for rank in 0..4 {
        assert!(ran.stdout.contains(&format!("\nrank {rank}  ")), "{}", ran.stdout);
    }
    assert!(ran.stdout.contains("forward of micro-batch N"));
    let slots = |pipeline: &str| -> Vec<u64> {
        let report = shown(&format!("--stages 4 --micro-batches 8 --pipeline {pipeline}"));
        report["stage"].as_array().unwrap().iter().map(|stage| stage["slots"].as_u64().unwrap()).collect()
    };
    assert_eq!(slots("1f1b"), [4, 3, 2, 1]);
    assert_eq!(slots("gpipe"), [8, 8, 8, 8]);
}

#[test]
fn stages_of_a_network_have_all_its_layers_parameters_and_work() {
    let whole = shown("resnet20");
    for cuts in ["auto", "layer1.2,layer2.1.bn2,layer3.0"] {
        let report = shown(&format!("resnet20 --stages 4 --micro-batches 8 --cuts {cuts}"));
        let stages = report["pipeline"]["stage"].as_array().unwrap();
        let sum = |key: &str| stages.iter().map(|stage| stage[key].as_f64().unwrap()).sum::<f64>();
        assert_eq!(sum("parameters"), whole["parameters"].as_f64().unwrap(), "{cuts}");
        assert!((sum("share") - 1.0).abs() < 1e-9, "{cuts}");
        let per_slot: Vec<u64> = stages.iter().map(|stage| stage["slot_bytes"].as_u64().unwrap()).collect();
        for (stage, bytes) in stages.iter().zip(per_slot) {
            let (all, slots) =
                (stage["activation_bytes"].as_u64().unwrap(), stage["slots"].as_u64().unwrap());
            assert!(bytes > 0 && all > slots * bytes, "{stage}");
        }
        assert_eq!(stages[0]["returned_bytes"], 0);
        assert_eq!(stages[3]["sent_bytes"], 0);
    }
    let report = shown("resnet20 --stages 2 --micro-batches 4 --cuts layer3");
    assert_eq!(report["pipeline"]["stage"][1]["first_layer"], "layer3.0.downsample.0");
    // 16×16×32 numbers of 16 samples.
    assert_eq!(report["pipeline"]["stage"][0]["sent_bytes"], 16 * 16 * 32 * 16 * 4);
    let balanced = |cuts: &str| {
        let report = shown(&format!("lenet --stages 3 --cuts {cuts}"));
        report["pipeline"]["balance"].as_f64().unwrap()
    };
    assert!(balanced("auto") >= balanced("conv2,fc1"));
}

#[test]
fn a_schedule_that_was_written_is_read_again_and_pictures_are_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (csv, svg) = (path("program.csv"), path("schedule.svg"));
    let words = format!("mlp --stages 3 --micro-batches 4 --pipeline gpipe --csv {csv} --svg {svg}");
    let written = shown(&words);
    assert_eq!(fs::read_to_string(&csv).unwrap().lines().next(), Some("0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3"));
    let picture = fs::read_to_string(&svg).unwrap();
    assert!(picture.starts_with("<svg ") && picture.contains("idle") && picture.contains("MB"), "{picture}");
    let mut read = shown(&format!("mlp --program {csv}"));
    assert_eq!(read["pipeline"]["pipeline"].as_str(), Some(csv.as_str()));
    read["pipeline"]["pipeline"] = "gpipe".into();
    assert_eq!(read, written);
}

#[test]
fn a_schedule_that_cannot_be_run_is_refused_with_its_line_stage_and_work() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("program.csv");
    let said = |table: &str, words: &str| {
        fs::write(&file, table).unwrap();
        refusal(&format!("{words} --program {}", file.display()))
    };
    for (table, words, reason) in [
        ("0F0,0B0\n1F0,1F0,1B0\n", "", "line 2, 1F0 (stage 1): is there twice"),
        ("0F0,0B0\n\n1F0,1X0\n", "", "line 3, cell 2: `1X0`"),
        ("0F0,0F1,0B1,0B0\n", "", "line 1, 0B1 (stage 0): micro-batches must ascend"),
        ("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "", "the ranks wait for each other"),
        ("0F0,0B0\n", "--micro-batches 2", "--micro-batches 2: the program has 1"),
        (
            "0F0,0B0\n1F0,1B0\n",
            "mlp --cuts fc9",
            "--cuts fc9: there is no such layer; there are fc1, fc2, fc3",
        ),
        ("", "", "the program has no work"),
    ] {
        let refused = said(table, words);
        assert!(refused.contains(reason), "{table:?} {words}: {refused}");
    }
    assert!(refusal("mlp --stages 9").contains("--stages 9: the network has 3 layers"));
    // Nothing is made of it: it would take gigabytes.
    let most = "1024 stages and 65536 micro-batches are 134217728 passes, and a program has at most 2097152";
    for words in
        ["--stages 1024 --micro-batches 65536", "mlp --stages 1024 --batch 65536 --micro-batches 65536"]
    {
        assert!(refusal(words).contains(most), "{words}: {}", refusal(words));
    }
    assert!(refusal("mlp --stages 2 --batch 4 --micro-batches 5").contains("between 1 and --batch (4)"));
    assert!(refusal("--program /nowhere/program.csv").contains("/nowhere/program.csv: "));
    for usage in [
        "model show",
        "model show mlp --cuts fc2",
        "model show mlp --svg x.svg",
        "model show --stages 0",
        "model show --stages 2 --cuts a",
    ] {
        assert_eq!(paceline(usage).code, 2, "{usage}");
    }
}

#[test]
fn a_calibration_gives_times_and_the_cut_that_they_balance() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/prediction/calibration.toml");
    let words = "resnet20 --input 8x8x1 --batch 64 --micro-batches 4 --stages 2";
    let balance = |report: &Value| report["pipeline"]["balance"].as_f64().unwrap();
    let measured = shown(&format!("{words} --calibration {file}"));
    assert_eq!(measured["pipeline"]["unit"], "nanoseconds");
    // What was counted is cut elsewhere, and there the measured times are less even.
    let counted = shown(words);
    assert_eq!(counted["pipeline"]["unit"], "operations");
    let cut = counted["pipeline"]["stage"][1]["first_layer"].as_str().unwrap();
    let there = shown(&format!("{words} --calibration {file} --cuts {cut}"));
    assert!(balance(&measured) > balance(&there), "{} beside {}", balance(&measured), balance(&there));
    let said = refusal(&format!("resnet20 --input 9x9x1 --stages 2 --calibration {file}"));
    assert!(said.contains("no pass of this kind was measured: resnet20 on 9×9×1"), "{said}");
}
