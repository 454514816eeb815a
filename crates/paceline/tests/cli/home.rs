//! `paceline` alone.

use crate::support::paceline;

#[test]
fn the_main_job_is_a_study_of_at_least_24_configurations() {
    let ran = paceline("--json");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let result = ran.result();
    assert_eq!((&result["type"], &result["finished"]), (&"result".into(), &true.into()), "{result}");
    assert!(result["points"].as_u64().unwrap() >= 24, "{result}");
    for part in ["best", "effects", "one_worker", "several_workers", "record"] {
        assert!(!result[part].is_null(), "{part}: {result}");
    }
}
