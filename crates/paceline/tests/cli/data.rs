//! `paceline data`, and training on every kind of dataset, in small forms of the real formats.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use paceline_data::example;
use serde_json::Value;

use crate::support::{Ran, datasets, paceline, result, run};

fn json(words: &str) -> Value {
    let ran = paceline(words);
    assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
    serde_json::from_str(&ran.stdout).expect("one JSON document")
}

/// Serves the files of a folder over HTTP until the test ends, each connection one request.
fn server(folder: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        listener.incoming().map_while(Result::ok).for_each(|stream| serve(stream, &folder));
    });
    address
}

fn serve(mut stream: TcpStream, folder: &Path) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    lines.take_while(|line| !line.is_empty()).for_each(drop);
    let name = first.split(' ').nth(1).unwrap_or_default().trim_start_matches('/');
    let (status, body) = match fs::read(folder.join(name)) {
        Ok(body) => (200, body),
        Err(_) => (404, Vec::new()),
    };
    let head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    // A client that has gone away is no failure of the server's.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
}

/// `paceline data get`, away from the user's settings.
fn get(words: &str) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(["data", "get"]).args(words.split_whitespace());
    for name in ["PACELINE_MIRROR", "PACELINE_DATA", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(name);
    }
    run(&mut command)
}

#[test]
fn what_cannot_be_fetched_is_said_with_what_to_do_and_nothing_is_left() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (address, to) = (server(there.path().into()), here.path().display());
    let missing = get(&format!("tinyshakespeare --mirror {address} --to {to}"));
    assert_eq!((missing.code, missing.stdout.as_str()), (1, ""));
    assert!(missing.stderr.contains("404 (not there)"), "{}", missing.stderr);
    let place = here.path().join("tinyshakespeare");
    assert!(missing.stderr.contains(&place.display().to_string()), "{}", missing.stderr);

    fs::create_dir(there.path().join("tinyshakespeare")).unwrap();
    fs::write(there.path().join("tinyshakespeare/input.txt"), "To be, or what?").unwrap();
    let wrong = get(&format!("tinyshakespeare --mirror {address} --to {to}"));
    assert_eq!(wrong.code, 1);
    let expected = "instead of 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed";
    assert!(wrong.stderr.contains(expected), "{}", wrong.stderr);
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0);

    // Nobody listens there any more: as good as offline.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let offline = get(&format!("mnist --mirror http://{gone} --to {to}"));
    assert_eq!(offline.code, 1);
    let hint = format!("put train-images-idx3-ubyte into {}", here.path().join("mnist").display());
    assert!(offline.stderr.contains(&hint) && offline.stderr.contains("--mirror"), "{}", offline.stderr);

    let unknown = get(&format!("basic-motions --to {to}"));
    assert_eq!(unknown.code, 1);
    assert!(unknown.stderr.contains("no address is known"), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("timeseriesclassification.com"), "{}", unknown.stderr);
    assert_eq!(get("digits").code, 0);
    assert_eq!(get("image-folder").code, 2);
    assert_eq!(get("imagenet").code, 2);
}

#[test]
fn a_dataset_is_fetched_once_verified_and_found() {
    let Some(real) = datasets("text") else { return };
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(there.path().join("tinyshakespeare")).unwrap();
    fs::copy(real.join("text/tinyshakespeare.txt"), there.path().join("tinyshakespeare/input.txt")).unwrap();
    let (address, to) = (server(there.path().into()), here.path().display());
    let words = format!("tinyshakespeare --mirror {address} --to {to}");
    let fetched = get(&format!("{words} --json"));
    assert_eq!(fetched.code, 0, "{}", fetched.stderr);
    assert_eq!(fetched.result()["files"][0]["hash"], "verified");
    // The second time nobody is asked.
    fs::remove_file(there.path().join("tinyshakespeare/input.txt")).unwrap();
    assert_eq!(get(&words).stdout, format!("{}\n", here.path().join("tinyshakespeare").display()));

    let path = paceline(&format!("data path tinyshakespeare --data-dir {to}"));
    let file = here.path().join("tinyshakespeare/tinyshakespeare.txt");
    assert_eq!((path.code, path.stdout), (0, format!("{}\n", file.display())));
    let info = json(&format!("data info tinyshakespeare --json --data-dir {to}"));
    assert_eq!((&info["classes"], &info["train_samples"]), (&65.into(), &15685.into()));
    assert_eq!(info["files"][0]["hash"], "verified");
}

