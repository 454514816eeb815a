//! `paceline simulate`: virtual time tells what a real run would, and learns what it would.

use std::path::PathBuf;

use paceline_protocol::{CODECS, Coder, Options, STRATEGIES, Setup, consistency};
use serde_json::Value;

use crate::support::{paceline, result};

/// A file for a test, with its content.
fn file(name: &str, content: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Flags of every strategy whose result does not depend on timing, in every form that is short to say.
fn deterministic() -> Vec<String> {
    let mut all = vec!["--workers 1".to_owned(), "--workers 1 --optimizer adam".to_owned()];
    for strategy in STRATEGIES {
        let servers = if strategy.servers { " --servers 2" } else { "" };
        let base = format!("--workers 3 --strategy {}{servers}", strategy.name);
        for sync in paceline_protocol::Protocols::default().syncs(strategy) {
            let mut options = Options::default();
            paceline_protocol::Protocols::default().resolve(strategy, sync, &mut options).unwrap();
            let model = consistency::find(sync).unwrap();
            let setup = Setup { sync: (model.make)(&options, 9), ..Setup::new(3, 2, 10, 9) };
            if strategy.deterministic(&setup) {
                all.push(format!("{base} --sync {sync}"));
            }
        }
        for averages in &strategy.averages[1..] {
            if strategy.name != "stepwise" {
                all.push(format!("{base} --averages {}", averages.name()));
            }
        }
        for codec in CODECS.iter().filter(|codec| strategy.codecs().contains(&codec.name)) {
            all.push(format!("{base} --compression {}", Coder::new(codec)));
        }
    }
    all.extend(
        ["ps --servers 1", "stepwise --variant push-sum", "local --outer nesterov"].map(|words| {
            format!("--workers 3 --strategy {words} --shard by-label --straggler rank=1,factor=2")
        }),
    );
    all.push("--workers 2 --model resnet20 --steps 2 --batch 4".into());
    all.extend(STAGED.map(str::to_owned));
    all
}

/// Networks in stages.
const STAGED: [&str; 4] = [
    "--stages 2 --micro-batches 3",
    "--stages 3 --workers 6 --micro-batches 3 --pipeline gpipe --strategy direct",
    "--stages 2 --workers 4 --micro-batches 4 --strategy ps --servers 2 --optimizer adam",
    "--model resnet20 --steps 2 --batch 4 --micro-batches 2 --stages 3",
];

#[test]
fn a_staged_runs_bubble_and_memory_are_told() {
    let ran = paceline("simulate --no-record --stages 2 --micro-batches 8 --pipeline gpipe --steps 3");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for said in ["2 stages, gpipe, 8 micro-batches: bubble ", "(11.1% if all stages", "stage 1: ", " MB: "] {
        assert!(ran.stderr.contains(said), "{said}: {}", ran.stderr);
    }
}

#[test]
fn what_is_learned_in_virtual_time_is_what_a_real_run_learns_bit_for_bit() {
    let all = deterministic();
    assert!(all.len() >= STRATEGIES.len() + 10, "{all:?}");
    for words in all {
        let base = if words.contains("--steps") { "" } else { "--steps 5 --batch 16" };
        let words = format!("--quiet --transport inproc --bucket 64KiB {base} {words}");
        let real = result(&format!("train {words}"));
        let learned = result(&format!("simulate --learn {words}"));
        let hashes = |result: &Value| -> Vec<Value> {
            let ranks = result["ranks"].as_array().unwrap().iter();
            ranks.map(|rank| rank["params_sha256"].clone()).collect()
        };
        assert_eq!(real["params_sha256"], learned["params_sha256"], "{words}");
        assert_eq!(hashes(&real), hashes(&learned), "{words}");
        for same in ["final_accuracy", "final_loss", "train_loss", "samples", "steps", "replicas", "strategy"]
        {
            assert_eq!(real[same], learned[same], "{words}: {same}");
        }
        assert_eq!((&real["origin"], &learned["origin"]), (&"measured".into(), &"simulated".into()));
    }
}

#[test]
fn asynchronous_learning_is_stale_as_virtual_time_says_and_the_same_each_time() {
    let words =
        "simulate --learn --quiet --workers 4 --servers 2 --strategy ps --batch 16 --epochs 2 --lr 0.02";
    for sync in ["asp", "ssp --staleness 1", "dssp", "switch"] {
        let words = format!("{words} --sync {sync} --straggler rank=1,factor=3");
        let (one, two) = (result(&words), result(&words));
        assert_eq!(one["params_sha256"], two["params_sha256"], "{words}");
        assert_eq!(one["trace_sha256"], two["trace_sha256"], "{words}");
        assert!(one["final_accuracy"].as_f64().unwrap() > 0.5, "{words}: {one}");
        assert!(one["staleness"]["max"].as_f64().unwrap() >= 1.0, "{words}");
        let other = result(&format!("{words} --jitter on --seed 2"));
        assert_ne!(one["trace_sha256"], other["trace_sha256"], "{words}");
    }
}

#[test]
fn events_are_a_real_runs_marked_as_simulated() {
    let ran = paceline("simulate --learn --json --workers 2 --epochs 2 --target-accuracy 0.5");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let events: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(events.iter().all(|event| event["origin"] == "simulated"), "{}", ran.stdout);
    for kind in ["start", "progress", "evaluation", "phases", "result"] {
        assert!(events.iter().any(|event| event["type"] == kind), "no {kind}: {}", ran.stdout);
    }
    let last = ran.result();
    let evaluations: Vec<&Value> = events.iter().filter(|event| event["type"] == "evaluation").collect();
    assert_eq!(evaluations.last().unwrap()["accuracy"], last["final_accuracy"]);
    assert!(last["time_to_accuracy_s"].as_f64().unwrap() <= last["seconds"]["train"].as_f64().unwrap());
    assert!(ran.stderr.contains("no --calibration: times come from round numbers"), "{}", ran.stderr);
    let run = last["run"].as_str().unwrap();
    // What has ended is told again, as it was recorded.
    let kept = result(&format!("resume --quiet {run}"));
    assert_eq!((&kept["origin"], &kept["trace_sha256"]), (&"simulated".into(), &last["trace_sha256"]));
    let shown = paceline(&format!("show {run}"));
    assert!(shown.stdout.contains("ok in virtual time"), "{}", shown.stdout);
    let real = paceline("train --json --workers 2 --steps 2 --transport inproc");
    assert!(real.stdout.lines().all(|line| line.contains("\"origin\":\"measured\"")), "{}", real.stdout);
}

#[test]
fn time_alone_needs_no_gradients_and_a_thousand_workers_no_time() {
    let words = "simulate --quiet --data synthetic --workers 1000 --batch 10 --steps 20 --bucket 8MiB";
    let (one, two) = (result(&format!("{words} --jitter on")), result(&format!("{words} --jitter on")));
    assert_eq!((&one["steps"], &one["trace_sha256"]), (&20.into(), &two["trace_sha256"]));
    assert_eq!(one["ranks"].as_array().unwrap().len(), 1000);
    assert_eq!(one["simulation"]["by"], "schedule");
    assert_eq!(one["simulation"]["messages"], 20 * 1000 * 2 * 999);
    assert_eq!((&one["final_accuracy"], &one["params_sha256"]), (&Value::Null, &"".into()));
    let kept = result(&format!("resume --quiet {}", one["run"].as_str().unwrap()));
    assert_eq!((&kept["final_accuracy"], &kept["simulation"]), (&Value::Null, &one["simulation"]));
    assert_ne!(one["trace_sha256"], result(&format!("{words} --jitter off"))["trace_sha256"]);
    assert_ne!(one["trace_sha256"], result(&format!("{words} --jitter on --seed 2"))["trace_sha256"]);
}

#[test]
fn virtual_time_has_more_workers_than_processes_or_samples() {
    let words =
        "--data digits --model mlp --strategy tree --workers 5000 --batch 4 --steps 2 --network 10gbit";
    // 1,438 samples: where nothing is learned, every step has its whole batches.
    let simulated = result(&format!("simulate --quiet {words}"));
    assert_eq!((&simulated["steps"], &simulated["samples"]), (&2.into(), &40_000.into()));
    assert_eq!(simulated["ranks"].as_array().unwrap().len(), 5000);
    assert_eq!(result(&format!("simulate --quiet --dry-run --json {words}"))["steps"], 2);
    let learned = paceline(&format!("simulate --learn {words}"));
    assert!(learned.stderr.contains("the training split has only 1438 samples"), "{}", learned.stderr);
    let real = paceline(&format!("train {words}"));
    assert!(real.stderr.contains("--workers 5000: at most 4096 processes in all"), "{}", real.stderr);
    assert!(real.stderr.contains("`paceline simulate`"), "{}", real.stderr);
}

#[test]
fn what_goes_event_by_event_says_so_before_and_how_long_it_takes() {
    let told = |words: &str| {
        let ran =
            paceline(&format!("simulate --data synthetic --workers 4 --steps 8 --network 10gbit {words}"));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let lines: Vec<String> = ran.stderr.lines().map(str::to_owned).collect();
        let at = |what: &str| lines.iter().position(|line| line.starts_with(what));
        let said = at("event by event, because ");
        assert!(said.is_none_or(|said| Some(said) < at("in virtual time:")), "{}", ran.stderr);
        said.map(|said| lines[said].clone()).unwrap_or_default()
    };
    assert_eq!(told("--strategy ring-allreduce"), "");
    let slowed = told("--strategy ring-allreduce --straggler rank=1,factor=3");
    assert!(
        slowed.contains("workers are slowed down on purpose") && slowed.contains("less than 2 s"),
        "{slowed}"
    );
    let traced = told("--strategy ring-allreduce --trace 5");
    assert!(traced.contains("single messages are to be recorded: about "), "{traced}");
    assert!(told("--strategy ps --servers 1").contains("gradients are not summed along a path"));
    assert_eq!(told("--strategy ps --servers 1 --quiet"), "");
}

#[test]
fn a_cluster_has_links_cores_speeds_and_prices() {
    let cluster = |name: &str, cores: usize, speed: f64, bandwidth: &str| {
        let host = "[[host]]\nname = \"box\"\nlatency = \"50us\"\nprice-per-hour = 3.6\n";
        let rest = format!("count = 4\ncores = {cores}\nspeed = {speed}\nbandwidth = \"{bandwidth}\"\n");
        file(name, &format!("{host}{rest}"))
    };
    let train = |file: &str, words: &str| {
        result(&format!("simulate --quiet --workers 4 --steps 50 --cluster {file} {words}"))
    };
    let seconds = |result: &Value| result["seconds"]["train"].as_f64().unwrap();
    let base = train(&cluster("base.toml", 8, 1.0, "10gbit"), "");
    assert_eq!(base["ranks"][3]["host"], "box#3");
    // Four hosts at 3.6 an hour cost 0.004 a second.
    let cost = base["cost"].as_f64().unwrap();
    assert!((cost - 0.004 * seconds(&base)).abs() < 1e-12, "{cost}");
    let slow_links = train(&cluster("slow.toml", 8, 1.0, "10mbit"), "");
    assert!(seconds(&slow_links) > 10.0 * seconds(&base));
    let fast = train(&cluster("fast.toml", 8, 4.0, "10gbit"), "");
    assert!(seconds(&fast) < seconds(&base));
    // All on one host: no link is used, and one core is shared by four.
    let together = |cores| seconds(&train(&cluster("one.toml", cores, 1.0, "10mbit"), "--hosts 0,0,0,0"));
    assert!(together(1) > 2.0 * together(8), "{} {}", together(1), together(8));
    assert!(together(8) < seconds(&slow_links) / 10.0);
}

#[test]
fn the_summary_says_what_it_rests_on_what_it_costs_and_what_it_leaves_out() {
    let cluster = "[[host]]\nname = \"big\"\ncores = 8\nbandwidth = \"10gbit\"\nlatency = \"50us\"\nprice-per-hour = 3.6\n\
                   [[host]]\nname = \"small\"\ncount = 9\ncores = 2\nbandwidth = \"1gbit\"\nlatency = \"50us\"\nprice-per-hour = 0.9\n";
    let words = |file: &str| paceline(&format!("simulate --workers 3 --steps 50 --cluster {file}"));
    let ran = words(&file("unit.toml", &format!("currency = \"EUR\"\n{cluster}")));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let summary = ran.stderr.split("in virtual time:\n").nth(1).unwrap_or_else(|| panic!("{}", ran.stderr));
    assert!(summary.starts_with("not calibrated: nothing was measured"), "{summary}");
    assert!(summary.contains(" EUR for 3 hosts (1 big, 2 small) over "), "{summary}");
    assert!(summary.contains("not modelled: ") && summary.contains("buffers"), "{summary}");
    assert!(summary.contains(" s of real time, event by event, "), "{summary}");
    let result = ran.result();
    assert_eq!(result["currency"], "EUR");
    assert_eq!(result["hosts"][1], serde_json::json!({"name": "small", "count": 2}));
    let nameless = words(&file("nameless.toml", cluster)).stderr;
    assert!(nameless.contains("(in the unit of the cluster's prices) for 3 hosts"), "{nameless}");
}

#[test]
fn all_seconds_of_a_simulated_result_are_virtual_and_real_ones_have_their_own_name() {
    // A long run in virtual time that takes next to none.
    let result = result("simulate --quiet --workers 2 --network 1mbit,10ms --hosts 2 --steps 500");
    let second =
        |path: &str| result.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}"));
    let [total, startup, train] =
        ["total", "startup", "train"].map(|name| second(&format!("/seconds/{name}")));
    assert!((total - startup - train).abs() < 1e-9 && train > 100.0, "{total} {startup} {train}");
    assert!(second("/simulation/real_s") <= second("/simulation/real_total_s"));
    assert!(second("/simulation/real_total_s") < train, "{result}");
}

