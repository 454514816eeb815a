//! Runs whose network is cut into stages: the numbers of one worker, whatever they talk over, whoever is lost on the way.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::machines::Listening;
use crate::support::{Running, gone, paceline, result, run, signal};

/// What does not depend on how long things took.
fn numbers(result: &Value) -> [&Value; 6] {
    ["steps", "samples", "train_loss", "final_loss", "final_accuracy", "params_sha256"]
        .map(|key| &result[key])
}

/// What training gives with these words and without stages.
fn whole(words: &str) -> Value {
    result(&format!("train --quiet --no-record {words}"))
}

/// The words of a small run.
const SMALL: &str =
    "--model lenet --steps 7 --batch 20 --micro-batches 3 --eval-every 3 --optimizer adam --lr 0.003";

#[test]
fn stages_are_one_worker_over_every_transport_and_pipeline() {
    let want = whole(SMALL);
    for (transport, pipeline, stages) in [
        ("inproc", "gpipe", 3),
        ("tcp", "1f1b", 2),
        ("uds", "gpipe", 2),
        ("shm", "1f1b", 3),
        ("grpc", "gpipe", 2),
    ] {
        let words =
            format!("{SMALL} --stages {stages} --pipeline {pipeline} --transport {transport} --no-record");
        let ran = result(&format!("train --quiet {words}"));
        assert_eq!(numbers(&ran), numbers(&want), "{words}");
        assert_eq!(ran["ranks"].as_array().unwrap().len(), stages, "{words}");
    }
}

#[test]
fn replicas_in_stages_are_so_many_workers() {
    for (kind, staged) in [
        ("--workers 2 --strategy ring-allreduce", "--workers 4"),
        ("--workers 2 --servers 2 --strategy ps", "--workers 4"),
        ("--workers 1 --target-accuracy 0.05 --stop-at-target", "--workers 1"),
    ] {
        let want = whole(&format!("{SMALL} {kind}"));
        let kind = kind.replace("--workers 2", staged).replace("--workers 1", "--workers 2");
        let ran = result(&format!("train --quiet --no-record {SMALL} {kind} --stages 2"));
        assert_eq!(numbers(&ran), numbers(&want), "{kind}");
    }
    // Batch norm: statistics are averaged over replicas before an evaluation.
    let small = "--model resnet20 --batch 5 --micro-batches 2 --steps 4 --eval-every 2 --strategy tree";
    let want = whole(&format!("{small} --workers 2"));
    let ran = result(&format!("train --quiet --no-record {small} --workers 4 --stages 2"));
    assert_eq!(numbers(&ran), numbers(&want), "{small}");
}

#[test]
fn stages_go_over_joined_machines_emulated_links_and_stretched_passes() {
    let want = whole(SMALL);
    let staged = format!("{SMALL} --stages 2");
    for words in ["--network 1gbit,100us --hosts 2", "--straggler rank=1,factor=1.5"] {
        let ran = result(&format!("train --quiet --no-record {staged} {words}"));
        assert_eq!(numbers(&ran), numbers(&want), "{words}");
    }
    let listening = Listening::start(&[], "127.0.0.1:0", &format!("--hosts 2 {staged}"));
    let joiner = listening.join(&[], "");
    let ran = listening.launcher.result();
    assert_eq!(numbers(&ran), numbers(&want), "joined");
    assert_eq!(joiner.end().0, 0);
}

fn words(store: &Path, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(words.split_whitespace()).arg("--store").arg(store);
    command
}

fn stored(store: &Path, text: &str) -> Value {
    let ran = run(&mut words(store, text));
    assert_eq!(ran.code, 0, "{text}: {}", ran.stderr);
    ran.result()
}

/// A run of three stages that dies in the middle of one, and what one worker gives.
fn died(store: &Path, victim: usize) -> (Value, String) {
    let base =
        "--model lenet --steps 12 --batch 20 --micro-batches 4 --optimizer adam --lr 0.003 --eval-every 5";
    let want = whole(base);
    let text = format!("train --quiet {base} --stages 3 --checkpoint-every 4");
    let ran = run(words(store, &text).env("PACELINE_TEST_DIE", format!("{victim}:9")));
    assert_eq!((ran.code, ran.stdout.as_str()), (4, ""), "{}", ran.stderr);
    (want, ran.stderr)
}

#[test]
fn a_killed_stage_is_named_and_the_run_goes_on_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path();
    let (want, said) = died(store, 1);
    assert!(said.contains("worker 1") && said.contains("stage 1 of 3") && said.contains("SIGKILL"), "{said}");
    assert_eq!(numbers(&stored(store, "resume last --quiet")), numbers(&want));
}

