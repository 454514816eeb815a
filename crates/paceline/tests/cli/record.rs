//! What a run leaves in the store, and what `runs`, `show`, `status` and `export` make of it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use paceline_testing::{Need, has_network_namespaces, has_programs, install, skip};
use serde_json::Value;

use crate::machines::Listening;
use crate::support::{PATIENCE, Ran, paceline, run};

/// Runs the program with a store of its own.
fn within(store: &Path, words: &str) -> Ran {
    let ran = paceline(&format!("{words} --store {}", store.display()));
    assert!([0, 1].contains(&ran.code), "{words}: {}", ran.stderr);
    ran
}

fn json(store: &Path, words: &str) -> Value {
    let ran = within(store, &format!("{words} --json"));
    serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{words}: {e}: {}{}", ran.stdout, ran.stderr))
}

/// A run's tables.
fn tables(store: &Path, run: &str) -> Value {
    let ran = within(store, &format!("export {run} --format json"));
    serde_json::from_str::<Value>(&ran.stdout).unwrap()["tables"].clone()
}

fn rows<'a>(tables: &'a Value, table: &str) -> &'a Vec<Value> {
    tables[table].as_array().unwrap_or_else(|| panic!("no table {table}"))
}

fn sum(rows: &[Value], column: &str) -> f64 {
    rows.iter().filter_map(|row| row[column].as_f64()).sum()
}

#[test]
fn a_run_leaves_its_plan_steps_samples_and_result_in_the_store() {
    let store = tempfile::tempdir().unwrap();
    for (words, ranks) in [
        ("", 1),
        ("--workers 2", 2),
        ("--workers 2 --transport inproc", 2),
        ("--workers 2 --servers 1 --strategy ps --sync asp --lr 0.01", 3),
    ] {
        let result =
            within(store.path(), &format!("train --quiet --epochs 2 --sample-hz 100 {words}")).result();
        let tables = tables(store.path(), "last");
        let run = &rows(&tables, "runs")[0];
        assert_eq!((&run["run"], &run["state"]), (&result["run"], &Value::from("ok")), "{words}");
        assert_eq!(run["result"]["params_sha256"], result["params_sha256"], "{words}");
        assert_eq!((&run["plan"]["data"], &run["schema"]), (&"digits".into(), &1.into()), "{words}");
        assert_eq!((&result["dropped_rows"], &run["dropped_rows"]), (&0.into(), &0.into()), "{words}");
        assert!(run["git_commit"].is_string() && run["rustc"].as_str().unwrap().contains("rustc"), "{words}");
        assert_eq!(rows(&tables, "ranks").len(), ranks, "{words}");
        assert!(!rows(&tables, "hosts")[0]["cpu"].as_str().unwrap().is_empty(), "{words}");
        // Every step of every worker, once, and what it computed adds up to what its account says.
        for rank in result["ranks"].as_array().unwrap() {
            let own: Vec<Value> =
                rows(&tables, "steps").iter().filter(|row| row["rank"] == rank["rank"]).cloned().collect();
            let samples: Vec<_> =
                rows(&tables, "samples").iter().filter(|s| s["rank"] == rank["rank"]).collect();
            if !words.contains("inproc") {
                assert!(samples.len() >= 2, "{words}: {} samples", samples.len());
            }
            let last = samples.last();
            assert!(last.is_none_or(|s| s["resident_bytes"].as_f64().unwrap() > 1e6), "{words}");
            if rank["role"] == "server" {
                let updates = own.last().unwrap()["step"].as_u64().unwrap();
                assert_eq!(updates, 2 * result["steps"].as_u64().unwrap(), "{words}");
                assert!(own.iter().all(|row| row["staleness"].is_u64()), "{words}");
                continue;
            }
            let steps: Vec<u64> = own.iter().map(|row| row["step"].as_u64().unwrap()).collect();
            assert_eq!(steps, (1..=steps.len() as u64).collect::<Vec<_>>(), "{words}");
            if !words.contains("asp") {
                assert_eq!(Some(steps.len() as u64), result["steps"].as_u64(), "{words}");
            }
            let computed =
                ["data_ns", "forward_ns", "backward_ns"].map(|c| sum(&own, c)).iter().sum::<f64>() * 1e-9;
            let told = rank["compute_s"].as_f64().unwrap();
            assert!((computed / told - 1.0).abs() < 0.05, "{words}: {computed} s in steps, {told} s in all");
        }
        assert_eq!(
            sum(rows(&tables, "steps"), "samples") as u64,
            result["samples"].as_u64().unwrap(),
            "{words}"
        );
        let kinds: Vec<&str> = rows(&tables, "events").iter().map(|e| e["type"].as_str().unwrap()).collect();
        assert_eq!((kinds[0], kinds[kinds.len() - 1]), ("start", "result"), "{words}");
        assert!(kinds.contains(&"phases"), "{words}");
        assert!(
            !rows(&tables, "evaluations").is_empty() && !rows(&tables, "interfaces").is_empty(),
            "{words}"
        );
    }
    assert_eq!(json(store.path(), "runs").as_array().unwrap().len(), 4);
    assert_eq!(paceline("train --epochs 1 --store /dev/null").code, 5);
    assert_eq!(paceline("runs --store /nonexistent").code, 5);
}

