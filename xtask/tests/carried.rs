//! The program alone, as it is carried to a machine without cargo.

use std::path::PathBuf;
use std::process::{Command, Output};

struct Elsewhere(PathBuf);

impl Elsewhere {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("paceline-carried-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn xtask(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command
            .args(words)
            .current_dir(&self.0)
            .env("CARGO", "/nonexistent/cargo")
            .env("PATH", "/nonexistent");
        command.output().unwrap()
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_needs_cargo_or_a_dataset_is_not_measured_and_its_runs_stay() {
    let elsewhere = Elsewhere::new("needs");
    let (binary, kept) = (elsewhere.0.join("paceline"), elsewhere.0.join("runs/chaos.json"));
    // A program that finds no dataset.
    std::fs::copy("/bin/false", &binary).unwrap();
    std::fs::create_dir_all(kept.parent().unwrap()).unwrap();
    std::fs::write(&kept, r#"{"lines": [{"claim": "rounds that hold"}]}"#).unwrap();
    let out = elsewhere.xtask(&["accept", "chaos", "footprint", "--binary", "./paceline", "--out", "runs"]);
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}\n{}", String::from_utf8_lossy(&out.stderr));
    let lines: Vec<_> = said.lines().filter(|line| line.contains("not measured here: ")).collect();
    let [chaos, footprint] = lines[..] else { panic!("{said}") };
    assert!(
        chaos.starts_with("-    rounds that hold ") && chaos.ends_with("/nonexistent/cargo does not work")
    );
    assert!(footprint.ends_with("the dataset mnist is not there: set PACELINE_DATA"), "{footprint}");
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), r#"{"lines": [{"claim": "rounds that hold"}]}"#);
    assert_eq!(std::fs::read_dir(kept.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn unknown_names_flags_and_programs_are_refused() {
    let elsewhere = Elsewhere::new("refused");
    for (words, said) in [
        (&["accept", "speed"][..], "no measurement `speed`"),
        (&["accept", "--fast"], "accept has no flag --fast"),
        (&["accept", "overhead", "--binary", "./nothing"], "--binary ./nothing: No such file"),
        (&["accept", "overhead", "--python", "./nothing"], "--python ./nothing: "),
    ] {
        let out = elsewhere.xtask(words);
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(1) && errors.contains(said), "{words:?}: {errors}");
    }
}

#[test]
fn what_there_is_to_measure_is_listed_with_what_it_needs() {
    let out = Elsewhere::new("list").xtask(&["accept", "--list"]);
    let list = String::from_utf8_lossy(&out.stdout);
    assert!(list.contains("chaos ") && list.contains(" needs paceline, dataset mnist\n"), "{list}");
}