#[test]
fn a_run_that_lost_a_stage_goes_on_with_one_stage_less_with_more_and_with_none() {
    for cut in ["--stages 2", "--stages 4 --pipeline gpipe", "--stages 1", "--stages 2 --cuts conv2"] {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path();
        let (want, _) = died(store, 2);
        let ran = run(&mut words(store, &format!("resume last {cut} --json")));
        assert_eq!(ran.code, 0, "{cut}: {}", ran.stderr);
        assert!(ran.stderr.contains("goes on after step 8"), "{cut}: {}", ran.stderr);
        assert_eq!(numbers(&ran.result()), numbers(&want), "{cut}");
        let shown = run(&mut words(store, "show last --json"));
        let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
        // What gives the run's plan again.
        let stages = cut.split(" --").next().unwrap();
        let command = shown["command"].as_str().unwrap();
        assert!(command.contains(stages) && !command.contains("--stages 3"), "{cut}: {command}");
    }
}

/// A run in the store that dies at a step, begun or resumed by these words; what it says.
fn dies(store: &Path, text: &str, at: &str) -> String {
    let ran = run(words(store, text).env("PACELINE_TEST_DIE", at));
    assert_eq!(ran.code, 4, "{text}: {}", ran.stderr);
    ran.stderr
}

const SERVED: &str = "--model lenet --steps 12 --batch 9 --micro-batches 4 --strategy ps";

#[test]
fn weights_of_a_run_that_was_cut_anew_and_has_saved_nothing_since_are_those_of_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path();
    let kind = "--stages 2 --workers 4 --servers 4 --checkpoint-every 4";
    dies(store, &format!("train --quiet {SERVED} {kind}"), "0:9");
    let exported = || {
        let file = store.join("weights.safetensors");
        stored(store, &format!("export-weights last --json --out {}", file.display()))["params_sha256"]
            .clone()
    };
    let saved = exported();
    let said = dies(store, "resume last --stages 4 --quiet", "1:9");
    assert!(said.contains("paceline resume") && said.contains("after step 8"), "{said}");
    assert_eq!(exported(), saved);
    // One answer is one pass, into however many a training step was divided.
    let infer = run(&mut words(store, "infer last --batch 8 --seconds 0.05 --json --quiet"));
    assert_eq!(infer.code, 0, "{}", infer.stderr);
    let want = whole(&format!("{SERVED} --workers 2 --servers 4"));
    assert_eq!(numbers(&stored(store, "resume last --quiet")), numbers(&want));
    let late = run(&mut words(store, "resume last --stages 2"));
    assert!(late.code == 2 && late.stderr.contains("has ended already"), "{}", late.stderr);
}

#[test]
fn a_run_with_a_stage_that_has_no_parameters_is_cut_anew_as_any() {
    let base = "--model lenet --steps 12 --batch 9 --micro-batches 4 --optimizer adam --lr 0.003";
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path();
    dies(store, &format!("train --quiet {base} --stages 2 --checkpoint-every 4"), "0:5");
    dies(store, "resume last --stages 4 --cuts conv2,pool2,fc1 --quiet", "0:9");
    let resumed = run(&mut words(store, "resume last --stages 2 --json"));
    assert!(resumed.stderr.contains("goes on after step 8"), "{}", resumed.stderr);
    assert_eq!(numbers(&resumed.result()), numbers(&whole(base)));
}

#[test]
fn a_run_with_a_host_for_each_stage_is_cut_anew_for_as_many_as_are_left() {
    let base = "--model lenet --steps 12 --batch 9 --micro-batches 3";
    let kind =
        "--stages 3 --hosts 3 --network 10gbit,20us --straggler rank=2,factor=1.5 --checkpoint-every 4";
    for (cut, hosts) in [("--stages 2", "--hosts 2"), ("--stages 1", "no --hosts")] {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path();
        dies(store, &format!("train --quiet {base} {kind} --trace"), "1:9");
        let resumed = run(&mut words(store, &format!("resume last {cut} --trace --json")));
        assert_eq!(resumed.code, 0, "{cut}: {}", resumed.stderr);
        for said in [&format!("{hosts}, not --hosts 3"), "no --straggler", "goes on after step 8"] {
            assert!(resumed.stderr.contains(said), "{cut}: {said}: {}", resumed.stderr);
        }
        assert_eq!(numbers(&resumed.result()), numbers(&whole(base)), "{cut}");
        let document =
            |text: &str| serde_json::from_str::<Value>(&run(&mut words(store, text)).stdout).unwrap();
        // What is told of it is told of the ranks that it has now, and its command is one that can be given again.
        let ranks = document("explain last --json")["ranks"].as_array().unwrap().len();
        assert_eq!(ranks, if hosts == "--hosts 2" { 2 } else { 1 }, "{cut}");
        let command = document("show last --json")["command"].as_str().unwrap().to_owned();
        let again = paceline(&format!("{} --dry-run --quiet", command.trim_start_matches("paceline ")));
        assert_eq!(again.code, 0, "{command}: {}", again.stderr);
    }
}

