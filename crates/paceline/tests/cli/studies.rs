//! Studies of real runs: files, runs, interruptions.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use paceline_random::{Purpose, Stream};
use serde_json::Value;

use crate::support::{PATIENCE, Ran, gone, joined, run, signal};

pub(crate) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new(study: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("s.toml"), study).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.args(words).current_dir(self.path());
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Ran {
        let store = self.path().join("store");
        let store = store.to_str().unwrap();
        run(self.command(words).args(["--store", store]))
    }

    /// Runs that must end well; the result line.
    pub(crate) fn result(&self, words: &[&str]) -> Value {
        let ran = self.run(&[words, &["--json"]].concat());
        assert_eq!(ran.code, 0, "{words:?}: {}", ran.stderr);
        ran.result()
    }

    fn journal(&self) -> PathBuf {
        self.path().join("store/studies/s/journal.ndjson")
    }

    /// The journal's entries, as far as they are whole lines.
    pub(crate) fn entries(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.journal()).unwrap_or_default();
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        whole.map(|line| serde_json::from_str::<Value>(line).unwrap()["entry"].clone()).collect()
    }
}

const TRAIN: &str = r#"
sampler = "grid"
constraints = ["servers <= workers"]
[workload]
epochs = 1
target-accuracy = 0.3
[axes]
strategy = ["ring-allreduce", "ps"]
workers = [1, 2]
servers = { values = [1, 2], when = 'strategy = "ps"' }
[[objectives]]
metric = "seconds.train"
goal = "minimize"
[[objectives]]
metric = "final_accuracy"
goal = "maximize"
[control]
every = 3
"#;