#[test]
fn hints_name_the_verb_that_was_called() {
    for (words, hint) in [
        ("simulate --batch 0", "`paceline simulate --help`"),
        ("train --batch 0", "`paceline train --help`"),
        ("simulate --workers 3 --hosts 3", "or --cluster FILE"),
    ] {
        let ran = paceline(words);
        assert!(ran.code == 3 && ran.stderr.contains(hint), "{words}: {}", ran.stderr);
        assert!(!ran.stderr.contains("--listen"), "{words}: {}", ran.stderr);
    }
}

#[test]
fn a_straggler_holds_up_who_waits_for_it() {
    let words = "simulate --quiet --workers 4 --servers 1 --strategy ps --steps 40 --batch 256";
    let seconds = |more: &str| result(&format!("{words} {more}"))["seconds"]["train"].as_f64().unwrap();
    let (alike, bsp) = (seconds(""), seconds("--straggler rank=2,factor=3"));
    let asp = seconds("--straggler rank=2,factor=3 --sync asp");
    assert!(bsp > 1.5 * alike && asp < 0.8 * bsp, "{alike} {bsp} {asp}");
}

#[test]
fn files_that_cannot_be_used_are_told_of_before_anything_runs() {
    let empty = file("empty.toml", "");
    let wrong = file("wrong.toml", "[[host]]\ncores = 1\nbandwidth = \"fast\"\nlatency = \"1us\"\n");
    let few = file("few.toml", "[[host]]\ncores = 1\nbandwidth = \"1gbit\"\nlatency = \"1us\"\n");
    for (words, code, says) in [
        ("--cluster /nowhere.toml".to_owned(), 5, "/nowhere.toml"),
        ("--calibration /nowhere.toml".to_owned(), 5, "/nowhere.toml"),
        (format!("--cluster {empty}"), 3, "missing field `host`"),
        (format!("--cluster {wrong}"), 3, "a bandwidth between 1kbit and 400gbit"),
        (format!("--calibration {few}"), 3, "--calibration"),
        (format!("--cluster {few} --workers 2 --hosts 2"), 3, "the cluster has 1"),
        ("--jitter maybe".to_owned(), 2, "possible values: on, off"),
        ("--workers 2 --servers 1".to_owned(), 3, "--servers"),
        ("--workers 3 --hosts 3".to_owned(), 3, "--network"),
        ("--workers 2 --listen 127.0.0.1:0".to_owned(), 3, "--cluster FILE"),
    ] {
        let ran = paceline(&format!("simulate {words}"));
        assert_eq!(ran.code, code, "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(says) && ran.stdout.is_empty(), "{words}: {}", ran.stderr);
    }
    let ran = paceline("simulate --learn --quiet --lr 1000000 --epochs 3 --workers 2");
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("training has diverged"), "{}", ran.stderr);
}