#[test]
fn links_count_what_ranks_exchange_and_tcp_has_the_kernels_view() {
    let store = tempfile::tempdir().unwrap();
    for transport in ["tcp", "shm"] {
        // Many samples: one that is taken when the peer has gone has no view of the kernel's.
        let words = format!("train --quiet --epochs 4 --workers 2 --sample-hz 200 --transport {transport}");
        let result = within(store.path(), &words).result();
        let tables = tables(store.path(), "last");
        for rank in result["ranks"].as_array().unwrap() {
            let own = |row: &&Value| row["rank"] == rank["rank"];
            let last = rows(&tables, "links").iter().rfind(own).unwrap();
            // Only the goodbye may come after the last sample.
            let (sent, told) = (last["sent_bytes"].as_f64().unwrap(), rank["sent_bytes"].as_f64().unwrap());
            assert!(sent <= told && told - sent < 200.0, "{transport}: {sent} of {told}");
            assert!(last["sent_messages"].as_f64().unwrap() > 0.0);
            let kernel = |row: &Value| row["round_trip_s"].as_f64().is_some_and(|s| s > 0.0);
            let seen = rows(&tables, "links").iter().filter(own).any(kernel);
            assert_eq!(seen, transport == "tcp", "{transport}: {last}");
        }
    }
}

#[test]
fn ranks_of_machines_that_join_are_in_the_record_like_any_other() {
    let store = tempfile::tempdir().unwrap();
    let words =
        format!("--hosts 2 --workers 2 --transport tcp --epochs 2 --store {}", store.path().display());
    let listening = Listening::start(&[], "127.0.0.1:0", &words);
    let joiner = listening.join(&[], "");
    let result = listening.launcher.result();
    assert_eq!(joiner.end().0, 0);
    let tables = tables(store.path(), "last");
    assert_eq!(rows(&tables, "ranks").len(), 2);
    for rank in 0..2 {
        let own = |table: &str| rows(&tables, table).iter().filter(|row| row["rank"] == rank).count();
        assert_eq!(Some(own("steps") as u64), result["steps"].as_u64(), "rank {rank}");
        assert!(own("samples") >= 2 && own("links") >= 1, "rank {rank}");
    }
    // What leaves the machine is encrypted, and still TCP to the kernel.
    let kernel = |row: &Value| row["round_trip_s"].as_f64().is_some_and(|s| s > 0.0);
    assert!(rows(&tables, "links").iter().any(kernel), "{}", tables["links"]);
    let kinds: Vec<&Value> = rows(&tables, "events").iter().map(|e| &e["type"]).collect();
    assert!(kinds.contains(&&"host".into()) && kinds.contains(&&"waiting".into()), "{kinds:?}");
}

#[test]
fn a_failed_run_says_why_and_keeps_what_it_did() {
    let store = tempfile::tempdir().unwrap();
    for words in ["", "--workers 2"] {
        let ran = paceline(&format!("train --epochs 2 --lr 1e6 {words} --store {}", store.path().display()));
        assert_eq!(ran.code, 1, "{words}: {}", ran.stderr);
        let tables = tables(store.path(), "last");
        let run = &rows(&tables, "runs")[0];
        assert_eq!((&run["state"], &run["exit_code"]), (&"failed".into(), &1.into()), "{words}");
        assert!(run["error"].as_str().unwrap().contains("diverged") && run["result"].is_null(), "{run}");
        assert_eq!(rows(&tables, "ranks").len(), if words.is_empty() { 1 } else { 2 }, "{words}");
    }
    let shown = within(store.path(), "show last").stdout;
    assert!(shown.contains("failed") && shown.contains("diverged"), "{shown}");
}

