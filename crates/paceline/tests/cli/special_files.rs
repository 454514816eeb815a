//! Fifos, devices and folders where a file is expected: refused at once, never waited for.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use paceline_data::example;

use crate::support::{PATIENCE, Ran, Running, run, signal};

fn fifo(path: &Path) -> String {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    path.display().to_string()
}

/// Runs the program; one that is still there after a while waits for ever.
fn bounded(words: &str) -> Ran {
    let limit = PATIENCE.as_secs().to_string();
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", &limit, env!("CARGO_BIN_EXE_paceline")]).args(words.split_whitespace());
    let ran = run(&mut command);
    assert!(ran.code >= 0 && ran.code != 137, "`{words}` hangs: {}", ran.stderr);
    ran
}

fn refused(words: &str, name: &str, kind: &str) {
    let ran = bounded(words);
    assert!([3, 5, 6].contains(&ran.code), "`{words}` ended with {}: {}{}", ran.code, ran.stdout, ran.stderr);
    assert!(ran.stderr.contains(&format!("not a regular file ({kind})")), "`{words}`: {}", ran.stderr);
    assert!(ran.stderr.contains(name), "`{words}`: {}", ran.stderr);
}

#[test]
fn what_is_no_regular_file_is_refused_wherever_a_flag_names_one() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = fifo(&folder.path().join("pipe.toml"));
    let directory = folder.path().join("directory.toml");
    fs::create_dir(&directory).unwrap();
    let directory = directory.display().to_string();
    let asked = "--axis a --objective b --minimize";
    let words = [
        "train --steps 1 --no-record --model-file FILE",
        "train --steps 1 --no-record --init FILE",
        "train --steps 1 --no-record --workers 2 --init FILE",
        "model show --model-file FILE",
        "infer --seconds 0.05 --init FILE",
        "check FILE",
        "plan FILE",
        "explore FILE",
        &format!("explore --table FILE --sampler random {asked}"),
        "analyze --table FILE --factor a --response b",
        "bench samplers --table FILE --axis a --objective b --minimize",
        "predict FILE",
        "simulate --no-record --steps 1 --cluster FILE",
        "simulate --no-record --steps 1 --calibration FILE",
        "join 127.0.0.1:1 --join-timeout 0.1 --key-file FILE",
        "train --hosts 2 --workers 2 --listen 127.0.0.1:0 --join-timeout 0.1 --key-file FILE",
    ];
    for words in words {
        for (name, kind) in
            [(&pipe[..], "a fifo"), (&directory, "a directory"), ("/dev/zero", "a character device")]
        {
            refused(&words.replace("FILE", name), name, kind);
        }
    }
}

#[test]
fn an_image_that_is_a_fifo_is_named() {
    let folder = tempfile::tempdir().unwrap();
    example::images(&folder.path().join("image-folder"), 12, 6, 2, 20).unwrap();
    let class =
        fs::read_dir(folder.path().join("image-folder/train")).unwrap().next().unwrap().unwrap().path();
    let image = fs::read_dir(class).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(&image).unwrap();
    fifo(&image);
    for workers in ["", "--workers 2"] {
        let words = format!(
            "train --data image-folder --image-size 8 --batch 3 --epochs 1 --no-record {workers} --data-dir {}",
            folder.path().display()
        );
        refused(&words, image.file_name().unwrap().to_str().unwrap(), "a fifo");
    }
}

#[test]
fn a_part_of_a_checkpoint_that_is_a_fifo_is_passed_over() {
    let store = tempfile::tempdir().unwrap();
    let place = store.path().display();
    let running =
        Running::start(&format!("--epochs 40 --batch 8 --workers 2 --checkpoint-every 50 --store {place}"));
    drop(running.next("checkpoint"));
    drop(running.next("checkpoint"));
    assert!(signal("INT", running.id()));
    let (code, text) = running.end();
    assert_eq!(code, 130, "{text}");
    let run = fs::read_dir(store.path().join("runs")).unwrap().next().unwrap().unwrap().path();
    let checkpoints = fs::read_dir(run.join("checkpoints")).unwrap().map(|entry| entry.unwrap().path());
    let newest = checkpoints.max().unwrap();
    let part = newest.join("rank-1.safetensors");
    fs::remove_file(&part).unwrap();
    fifo(&part);
    let problem = "cannot be used: rank-1.safetensors: not a regular file (a fifo)";
    let ran = bounded(&format!("export-weights {} --out {place}/w.safetensors", newest.display()));
    assert_eq!(ran.code, 5, "{}", ran.stderr);
    assert!(ran.stderr.contains(problem), "{}", ran.stderr);
    let ran = bounded(&format!("resume last --store {place}"));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains(problem) && ran.stderr.contains("goes on after step"), "{}", ran.stderr);
}

#[test]
fn tables_and_studies_can_come_through_a_pipe_on_purpose() {
    let through = |words: &str, text: &str| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("text");
        fs::write(&file, text).unwrap();
        let script = format!("cat \"$1\" | \"$0\" {words}");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_paceline")]).arg(&file).stdin(Stdio::null());
        run(&mut command)
    };
    let table = "a,b\n1,2\n2,3\n3,1\n";
    for path in ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"] {
        let words = format!(
            "explore --table {path} --sampler random --budget 2 --axis a --objective b --minimize --json"
        );
        let ran = through(&words, table);
        assert_eq!(ran.code, 0, "{path}: {}", ran.stderr);
    }
    let study = "sampler = \"grid\"\n[workload]\nsteps = 2\n[axes]\nbatch = [8, 16]\n\
                 [[objectives]]\nmetric = \"final_loss\"\ngoal = \"minimize\"\n";
    let ran = through("check /dev/stdin", study);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}
