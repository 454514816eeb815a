//! `paceline doctor`: planted problems are found, each with how to mend it. Where root or control groups are missing,
//! their part counts as skipped.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use paceline_testing::{Need, has_programs, is_root, skip};
use serde_json::Value;

use crate::control_groups::ControlGroup;
use crate::machines::{PROGRAM, Process};
use crate::namespaces::Machines;
use crate::support::{Ran, paceline, run, signal};

/// Runs the doctor somewhere, e.g. `["sh", "-c", …]`, with words separated by spaces.
fn doctor(somewhere: &[&str], words: &str) -> Ran {
    let all: Vec<&str> = somewhere.iter().copied().chain([PROGRAM, "doctor", "--json"]).collect();
    run(Command::new(all[0]).args(&all[1..]).args(words.split_whitespace()))
}

/// What was found of a subject on this machine.
fn of<'a>(report: &'a Value, subject: &str) -> Vec<&'a Value> {
    let found = report["hosts"][0]["found"].as_array().unwrap();
    found.iter().filter(|one| one["subject"] == subject).collect()
}

/// The problem that was found of a subject: it must be one, and how to mend it must be said.
fn problem(ran: &Ran, subject: &str, expected: &str) {
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let report = ran.result();
    assert!(report["problems"].as_u64().unwrap() > 0, "{report}");
    let found = of(&report, subject);
    let planted = found.iter().find(|one| one["found"].as_str().unwrap().contains(expected));
    let planted = planted.unwrap_or_else(|| panic!("{expected:?} is not among {found:?}"));
    assert!(planted["severity"] == "hurts" || planted["severity"] == "fails", "{planted}");
    assert!(!planted["mend"].as_str().unwrap().is_empty(), "{planted}");
}

#[test]
fn everything_is_looked_at_and_told_as_text_and_as_json() {
    let store = tempfile::tempdir().unwrap();
    let words = format!("--store {}/new", store.path().display());
    let ran = doctor(&[], &words);
    let report = ran.result();
    for subject in [
        "cores",
        "memory",
        "descriptors",
        "processes",
        "file size",
        "kernel",
        "shared memory",
        "clocks",
        "GPUs",
        "Python",
        "store",
        "datasets",
    ] {
        assert!(!of(&report, subject).is_empty(), "{subject}: {report}");
    }
    assert_eq!(of(&report, "kernel")[0]["severity"], "ok", "the tests run here: {report}");
    assert_eq!(ran.code, i32::from(report["problems"] != 0), "{}", ran.stderr);
    assert!(!store.path().join("new").exists(), "looking leaves nothing behind");
    let text = paceline(&format!("doctor {words}"));
    assert!(text.stdout.contains("digits") && text.stdout.contains("will hurt\n"), "{}", text.stdout);
    assert_eq!(text.code, ran.code, "{}", text.stderr);
}

#[test]
fn few_descriptors_and_small_files_are_found() {
    let few = doctor(&["sh", "-c", "ulimit -n 64 && exec \"$0\" \"$@\""], "");
    problem(&few, "descriptors", "64 files per process");
    let small = doctor(&["sh", "-c", "ulimit -f 2048 && exec \"$0\" \"$@\""], "");
    problem(&small, "file size", "files end at");
}

#[test]
fn a_small_shm_and_a_full_disk_are_found() {
    if !has_programs(&["unshare", "mount"]) {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let mounted = |folder: &str, words: &str| {
        let script = format!("mount -t tmpfs -o size=1m none {folder} && exec \"$0\" \"$@\"");
        doctor(&["unshare", "--mount", "sh", "-c", &script], words)
    };
    let folder = place.path().display().to_string();
    let full = mounted(&folder, &format!("--store {folder}"));
    if full.stdout.is_empty() {
        return skip(Need::Root, "a small disk (unshare --mount, mount -t tmpfs)");
    }
    problem(&full, "store", "the shortest record needs");
    problem(&mounted("/dev/shm", ""), "shared memory", "/dev/shm has 1 MB");
}

#[test]
fn half_a_core_is_found() {
    let Some(group) = ControlGroup::new(&["cpu"]) else { return };
    group.limit_cpu(0.5);
    let within = group.within();
    let within: Vec<&str> = within.iter().map(String::as_str).collect();
    problem(&doctor(&within, ""), "cores", "the control group allows 0.50 of ");
}

#[test]
fn an_unreadable_dataset_is_found() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().join("tinyshakespeare");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("input.txt"), "First Citizen: speak, speak. ".repeat(100)).unwrap();
    let words = format!("--data-dir {}", data.path().display());
    // Root reads everything, unless it gives that up.
    let without = "-dac_override,-dac_read_search";
    let bounding = format!("--bounding-set={without}");
    let inherited = format!("--inh-caps={without}");
    let somewhere = ["setpriv", &bounding, &inherited];
    let somewhere: &[&str] = if is_root() { &somewhere } else { &[] };
    if is_root() && !has_programs(&["setpriv"]) {
        return;
    }
    let before = doctor(somewhere, &words);
    if before.stdout.is_empty() {
        return skip(Need::System, format!("setpriv that drops capabilities: {}", before.stderr));
    }
    let ready = |ran: &Ran| of(&ran.result(), "datasets").iter().any(|one| one["severity"] == "fails");
    assert!(!ready(&before), "{}", before.stdout);
    fs::set_permissions(folder.join("input.txt"), fs::Permissions::from_mode(0o000)).unwrap();
    problem(&doctor(somewhere, &words), "datasets", "tinyshakespeare cannot be read");
}

#[test]
fn a_thin_link_is_found_and_a_machine_that_does_not_answer_is_named() {
    if !has_programs(&["tc"]) {
        return;
    }
    let Some(machines) = Machines::new(2) else { return };
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key").display().to_string();
    machines.slow(1, true);
    let address = machines.address(1);
    let there = Process::start(&machines.on(1), &format!("doctor --listen {address} --key-file {key}"), &[]);
    there.says("answering doctors at");
    let asked = doctor(&machines.on(0), &format!("{address} 10.77.0.99 --key-file {key}"));
    let report = asked.result();
    assert_eq!((asked.code, report["hosts"].as_array().unwrap().len()), (1, 2), "{report}");
    let rate = report["links"][0]["receive_mbit"].as_f64().unwrap();
    assert!(rate > 0.01 && rate < 2.0, "1 Mbit/s: {report}");
    let found = report["found_of_links"].as_array().unwrap();
    assert!(found[0]["severity"] == "hurts" && found[0]["found"].as_str().unwrap().contains("s per step"));
    assert!(found[1]["severity"] == "fails", "{found:?}");
    assert!(found[1]["found"].as_str().unwrap().contains("nobody answered at 10.77.0.99"), "{found:?}");
    assert!(signal("INT", there.id()));
    let (code, _, text) = there.end();
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(" asks"), "{text}");
    machines.are_empty();
}

#[test]
fn doctors_without_a_key_are_refused() {
    let alone = paceline("doctor 127.0.0.1:1");
    assert_eq!(alone.code, 6, "{}", alone.stderr);
    assert!(alone.stderr.contains("--key-file"), "{}", alone.stderr);
    let folder = tempfile::tempdir().unwrap();
    let missing = paceline(&format!("doctor 127.0.0.1:1 --key-file {}/none", folder.path().display()));
    assert_eq!(missing.code, 6, "{}", missing.stderr);
    assert_eq!(paceline("doctor 127.0.0.1:1 --listen 127.0.0.1:0").code, 2);
}