#[test]
fn recording_can_be_left_out_in_part_or_wholly_and_does_not_change_the_run() {
    let store = tempfile::tempdir().unwrap();
    let train = "train --quiet --workers 2 --steps 20";
    let whole = within(store.path(), &format!("{train} --trace")).result();
    let unsampled = within(store.path(), &format!("{train} --sample-hz 0")).result();
    let tables = tables(store.path(), "last");
    assert!(rows(&tables, "samples").is_empty() && rows(&tables, "trace").is_empty());
    assert_eq!(rows(&tables, "steps").len() as u64, 2 * unsampled["steps"].as_u64().unwrap());
    let none = paceline(&format!("{train} --no-record")).result();
    for other in [&unsampled, &none] {
        assert_eq!(whole["params_sha256"], other["params_sha256"]);
    }
    let ids: Vec<Value> =
        json(store.path(), "runs").as_array().unwrap().iter().map(|r| r["run"].clone()).collect();
    assert_eq!(ids, [whole["run"].clone(), unsampled["run"].clone()]);
    assert_eq!(paceline(&format!("{train} --no-record --trace")).code, 2);
    assert_eq!(paceline(&format!("{train} --sample-hz -1")).code, 2);
}

#[test]
fn an_export_to_one_csv_file_makes_no_folder_of_that_name() {
    let store = tempfile::tempdir().unwrap();
    within(store.path(), "train --steps 3");
    let file = store.path().join("x.csv");
    let export = |words: &str| {
        let (file, store) = (file.display(), store.path().display());
        paceline(&format!("export last --format csv --store {store} --out {file} {words}"))
    };
    let refused = export("");
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("one file holds one table") && refused.stderr.contains("steps"));
    assert!(refused.stderr.contains("--table NAME") && !file.exists(), "{}", refused.stderr);
    let ran = export("--table steps");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 1 + 3);
    let piped = within(store.path(), "export last --format csv --table steps");
    assert_eq!(piped.stdout, fs::read_to_string(&file).unwrap());
    let missing = export("--table stepps");
    assert!(missing.code == 2 && missing.stderr.contains("evaluations"), "{}", missing.stderr);
}

#[test]
fn traced_messages_are_received_as_they_were_sent() {
    let store = tempfile::tempdir().unwrap();
    within(store.path(), "train --quiet --workers 3 --steps 5 --trace");
    let tables = tables(store.path(), "last");
    let all = rows(&tables, "trace");
    let of = |kind: &'static str| all.iter().filter(move |row| row["kind"] == kind);
    assert!(of("send").count() > 0 && of("send").count() == of("receive").count());
    for sent in of("send") {
        let received = of("receive")
            .find(|r| (&r["rank"], &r["peer"], &r["n"]) == (&sent["peer"], &sent["rank"], &sent["n"]));
        let received = received.unwrap_or_else(|| panic!("{sent} never came"));
        for column in ["step", "bucket", "phase", "bytes"] {
            assert_eq!(sent[column], received[column], "{sent} {received}");
        }
        // One clock for all ranks: nothing comes before it is sent.
        assert!(sent["t_ns"].as_i64() <= received["t_ns"].as_i64(), "{sent} {received}");
    }
    let trace = within(store.path(), "export last --format trace").stdout;
    let trace: Value = serde_json::from_str(&trace).unwrap();
    let arrows = |ph: &str| trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == ph).count();
    assert_eq!((arrows("s"), arrows("f")), (of("send").count(), of("send").count()));
}