#[test]
fn files_that_lie_about_are_described() {
    let folder = tempfile::tempdir().unwrap();
    example::cifar(&folder.path().join("cifar-10"), 50, 20).unwrap();
    let dir = folder.path().display();
    let info = json(&format!("data info cifar-10 --json --data-dir {dir}"));
    assert_eq!((&info["train_samples"], &info["test_samples"]), (&50.into(), &20.into()));
    assert_eq!(info["files"][0]["hash"], "differs");
    let words = paceline(&format!("data info cifar-10 --data-dir {dir}")).stdout;
    for part in ["50 to train, 20 to test", "32×32×3", "data_batch_1.bin", "differs", "Krizhevsky", "MB"] {
        assert!(words.contains(part), "{part}: {words}");
    }
    assert_eq!(json("data info digits --json")["train_samples"], 1438);
    assert_eq!(json("data path digits --json")["path"], Value::Null);
    let path = paceline(&format!("data path cifar-10 --data-dir {dir}"));
    assert_eq!(path.stdout, format!("{dir}/cifar-10\n"));
    let missing = paceline("data path mnist --data-dir /nonexistent");
    assert_eq!((missing.code, missing.stdout.as_str()), (5, ""));
    assert!(missing.stderr.contains("paceline data get mnist"), "{}", missing.stderr);
    let listed = json(&format!("data list --json --data-dir {dir}"));
    let row = listed.as_array().unwrap().iter().find(|row| row["name"] == "cifar-10").unwrap();
    assert_eq!(row["available"], true);
}

#[test]
fn every_kind_of_file_is_trained_on_alone_and_by_several() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    example::cifar(&dir.join("cifar-10"), 60, 20).unwrap();
    example::series(&dir.join("ts"), 60, 30).unwrap();
    example::images(&dir.join("image-folder"), 60, 20, 3, 40).unwrap();
    for (data, steps) in
        [("cifar-10", 50), ("ts", 150), ("image-folder --image-size 16", 50), ("series", 200)]
    {
        let train = |workers: &str| {
            let words = format!("--data {data} --model mlp --batch 10 --steps {steps} --lr 0.01 {workers}");
            result(&format!("train {words} --eval-every 1000 --data-dir {}", dir.display()))
        };
        for workers in ["", "--workers 2 --transport inproc"] {
            let accuracy = train(workers)["final_accuracy"].as_f64().unwrap();
            assert!(accuracy > 0.6, "{data} {workers}: {accuracy}");
        }
    }
    // Who does what next is not known beforehand here, and how well it goes depends on the machine.
    let words =
        "train --data image-folder --image-size 16 --batch 10 --steps 5 --lr 0.01 --workers 2 --servers 1";
    let result = result(&format!("{words} --strategy ps --sync asp --data-dir {}", dir.display()));
    assert!(result["final_loss"].as_f64().unwrap() < 10.0, "{result}");
}

#[test]
fn images_from_disk_are_the_same_batches_for_any_number_of_workers_and_decoders() {
    let folder = tempfile::tempdir().unwrap();
    example::images(folder.path(), 48, 12, 3, 32).unwrap();
    let train = |words: &str| {
        let all =
            format!("train --data image-folder --image-size 12 --model mlp --epochs 2 --lr 0.01 {words}");
        let result = result(&format!("{all} --data-dir {}", folder.path().display()));
        (result["params_sha256"].clone(), result["final_loss"].as_f64().unwrap())
    };
    let alone = train("--batch 12 --decoders 1");
    assert_eq!(train("--batch 12 --decoders 4"), alone);
    let (_, loss) = train("--batch 6 --workers 2");
    assert!((loss - alone.1).abs() < 1e-4, "{loss} {alone:?}");
}

