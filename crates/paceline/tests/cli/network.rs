//! `--network`, `--hosts`, `--placement`: emulated links change when things happen, never what.

use serde_json::Value;

use crate::support::{ENDLESS, Running, gone, paceline, result, signal};

fn hosts(result: &Value) -> Vec<String> {
    let host = |rank: &Value| rank["host"].as_str().unwrap().rsplit('#').next().unwrap().to_owned();
    result["ranks"].as_array().unwrap().iter().map(host).collect()
}

#[test]
fn an_emulated_network_changes_no_number() {
    for (transport, words) in [
        ("tcp", "--workers 2 --strategy ring-allreduce"),
        ("shm", "--workers 3 --strategy ring-reduce --hosts 2"),
        ("uds", "--workers 4 --strategy halving-doubling --hosts 0,1,0,1"),
        ("inproc", "--workers 4 --strategy tree --hosts 2"),
        ("tcp", "--workers 2 --servers 2 --strategy ps --placement dedicated"),
        ("inproc", "--workers 3 --servers 1 --strategy ps --placement colocated"),
        ("shm", "--workers 3 --strategy stepwise"),
        ("shm", "--workers 4 --strategy direct --hosts 2"),
    ] {
        let train =
            format!("train --quiet --steps 4 --batch 16 --transport {transport} --bucket 64KiB {words}");
        let network = format!("{train} --network 200mbit,300us");
        let plain = train.split(" --hosts").next().unwrap();
        let (near, far) = (result(plain), result(&network));
        assert_eq!(near["params_sha256"], far["params_sha256"], "{network}");
    }
}

#[test]
fn a_run_is_never_faster_than_its_links() {
    for words in ["--workers 2", "--workers 3", "--workers 2 --servers 1 --strategy ps"] {
        for transport in ["tcp", "inproc"] {
            let words =
                format!("train --quiet --steps 3 --network 50mbit,1ms {words} --transport {transport}");
            let ran = result(&words);
            let train = ran["seconds"]["train"].as_f64().unwrap();
            for rank in ran["ranks"].as_array().unwrap() {
                // The last goodbyes are under way when the clock stops.
                let sent = rank["sent_bytes"].as_f64().unwrap() - 1e4;
                assert!(train >= sent * 8.0 / 50e6, "{words}: {sent} bytes in {train} s");
            }
        }
    }
}

#[test]
fn ranks_sit_where_the_plan_says() {
    for (words, expected) in [
        ("--workers 2", vec!["0", "1"]),
        ("--workers 4 --hosts 2", vec!["0", "0", "1", "1"]),
        ("--workers 3 --hosts 1,0,1", vec!["1", "0", "1"]),
        ("--workers 2 --servers 2 --strategy ps", vec!["0", "1", "0", "1"]),
        ("--workers 2 --servers 2 --strategy ps --placement dedicated", vec!["0", "1", "2", "3"]),
        ("--workers 2 --servers 2 --strategy ps --placement dedicated --hosts 2", vec!["0", "0", "1", "1"]),
    ] {
        let ran = result(&format!("train --quiet --steps 1 --network 1gbit,50us {words}"));
        assert_eq!(hosts(&ran), expected, "{words}");
    }
}

#[test]
fn a_lost_rank_is_named_over_an_emulated_network_too() {
    let run = Running::start(&format!("{ENDLESS} --workers 3 --network 100mbit,5ms"));
    let ranks = run.ranks();
    assert!(signal("KILL", ranks[1]));
    let (code, text) = run.end();
    assert_eq!(code, 4, "{text}");
    assert!(text.contains("worker 1") && text.contains("SIGKILL"), "{text}");
    assert!(ranks.iter().all(|&pid| gone(pid)));
}

#[test]
fn networks_and_hosts_that_cannot_be_are_refused_with_the_reason() {
    for (words, code, reason) in [
        ("train --workers 2 --network fast", 2, "1gbit,200us"),
        ("train --workers 2 --network 1gbit,20", 2, "a latency between 0us and 10s"),
        ("bench p2p --network 0gbit,1us", 2, "a bandwidth between 1kbit and 400gbit"),
        ("train --network 1gbit,200us", 3, "sends nothing"),
        ("train --workers 2 --hosts 2", 3, "give --network"),
        ("train --workers 2 --hosts 3 --network 1gbit", 3, "fill at most 2 hosts"),
        ("train --workers 2 --hosts 0,2 --network 1gbit", 3, "host 1 has nobody"),
        ("train --workers 2 --hosts x --network 1gbit", 2, "the host of each worker"),
        ("train --workers 2 --placement moon", 2, "colocated"),
    ] {
        let ran = paceline(words);
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(reason), "{words}: {}", ran.stderr);
    }
}