#[test]
fn a_study_of_real_runs_ends_with_the_best_the_effects_and_one_worker_beside_several() {
    let place = Place::new(TRAIN);
    let ran = place.run(&["explore", "s.toml"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for part in
        ["4 different configurations", "best: ", "what mattered", "ne worker", "controls", "recorded in"]
    {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
    let result = place.result(&["status", "s"]);
    // A warm-up, four points, three controls.
    assert_eq!(
        (&result["runs"], &result["ended"], &result["failed"]),
        (&8.into(), &8.into(), &0.into()),
        "{result}"
    );
    assert_eq!(result["points"], 4);
    assert!(result["best"]["metrics"]["sent_bytes"].is_number());
    // Each run is recorded in the same store.
    let runs = run(place.command(&["runs", "--json", "--store"]).arg(place.path().join("store"))).result();
    assert_eq!(runs.as_array().unwrap().len(), 8);
    let again = place.run(&["explore", "s.toml"]);
    assert_eq!(again.code, 3);
    assert!(again.stderr.contains("--add-budget"), "{}", again.stderr);
    let finished = place.run(&["resume", "s"]);
    assert!(finished.stderr.contains("the study is finished"), "{}", finished.stderr);
    assert!(place.run(&["status"]).stdout.contains("finished"));
    let all = place.result(&["status"]);
    assert_eq!(
        (&all["studies"][0]["study"], &all["studies"][0]["state"]),
        (&"s".into(), &"finished".into()),
        "{all}"
    );
    assert_eq!(all["runs"], serde_json::json!([]), "none is under way");
    let exported: Value = place.run(&["export", "s", "--format", "json"]).result();
    let (runs, ranks) = (exported["runs"].as_array().unwrap(), exported["ranks"].as_array().unwrap());
    assert_eq!(runs.len(), 8);
    let two = runs.iter().find(|run| run["servers"] == 2).unwrap();
    assert_eq!((&two["for"], &two["state"], &two["strategy"]), (&"point".into(), &"ok".into(), &"ps".into()));
    let of_two: Vec<&Value> = ranks.iter().filter(|rank| rank["number"] == two["number"]).collect();
    assert_eq!(of_two.iter().filter(|rank| rank["role"] == "server").count(), 2);
    assert_eq!(of_two.len(), 4, "{of_two:?}");
    let sent: f64 = of_two.iter().map(|rank| rank["sent_bytes"].as_f64().unwrap()).sum();
    assert!(sent > 0.0 && sent <= two["sent_bytes"].as_f64().unwrap(), "{sent} {two}");
    let sheets = place.run(&["export", "s.toml", "--format", "csv", "--out", "sheets"]);
    assert_eq!(sheets.code, 0, "{}", sheets.stderr);
    let lines = |file: &str| {
        let text = fs::read_to_string(place.path().join("sheets").join(file)).unwrap();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(
        lines("runs.csv")[0]
            .starts_with("number,for,state,share,repeat,run,data,model,strategy,workers,servers,")
    );
    assert_eq!((lines("runs.csv").len(), lines("ranks.csv").len()), (9, 1 + ranks.len()));
    // `export … --out x.csv` is a file: the study's runs, or the table that is named.
    for (table, name) in [(&[][..], "runs"), (&["--table", "ranks"][..], "ranks")] {
        let ran = place.run(&[&["export", "s", "--format", "csv", "--out", "x.csv"], table].concat());
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(ran.stderr.contains(&format!("the table {name} of ")), "{}", ran.stderr);
        let written = fs::read_to_string(place.path().join("x.csv")).unwrap();
        assert_eq!(written.lines().collect::<Vec<_>>(), lines(&format!("{name}.csv")));
    }
    let refused = place.run(&["export", "s", "--format", "trace"]);
    assert!(refused.code == 2 && refused.stderr.contains("parquet or tensorboard"), "{}", refused.stderr);
}

#[test]
fn a_level_that_is_false_leaves_its_flag_out() {
    let axes = "network = [false, \"1gbit,100us\"]\nworkers = [1, 2]";
    let study = |axes: &str, constraint: &str| {
        format!(
            "sampler = \"grid\"\nconstraints = ['{constraint}']\n[workload]\nepochs = 1\n[axes]\n{axes}\n[[objectives]]\nmetric = \"wall_s\"\ngoal = \"minimize\"\n"
        )
    };
    let place = Place::new(&study(axes, "workers = 2 or network != \"1gbit,100us\""));
    let ran = run(&mut place.command(&["check", "s.toml"]));
    assert!(ran.code == 0 && ran.stdout.contains("3 points; ok"), "{}{}", ran.stdout, ran.stderr);
    let place = Place::new(&study("netwrk = [false]", "netwrk = false"));
    let ran = run(&mut place.command(&["check", "s.toml"]));
    assert!(ran.code == 3 && ran.stderr.contains("did you mean `network`?"), "{}", ran.stderr);
}

/// Real runs whose accuracy depends on the learning rate alone.
const LEARNING: &str = r#"
sampler = "grid"
repeats = 2
[workload]
epochs = 2
[axes]
lr = [0.0001, 0.05]
batch = [16, 32]
[[objectives]]
metric = "final_accuracy"
goal = "maximize"
[[objectives]]
metric = "seconds.train"
goal = "minimize"
"#;

#[test]
fn a_study_of_real_runs_is_analysed_and_reported() {
    let place = Place::new(LEARNING);
    let ran = place.run(&["explore", "s.toml"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let result = place.result(&["analyze", "s"]);
    let best = &result["best"]["configurations"][0];
    assert!(best["configuration"].as_str().unwrap().contains("lr 0.05"), "{best}");
    let first = result["anova"]["sources"].as_array().unwrap().iter().find(|s| s["term"] == "lr").unwrap();
    assert!(first["p"].as_f64().unwrap() < 0.01, "{first}");
    let findings: Vec<&str> =
        result["findings"].as_array().unwrap().iter().map(|f| f["sentence"].as_str().unwrap()).collect();
    assert!(findings.iter().any(|f| f.contains("lr")), "{findings:?}");
    // One definition of importance.
    let effects = &place.result(&["status", "s"])["effects"];
    assert!(!effects.as_array().unwrap().is_empty(), "{effects}");
    for effect in effects.as_array().unwrap() {
        let shares = result["importance"]["factors"].as_array().unwrap();
        let share = shares.iter().find(|share| share["term"] == effect["axis"]).unwrap();
        assert_eq!(effect["share"], share["share"], "{effect}");
    }
    // A name that a figure had before.
    let old = place.result(&["analyze", "--response", "train_s"]);
    assert_eq!(old["response"]["name"], "seconds.train", "{}", old["response"]);
    let text = place.run(&["analyze", "s"]).stdout;
    for part in ["final_accuracy", "lr", "batch"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let out = place.path().join("out");
    let written = place.result(&["report", "s", "--out", out.to_str().unwrap()]);
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("default-src 'none'"), "it loads nothing");
    let markdown = fs::read_to_string(out.join("report.md")).unwrap();
    for id in ["history", "main-effects", "importance", "parallel", "pareto"] {
        assert!(page.contains(&format!("<figure id=\"{id}\"")), "{id}: {written}");
        assert!(markdown.contains(&format!("charts/{id}.svg")), "{id}");
        let numbers = fs::read_to_string(out.join(format!("charts/{id}.csv"))).unwrap();
        assert!(numbers.lines().count() > 1, "{id}");
    }
    for part in
        ["Method", "The same in all runs", "GiB of memory", "paceline explore s.toml", "handwritten digits"]
    {
        assert!(page.contains(part) && markdown.contains(part), "{part}: {markdown}");
    }
    // Every run of the study is in its history.
    let history = fs::read_to_string(out.join("charts/history.csv")).unwrap();
    assert!(history.lines().count() > 8, "{history}");
}

#[test]
fn files_written_by_init_are_right_and_are_not_overwritten() {
    let place = Place::new("");
    for words in [
        &["init", "new.toml"][..],
        &["init", "other.toml", "--command"],
        &["init", "several.toml", "--workloads"],
    ] {
        let ran = run(&mut place.command(words));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let ran = run(&mut place.command(&["check", words[1]]));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(ran.stdout.contains("points; ok"), "{}", ran.stdout);
        let again = run(&mut place.command(words));
        assert_eq!(again.code, 5, "not overwritten");
        let said = format!("{} is there already", words[1]);
        assert!(
            again.stderr.contains(&said) && again.stderr.contains("choose another name"),
            "{}",
            again.stderr
        );
    }
    let schema: Value = run(&mut place.command(&["check", "--schema"])).result();
    assert_eq!(schema["title"], "StudyFile");
    let plan = run(&mut place.command(&["plan", "new.toml", "--no-probe", "--json"])).result();
    assert!(plan["runs"].as_u64().unwrap() >= 40, "{plan}");
}

#[test]
fn the_plan_lists_every_run_of_a_design_and_how_long_it_takes() {
    let place = Place::new(&TRAIN.replace("\"grid\"", "\"fractional:III\""));
    let plan = place.result(&["plan", "s.toml"]);
    let rows = plan["plan"].as_array().unwrap();
    assert_eq!(rows[0]["role"], "warm-up");
    assert!(rows.iter().any(|row| row["levels"]["strategy"] == "ps"), "{plan}");
    assert!(plan["seconds"].as_f64().unwrap() > 0.0);
    assert!(plan["notes"][0].as_str().unwrap().contains("2^"), "{plan}");
}

#[test]
fn mistakes_about_what_can_be_run_name_line_and_key() {
    for (old, new, message) in [
        ("\"grid\"", "\"gird\"", "s.toml:2: sampler: there is no sampler `gird`; did you mean `grid`?"),
        ("\"grid\"", "\"bayes\"", "s.toml:2: sampler: bayes never ends by itself: set `runs` in [budget]"),
        (
            "epochs = 1",
            "epoch = 1",
            "s.toml:5: workload.epoch: paceline train has no flag --epoch; did you mean `epochs`?",
        ),
        (
            "epochs = 1",
            "epochs = \"one\"",
            "s.toml:5: workload.epochs: invalid value 'one' for '--epochs <EPOCHS>'",
        ),
        ("epochs = 1", "epochs = 1\nstore = \"x\"", "s.toml:6: workload.store: is set by the study itself"),
        (
            "workers = [1, 2]",
            "wrkers = [1, 2]",
            "s.toml:3: constraints[0]: `workers` in `servers <= workers` is not an axis",
        ),
        ("\"ring-allreduce\", \"ps\"", "\"ring\", \"ps\"", "s.toml:8: axes.strategy: invalid value 'ring'"),
        (
            "\"final_accuracy\"",
            "\"final_acuracy\"",
            "s.toml:15: objectives[1].metric: `final_acuracy` is not measured; did you mean `final_accuracy`?",
        ),
        (
            "target-accuracy = 0.3\n",
            "",
            "s.toml:11: objectives[0].metric: needs a target: write target-accuracy = 0.9 into [workload]",
        ),
        (
            "workers = [1, 2]",
            "workers = [1, 2]\nbatch = [16, 5000]",
            "s.toml:3: constraints: 4 of 8 points cannot be run, e.g. batch 5000, ",
        ),
    ] {
        let mut text = TRAIN.replacen(old, new, 1);
        if message.contains("needs a target") {
            text = text.replacen("seconds.train", "time_to_accuracy_s", 1);
        }
        let ran = Place::new(&text).run(&["explore", "s.toml"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{new}: {}", ran.stderr);
        assert!(ran.stderr.contains(message), "{new}: {}", ran.stderr);
    }
}

#[test]
fn a_control_that_cannot_be_run_is_said_before_anything_runs() {
    let study = "sampler = \"grid\"\n[workload]\nstrategy = \"ps\"\nworkers = 2\n[axes]\nservers = [1, 2]\n[[objectives]]\nmetric = \"wall_s\"\n\
                 goal = \"minimize\"\n[control]\nevery = 9\n";
    let ran = run(&mut Place::new(study).command(&["check", "s.toml"]));
    assert_eq!(ran.code, 3, "{}", ran.stdout);
    assert!(
        ran.stderr.contains("s.toml:10: control: the control cannot be run: --servers 0"),
        "{}",
        ran.stderr
    );
    let mended = format!("{study}point = {{ servers = 1 }}\n");
    assert_eq!(run(&mut Place::new(&mended).command(&["check", "s.toml"])).code, 0);
}

#[test]
fn the_example_explores_a_python_script() {
    let place = Place::new("");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/command-study");
    for file in ["train.py", "study.toml"] {
        fs::copy(example.join(file), place.path().join(file)).unwrap();
    }
    let result = place.result(&["explore", "study.toml"]);
    assert_eq!((&result["points"], &result["failed"]), (&12.into(), &0.into()), "{result}");
    let metrics = &result["best"]["metrics"];
    assert!(
        metrics["loss"].as_f64().unwrap() < 0.3 && metrics["accuracy"].as_f64().unwrap() > 0.9,
        "{metrics}"
    );
    assert!(metrics["cpu_s"].is_number() && metrics["wall_s"].is_number());
    // Its process tree is on record too.
    assert!(
        metrics["processes"].as_f64().unwrap() >= 1.0 && metrics["rss_peak_bytes"].is_number(),
        "{metrics}"
    );
    let tree = place.path().join("store/studies/command-example/trees/1.ndjson");
    let text = fs::read_to_string(tree).unwrap();
    let sample: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert!(sample["processes"][0]["cpu_s"].is_number(), "{sample}");
    assert_eq!(result["distribution_loses"], Value::Null, "nothing is known about its workers");
}

#[test]
fn latency_of_answers_and_cost_can_be_wanted() {
    let study = r#"
sampler = "grid"
constraints = ["infer.p50_ms > 0"]
[workload]
steps = 5
[axes]
model = ["mlp", "lenet"]
workers = [1, 2]
[[objectives]]
metric = "infer.p95_ms"
goal = "minimize"
[[objectives]]
metric = "cost"
goal = "minimize"
[infer]
seconds = 0.05
[prices]
worker-hour = 3600
gigabyte = 1
"#;
    let place = Place::new(study);
    let result = place.result(&["explore", "s.toml"]);
    assert_eq!((&result["points"], &result["failed"]), (&4.into(), &0.into()), "{result}");
    let history = result["history"].as_array().unwrap();
    assert_eq!(history.len(), 4);
    for point in history {
        let figure =
            |name: &str| point["measured"][name].as_f64().unwrap_or_else(|| panic!("{name}: {point}"));
        assert!(0.0 < figure("infer.p50_ms") && figure("infer.p50_ms") <= figure("infer.p95_ms"), "{point}");
        // A price of one per second and worker.
        let workers = point["levels"]["workers"].as_f64().unwrap();
        let cost = workers * figure("seconds.total") + figure("sent_bytes") / 1e9;
        assert!((figure("cost") / cost - 1.0).abs() < 1e-9, "{point}");
    }
    let without = study.replace("[prices]\nworker-hour = 3600\ngigabyte = 1\n", "");
    let ran = Place::new(&without).run(&["explore", "s.toml"]);
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("s.toml:13: objectives[1].metric: needs prices"), "{}", ran.stderr);
}

#[test]
fn one_verb_resumes_runs_and_studies_and_flags_of_the_other_are_refused() {
    let place = Place::new(&COMMAND.replace("repeats = 2", ""));
    place.result(&["explore", "s.toml"]);
    let run = place.result(&["train", "--steps", "3"])["run"].as_str().unwrap().to_owned();
    let again = place.run(&["resume", &run]);
    assert_eq!(again.code, 0, "{}", again.stderr);
    assert!(again.stderr.contains("has ended already"), "{}", again.stderr);
    for flag in [&["--failed"][..], &["--add-budget", "3"], &["--add-minutes", "3"], &["--parallel", "2"]] {
        let ran = place.run(&[&["resume", &run[..]][..], flag].concat());
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        let said = format!("{} is for studies, and there is no study {run}", flag[0]);
        assert!(ran.stderr.contains(&said) && ran.stderr.contains("there are: s"), "{}", ran.stderr);
    }
    let ran = place.run(&["resume", "s", "--data-dir", "."]);
    assert!(ran.code == 2 && ran.stderr.contains("s is a study"), "{}", ran.stderr);
    let ran = place.run(&["resume", "t"]);
    assert!(ran.code != 0 && ran.stderr.contains("the studies s"), "{}", ran.stderr);
}

/// A command that does nothing for a moment; where it says so, it fails or hangs.
const COMMAND: &str = r#"
sampler = "grid"
repeats = 2
[command]
run = ["sh", "-c", "sleep 0.03; echo done {a}{b} >> log; echo 'value: {a}.{b}'"]
metrics = { value = 'value: ([0-9.]+)' }
timeout-s = 20
[axes]
a = [1, 2, 3]
b = [4, 5]
[[objectives]]
metric = "value"
goal = "minimize"
[control]
every = 4
"#;

#[test]
fn runs_that_fail_or_hang_are_marked_and_can_be_made_again() {
    let failing = COMMAND
        .replace("sleep 0.03;", "if [ {a}{b} = 25 ] && [ ! -e mended ]; then echo no >&2; exit 7; fi;");
    let place = Place::new(&failing);
    let first = place.result(&["explore", "s.toml"]);
    assert_eq!((&first["failed"], &first["points"]), (&2.into(), &6.into()), "{first}");
    let causes: Vec<Value> = place.entries().into_iter().filter(|e| e["end"]["state"] == "failed").collect();
    assert!(causes.iter().all(|e| e["end"]["cause"] == "no (exit status 7)"), "{causes:?}");
    fs::write(place.path().join("mended"), "").unwrap();
    let second = place.result(&["resume", "s", "--failed"]);
    assert_eq!((&second["failed"], &second["runs"]), (&0.into(), &first["runs"]), "{second}");

    let hanging = COMMAND.replace("sleep 0.03;", "if [ {a}{b} = 25 ]; then sleep 1000 & wait; fi;");
    let place = Place::new(&hanging.replace("timeout-s = 20", "timeout-s = 0.5").replace("repeats = 2", ""));
    let result = place.result(&["explore", "s.toml"]);
    assert_eq!(result["failed"], 1, "{result}");
}

#[test]
fn more_budget_gives_more_points_and_lanes_run_side_by_side() {
    let place = Place::new(&COMMAND.replace("repeats = 2", "").replace("\"grid\"", "\"random\""));
    let text = fs::read_to_string(place.path().join("s.toml")).unwrap() + "[budget]\nruns = 2\n";
    fs::write(place.path().join("s.toml"), text).unwrap();
    assert_eq!(place.result(&["explore", "s.toml"])["points"], 2);
    let more = place.result(&["resume", "s.toml", "--add-budget", "3"]);
    assert_eq!(more["points"], 5, "{more}");
    let all = place.result(&["resume", "s", "--add-budget", "9", "--parallel", "2"]);
    assert_eq!(all["points"], 6, "there are no more: {all}");
    let ran = place.run(&["resume", "s", "--add-budget", "9", "--parallel", "1000"]);
    assert!(ran.code == 2 && ran.stderr.contains("cores"), "{}", ran.stderr);
}

#[test]
fn an_interrupted_study_says_so_and_leaves_nothing_running() {
    let place = Place::new(&COMMAND.replace("sleep 0.03", "sleep 60"));
    let store = place.path().join("store");
    let mut study = place.command(&["explore", "s.toml", "--store", store.to_str().unwrap()]);
    let mut study = study.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let pid = study.id();
    // The keeper and its program.
    assert!(wait_for(&mut study, &|| descendants(pid).len() >= 2));
    let family = descendants(pid);
    signal("INT", pid);
    let out = study.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(String::from_utf8_lossy(&out.stderr).contains("paceline resume s"));
    all_gone(&family);
}

/// Waits until something holds, or the process has ended; false in that case.
fn wait_for(process: &mut Child, holds: &dyn Fn() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if process.try_wait().unwrap().is_some() {
            return false;
        }
        assert!(start.elapsed() < 3 * PATIENCE, "nothing happens");
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of_task = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    tasks
        .map(of_task)
        .flat_map(|t| t.split_whitespace().map(|p| p.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

fn descendants(pid: u32) -> Vec<u32> {
    let mut all = children(pid);
    let mut at = 0;
    while at < all.len() {
        let next = children(all[at]);
        all.extend(next);
        at += 1;
    }
    all
}

fn all_gone(processes: &[u32]) {
    let start = Instant::now();
    while !processes.iter().all(|pid| gone(*pid)) {
        assert!(start.elapsed() < PATIENCE, "left behind: {processes:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

const RANK: &str = "worker or server";

/// What kind of process of a study this is.
fn kind(pid: u32) -> &'static str {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
    match words.get(1).copied() {
        Some(b"explore" | b"resume") => "study",
        Some(b"keeper") => "keeper",
        Some(b"train" | b"trial") => "launcher",
        Some(b"rank") => RANK,
        _ => "program",
    }
}

/// How each run ended last, by its number; those that are to be made again have not.
fn ends(entries: &[Value]) -> BTreeMap<u64, Vec<&Value>> {
    let mut ends: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
    for entry in entries {
        let id = entry["id"].as_u64().unwrap_or(0);
        match entry["entry"].as_str().unwrap() {
            "end" => ends.entry(id).or_default().push(&entry["end"]),
            "retry" => drop(ends.entry(id).or_default().pop()),
            _ => {}
        }
    }
    ends
}

/// Kills the study, or something that it started, when the journal has grown to a random length; again and again,
/// until it ends by itself. Each planned run must have ended well exactly once. What was killed.
pub(crate) fn survive(
    place: &Place,
    seed: u64,
    kills: usize,
    planned: &[String],
    distributed: bool,
) -> Vec<&'static str> {
    let draw = Stream::new(seed, Purpose::Bench);
    let store = place.path().join("store");
    let mut killed: Vec<&'static str> = Vec::new();
    let mut words = vec!["explore", "s.toml"];
    for round in 0.. {
        assert!(round < 2 * kills + 3, "seed {seed}: it does not end");
        let mut study = place.command(&words);
        let study = study.arg("--store").arg(&store).stdout(Stdio::null()).stderr(Stdio::null());
        let mut study = study.spawn().unwrap();
        let mut families = Vec::new();
        while killed.len() < kills {
            let draw = draw.fork(killed.len() as u64);
            let moment = place.entries().len() as u64 + 1 + draw.below(0, 5);
            if !wait_for(&mut study, &|| place.entries().len() as u64 >= moment) {
                break;
            }
            std::thread::sleep(Duration::from_millis(draw.below(1, 40)));
            let pid = study.id();
            let ranks =
                || -> Vec<u32> { descendants(pid).into_iter().filter(|pid| kind(*pid) == RANK).collect() };
            // The study itself, or anybody of its run, as likely; a third of the time, one who trains or serves.
            let of_ranks = distributed && draw.below(3, 3) == 0;
            if of_ranks && !wait_for(&mut study, &|| !ranks().is_empty()) {
                break;
            }
            let family = descendants(pid);
            let candidates = if of_ranks { ranks() } else { family.clone() };
            let spread = if of_ranks { candidates.len() } else { 2 * candidates.len() + 1 };
            let pick = draw.below(2, spread.max(1) as u64) as usize;
            let victim = candidates.get(pick).copied().unwrap_or(pid);
            families.extend(family);
            // Whoever has just ended by itself is not killed.
            let kind = kind(victim);
            if gone(victim) {
                continue;
            }
            killed.push(kind);
            signal("KILL", victim);
            if victim == study.id() {
                break;
            }
        }
        let ended = study.wait().unwrap();
        all_gone(&families);
        let entries = place.entries();
        let well = ends(&entries).values().flatten().all(|end| end["state"] == "ok");
        if ended.success() && well {
            break;
        }
        words = if entries.is_empty() { vec!["explore", "s.toml"] } else { vec!["resume", "s", "--failed"] };
    }
    let entries = place.entries();
    let mut jobs: BTreeMap<u64, String> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry["entry"] == "begin") {
        let (job, name) = (&entry["job"], job_name(entry));
        let known = jobs.insert(job["id"].as_u64().unwrap(), name.clone());
        assert!(known.is_none_or(|known| known == name), "seed {seed}: a run changed");
    }
    let mut made: Vec<String> = jobs.values().cloned().collect();
    made.sort();
    assert_eq!(made, planned, "seed {seed}: exactly the planned runs");
    let ends = ends(&entries);
    assert!(jobs.keys().all(|id| ends[id].len() == 1), "seed {seed}: each ended once: {ends:?}");
    assert_eq!(entries.last().unwrap()["entry"], "finish", "seed {seed}");
    killed
}

/// A run that begins, without its number.
pub(crate) fn job_name(entry: &Value) -> String {
    let job = &entry["job"];
    format!("{} {} {} {}", job["workload"], job["role"], job["levels"], job["repeat"])
}

/// What an undisturbed study begins.
pub(crate) fn planned(study: &str) -> Vec<String> {
    let place = Place::new(study);
    place.result(&["explore", "s.toml"]);
    let begun = place.entries().into_iter().filter(|e| e["entry"] == "begin");
    let mut all: Vec<String> = begun.map(|entry| job_name(&entry)).collect();
    all.sort();
    all
}

#[test]
fn a_study_killed_at_random_moments_ends_with_exactly_the_planned_runs_each_once() {
    let planned = planned(COMMAND);
    for seed in 1..=3 {
        survive(&Place::new(COMMAND), seed, 4, &planned, false);
    }
}

/// `cargo xtask accept studies` asks for more kills, and wants to know what came of them.
#[test]
fn so_does_a_study_of_distributed_training() {
    let kills: usize = std::env::var("PACELINE_KILLS").map_or(3, |kills| kills.parse().unwrap());
    let repeats = format!("repeats = {}\n", 1 + kills / 4);
    let study = repeats + &TRAIN.replace("workers = [1, 2]", "workers = [2]");
    let planned = planned(&study);
    let place = Place::new(&study);
    let killed = survive(&place, 7, kills, &planned, true);
    if let Some(path) = std::env::var_os("PACELINE_KILLS_REPORT") {
        let ended_once = ends(&place.entries()).values().filter(|ends| ends.len() == 1).count();
        let report = serde_json::json!({
            "kills": killed.len(), "killed": killed, "planned": planned.len(), "ended_once": ended_once,
        });
        fs::write(path, report.to_string()).unwrap();
    }
}

#[test]
fn exit_statuses_signals_and_missing_figures_of_commands_are_told_apart() {
    let place = Place::new(
        r#"
sampler = "grid"
[command]
run = ["sh", "-c", "case $0 in three) echo no luck >&2; exit 3;; kill) kill -9 $$;; crash) kill -SEGV $$;; shell) exit 143;; fine) echo time_s=1;; esac", "{how}"]
metrics = { time_s = 'time_s=(\d+)' }
[axes]
how = ["fine", "three", "kill", "crash", "shell", "silent"]
[[objectives]]
metric = "time_s"
goal = "minimize"
"#,
    );
    let ran = place.run(&["explore", "s.toml", "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let events: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let journal = place.entries();
    let status = place.run(&["status", "s"]).stdout;
    let result = place.result(&["status", "s"]);
    for (how, code, signal, words) in [
        ("three", Some(3), None, "no luck (exit status 3)"),
        ("kill", None, Some(9), "killed by signal 9 (SIGKILL)"),
        ("crash", None, Some(11), "killed by signal 11 (SIGSEGV)"),
        (
            "shell",
            Some(143),
            None,
            "exit status 143, as a shell's whose command was killed by signal 15 (SIGTERM)",
        ),
        ("silent", Some(0), None, "exit status 0, but no figures were found in what it printed"),
    ] {
        let event = events.iter().find(|e| e["type"] == "run" && e["levels"]["how"] == how).unwrap();
        let exit = |of: &Value| (of["code"].as_i64(), of["signal"].as_i64());
        assert_eq!(exit(&event["exit"]), (code, signal), "{event}");
        let cause = event["end"]["cause"].as_str().unwrap();
        assert!(cause.starts_with(words), "{cause}");
        assert!(joined(&ran.stderr).contains(&format!("how {how}: failed: {words}")), "{}", ran.stderr);
        assert!(status.contains(&format!("  1 failed: {words}")), "{status}");
        let ended = journal.iter().find(|e| e["entry"] == "end" && e["id"] == event["id"]).unwrap();
        assert_eq!(
            (exit(&ended["exit"]), &ended["end"]["cause"]),
            ((code, signal), &cause.into()),
            "{ended}"
        );
        let failure = result["failures"].as_array().unwrap().iter().find(|f| f["levels"]["how"] == how);
        assert_eq!(exit(&failure.unwrap()["exit"]), (code, signal), "{result}");
    }
}
