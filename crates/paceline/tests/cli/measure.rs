//! `paceline model`, `paceline data` and `paceline bench`.

use serde_json::Value;

use crate::support::paceline;

fn json(words: &str) -> Value {
    let ran = paceline(words);
    assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
    serde_json::from_str(&ran.stdout).expect("one JSON document")
}

#[test]
fn models_have_the_parameters_that_their_descriptions_promise() {
    for (model, parameters) in
        [("mlp", 235_146), ("lenet", 1_663_370), ("resnet20", 272_474), ("resnet32", 466_906)]
    {
        assert_eq!(json(&format!("model show {model} --json"))["parameters"], parameters, "{model}");
    }
    let listed = json("model list --json");
    assert!(listed.as_array().unwrap().iter().any(|m| m["name"] == "softmax"));
}

#[test]
fn model_show_counts_flops_as_the_contract_does() {
    let shown = json("model show mlp --json");
    // 2 × multiply-adds; backward twice forward, less the first layer's input gradient.
    let macs = [784 * 256, 256 * 128, 128 * 10];
    let total: u64 = macs.iter().sum();
    assert_eq!(shown["forward_flops_per_sample"], 2 * total);
    assert_eq!(shown["training_flops_per_sample"], 6 * total - 2 * macs[0]);
    assert_eq!(json("model show mlp --data digits --json")["input"], serde_json::json!([8, 8, 1]));
    assert_eq!(paceline("model show lenet --input 1x1x1").code, 3);
    assert_eq!(paceline("model show lenet --input 5").code, 2);
}

#[test]
fn bench_compute_prints_the_fields_of_the_contract() {
    let measured = json("bench compute --model softmax --batch 8 --threads 1 --seconds 0.05 --json");
    for field in ["model", "batch", "threads", "samples_per_s", "gflops", "peak_gflops", "fraction_of_peak"] {
        assert!(measured.get(field).is_some(), "{field} is missing in {measured}");
    }
    assert!(measured["samples_per_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn bench_overhead_compares_pairs_by_throughput_and_cpu_time() {
    let measured = json("bench overhead --pairs 2 --steps 20 --data digits --json --quiet");
    for field in ["loss_fraction", "loss_fraction_upper95", "cpu_fraction", "cpu_fraction_upper95"] {
        assert!(measured[field].is_f64(), "{field}: {measured}");
    }
    let pairs = measured["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 2);
    for side in ["recorded", "unrecorded"] {
        assert!(pairs.iter().all(|pair| pair[side]["cpu_s"].as_f64().unwrap() > 0.0), "{measured}");
    }
}

#[test]
fn datasets_are_listed_with_whether_they_are_here() {
    let rows = json("data --json --data-dir /nonexistent");
    let find = |name: &str| rows.as_array().unwrap().iter().find(|r| r["name"] == name).unwrap().clone();
    assert_eq!(find("digits")["available"], true);
    assert_eq!(find("mnist")["available"], false);
}