#[test]
fn a_run_killed_at_any_moment_leaves_a_whole_store_that_says_so() {
    let store = tempfile::tempdir().unwrap();
    let mut killed = 0;
    // Moments from before the first transaction to long after it; a run that is over by then is fine, too.
    for (i, delay) in [0, 3, 10, 30, 60, 120, 200, 350, 500, 900].into_iter().enumerate() {
        let mut launcher = Command::new(env!("CARGO_BIN_EXE_paceline"))
            .args([
                "train",
                "--quiet",
                "--epochs",
                "200",
                "--eval-every",
                "50",
                "--workers",
                ["1", "2"][i % 2],
            ])
            .arg("--store")
            .arg(store.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        let ended = launcher.try_wait().unwrap();
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        killed += usize::from(ended.is_none());
        if !store.path().join("paceline.db").exists() {
            continue;
        }
        let runs = json(store.path(), "runs");
        for run in runs.as_array().unwrap() {
            let (state, done, steps) = (run["state"].as_str().unwrap(), &run["steps_done"], &run["steps"]);
            // Never "ok" with steps missing, never "running" without a process.
            assert!(state == "lost" || (state == "ok" && done == steps), "{run}");
        }
        let words = format!("status --json --store {}", store.path().display());
        assert_eq!(paceline(&words).result()["runs"], serde_json::json!([]));
    }
    assert!(killed > 0, "no run was killed under way");
    // By another SQLite than ours.
    if !has_programs(&["python3"]) {
        return;
    }
    let check = run(Command::new("python3").args([
        "-c",
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); print(c.execute('PRAGMA integrity_check').fetchone()[0])",
        store.path().join("paceline.db").to_str().unwrap(),
    ]));
    assert_eq!(check.stdout.trim(), "ok", "{}", check.stderr);
}

