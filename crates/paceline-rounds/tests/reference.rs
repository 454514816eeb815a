//! Matrices, contraction and bias are those of numpy (`make_reference.py` writes `reference.json`).

use std::path::Path;
use std::sync::Arc;

use paceline_rounds::{LinkConditions, Program, StrategyReport};
use serde_json::Value;

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().map(|n| n.as_f64().unwrap()).collect()
}

fn near(what: &str, ours: &[f64], numpys: &[f64], most: f64) {
    assert_eq!(ours.len(), numpys.len(), "{what}");
    for (own, numpy) in ours.iter().zip(numpys) {
        assert!((own - numpy).abs() <= most, "{what}: {ours:?}, numpy: {numpys:?}");
    }
}

#[test]
fn contraction_and_bias_equal_a_numpy_computation() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("reference.json")).unwrap();
    assert!(cases.len() > 60, "{} cases", cases.len());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/strategies");
    let conditions = LinkConditions { params: 1_000, ..LinkConditions::default() };
    for case in &cases {
        let (file, workers) = (case["file"].as_str().unwrap(), case["workers"].as_u64().unwrap() as usize);
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        let program = Arc::new(Program::parse(file, &text).unwrap());
        let report = StrategyReport::new(file, &program, workers, 1, conditions).unwrap();
        let mixing = report.mixing.unwrap();
        let what = |part: &str| format!("{file} with {workers} workers: {part}");
        assert_eq!(mixing.period, case["period"].as_u64(), "{}", what("period"));
        for (own, numpy) in mixing.iterations[0].rows().zip(case["first"].as_array().unwrap()) {
            near(&what("matrix"), own, &numbers(numpy), 1e-12);
        }
        near(&what("row sums"), &mixing.row_sums, &numbers(&case["row_sums"]), 1e-12);
        let left = mixing.contraction.variance_left.unwrap();
        let sampled = mixing.period.is_none();
        // Of random starts, as many steps are followed as fit: numpy's are 256.
        if !sampled || mixing.followed == 256 {
            near(&what("variance left"), &[left], &[case["variance_left"].as_f64().unwrap()], 1e-9);
            near(&what("column sums"), &mixing.column_sums, &numbers(&case["column_sums"]), 1e-12);
        }
        if sampled {
            continue;
        }
        // A defective eigenvalue is known to numpy to the root of its rounding only.
        let per_period = mixing.contraction.per_period.unwrap();
        near(&what("per period"), &[per_period], &[case["per_period"].as_f64().unwrap()], 1e-4);
        near(&what("stationary"), &mixing.stationary.unwrap(), &numbers(&case["stationary"]), 1e-9);
        near(&what("influence"), &mixing.influence.unwrap(), &numbers(&case["influence"]), 1e-9);
        let bias = numbers(&case["influence"]).into_iter().fold(0.0, f64::max) * workers as f64;
        near(&what("bias"), &[mixing.bias.unwrap()], &[bias], 1e-8);
        near(&what("noise"), &[mixing.noise.unwrap()], &[case["noise"].as_f64().unwrap()], 1e-8);
    }
}

#[test]
fn where_distances_close_now_and_then_and_open_in_between_a_rate_is_given_all_the_same() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/rule/rivals");
    let text = std::fs::read_to_string(folder.join("local-drift-8.toml")).unwrap();
    let program = Arc::new(Program::parse("local-drift-8.toml", &text).unwrap());
    let conditions = LinkConditions { params: 1_000, ..LinkConditions::default() };
    let rates = [2, 4, 5, 8, 13, 16].map(|workers| {
        let report = StrategyReport::new("drift", &program, workers, 1, conditions).unwrap();
        report.mixing.unwrap().contraction.per_iteration
    });
    // Half of the drift is taken out every eight steps.
    let half = 0.5_f64.powf(1.0 / 8.0);
    near("per iteration", &rates, &[half; 6], 0.01);
}
