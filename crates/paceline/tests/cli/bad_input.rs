//! Mistakes are told apart by exit code, and the message says what would be right.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::support::{Ran, paceline, run};

#[test]
fn unknown_names_show_what_is_possible_and_the_nearest() {
    for (words, nearest) in [
        ("train --model lenett", "'lenet'"),
        ("train --data minst", "'mnist'"),
        ("train --optimizer adamm", "'adam'"),
        ("train --bathc 3", "'--batch'"),
        ("model show restnet20", "'resnet20'"),
        ("tain", "'train'"),
    ] {
        let ran = paceline(words);
        assert_eq!(ran.code, 2, "{words}");
        assert!(ran.stderr.contains(nearest), "{words}: {}", ran.stderr);
    }
    assert!(paceline("train --model nothing").stderr.contains("softmax, mlp, lenet, resnet20, resnet32"));
    assert!(paceline("train --epochs 1 --steps 2").stderr.contains("cannot be used with"));
    assert!(paceline("train --schedule sometimes").stderr.contains("constant, cosine"));
}

#[test]
fn impossible_plans_are_refused_before_anything_starts() {
    for (words, reason) in [
        ("--batch 0", "at least 1 sample"),
        ("--batch 2000", "only 1438 samples"),
        ("--momentum 1", "below 1"),
        ("--lr=-1", "positive"),
        ("--epochs 0", "positive"),
        ("--target-accuracy 98", "fraction between 0 and 1"),
        ("--threads 0", "between 1 and 1024"),
        ("--stop-at-target", "needs --target-accuracy"),
        ("--eval-samples 0", "leave it out for the whole test split"),
        ("--eval-samples 360", "the test split of digits has only 359 samples"),
    ] {
        let ran = paceline(&format!("train {words}"));
        assert_eq!(ran.code, 3, "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(reason), "{words}: {}", ran.stderr);
        assert_eq!(ran.stdout, "");
    }
}

#[test]
fn a_batch_of_zero_names_no_number_that_nobody_gave() {
    let ran = paceline("train --batch 0");
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("--batch 0: at least 1 sample is needed"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("18446744073709551615"), "{}", ran.stderr);
}

#[test]
fn a_mistyped_verb_suggests_verbs_and_nothing_internal() {
    for (typed, meant) in [("tran", "'train'"), ("trian", "'train'"), ("keep", ""), ("trail", "'train'")] {
        let ran = paceline(typed);
        assert_eq!(ran.code, 2, "{typed}");
        assert!(ran.stderr.contains(meant), "{typed}: {}", ran.stderr);
        for internal in ["'rank'", "'trial'", "'keeper'"] {
            assert!(!ran.stderr.contains(internal), "{typed}: {}", ran.stderr);
        }
    }
}

/// Runs it with at most so many files open in each process.
fn with_files(files: u32, words: &str) -> Ran {
    let script = format!("ulimit -n {files}; exec \"$0\" {words}");
    run(Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_paceline")]))
}

#[test]
fn a_thousand_workers_that_do_not_fit_are_refused_before_anything_is_started() {
    let (store, words) = (tempfile::tempdir().unwrap(), "train --json --workers 1000 --batch 1 --steps 2");
    let ran = with_files(256, &format!("{words} --store {}", store.path().display()));
    assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("1000 ranks do not fit on this machine"), "{}", ran.stderr);
    assert!(ran.stderr.contains("256 files open") && ran.stderr.contains("ulimit -n"), "{}", ran.stderr);
    assert!(ran.stderr.contains("nothing was started"), "{}", ran.stderr);
    // Not even a record was begun.
    assert_eq!(fs::read_dir(store.path()).unwrap().count(), 0);
}

#[test]
fn ranks_that_just_fit_are_not_refused() {
    // Three files for each of the eight ranks, and some that the launcher has.
    let ran = with_files(48, "train --quiet --workers 8 --steps 2 --no-record");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}

#[test]
fn divergence_is_said_at_once_with_the_step() {
    let ran = paceline("train --lr 1e6 --epochs 1000");
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.contains("at step 3"), "{}", ran.stderr);
    assert!(ran.stderr.contains("hint:"), "{}", ran.stderr);
}

/// An IDX file of `n` samples of the given sizes.
fn idx(n: u32, sizes: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, 1 + sizes.len() as u8];
    let payload = n * sizes.iter().product::<u32>();
    [&[n], sizes].concat().iter().for_each(|size| bytes.extend(size.to_be_bytes()));
    bytes.extend((0..payload).map(|i| (i % 10) as u8));
    bytes
}

fn zipped(bytes: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

pub fn write_mnist(folder: &Path) {
    for (name, bytes) in [
        ("train-images-idx3-ubyte", idx(80, &[28, 28])),
        ("train-labels-idx1-ubyte", idx(80, &[])),
        ("t10k-images-idx3-ubyte", idx(20, &[28, 28])),
        ("t10k-labels-idx1-ubyte", idx(20, &[])),
    ] {
        fs::write(folder.join(name), bytes).unwrap();
    }
}

#[test]
fn damaged_files_are_named_with_what_was_expected() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let train =
        || paceline(&format!("train --data mnist --steps 2 --batch 10 --data-dir {}", folder.display()));
    write_mnist(folder);
    assert_eq!(train().code, 0, "{}", train().stderr);

    let images = idx(80, &[28, 28]);
    let whole = zipped(&images);
    let mut flipped = whole.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0x55;
    let labels_too_large = [&idx(80, &[])[..8], &[11; 80]].concat();
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        (
            "train-images-idx3-ubyte",
            images[..1000].to_vec(),
            "62720 bytes after the header, found 984 (the file is truncated)",
        ),
        ("train-images-idx3-ubyte", whole[..whole.len() / 2].to_vec(), "truncated"),
        ("train-images-idx3-ubyte", flipped, "train-images-idx3-ubyte"),
        ("train-images-idx3-ubyte", Vec::new(), "an IDX header of 16 bytes, found 0 bytes"),
        ("train-images-idx3-ubyte", b"<html>not found</html>".to_vec(), "magic number"),
        ("t10k-images-idx3-ubyte", idx(20, &[28, 27]), "28 in dimension 2, found 27"),
        ("train-labels-idx1-ubyte", idx(79, &[]), "80 in dimension 0, found 79"),
        ("train-labels-idx1-ubyte", labels_too_large, "labels below 10, found 11 at sample 0"),
    ];
    for (file, bytes, expected) in cases {
        write_mnist(folder);
        fs::write(folder.join(file), bytes).unwrap();
        let ran = train();
        assert_eq!((ran.code, ran.stdout.as_str()), (5, ""), "{expected}: {}", ran.stderr);
        assert!(ran.stderr.contains(file) && ran.stderr.contains(expected), "{expected}: {}", ran.stderr);
    }

    write_mnist(folder);
    fs::remove_file(folder.join("t10k-labels-idx1-ubyte")).unwrap();
    let ran = train();
    assert_eq!(ran.code, 5);
    assert!(ran.stderr.contains("t10k-labels-idx1-ubyte"), "{}", ran.stderr);
    assert!(ran.stderr.contains(&folder.display().to_string()), "{}", ran.stderr);
}
