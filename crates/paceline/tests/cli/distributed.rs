//! `paceline train` with several processes.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{ENDLESS, PATIENCE, Running, gone, paceline, result, signal};

#[test]
fn processes_over_tcp_give_the_parameters_of_threads_bit_for_bit() {
    // Threads in process equal one worker with the whole batch (paceline-train's tests).
    for model in ["mlp", "lenet"] {
        for workers in [2, 3, 4] {
            for strategy in [
                "ring-allreduce",
                "ring-reduce",
                "tree",
                "halving-doubling",
                "direct",
                "hierarchical",
                "ps --servers 1",
                "ps --servers 2",
                "ps --servers 3",
            ] {
                let words = format!(
                    "train --quiet --model {model} --workers {workers} --strategy {strategy} --steps 6 --batch 24 --bucket 64KiB"
                );
                let threads = result(&format!("{words} --transport inproc"));
                let processes = result(&format!("{words} --transport tcp"));
                assert_eq!(threads["params_sha256"], processes["params_sha256"], "{words}");
                let ranks = processes["ranks"].as_array().unwrap();
                let workers: Vec<_> = ranks.iter().filter(|r| r["role"] == "worker").collect();
                assert!(workers.iter().all(|w| w["params_sha256"] == workers[0]["params_sha256"]), "{words}");
                assert!(workers.iter().all(|w| w["sent_bytes"].as_u64().unwrap() > 0), "{words}");
            }
        }
    }
}

/// Whether processes and threads end with the same model, and what each said.
fn same_model(words: &str) -> Value {
    let over = |transport: &str| result(&format!("{words} --transport {transport}"));
    let (threads, processes) = (over("inproc"), over("tcp"));
    assert_eq!(threads["params_sha256"], processes["params_sha256"], "{words}");
    assert_eq!(threads["final_accuracy"], processes["final_accuracy"], "{words}");
    processes
}

#[test]
fn what_is_averaged_and_how_it_is_encoded_gives_the_same_over_tcp_as_between_threads() {
    let train = "train --quiet --workers 3 --steps 6 --batch 24 --bucket 64KiB";
    for strategy in ["ring-allreduce", "tree", "halving-doubling", "direct", "ps --servers 2"] {
        same_model(&format!("{train} --strategy {strategy} --averages weights"));
        for codec in ["fp16", "int8", "2bit,threshold=0.001", "topk", "sign", "powersgd"] {
            if !(strategy.starts_with("ps") && codec == "powersgd") {
                same_model(&format!("{train} --strategy {strategy} --compression {codec}"));
            }
        }
    }
    // Whatever is averaged along whichever exact path, SGD with momentum goes the same way.
    let accuracy = |strategy: &str| result(&format!("{train} {strategy}"))["final_accuracy"].clone();
    assert_eq!(accuracy("--strategy tree --averages weights"), accuracy("--strategy ring-allreduce"));
}

#[test]
fn strategies_whose_replicas_differ_give_the_same_over_tcp_as_between_threads() {
    let train = "train --quiet --workers 4 --steps 9 --batch 16 --eval-every 4 --shard by-label";
    for strategy in [
        "stepwise --variant naive",
        "stepwise --variant rotate",
        "stepwise --variant random-start",
        "stepwise --variant push-sum",
        "stepwise --variant periodic",
        "stepwise --variant chunked",
        "stepwise --variant rotate --start rotate-1 --compression fp16",
        "stepwise --averages gradients --sync-every 4",
        "gossip",
        "gossip --neighbours 1 --compression fp16",
        "local --local-steps 4",
        "local --local-steps 4 --outer nesterov",
    ] {
        let result = same_model(&format!("{train} --strategy {strategy}"));
        let accuracy = |name: &str| result["replicas"][name].as_f64().unwrap();
        assert!(accuracy("min_accuracy") <= accuracy("max_accuracy"), "{strategy}");
        let workers = result["ranks"].as_array().unwrap();
        let differ = workers.iter().any(|w| w["params_sha256"] != workers[0]["params_sha256"]);
        assert!(differ, "{strategy}: replicas differ");
        assert!(
            workers.iter().all(|w| w["params_sha256"] != result["params_sha256"]),
            "{strategy}: the mean"
        );
    }
}

#[test]
fn with_a_fixed_start_the_fleet_follows_the_start_workers_data() {
    // Worker 0 holds the lowest labels only: in the naive wave nobody tells it of the others.
    let accuracy = |variant: &str| {
        let words = format!(
            "train --quiet --workers 4 --batch 16 --epochs 12 --lr 0.02 --shard by-label --strategy stepwise --variant {variant}"
        );
        result(&words)["final_accuracy"].as_f64().unwrap()
    };
    let naive = accuracy("naive");
    assert!(naive < 0.5, "{naive}");
    for variant in ["random-start", "rotate", "push-sum", "chunked"] {
        assert!(accuracy(variant) > 0.85, "{variant}: {}", accuracy(variant));
    }
}