#[test]
fn a_machine_is_measured_and_its_file_used() {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("here.toml");
    let out = out.to_str().unwrap();
    let measured = result(&format!("calibrate --quick --quiet --out {out}"));
    // Those that lend are measured both ways.
    let ways = |kind: &paceline_wire::TransportKind| 1 + usize::from(kind.lends);
    let transports: usize = paceline_wire::TRANSPORTS.iter().map(ways).sum();
    assert_eq!((&measured["type"], &measured["transports"]), (&"calibration".into(), &transports.into()));
    let text = std::fs::read_to_string(out).unwrap();
    for part in ["[[pass]]", "[[work]]", "[[transport]]", "[[sharing]]", "startup-s = ["] {
        assert!(text.contains(part), "no {part}: {text}");
    }
    // Compute times vary as measured unless told otherwise; nothing is said of round numbers.
    let words = format!("simulate --workers 3 --steps 30 --calibration {out}");
    let ran = paceline(&words);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(!ran.stderr.contains("round numbers"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("not calibrated"), "{}", ran.stderr);
    // What was not measured is said before anything else.
    let unknown = paceline(&format!("{words} --threads 1000")).stderr;
    let top =
        "in virtual time:\nnot calibrated: passes of mlp on 8×8×1 with 1000 threads were not measured\n";
    assert!(unknown.contains(top), "{unknown}");
    let steady = result(&format!("{words} --jitter off"));
    assert_ne!(ran.result()["trace_sha256"], steady["trace_sha256"]);
    assert_ne!(steady["trace_sha256"], result("simulate --workers 3 --steps 30")["trace_sha256"]);
    let ran = paceline("calibrate --quick --out /nowhere/here.toml");
    assert_eq!(ran.code, 5, "{}", ran.stderr);
}
