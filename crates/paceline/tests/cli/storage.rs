//! Stores that are deleted, damaged or full: nothing is said to be recorded that is not.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{Ran, Running, paceline, run, signal};

const DATABASE: &str = "paceline.db";

/// Does something while a run stands still; what it then tells, its exit code and its messages.
fn meanwhile(words: &str, act: impl FnOnce()) -> (Vec<Value>, i32, String) {
    let running = Running::start(words);
    assert!(signal("STOP", running.id()));
    act();
    assert!(signal("CONT", running.id()));
    let events = running.rest();
    let (code, text) = running.end();
    (events, code, text)
}

#[test]
fn a_run_whose_store_is_deleted_or_replaced_ends_with_its_result_and_says_that_it_is_not_recorded() {
    for (workers, gone) in [(1, "folder"), (2, "folder"), (1, "database"), (1, "replaced")] {
        let place = tempfile::tempdir().unwrap();
        let store = place.path().join("store");
        let epochs = 400 / (workers * workers * workers);
        let words = format!("--epochs {epochs} --batch 8 --workers {workers} --store {}", store.display());
        let (events, code, text) = meanwhile(&words, || match gone {
            "folder" => fs::remove_dir_all(&store).unwrap(),
            "database" => fs::remove_file(store.join(DATABASE)).unwrap(),
            _ => {
                fs::rename(&store, place.path().join("elsewhere")).unwrap();
                let other = paceline(&format!("train --quiet --steps 2 --store {}", store.display()));
                assert_eq!(other.code, 0, "{}", other.stderr);
            }
        });
        assert_eq!(code, 5, "{gone}: {text}");
        assert_eq!(events.last().unwrap()["type"], "result", "{gone}: what was trained is told");
        for word in ["is not recorded", "paceline.db was deleted or replaced while the run", "hint:"] {
            assert!(text.contains(word), "{gone}: {word}: {text}");
        }
        assert!(!text.contains("recorded in"), "{gone}: {text}");
    }
}

#[test]
fn a_study_whose_store_is_deleted_says_so() {
    let place = tempfile::tempdir().unwrap();
    let (store, file) = (place.path().join("store"), place.path().join("s.toml"));
    let study = format!(
        "sampler = \"grid\"\n[command]\nrun = ['sh', '-c', 'rm -rf {}; echo value: {{a}}']\n\
         metrics = {{ value = 'value: ([0-9.]+)' }}\n[axes]\na = [1, 2]\n\
         [[objectives]]\nmetric = \"value\"\ngoal = \"minimize\"\n",
        store.display()
    );
    fs::write(&file, study).unwrap();
    let ran = paceline(&format!("explore {} --store {}", file.display(), store.display()));
    assert_eq!(ran.code, 5, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("journal.ndjson: it was deleted or replaced"), "{}", ran.stderr);
    assert!(!ran.stdout.contains("recorded in"), "{}", ran.stdout);
}

#[test]
fn a_study_whose_database_was_deleted_says_which_runs_are_missing() {
    let place = tempfile::tempdir().unwrap();
    let (store, file) = (place.path().join("store"), place.path().join("s.toml"));
    let study = "sampler = \"grid\"\n[workload]\nsteps = 2\n[axes]\nbatch = [8, 16]\n[budget]\nruns = 1\n\
                 [control]\nevery = 0\n[[objectives]]\nmetric = \"final_loss\"\ngoal = \"minimize\"\n";
    fs::write(&file, study).unwrap();
    let (file, folder) = (file.display(), store.display());
    let ran = paceline(&format!("explore {file} --store {folder}"));
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    fs::remove_file(store.join(DATABASE)).unwrap();
    let ran = paceline(&format!("resume s --add-budget 1 --store {folder}"));
    assert_eq!(ran.code, 5, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("runs of the study are not recorded in"), "{}", ran.stderr);
}

/// Overwrites a part of a file with what SQLite never writes.
fn overwrite(file: &Path, from: u64, bytes: usize) {
    let file = OpenOptions::new().write(true).open(file).unwrap();
    file.write_all_at(&vec![0xa5; bytes], from).unwrap();
}