#[test]
fn weights_of_stages_are_exported_whole() {
    let folder = tempfile::tempdir().unwrap();
    let base = "--model lenet --steps 6 --batch 20 --micro-batches 2 --checkpoint-every 2";
    let mut hashes = Vec::new();
    for (name, kind) in [
        ("whole", "--workers 2"),
        ("staged", "--workers 4 --stages 2"),
        ("served", "--workers 4 --stages 2 --strategy ps --servers 4"),
    ] {
        let (store, file) = (folder.path().join(name), folder.path().join(format!("{name}.safetensors")));
        stored(&store, &format!("train --quiet {base} {kind}"));
        let words = format!("export-weights last --json --out {}", file.display());
        hashes.push(stored(&store, &words)["params_sha256"].clone());
        let infer =
            format!("infer --model lenet --init {} --batch 8 --seconds 0.05 --json --quiet", file.display());
        assert_eq!(paceline(&infer).code, 0, "{name}");
    }
    assert_eq!(hashes[0], hashes[1]);
    assert_eq!(hashes[0], hashes[2]);
}

#[test]
fn an_interrupted_run_in_stages_saves_and_goes_on() {
    for kind in ["--workers 4 --stages 2", "--stages 3 --pipeline gpipe --transport tcp"] {
        let folder = tempfile::tempdir().unwrap();
        let base = "--model lenet --epochs 10 --batch 10 --micro-batches 2";
        let want =
            whole(&format!("{base} {}", if kind.contains("--workers 4") { "--workers 2" } else { "" }));
        let running = Running::start(&format!("{base} {kind} --store {}", folder.path().display()));
        let ranks = running.ranks();
        assert!(signal("INT", running.id()));
        let (code, text) = running.end();
        // On a machine that was away for long it may have ended by then.
        assert!([0, 130].contains(&code), "{kind}: {text}");
        assert!(ranks.iter().all(|&pid| gone(pid)));
        assert_eq!(numbers(&stored(folder.path(), "resume last --quiet")), numbers(&want), "{kind}");
    }
}

/// Servers of stages confirm the stop as well: without that, workers could wait for one that had ended.
#[test]
fn an_interrupted_run_in_stages_with_servers_saves_and_goes_on() {
    let base = "--model lenet --epochs 40 --batch 10 --micro-batches 2 --eval-every 100000 --strategy ps";
    let want = whole(&format!("{base} --workers 2 --servers 2"));
    for kind in ["--stages 2 --servers 2", "--stages 2 --servers 4 --pipeline gpipe --transport tcp"] {
        let folder = tempfile::tempdir().unwrap();
        let running =
            Running::start(&format!("{base} {kind} --workers 4 --store {}", folder.path().display()));
        let ranks = running.ranks();
        assert!(signal("INT", running.id()));
        let (code, text) = running.end();
        assert_eq!(code, 130, "{kind}: {text}");
        assert!(text.contains("paceline resume"), "{kind}: {text}");
        assert!(ranks.iter().all(|&pid| gone(pid)));
        let resumed = run(&mut words(folder.path(), "resume last --json"));
        assert_eq!(resumed.code, 0, "{kind}: {}", resumed.stderr);
        assert!(resumed.stderr.contains("goes on after step"), "{kind}: {}", resumed.stderr);
        assert_eq!(numbers(&resumed.result()), numbers(&want), "{kind}");
    }
}

#[test]
fn what_stages_do_and_wait_for_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path();
    stored(store, &format!("train --quiet {SMALL} --stages 2 --trace"));
    let export = |format: &str| {
        let ran = run(&mut words(store, &format!("export last --format {format}")));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        serde_json::from_str::<Value>(&ran.stdout).unwrap()
    };
    let events = export("trace")["traceEvents"].as_array().unwrap().clone();
    let passes: Vec<&Value> = events.iter().filter(|event| event["cat"] == "pass").collect();
    // Seven steps of three micro-batches, forward and backward, through two stages.
    assert_eq!(passes.len(), 7 * 3 * 2 * 2);
    assert!(passes.iter().any(|pass| pass["name"] == "F0") && passes.iter().any(|pass| pass["name"] == "B2"));
    // What a slot takes is known before the run.
    let shown = result("model show lenet --data digits --stages 2 --micro-batches 3 --batch 20 --json");
    let slot = |rank: u64| shown["pipeline"]["stage"][rank as usize]["slot_bytes"].as_u64().unwrap();
    let rows = export("json")["tables"]["steps"].as_array().unwrap().clone();
    assert_eq!(rows.len(), 14);
    for row in rows {
        let number = |name: &str| row[name].as_u64().unwrap_or_else(|| panic!("{name}: {row}"));
        // Along 1f1b the first of two stages has two micro-batches under way, the last one has one.
        assert_eq!(number("live_slots"), 2 - number("rank"), "{row}");
        assert_eq!(number("activation_bytes"), number("live_slots") * slot(number("rank")), "{row}");
        assert!(number("wait_up_ns") + number("wait_down_ns") <= number("wait_ns"), "{row}");
        assert_eq!(number(if number("rank") == 0 { "wait_up_ns" } else { "wait_down_ns" }), 0, "{row}");
    }
}

