//! `paceline` alone.

use crate::support::run;
use std::process::Command;

#[test]
fn the_first_command_teaches_something_and_leaves_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let ran = run(Command::new(env!("CARGO_BIN_EXE_paceline")).current_dir(folder.path()));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for part in ["best: ", "what mattered for samples_per_s", "█", "* the best", "recorded in"] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
    let wide = ran.stdout.lines().filter(|line| !line.starts_with("recorded in"));
    assert!(wide.clone().all(|line| line.chars().count() <= 80), "{}", ran.stdout);
    let page = ran.stderr.lines().find_map(|line| line.split_once("all charts: ")).expect("a path").1;
    let page = folder.path().join(page.split_whitespace().next().unwrap());
    let text = std::fs::read_to_string(&page).unwrap();
    // The page says what the terminal says.
    let best = ran.stdout.lines().find_map(|line| line.strip_prefix("best: ")).unwrap();
    assert!(text.contains(best), "{best}");
}