#[test]
fn batch_norms_statistics_are_averaged_over_the_workers_at_an_evaluation() {
    // Each worker's own would give each share of the test split another model, and the parameters depend
    // on the workers' batches; what is evaluated is one model either way.
    let words =
        "train --quiet --model resnet20 --data synthetic --workers 2 --batch 8 --steps 4 --eval-every 2";
    let processes = same_model(words);
    let again = result(words);
    assert_eq!(processes["final_loss"], again["final_loss"]);
    let ps = same_model(&format!("{words} --strategy ps --servers 1"));
    assert!((ps["final_loss"].as_f64().unwrap() - again["final_loss"].as_f64().unwrap()).abs() < 1e-3);
}

#[test]
fn every_strategy_learns_digits_with_4_workers() {
    for options in [
        "--strategy ring-allreduce",
        "--strategy ring-reduce",
        "--strategy ps --servers 2",
        "--strategy tree --averages weights",
        "--strategy halving-doubling --compression fp16",
        "--strategy ring-allreduce --compression powersgd,rank=4",
        "--strategy gossip",
        "--strategy local",
        "--strategy stepwise",
        "--strategy stepwise --variant chunked",
        "--strategy ps --servers 1 --sync asp --lr 0.02 --momentum 0.5",
        "--strategy ps --servers 2 --sync ssp --staleness 2 --lr 0.02 --momentum 0.5",
        "--strategy ps --servers 2 --sync essp --lr 0.02 --momentum 0.5",
        "--strategy ps --servers 3 --sync dssp --lr 0.02 --momentum 0.5",
        "--strategy ps --servers 2 --sync adaptive --lr 0.02 --momentum 0.5",
        "--strategy ps --servers 2 --sync switch --lr 0.02 --momentum 0.5",
        "--strategy ps --servers 2 --sync switch --switch-at 1 --straggler-policy greedy --straggler rank=1,factor=4 --lr 0.02",
        "--strategy ps --servers 1 --sync asp --shard dirichlet(1) --lr 0.02 --momentum 0.5",
    ] {
        let result = result(&format!("train --quiet --workers 4 --batch 16 --epochs 12 {options}"));
        let accuracy = result["final_accuracy"].as_f64().unwrap();
        assert!(accuracy >= 0.93, "{options}: {accuracy}");
        // Who holds data of its own takes batches of it, which are not always as long as the unit's.
        let samples = result["samples"].as_u64().unwrap();
        let off = samples.abs_diff(12 * 1438);
        assert!(off == 0 || options.contains("--shard") && off < 100, "{options}: {samples}");
    }
}

#[test]
fn under_ssp_a_straggler_bounds_the_staleness_of_the_others() {
    // One of two workers is five times slower: between its read and its write the other one can make at
    // most 2s + 1 updates.
    for bound in [0, 1, 2] {
        let words = format!(
            "train --quiet --workers 2 --servers 1 --strategy ps --sync ssp --staleness {bound} --epochs 2 --straggler rank=1,factor=5"
        );
        let most = result(&words)["staleness"]["max"].as_f64().unwrap();
        assert!(most <= f64::from(2 * bound + 1), "ssp({bound}): {most}");
    }
    let asp = result("train --quiet --workers 2 --servers 1 --strategy ps --sync asp --epochs 2");
    assert_eq!(asp["samples"].as_u64(), Some(2 * 1438));
    assert!(asp["staleness"]["max"].as_f64().unwrap() >= asp["staleness"]["mean"].as_f64().unwrap());
}

#[test]
fn a_run_can_be_stopped_after_a_step_without_changing_the_steps_before() {
    let whole = result("train --quiet --workers 2 --steps 8 --schedule cosine");
    let part = result("train --quiet --workers 2 --steps 8 --schedule cosine --stop-after-step 5");
    assert_eq!(part["steps"], 5);
    assert_ne!(whole["params_sha256"], part["params_sha256"]);
    let single = result("train --quiet --workers 1 --strategy ring-allreduce --steps 8 --stop-after-step 5");
    let plain = result("train --quiet --workers 1 --steps 8 --stop-after-step 5");
    assert_eq!(single["params_sha256"], plain["params_sha256"], "one worker is plain SGD");
}