#[test]
fn a_damaged_image_ends_the_run_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    example::images(folder.path(), 12, 6, 2, 24).unwrap();
    let damaged = folder.path().join("train/class000/00004.jpg");
    fs::write(&damaged, "not an image").unwrap();
    for workers in ["", "--workers 2"] {
        let words = format!("train --data image-folder --image-size 8 --batch 3 --epochs 1 {workers}");
        let ran = paceline(&format!("{words} --data-dir {}", folder.path().display()));
        assert_eq!((ran.code, ran.stdout.as_str()), (5, ""), "{}", ran.stderr);
        assert!(ran.stderr.contains("train/class000/00004.jpg"), "{}", ran.stderr);
        assert!(ran.stderr.contains("take it out of the folder"), "{}", ran.stderr);
    }
}

#[test]
fn settings_that_do_not_belong_to_the_dataset_or_model_are_refused() {
    for (words, reason) in [
        ("--data digits --image-size 32", "--image-size 32: belongs to --data image-folder"),
        ("--data letters --window 1", "--window 1: must be between 2 and 4096"),
        ("--data letters --model mlp", "the model gives 1 answers per sample, the dataset asks for 64"),
    ] {
        let ran = paceline(&format!("train {words}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(reason), "{words}: {}", ran.stderr);
    }
}

#[test]
fn workers_with_different_series_and_classes_are_possible() {
    for shard in ["by-label", "dirichlet(0.5)"] {
        let words = format!("train --data series --workers 2 --epochs 1 --shard {shard}");
        assert!(result(&words)["final_loss"].as_f64().unwrap().is_finite());
    }
}

#[test]
fn the_real_files_have_the_sizes_that_are_promised() {
    if let Some(real) = datasets("timeseries") {
        let info = |name: &str| json(&format!("data info {name} --json --data-dir {}", real.display()));
        let vowels = info("japanese-vowels");
        assert_eq!(vowels["shape"], serde_json::json!([1, 29, 12]));
        assert_eq!((&vowels["train_samples"], &vowels["test_samples"]), (&270.into(), &370.into()));
        let motions = info("basic-motions");
        assert_eq!(motions["shape"], serde_json::json!([1, 100, 6]));
        for file in vowels["files"].as_array().unwrap().iter().chain(motions["files"].as_array().unwrap()) {
            assert_eq!(file["hash"], "verified", "{file}");
        }
    }
    if let Some(real) = datasets("cifar-10-subset") {
        let info = json(&format!("data info cifar-10 --json --data-dir {}", real.display()));
        assert_eq!((&info["train_samples"], &info["test_samples"]), (&10_000.into(), &2_000.into()));
        assert_eq!(info["files"][0]["hash"], "verified");
    }
    if let Some(real) = datasets("mnist") {
        let info = json(&format!("data info mnist --json --data-dir {}", real.display()));
        assert!(info["files"].as_array().unwrap().iter().all(|file| file["hash"] == "verified"), "{info}");
    }
}

#[test]
fn a_dataset_is_exported_for_other_programs_and_nothing_is_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("digits");
    let words = format!("data export digits --to {}", to.display());
    let exported = json(&format!("{words} --json"));
    assert_eq!(
        (&exported["classes"], &exported["files"][0]["shape"]),
        (&10.into(), &vec![1438, 8, 8, 1].into())
    );
    let bytes = |name: &str| fs::metadata(to.join(name)).unwrap().len();
    assert_eq!(bytes("train-x.npy"), 128 + 4 * 64 * 1438);
    assert_eq!(bytes("test-y.npy"), 128 + 8 * 359);
    let again = paceline(&words);
    assert_ne!(again.code, 0);
    assert!(
        again.stderr.contains("train-x.npy") && again.stderr.contains("not overwritten"),
        "{}",
        again.stderr
    );
    let text = paceline(&format!("data export letters --to {}", folder.path().display()));
    assert!(text.code != 0 && text.stderr.contains("letters is a text"), "{}", text.stderr);
}
