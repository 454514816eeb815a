//! `paceline` alone.

use crate::support::paceline;

#[test]
fn the_main_job_shows_accuracy_time_and_where_the_time_went() {
    let ran = paceline("");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for part in ["accuracy 9", "samples/s", "startup", "forward", "backward", "apply"] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
}

#[test]
fn the_main_job_speaks_json() {
    assert_eq!(paceline("--json").result()["type"], "result");
}
