//! `--transport` and `--buffer`: the same runs whatever the ranks talk over, and nothing left of it.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{ENDLESS, PATIENCE, Running, gone, paceline, result, signal};

/// Transports whose names only this machine knows.
const LOCAL: [&str; 2] = ["uds", "shm"];

#[test]
fn processes_over_every_transport_give_the_parameters_of_threads_bit_for_bit() {
    // Every pair of strategy and transport, of strategy and number of workers, of transport and buffer. (Those
    // over tcp have a test of their own.)
    for (strategy, workers, uds, shm, grpc) in [
        ("ring-allreduce", 2, "", "--buffer 4KiB", ""),
        ("ring-allreduce", 3, "--buffer 8KiB", "", "--buffer 4KiB"),
        ("ring-allreduce", 4, "", "", ""),
        ("ring-reduce", 3, "", "--buffer 64KiB", ""),
        ("tree", 4, "--buffer 64KiB", "", "--buffer 5000"),
        ("halving-doubling", 4, "", "--buffer 5000", ""),
        ("ps --servers 1", 3, "", "", "--buffer 64KiB"),
        ("ps --servers 2", 2, "--buffer 1MiB", "--buffer 1MiB", "--buffer 4MiB"),
        ("stepwise", 3, "", "", ""),
        ("gossip", 4, "", "", ""),
        ("local --local-steps 2", 2, "", "", ""),
        ("tree --compression powersgd", 3, "", "", ""),
    ] {
        let train = format!(
            "train --quiet --workers {workers} --strategy {strategy} --steps 6 --batch 24 --bucket 64KiB"
        );
        let threads = result(&format!("{train} --transport inproc"));
        for (transport, buffer) in [("uds", uds), ("shm", shm), ("grpc", grpc)] {
            let words = format!("{train} --transport {transport} {buffer}");
            let processes = result(&words);
            assert_eq!(threads["params_sha256"], processes["params_sha256"], "{words}");
            let ranks = processes["ranks"].as_array().unwrap();
            assert!(ranks.iter().all(|rank| rank["sent_bytes"].as_u64().unwrap() > 0), "{words}");
        }
    }
}

/// Abstract names that a process listens on.
fn names(pid: u32) -> Vec<String> {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links: Vec<_> = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap();
    let own = table.lines().filter_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let &[.., inode, name] = &columns[..] else { return None };
        let own = links.iter().any(|link| link.to_str() == Some(&format!("socket:[{inode}]")));
        (own && name.starts_with("@paceline-")).then(|| name.to_owned())
    });
    own.collect()
}

/// What is called after this program where things could be left lying about.
pub fn lying_about() -> Vec<std::path::PathBuf> {
    let folders = [std::path::PathBuf::from("/dev/shm"), std::env::temp_dir()];
    let entries = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let ours = |path: &std::path::PathBuf| path.to_string_lossy().contains("paceline-");
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).filter(ours).collect();
    paths.sort();
    paths
}

#[test]
fn a_process_that_dies_is_named_and_leaves_nothing_behind() {
    for (transport, words, rank, name) in [
        ("uds", "--workers 3", 1, "worker 1"),
        ("shm", "--workers 3", 2, "worker 2"),
        ("uds", "--workers 2 --servers 2 --strategy ps", 3, "server 3"),
        ("shm", "--workers 2 --servers 1 --strategy ps --sync asp", 0, "worker 0"),
        ("grpc", "--workers 3", 0, "worker 0"),
        ("grpc", "--workers 2 --servers 1 --strategy ps --sync ssp", 2, "server 2"),
    ] {
        let before = lying_about();
        let run = Running::start(&format!("{ENDLESS} {words} --transport {transport}"));
        let ranks = run.ranks();
        let doors: Vec<_> = ranks.iter().flat_map(|&pid| names(pid)).collect();
        assert!(doors.len() >= ranks.len() || transport == "grpc", "every rank listens: {doors:?}");
        assert!(signal("KILL", ranks[rank]));
        let (code, text) = run.end();
        assert_eq!(code, 4, "{transport} {words}: {text}");
        let error = text.lines().find(|l| l.starts_with("error:")).unwrap_or_default();
        assert!(error.contains(name) && error.contains("SIGKILL"), "{transport} {words}: {text}");
        assert!(ranks.iter().all(|&pid| gone(pid)), "{transport} {words}");
        assert_eq!(left(&doors), Vec::<&String>::new(), "{transport} {words}");
        assert_eq!(lying_about(), before, "{transport} {words}");
    }
}

/// The doors that are still there.
fn left(doors: &[String]) -> Vec<&String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    doors.iter().filter(|door| table.contains(&door[..])).collect()
}

#[test]
fn when_the_launcher_dies_its_ranks_and_their_names_go_too() {
    for transport in LOCAL {
        let run = Running::start(&format!("{ENDLESS} --workers 2 --transport {transport}"));
        let ranks = run.ranks();
        let doors: Vec<_> = ranks.iter().flat_map(|&pid| names(pid)).collect();
        drop(run);
        let start = Instant::now();
        // A process whose first thread is gone may still have others that keep its sockets open.
        while !ranks.iter().all(|&pid| gone(pid)) || !left(&doors).is_empty() {
            assert!(
                start.elapsed() < PATIENCE,
                "{transport}: ranks or {:?} outlive their launcher",
                left(&doors)
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn every_transport_is_measured_and_its_buffer_sized_if_it_has_one() {
    for words in [
        "allreduce --workers 2 --sizes 4KiB,1MiB --transport shm",
        "allreduce --workers 3 --sizes 4,3MiB --transport shm --buffer 64KiB",
        "allreduce --workers 2 --sizes 4KiB,1MiB --transport uds",
        "p2p --sizes 64KiB,4MiB --transport uds --buffer 64KiB",
        "p2p --duplex --sizes 64KiB,4MiB --transport shm",
        "allreduce --workers 2 --sizes 4KiB,1MiB --transport grpc",
        "p2p --duplex --sizes 64KiB,4MiB --transport grpc --buffer 64KiB",
    ] {
        let ran = paceline(&format!("bench {words} --seconds 0.01 --json"));
        assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
        let rows: Value = serde_json::from_str(&ran.stdout).expect("one JSON document");
        let rows = rows["results"].as_array().unwrap();
        assert!(rows.iter().all(|row| row["seconds_median"].as_f64().unwrap() > 0.0), "{words}");
    }
}

#[test]
fn a_buffer_that_cannot_be_is_refused_with_the_reason() {
    for (words, reason) in [
        ("train --workers 2 --transport inproc --buffer 64KiB", "valid with tcp, uds, shm, grpc"),
        ("bench allreduce --transport inproc --buffer 64KiB", "inproc has no buffer to size"),
        ("train --workers 2 --transport shm --buffer 100", "between 4KiB and 1GiB"),
        ("bench p2p --transport tcp --buffer 2GiB", "between 4KiB and 1GiB"),
        ("bench p2p --transport grpc --buffer 1000", "between 4KiB and 1GiB"),
        ("train --buffer 64KiB", "sends nothing"),
    ] {
        let ran = paceline(words);
        assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(reason), "{words}: {}", ran.stderr);
    }
    for words in ["train --transport pigeon", "bench p2p --transport pigeon", "train --buffer many"] {
        assert_eq!(paceline(words).code, 2, "{words}");
    }
}