#[test]
fn the_choice_of_paths_is_the_same_in_virtual_time_and_is_shown_and_explained() {
    for (words, averaging) in [
        ("--transport shm", "auto: direct"),
        ("--transport tcp", "auto: halving-doubling below 16 KiB, else direct"),
        ("--network 10gbit,20us", "auto: halving-doubling below 64 KiB, else ring-allreduce"),
        ("--network 10gbit,20us --hosts 2", "auto: hierarchical"),
    ] {
        let store = tempfile::tempdir().unwrap();
        let here = |words: &str| {
            let ran = paceline(&format!("{words} --store {}", store.path().display()));
            assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
            ran
        };
        let flags = format!("--quiet --strategy auto --workers 4 --steps 3 --trace {words}");
        let made = [here(&format!("train {flags}")), here(&format!("simulate --learn {flags}"))];
        assert_eq!(made[0].result()["params_sha256"], made[1].result()["params_sha256"], "{words}");
        for ran in made {
            let run = ran.result()["run"].as_str().unwrap().to_owned();
            let shown = here(&format!("show {run}")).stdout;
            assert!(shown.contains(&format!("{averaging} (bsp), 4 workers")), "{words}: {shown}");
            let explained = here(&format!("explain {run}")).stdout;
            assert!(explained.contains(&format!("averaged along {averaging}\n")), "{words}: {explained}");
        }
    }
}

/// A machine on which a message takes 50 ms of its sender's and its receiver's time, and bytes next to none.
const DEAR_MESSAGES: &str = r#"
version = 1
cpu = "made up"
cores = 4
startup-s = [0.1, 0.1, 0.1]
data-ns-per-byte = [1.0, 1.0, 1.0]
flops-per-s = [5e10, 5e10, 5e10]
sharing = []
work = []

[[transport]]
name = "tcp"
latency-s = [1e-5, 1e-5, 1e-5]
message-s = [0.05, 0.05, 0.05]
ns-per-byte = [0.01, 0.01, 0.01]
"#;

#[test]
fn a_calibration_that_is_named_decides_the_paths_of_real_and_virtual_runs_alike() {
    let store = tempfile::tempdir().unwrap();
    let file = store.path().join("machine.toml");
    std::fs::write(&file, DEAR_MESSAGES).unwrap();
    let named = format!("--calibration {}", file.display());
    let flags = "--quiet --workers 6 --steps 6 --trace --transport tcp";
    let made = ["train", "simulate --learn"].map(|verb| {
        let words = format!("{verb} {flags} {named} --store {}", store.path().display());
        let ran = paceline(&words);
        assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
        ran.result()
    });
    assert_eq!(made[0]["params_sha256"], made[1]["params_sha256"]);
    let chosen = made.map(|result| {
        let run = result["run"].as_str().unwrap().to_owned();
        let explained = paceline(&format!("explain {run} --json --store {}", store.path().display()));
        explained.result()["paths"].clone()
    });
    assert_eq!(chosen[0], chosen[1]);
    // By rule, a tree takes buckets below 16 KiB.
    let first = &chosen[0][0];
    assert!(first["path"] == "tree" && first["below-bytes"].as_u64() > Some(16 << 10), "{chosen:?}");
    // The run's command line gives its plan again.
    let plans = [named.as_str(), ""].map(|named| {
        let dry = paceline(&format!("train --dry-run --json {flags} {named}"));
        assert_eq!(dry.code, 0, "{}", dry.stderr);
        dry.result()
    });
    assert_ne!(plans[0]["plan_sha256"], plans[1]["plan_sha256"]);
    let line = plans[0]["labels"]["command"].as_str().unwrap();
    assert!(line.contains("--calibration /"), "{line}");
    let missing = paceline("train --calibration no-such-file.toml");
    assert!(missing.code != 0 && missing.stderr.contains("no-such-file.toml"), "{}", missing.stderr);
}
