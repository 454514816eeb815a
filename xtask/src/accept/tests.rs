//! Tests of how measurements are chosen, judged and kept.

use need::Need::{Cores, Dataset, File, Or, Paceline, Program, Python};

use super::*;

fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("paceline-accept-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

const LINE: fn(f64) -> Line = |wanted| Line { claim: "speed".into(), reached: 1.0, wanted, at_most: false };

#[test]
fn without_what_it_needs_a_measurement_is_not_made_keeps_its_runs_and_does_not_fail() {
    let never = Measurement {
        name: "never",
        about: "",
        needs: &[Cores(1), Program("no-such-program")],
        flags: &[],
        run: Run::Whole(|_| panic!("measured without what it needs")),
    };
    let setup = Setup { out: folder("never"), ..Setup::default() };
    let said = "-    never                                                          \
                not measured here: no-such-program is not in PATH";
    assert_eq!(unmeasured("never", &setup, &never.needs[1].missing(&setup).unwrap()), [said]);
    let kept = setup.out.join("never.json");
    let text = r#"{"lines": [{"claim": "speed"}, {"claim": "memory"}], "runs": [1]}"#;
    fs::write(&kept, text).unwrap();
    assert_eq!(measure(&[&never], &setup), Ok(0));
    assert_eq!(fs::read_to_string(&kept).unwrap(), text);
    let lines = unmeasured("never", &setup, "no time");
    assert_eq!(lines.len(), 2);
    assert!(lines[1].starts_with("-    memory ") && lines[1].ends_with(" not measured here: no time"));
    fs::remove_dir_all(setup.out).unwrap();
}

#[test]
fn with_what_it_needs_a_measurement_is_made_judged_and_kept() {
    let good = Measurement {
        name: "good",
        about: "",
        needs: &[Cores(1), Or(&Program("no-such-program"), &Program("sh"))],
        flags: &[],
        run: Run::Whole(|_| Ok(Report { lines: vec![LINE(1.0), LINE(2.0)], runs: vec![json!(7)] })),
    };
    let setup = Setup { out: folder("good"), ..Setup::default() };
    assert_eq!(measure(&[&good], &setup), Ok(1));
    let kept: Value = serde_json::from_slice(&fs::read(setup.out.join("good.json")).unwrap()).unwrap();
    assert_eq!((kept["runs"][0].as_u64(), kept["lines"][1]["holds"].as_bool()), (Some(7), Some(false)));
    fs::remove_dir_all(setup.out).unwrap();
}

#[test]
fn a_part_is_kept_beside_the_others_as_soon_as_it_is_over() {
    let run = |_: &Setup, part: &str| match part {
        "broken" => Err("it broke".into()),
        part => Ok(Report { lines: vec![LINE(1.0)], runs: vec![json!({"of": part})] }),
    };
    let parts = Measurement {
        name: "parts",
        about: "",
        needs: &[],
        flags: &[],
        run: Run::Parts(&["first", "second", "broken"], run),
    };
    let mut setup = Setup { out: folder("parts"), ..Setup::default() };
    assert_eq!(parts.make(&setup), Err("it broke".into()));
    setup.only = Some("first".into());
    assert_eq!(parts.make(&setup), Ok(0));
    let kept = kept("parts", &setup);
    let of = |key: &str| kept[key].as_array().unwrap().iter().map(|v| v["part"].clone()).collect::<Vec<_>>();
    assert_eq!((of("lines"), of("runs")), (vec!["second".into(), "first".into()], of("lines")));
    fs::remove_dir_all(setup.out).unwrap();
}

#[test]
fn every_measurement_lists_what_it_needs() {
    for measurement in MEASUREMENTS {
        let line = listed(measurement);
        assert!(line.starts_with(measurement.name) && line.contains("\n                 needs "), "{line}");
    }
    let find = |name: &str| MEASUREMENTS.iter().find(|m| m.name == name).unwrap();
    assert!(listed(find("attack")).ends_with("needs cargo"));
    assert!(listed(find("coverage")).ends_with("needs nothing"));
    assert!(listed(find("footprint")).ends_with("needs paceline, dataset mnist"));
}

#[test]
fn nothing_is_installed_for_a_program_that_was_carried_here() {
    let setup = Setup { python: Some("/nonexistent/python".into()), ..Setup::default() };
    for (need, why) in [
        (Python("torch"), "/nonexistent/python cannot import torch"),
        (Paceline, " is not there"),
        (Dataset("mnist"), "the dataset mnist is not there: set PACELINE_DATA"),
        (Cores(usize::MAX), &format!("{} cores are needed, ", usize::MAX)[..]),
        (File("bench/nothing.json"), "bench/nothing.json is not there"),
    ] {
        let missing = need.missing(&setup).expect("it is missing");
        assert!(missing.contains(why), "{need}: {missing}");
    }
}