#[test]
fn impossible_plans_are_refused_with_what_would_be_valid() {
    for (words, reason) in [
        ("--workers 2 --staleness 3", "belongs to --sync ssp"),
        ("--workers 2 --local-steps 3", "belongs to --strategy local"),
        ("--local-steps 3", "belongs to --strategy local"),
        ("--workers 2 --strategy stepwise --averages gradients", "drift apart"),
        ("--workers 2 --strategy local --averages gradients", "local averages weights"),
        ("--workers 2 --strategy gossip --compression 2bit", "valid: fp16"),
        ("--workers 2 --strategy stepwise --compression topk", "valid: fp16"),
        ("--workers 2 --strategy stepwise --compression powersgd", "valid: fp16"),
        ("--workers 2 --servers 1 --strategy ps --compression powersgd", "summed over all workers twice"),
        ("--workers 2 --averages weights --compression sign", "is for gradients"),
        ("--workers 2 --servers 1 --strategy ps --sync asp --averages weights", "use --sync bsp"),
        ("--workers 2 --servers 1 --strategy ps --sync asp --lr-scaling linear", "single pushes"),
        ("--workers 4 --strategy stepwise --variant naive --debias push-sum", "as good as zero"),
        ("--workers 2 --servers 1 --strategy ps --sync switch --straggler-policy greedy", "at least 3"),
        ("--compression fp16", "sends nothing"),
        ("--workers 2 --servers 1", "auto has no servers"),
        ("--workers 2 --strategy ps", "needs at least 1 server"),
        ("--workers 2 --sync asp", "valid: bsp"),
        ("--workers 2 --sync ssp", "valid: bsp"),
        ("--sync asp", "one worker alone"),
        ("--workers 1500 --batch 1", "1438 samples"),
        ("--workers 2 --straggler rank=2,factor=3", "counted from 0"),
        ("--workers 0", "at least 1"),
    ] {
        let ran = paceline(&format!("train {words}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(reason), "{words}: {}", ran.stderr);
    }
    assert_eq!(paceline("train --strategy rings").code, 2);
    for words in [
        "--straggler rank=1",
        "--compression 3bit",
        "--compression topk,ratio=2",
        "--shard by-name",
        "--shard dirichlet(0)",
        "--local-steps 0",
        "--staleness-bounds 5,3",
        "--variant sideways",
    ] {
        let ran = paceline(&format!("train --workers 2 {words}"));
        assert_eq!(ran.code, 2, "{words}: {}", ran.stderr);
    }
}

#[test]
fn a_process_that_dies_ends_the_run_and_is_named() {
    for (words, rank, name) in [
        ("--workers 3", 1, "worker 1"),
        ("--workers 3 --strategy ring-reduce", 2, "worker 2"),
        ("--workers 2 --servers 2 --strategy ps", 0, "worker 0"),
        ("--workers 2 --servers 2 --strategy ps", 3, "server 3"),
        ("--workers 2 --servers 1 --strategy ps --sync asp", 2, "server 2"),
        ("--workers 3 --servers 2 --strategy ps --sync dssp", 3, "server 3"),
        ("--workers 3 --servers 2 --strategy ps --sync adaptive", 1, "worker 1"),
        ("--workers 4 --strategy tree", 3, "worker 3"),
        ("--workers 3 --strategy halving-doubling --compression 2bit", 2, "worker 2"),
        ("--workers 3 --strategy stepwise", 1, "worker 1"),
        ("--workers 3 --strategy gossip", 0, "worker 0"),
    ] {
        let run = Running::start(&format!("{ENDLESS} {words}"));
        let ranks = run.ranks();
        assert!(signal("KILL", ranks[rank]));
        let (code, text) = run.end();
        assert_eq!(code, 4, "{words}: {text}");
        let error = text.lines().find(|l| l.starts_with("error:")).unwrap_or_default();
        assert!(
            error.contains(name) && error.contains("step") && error.contains("SIGKILL"),
            "{words}: {text}"
        );
        assert!(ranks.iter().all(|&pid| gone(pid)), "{words}: nothing is left behind");
    }
}

#[test]
fn when_the_launcher_dies_its_ranks_die_too() {
    let run = Running::start(&format!("{ENDLESS} --workers 2 --servers 1 --strategy ps"));
    let ranks = run.ranks();
    assert_eq!(ranks.len(), 3);
    // Dropping the run kills its launcher, and nobody else.
    drop(run);
    let start = Instant::now();
    while !ranks.iter().all(|&pid| gone(pid)) {
        assert!(start.elapsed() < PATIENCE, "ranks outlive their launcher");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn divergence_of_a_worker_is_told_as_such() {
    let ran = paceline("train --workers 2 --lr 1e6 --epochs 100");
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("diverged") && ran.stderr.contains("worker"), "{}", ran.stderr);
}

#[test]
fn exchange_benchmarks_print_the_fields_of_the_contract() {
    for words in [
        "bench allreduce --workers 3 --sizes 4KiB,1MiB --seconds 0.01 --json",
        "bench allreduce --workers 2 --sizes 4 --seconds 0.01 --transport inproc --json",
        "bench p2p --duplex --sizes 64KiB --seconds 0.01 --json",
        "bench p2p --sizes 64KiB,4MiB --seconds 0.01 --json",
    ] {
        let rows = result_document(words);
        for row in rows["results"].as_array().unwrap() {
            for field in ["bytes", "seconds_median", "seconds_p95", "algbw_bytes_per_s", "busbw_bytes_per_s"]
            {
                assert!(row[field].as_f64().unwrap() > 0.0, "{words}: {field}");
            }
        }
    }
}

fn result_document(words: &str) -> Value {
    let ran = paceline(words);
    assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
    serde_json::from_str(&ran.stdout).expect("one JSON document")
}