fn says_damaged(ran: &Ran, what: &str) {
    assert_eq!((ran.code, ran.stdout.as_str()), (5, ""), "{what}: {}", ran.stderr);
    for word in ["paceline.db is damaged", "move it", "--store", "checkpoints"] {
        assert!(ran.stderr.contains(word), "{what}: {word}: {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("is the disk full"), "{what}: {}", ran.stderr);
}

#[test]
fn a_damaged_store_is_refused_before_a_run_starts() {
    let page = 4096;
    type Damage = fn(&Path, u64);
    let damages: [(&str, Damage); 5] = [
        ("garbage", |file, _| fs::write(file, "no database at all, ".repeat(1000)).unwrap()),
        ("the header", |file, _| overwrite(file, 0, 100)),
        ("the first page", |file, _| overwrite(file, 100, 4096 - 100)),
        ("pages in the middle", |file, length| overwrite(file, 4096, length as usize - 4096)),
        ("the end", |file, length| {
            OpenOptions::new().write(true).open(file).unwrap().set_len(length / 2).unwrap()
        }),
    ];
    for (what, damage) in damages {
        let store = tempfile::tempdir().unwrap();
        let train = format!("train --quiet --steps 5 --store {}", store.path().display());
        assert_eq!(paceline(&train).code, 0);
        let file = store.path().join(DATABASE);
        let length = fs::metadata(&file).unwrap().len();
        assert!(length > 8 * page && !store.path().join("paceline.db-wal").exists());
        damage(&file, length);
        says_damaged(&paceline(&train), what);
        says_damaged(&paceline(&format!("runs --store {}", store.path().display())), what);
    }
}

#[test]
fn one_bad_page_of_earlier_runs_is_noticed_before_a_run_starts() {
    let store = tempfile::tempdir().unwrap();
    let train = format!("train --quiet --steps 40 --store {}", store.path().display());
    assert_eq!(paceline(&train).code, 0);
    let file = store.path().join(DATABASE);
    let pages = fs::metadata(&file).unwrap().len() / 4096;
    let whole = fs::read(&file).unwrap();
    for page in [1, pages / 2, pages - 1] {
        overwrite(&file, 4096 * page, 4096);
        says_damaged(&paceline(&train), &format!("page {page} of {pages}"));
        fs::write(&file, &whole).unwrap();
    }
    assert_eq!(paceline(&train).code, 0);
}

#[test]
fn a_store_that_is_damaged_while_a_run_is_under_way_is_not_said_to_have_it() {
    let store = tempfile::tempdir().unwrap();
    let place = store.path().display();
    assert_eq!(paceline(&format!("train --quiet --steps 40 --store {place}")).code, 0);
    let file = store.path().join(DATABASE);
    let length = fs::metadata(&file).unwrap().len();
    let (events, code, text) = meanwhile(&format!("--epochs 400 --batch 8 --store {place}"), || {
        overwrite(&file, 4096, length as usize - 4096);
    });
    assert_eq!(code, 5, "{text}");
    assert_eq!(events.last().unwrap()["type"], "result");
    assert!(text.contains("is not recorded") && text.contains("is damaged"), "{text}");
    assert!(!text.contains("recorded in"), "{text}");
}

#[test]
fn a_file_size_limit_is_told_as_one() {
    let store = tempfile::tempdir().unwrap();
    let place = store.path().display();
    let limited = |blocks: u32, words: &str| {
        let script = format!("ulimit -f {blocks}; exec \"$0\" {words}");
        run(Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_paceline")]))
    };
    // Too small for a database, for a checkpoint, and for the rows of a run. (A block is 512 bytes, or 1024.)
    for (blocks, words, result) in [
        (8, "train --quiet --steps 5", false),
        (8, "train --quiet --steps 5 --workers 2", false),
        // Shared memory is a file, too.
        (
            700,
            "train --quiet --steps 5 --model lenet --workers 2 --checkpoint-every 2 --transport tcp",
            false,
        ),
        (300, "train --quiet --epochs 20 --batch 8", true),
    ] {
        let ran = limited(blocks, &format!("{words} --store {place}"));
        assert_eq!(ran.code, 5, "{blocks} {words}: {}", ran.stderr);
        assert!(ran.stderr.contains("file size limit") && ran.stderr.contains("ulimit -f"), "{}", ran.stderr);
        assert_eq!(!ran.stdout.is_empty(), result, "{blocks} {words}: {}", ran.stdout);
    }
    let ran = limited(8, "train --quiet --steps 5 --no-record");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}