#[test]
fn buffers_of_ranks_are_what_a_dry_run_says() {
    for kind in [
        "--model lenet --stages 3 --pipeline gpipe --optimizer adam --transport inproc",
        "--model lenet --stages 2 --workers 4 --strategy ring-allreduce --momentum 0",
        "--model lenet --stages 2 --workers 4 --servers 2 --strategy ps --transport shm",
        "--model resnet20 --stages 4 --batch 7 --transport uds",
    ] {
        let text = format!("train --quiet --json {kind} --micro-batches 3 --steps 2");
        let said = result(&format!("{text} --dry-run"));
        let said = said["buffer_bytes"].as_array().unwrap_or_else(|| panic!("{kind}: {said}"));
        let ran = result(&format!("{text} --no-record"));
        for rank in ran["ranks"].as_array().unwrap() {
            let at = rank["rank"].as_u64().unwrap() as usize % said.len();
            // Servers have no stage's buffers.
            let want = if rank["role"] == "worker" { &said[at] } else { &Value::Null };
            assert_eq!(&rank["buffer_bytes"], want, "{kind}: {rank}");
        }
    }
    assert!(result("train --dry-run --json --quiet").get("buffer_bytes").is_none());
}

#[test]
fn what_ifs_of_stages_are_what_simulating_the_change_gives() {
    const RUN: &str = "simulate --quiet --model resnet20 --stages 2 --batch 32 --steps 12";
    let seconds = |words: &str| {
        let result = result(&format!("{RUN} {words} --no-record"));
        result["seconds"]["train"].as_f64().unwrap()
    };
    for (cuts, id) in [("layer2.0.bn2", "micro-batches"), ("layer1.1", "cuts")] {
        let folder = tempfile::tempdir().unwrap();
        let now = format!("--cuts {cuts} --micro-batches 2");
        stored(folder.path(), &format!("{RUN} {now} --trace"));
        let said = stored(folder.path(), "explain last --json");
        let changes = said["verdict"]["changes"].as_array().unwrap();
        let change = changes.iter().find(|change| change["if"] == id);
        let change = change.unwrap_or_else(|| panic!("{now}: no {id} in {changes:?}"));
        assert_eq!(change["predicted"], true, "{change}");
        // What to do is said as a flag.
        let flag = change["what"].as_str().unwrap().split('`').nth(1).unwrap();
        let then = match id {
            "cuts" => format!("{flag} --micro-batches 2"),
            _ => format!("--cuts {cuts} {flag}"),
        };
        let (gain, want) = (change["gain"].as_f64().unwrap(), 1.0 - seconds(&then) / seconds(&now));
        assert!(
            want > 0.05 && (gain - want).abs() < 0.08,
            "{now}, {then}: {gain} predicted, {want} simulated"
        );
    }
}

#[test]
fn what_cannot_be_cut_is_refused_with_flag_value_and_reason() {
    for (words, said) in [
        ("train --stages 2 --workers 3", "--workers 3"),
        ("train --stages 99", "--stages 99"),
        ("train --stages 2 --strategy gossip --workers 4", "--strategy gossip"),
        ("train --stages 2 --cuts nowhere", "--cuts nowhere"),
        ("train --stages 2 --workers 4 --servers 3 --strategy ps", "--servers 3"),
        ("train --pipeline gpipe", "--pipeline"),
        ("train --stages 2 --workers 4 --shares 4", "--shares 4"),
        ("train --stages 2 --workers 4 --shares 2", "--shares 2"),
    ] {
        let ran = paceline(&format!("{words} --quiet --no-record --steps 1"));
        assert_eq!((ran.code != 0, ran.stdout.as_str()), (true, ""), "{words}");
        assert!(ran.stderr.contains(said), "{words}: {}", ran.stderr);
    }
}