#[test]
fn status_shows_a_run_under_way_with_its_progress() {
    let store = tempfile::tempdir().unwrap();
    let mut launcher = Command::new(env!("CARGO_BIN_EXE_paceline"))
        .args("train --quiet --epochs 1000000 --eval-every 1000000000 --workers 2 --store".split(' '))
        .arg(store.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let seen = loop {
        if store.path().join("paceline.db").exists() {
            let runs = json(store.path(), "status")["runs"].clone();
            if runs[0]["steps_done"].as_u64().is_some_and(|n| n > 0) {
                break runs;
            }
        }
        assert!(begun.elapsed() < PATIENCE, "no progress is shown");
        std::thread::sleep(Duration::from_millis(20));
    };
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    assert_eq!((&seen[0]["state"], &seen[0]["workers"]), (&"running".into(), &2.into()));
    assert_eq!(json(store.path(), "runs")[0]["state"], "lost");
}

#[test]
fn twenty_runs_at_once_share_a_store() {
    let store = tempfile::tempdir().unwrap();
    let children: Vec<_> = (0..20)
        .map(|seed| {
            Command::new(env!("CARGO_BIN_EXE_paceline"))
                .args(["train", "--quiet", "--steps", "30", "--seed", &seed.to_string(), "--store"])
                .arg(store.path())
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    children.into_iter().for_each(|mut child| assert!(child.wait().unwrap().success()));
    let runs = json(store.path(), "runs");
    let runs = runs.as_array().unwrap();
    assert_eq!(runs.len(), 20);
    assert!(runs.iter().all(|run| run["state"] == "ok" && run["steps_done"] == run["steps"]), "{runs:?}");
    for run in runs {
        let tables = tables(store.path(), run["run"].as_str().unwrap());
        assert_eq!(rows(&tables, "steps").len() as u64, run["steps"].as_u64().unwrap());
    }
}

#[test]
fn tensorboard_pyarrow_and_a_trace_parser_read_the_exports() {
    let Some(python) = std::env::var_os(install::PYTHON) else {
        return skip(Need::PythonPackages, install::reason(install::PYTHON));
    };
    let store = tempfile::tempdir().unwrap();
    let result = within(store.path(), "train --quiet --workers 2 --epochs 2 --trace --sample-hz 50").result();
    let out = |format: &str| store.path().join(format);
    for format in ["parquet", "tensorboard", "trace"] {
        within(store.path(), &format!("export last --format {format} --out {}", out(format).display()));
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/python/read_exports.py");
    let read = run(Command::new(python).arg(script).args([out("parquet"), out("tensorboard"), out("trace")]));
    assert_eq!(read.code, 0, "{}", read.stderr);
    let read = read.result();
    let tables = tables(store.path(), "last");
    // The same rows, numbers, texts and gaps as in the store.
    for (name, rows) in tables.as_object().unwrap() {
        let rows = rows.as_array().unwrap();
        let found = &read["parquet"][name];
        assert_eq!(found["rows"].as_u64(), Some(rows.len() as u64), "{name}");
        for (column, total) in found["sums"].as_object().unwrap() {
            let expected = sum(rows, column);
            let total = total.as_f64().unwrap();
            assert!((total - expected).abs() <= 1e-9 * expected.abs(), "{name}.{column}: {total} {expected}");
            let gaps = rows.iter().filter(|row| row[column].is_null()).count();
            assert_eq!(found["missing"][column].as_u64(), Some(gaps as u64), "{name}.{column}");
        }
    }
    assert_eq!(read["parquet"]["runs"]["first"]["run"], result["run"]);
    assert_eq!(read["parquet"]["steps"]["types"]["loss"], "double");
    let steps = result["steps"].as_u64();
    for rank in ["rank0", "rank1"] {
        let loss = &read["tensorboard"][rank]["train/loss"];
        assert_eq!((loss["count"].as_u64(), loss["last_step"].as_u64()), (steps, steps), "{rank}");
    }
    let accuracy = read["tensorboard"]["run"]["test/accuracy"]["last"].as_f64().unwrap();
    assert!((accuracy - result["final_accuracy"].as_f64().unwrap()).abs() < 1e-6);
    assert_eq!(read["trace"]["ranks"], serde_json::json!([0, 1]));
    assert_eq!(read["trace"]["steps"].as_u64(), steps.map(|n| 2 * n));
    assert!(read["trace"]["arrows"].as_u64().unwrap() > 0);
}

/// How far two numbers are apart, of the second.
fn off(a: f64, b: f64) -> f64 {
    (a / b - 1.0).abs()
}

#[test]
fn sampled_cpu_memory_and_network_agree_with_what_the_kernel_says_from_outside() {
    if !has_network_namespaces() || !has_programs(&["unshare", "python3"]) {
        return;
    }
    let store = tempfile::tempdir().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/python/independent.py");
    // Messages of hundreds of kilobytes: the headers of TCP and IP are small beside them. Both of the processes do
    // a known amount of work, and counters are compared at its end, however long it took.
    let words = "train --quiet --data synthetic --model mlp --workers 2 --steps 300 --eval-every 100000 --sample-hz 20 \
                 --transport tcp";
    let seen = run(Command::new("unshare")
        .args(["--net", "python3", script, env!("CARGO_BIN_EXE_paceline")])
        .args(words.split(' '))
        .arg("--store")
        .arg(store.path()));
    assert_eq!(seen.code, 0, "{}", seen.stderr);
    let seen = seen.result();
    assert_eq!(seen["code"], 0, "{seen}");
    let kernel =
        |path: &str| seen.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}: {seen}"));
    let tables = tables(store.path(), "last");
    let last = |table: &str, rank: u64| {
        rows(&tables, table).iter().rfind(|row| row["rank"] == rank).unwrap().clone()
    };
    let of_ranks = |table: &str, column: &str| {
        (0..2).map(|rank| last(table, rank)[column].as_f64().unwrap()).collect::<Vec<_>>()
    };

    let launcher = rows(&tables, "runs")[0]["launcher_cpu_s"].as_f64().unwrap();
    let cpu =
        launcher + ["cpu_user_s", "cpu_system_s"].iter().flat_map(|c| of_ranks("samples", c)).sum::<f64>();
    assert!(off(cpu, kernel("/cpu_s")) < 0.05, "CPU: sampled {cpu} s, wait4 {} s", kernel("/cpu_s"));

    // The kernel keeps the peak of the largest process of the tree; ranks are alike, and larger than the launcher
    // or as large.
    let peak = of_ranks("samples", "resident_peak_bytes").into_iter().fold(0.0, f64::max);
    let most = kernel("/peak_bytes");
    assert!(peak <= most * 1.001, "memory: sampled peak {peak}, wait4 {most}");
    assert!(off(peak, most) < 0.05, "memory: sampled peak {peak}, wait4 {most}");

    let sent: f64 = of_ranks("links", "sent_bytes").iter().sum();
    let wire = kernel("/network/sent_bytes");
    assert!(off(sent, wire) < 0.05, "network: {sent} bytes in messages, {wire} on the interface");
    let received: f64 = of_ranks("links", "received_bytes").iter().sum();
    assert!(off(received, kernel("/network/received_bytes")) < 0.05);
    let sampled = rows(&tables, "interfaces").iter().rfind(|row| row["interface"] == "lo").unwrap();
    assert!(off(sampled["sent_bytes"].as_f64().unwrap(), wire) < 0.05, "{sampled} {wire}");
}
