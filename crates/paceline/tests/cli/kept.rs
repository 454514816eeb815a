//! What earlier versions computed and wrote: their parameters bit for bit, their stores, checkpoints and journals.

use std::fs;
use std::path::Path;
use std::process::Command;

use paceline_testing::{Need, skip};
use serde_json::Value;

use crate::support::run;

/// Plans with their results, a line each, and the instruction set that they were made with.
const PLANS: &str = include_str!("kept/plans.ndjson");
/// `params_sha256` of the kept store's interrupted run, had it been left alone.
const UNDISTURBED: &str = "7950fca6d9edf94db0a49806d826d1a5833b04b9df55f5dab19a136c453b1264";

fn paceline(store: &Path, words: &str) -> crate::support::Ran {
    let program = &mut Command::new(env!("CARGO_BIN_EXE_paceline"));
    run(program.args(words.split_whitespace()).arg("--store").arg(store))
}

#[test]
fn plans_give_the_parameters_of_the_version_before() {
    let mut others = 0;
    for line in PLANS.lines() {
        let kept: Value = serde_json::from_str(line).unwrap();
        let store = tempfile::tempdir().unwrap();
        let words = format!("train --json --quiet {}", kept["plan"].as_str().unwrap());
        let ran = paceline(store.path(), &words);
        assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
        let start: Value = serde_json::from_str(ran.stdout.lines().next().unwrap()).unwrap();
        let result = ran.result();
        for figure in ["strategy", "steps", "samples"] {
            assert_eq!(result[figure], kept[figure], "{words}: {figure}");
        }
        if start["kernels"] != kept["kernels"] {
            others += 1;
            continue;
        }
        for figure in ["params_sha256", "train_loss", "final_loss", "final_accuracy"] {
            assert_eq!(result[figure], kept[figure], "{words}: {figure}");
        }
        let ranks: Vec<&Value> =
            result["ranks"].as_array().unwrap().iter().map(|r| &r["params_sha256"]).collect();
        assert_eq!(ranks, kept["ranks"].as_array().unwrap().iter().collect::<Vec<_>>(), "{words}");
    }
    if others > 0 {
        skip(Need::System, format!("AVX-512, for the bits of {others} plans"));
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn a_store_a_checkpoint_and_a_journal_of_the_version_before_open_resume_and_report() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/kept/store"), &store);
    let listed = paceline(&store, "runs --json");
    assert_eq!(listed.code, 0, "{}", listed.stderr);
    assert!(listed.stdout.contains("interrupted") && listed.stdout.contains("\"ok\""), "{}", listed.stdout);
    let interrupted = fs::read_dir(store.join("runs")).unwrap().flatten().next().unwrap().file_name();
    let ran = paceline(&store, &format!("resume --json {}", interrupted.to_string_lossy()));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("goes on after step 180"), "{}", ran.stderr);
    let result = ran.result();
    assert_eq!((result["steps"].as_u64(), result["samples"].as_u64()), (Some(5400), Some(60 * 1438)));
    if ran.stdout.contains("\"kernels\":\"avx512\"") {
        assert_eq!(result["params_sha256"], UNDISTURBED);
    } else {
        skip(Need::System, "AVX-512, for the bits of the resumed run");
    }
    let shown = paceline(&store, "status kept");
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    let resumed = paceline(&store, "resume kept --quiet");
    assert_eq!(resumed.code, 0, "{}", resumed.stderr);
    let out = folder.path().join("report");
    let report = paceline(&store, &format!("report kept --out {}", out.display()));
    assert_eq!(report.code, 0, "{}", report.stderr);
    assert!(fs::read_dir(&out).unwrap().flatten().count() > 0, "{}", report.stderr);
}
