//! Runs that people find again: names, tags and notes; files of settings and plans without runs; command lines; lists,
//! archives, deletions and comparisons; exports of studies, and the Python package that reads the store.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use paceline_testing::{Need, install, skip};
use serde_json::Value;

use crate::support::{ENDLESS, Ran, Running, run};

/// The program in a folder of its own, with a store in it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn store(&self) -> PathBuf {
        self.path().join("store")
    }

    fn run(&self, words: &[&str]) -> Ran {
        let program = &mut Command::new(env!("CARGO_BIN_EXE_paceline"));
        run(program.args(words).current_dir(self.path()).arg("--store").arg(self.store()))
    }

    /// The same with words that hold no spaces; it must end well.
    fn ok(&self, words: &str) -> Ran {
        let ran = self.run(&words.split_whitespace().collect::<Vec<_>>());
        assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
        ran
    }

    fn json(&self, words: &str) -> Value {
        self.ok(&format!("{words} --json")).result()
    }

    /// What is said of words that are refused.
    fn refused(&self, words: &str) -> String {
        let ran = self.run(&words.split_whitespace().collect::<Vec<_>>());
        assert_ne!(ran.code, 0, "{words}: {}", ran.stdout);
        ran.stderr
    }

    /// Ids of the runs that a list has, in its order.
    fn listed(&self, words: &str) -> Vec<String> {
        let all = self.json(&format!("runs {words}"));
        all.as_array().unwrap().iter().map(|run| run["run"].as_str().unwrap().to_owned()).collect()
    }

    /// Trains for a few steps; the run's id.
    fn train(&self, words: &str) -> String {
        self.ok(&format!("train --quiet --steps 4 {words}")).result()["run"].as_str().unwrap().to_owned()
    }
}

#[test]
fn runs_are_found_by_their_names_and_labels_are_no_part_of_the_plan() {
    let place = Place::new();
    let words = ["train", "--quiet", "--steps", "4", "--name", "first", "--tag", "b", "--tag", "a", "--note"];
    let plain = place.train("");
    assert_eq!(place.run(&[&words[..], &["looks \"odd\""]].concat()).code, 0);
    let told = place.json("show first");
    assert_eq!((&told["name"], &told["note"]), (&"first".into(), &"looks \"odd\"".into()));
    assert_eq!(told["tags"], serde_json::json!(["a", "b"]));
    assert_eq!(told["plan_sha256"], place.json(&format!("show {plain}"))["plan_sha256"]);
    let text = place.ok("show fir").stdout;
    for line in ["name: first", "tags: a, b", "note: looks \"odd\"", "paceline train --steps 4 --seed 1"] {
        assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
    }
    let list = place.ok("runs").stdout;
    assert!(list.contains("first #a #b"), "{list}");
    let exported: Value = place.ok("export first --format json").result();
    assert_eq!(exported["tables"]["runs"][0]["tags"], serde_json::json!(["a", "b"]));

    // Later: other names, more and fewer tags; wherever a run is named.
    let edited = place.json("runs edit first --name second --tag c --untag b --note=");
    assert_eq!((&edited[0]["name"], &edited[0]["note"]), (&"second".into(), &Value::Null));
    assert_eq!(edited[0]["tags"], serde_json::json!(["a", "c"]));
    for verb in ["show", "explain", "export --format prometheus"] {
        place.ok(&format!("{verb} second"));
    }
    place.train("--name second-2");
    assert_eq!(place.json("show second")["name"], "second", "a whole name wins");
    let said = place.refused("show s");
    assert!(
        said.contains("s could be r") && said.contains("(second), r") && said.contains("(second-2)"),
        "{said}"
    );
    assert!(place.refused("runs edit second").contains("nothing is to be changed"));
    assert!(place.refused("runs edit nobody --tag x").contains("no run is called nobody"));
    assert!(place.refused("train --steps 1 --name last").contains("`last` stands for the latest run"));
    assert!(place.refused("train --steps 1 --tag a,b").contains("letters, digits"));
    assert!(place.refused("train --steps 1 --no-record --name x").contains("cannot be used with"));
}

#[test]
fn lists_are_filtered_ordered_and_cut_and_fit_a_terminal() {
    let place = Place::new();
    let runs = [
        place.train("--tag a --lr 0.2"),
        place.train("--tag a --tag b --lr 0.1 --model softmax"),
        place.train("--workers 2 --transport inproc --lr 0.05"),
    ];
    let some = |which: &[usize]| which.iter().map(|i| runs[*i].clone()).collect::<Vec<_>>();
    for (words, expected) in [
        ("", &[0, 1, 2][..]),
        ("--tag a", &[0, 1]),
        ("--tag a --tag b", &[1]),
        ("--model mlp", &[0, 2]),
        ("--model mlp --model softmax --data digits", &[0, 1, 2]),
        ("--data mnist", &[]),
        ("--strategy auto", &[2]),
        ("--state ok", &[0, 1, 2]),
        ("--state failed", &[]),
        ("--where workers>=2", &[2]),
        ("--where lr<0.15 --where workers=1", &[1]),
        ("--where final_accuracy>=0", &[0, 1, 2]),
        ("--sort lr", &[2, 1, 0]),
        ("--sort lr --reverse", &[0, 1, 2]),
        ("--sort lr --limit 1", &[2]),
        ("--limit 2", &[1, 2]),
        ("--reverse --limit 2", &[2, 1]),
    ] {
        assert_eq!(place.listed(words), some(expected), "{words}");
    }
    // The best come first, whichever way that is.
    let accuracy = |words: &str| {
        let all = place.json(&format!("runs {words}"));
        all.as_array().unwrap().iter().map(|run| run["accuracy"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    assert!(accuracy("--sort final_accuracy").is_sorted_by(|a, b| a >= b));
    assert!(accuracy("--sort final_accuracy --reverse").is_sorted());
    let cut = place.ok("runs --limit 1");
    assert!(cut.stderr.contains("… and 2 more"), "{}", cut.stderr);
    let said = place.refused("runs --sort wrkers");
    assert!(said.contains("did you mean `workers`?"), "{said}");
    assert!(place.refused("runs --where lr<").contains("lr<"), "a condition that is none");

    let long = format!("{}-{}", "n".repeat(30), "m".repeat(30));
    place.ok(&format!(
        "runs edit {} --name {long} --tag {} --tag {}",
        runs[2],
        "t".repeat(20),
        "u".repeat(20)
    ));
    for words in ["runs", "runs --sort samples_per_s", "runs --where workers=1"] {
        let text = place.ok(words).stdout;
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{words}:\n{text}");
        assert!(words == "runs" || text.contains(&runs[0]), "{text}");
    }

    // Archived runs are left out, kept, and can be named.
    place.ok(&format!("runs archive {} {}", runs[0], runs[1]));
    assert_eq!((place.listed(""), place.listed("--archived")), (some(&[2]), some(&[0, 1])));
    assert_eq!(place.json(&format!("show {}", runs[0]))["archived"], true);
    place.ok(&format!("runs archive --undo {}", runs[0]));
    assert_eq!(place.listed(""), some(&[0, 2]));
}

#[test]
fn deleting_takes_rows_and_checkpoints_and_is_not_done_by_accident() {
    let place = Place::new();
    let (gone, stays) = (place.train("--checkpoint-every 2"), place.train("--checkpoint-every 2"));
    let folder = |run: &str| place.store().join("runs").join(run);
    assert!(folder(&gone).is_dir() && folder(&stays).is_dir());
    let said = place.refused(&format!("runs delete {gone}"));
    assert!(said.contains("would be deleted for good") && said.contains("--yes"), "{said}");
    let would = place.json(&format!("runs delete {gone} --dry-run"));
    assert_eq!((&would[0]["run"], &would[0]["deleted"]), (&gone.as_str().into(), &false.into()));
    assert!(would[0]["rows"].as_u64() > Some(4) && would[0]["file_bytes"].as_u64() > Some(0), "{would}");
    assert_eq!(place.listed("").len(), 2);
    let told = place.ok(&format!("runs delete {gone} --yes")).stdout;
    assert!(told.starts_with(&format!("deleted {gone}: ")), "{told}");
    assert_eq!(place.listed(""), std::slice::from_ref(&stays));
    assert!(!folder(&gone).exists() && folder(&stays).is_dir());
    assert!(place.refused(&format!("show {gone}")).contains("no run is called"));

    // Nothing is taken from a run that is under way.
    let under_way = Running::start(&format!("{ENDLESS} --store {}", place.store().display()));
    let said = place.refused("runs delete last --yes");
    assert!(said.contains("is under way: process"), "{said}");
    place.ok("runs edit last --tag running");
    drop(under_way);
}

#[test]
fn a_file_holds_settings_flags_win_and_mistakes_name_their_line() {
    let place = Place::new();
    let file = |text: &str| fs::write(place.path().join("run.toml"), text).unwrap();
    file(
        "# Two workers.\nworkers = 2\ntransport = \"inproc\"\nepochs = 1\nlr = 0.1\nname = \"from-file\"\ntag = [\"x\", \"y\"]\n",
    );
    let plan = place.json("train --config run.toml --dry-run");
    let flags = place.json("train --workers 2 --transport inproc --epochs 1 --lr 0.1 --dry-run");
    assert_eq!(plan["plan_sha256"], flags["plan_sha256"]);
    assert_eq!(plan["labels"]["name"], "from-file");
    let other = place.json("train --config run.toml --steps 3 --lr 0.2 --name own --tag z --dry-run");
    assert_eq!(other["plan"]["work"], serde_json::json!({"steps": 3}), "also over what cannot go with it");
    assert_eq!((&other["plan"]["lr"], &other["plan"]["workers"]), (&0.2.into(), &2.into()));
    assert_eq!((&other["labels"]["name"], &other["steps"]), (&"own".into(), &3.into()));
    assert_eq!(other["labels"]["tags"], serde_json::json!(["x", "y", "z"]));
    let text = place.ok("train --config run.toml --dry-run").stdout;
    for part in
        ["mlp on digits: ", "plan ", "\n  workers 2\n", "paceline train --workers 2", "nothing was started"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let virtually = place.json("simulate --config run.toml --jitter off --dry-run");
    assert_eq!(virtually["plan_sha256"], plan["plan_sha256"]);
    assert!(
        virtually["labels"]["command"].as_str().unwrap().ends_with("--seed 1 --jitter off"),
        "{virtually}"
    );
    assert!(!place.store().exists(), "nothing was recorded");

    for (text, said) in [
        ("workers = 2\nlearning-rate = 0.1\n", "run.toml:2: learning-rate: paceline train has no flag"),
        ("workers = 2\n\nepochs = \"many\"\n", "run.toml:3: epochs: invalid value 'many'"),
        ("workers = 2\nbatch = 0\n", "run.toml:2: batch: 0: at least 1 sample is needed"),
        ("workers = \n", "run.toml:1: "),
        ("[workload]\nworkers = 2\n", "run.toml:1: workload: "),
        ("tag = \"a b\"\n", "run.toml:1: tag: letters, digits"),
        ("data = \"digitz\"\n", "run.toml:1: data: invalid value 'digitz'"),
    ] {
        file(text);
        let ran = place.run(&["train", "--config", "run.toml"]);
        assert!(ran.code == 3 && ran.stderr.contains(said), "{said}: {}", ran.stderr);
    }
    file("batch = 0\n");
    let said = place.refused("train --config run.toml --workers 0");
    assert!(said.contains("--workers 0"), "a flag's mistake is the flag's: {said}");
    assert!(place.refused("train --config nothing.toml").contains("nothing.toml:1: "));
    assert!(place.refused("train --batch 100000 --dry-run").contains("--batch 100000"), "data are looked at");
}

/// The plan that a shell's words describe, by its hash.
fn hash_by_shell(command: &str) -> Value {
    let program = Path::new(env!("CARGO_BIN_EXE_paceline"));
    let path = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
    let ran = run(Command::new("sh").arg("-c").arg(format!("{command} --dry-run --json")).env("PATH", path));
    assert_eq!(ran.code, 0, "{command}: {}", ran.stderr);
    ran.result()["plan_sha256"].clone()
}

#[test]
fn every_run_has_a_command_line_that_gives_its_plan_again() {
    let place = Place::new();
    let network = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/models/mlp.toml"));
    fs::write(place.path().join("my net.toml"), network).unwrap();
    for words in [
        "train --steps 2",
        "train --steps 2 --seed 7 --name x --tag y --lr 5e-2 --trace",
        "train --epochs 0.1 --workers 2 --transport inproc --shard dirichlet(0.5) --compression topk,ratio=0.1",
        "train --steps 2 --workers 2 --servers 1 --strategy ps --sync ssp --staleness 2 --transport inproc",
        "simulate --steps 2 --workers 4 --network 1gbit,200us --jitter off",
    ] {
        place.ok(&format!("{words} --quiet"));
        let told = place.json("show last");
        let command = told["command"].as_str().unwrap();
        assert_eq!(hash_by_shell(command), told["plan_sha256"], "{command}");
        assert!(command.contains(" --seed "), "{command}");
    }
    // A file is named wherever the command is typed.
    let words = ["train", "--quiet", "--steps", "1", "--model-file", "my net.toml", "--data", "digits"];
    let ran = place.run(&words);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let told = place.json("show last");
    assert_eq!(hash_by_shell(told["command"].as_str().unwrap()), told["plan_sha256"]);
    assert!(told["command"].as_str().unwrap().contains("my net.toml'"), "{told}");
}

const STUDY: &str = r#"
name = "widths"
sampler = "grid"
[workload]
epochs = 1
eval-every = 5
[axes]
workers = [1, 2]
lr = [0.05, 0.1]
transport = ["inproc"]
[[objectives]]
metric = "final_accuracy"
goal = "maximize"
[control]
every = 0
"#;

#[test]
fn runs_and_studies_are_shown_beside_each_other() {
    let place = Place::new();
    fs::write(place.path().join("s.toml"), STUDY).unwrap();
    place.ok("explore s.toml --quiet");
    let first = place.ok("train --quiet --epochs 2 --eval-every 10 --name slow --lr 0.01").result();
    let second = place.ok("train --quiet --epochs 1 --eval-every 10 --name fast --lr 0.1").result();
    let both = place.json("show slow fast");
    let setting = |name: &str| {
        let all = both["settings"].as_array().unwrap();
        all.iter().find(|setting| setting["name"] == name).map(|setting| setting["values"].clone())
    };
    assert_eq!(setting("lr"), Some(serde_json::json!([["0.01"], ["0.1"]])));
    assert!(setting("epochs").is_some() && setting("batch").is_none(), "only what differs: {both}");
    let figures = both["figures"].as_array().unwrap();
    let accuracy = figures.iter().find(|figure| figure["name"] == "final_accuracy").unwrap();
    for (i, result) in [first, second].iter().enumerate() {
        assert_eq!(accuracy["values"][i][1], result["final_accuracy"]);
    }
    let text = place.ok("show slow fast last").stdout;
    for part in [
        "Settings that differ:",
        "Figures:",
        "Test loss against steps:",
        "Test loss against samples:",
        "Test loss from the first evaluation to the last",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");

    // A study is one of the things that are compared; its runs say which study they are of.
    let mixed = place.json("show widths fast");
    assert_eq!(mixed["items"][0]["label"], "widths");
    let members = place.listed("--study widths");
    assert_eq!(mixed["items"][0]["runs"].as_array().unwrap().len(), 4, "its points");
    assert_eq!(members.len(), 6, "a warm-up and one worker alone, too: {members:?}");
    let text = place.ok("show widths fast").stdout;
    assert!(text.contains("median (least to greatest)") && text.contains(" runs"), "{text}");
    let told = place.json(&format!("show {}", members[0]));
    assert_eq!((&told["study"], &told["workload"]), (&"widths".into(), &Value::Null));
    assert_eq!(hash_by_shell(told["command"].as_str().unwrap()), told["plan_sha256"]);
    let said = place.refused(&format!("runs delete {}", members[0]));
    assert!(said.contains("belongs to the study widths"), "{said}");
    place.ok(&format!("runs delete {} --yes", members[0]));
}

/// Installs the package of this repository beside the packages of a Python; where it lies.
fn installed(python: &Path, folder: &Path) -> PathBuf {
    let (source, target) = (folder.join("python"), folder.join("installed"));
    let own = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../python"));
    for part in ["", "paceline", "paceline/torch"] {
        fs::create_dir_all(source.join(part)).unwrap();
        let files = fs::read_dir(own.join(part)).unwrap().map(|entry| entry.unwrap().path());
        for file in files.filter(|path| path.is_file()) {
            fs::copy(&file, source.join(part).join(file.file_name().unwrap())).unwrap();
        }
    }
    let quietly =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"];
    let pip = &mut Command::new(python);
    let ran = run(pip.args(quietly).args(["--no-build-isolation", "--target"]).args([&target, &source]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    target
}

#[test]
fn pandas_reads_the_store_and_exports_of_studies() {
    let Some(python) = std::env::var_os(install::PYTHON).map(PathBuf::from) else {
        return skip(Need::PythonPackages, install::reason(install::PYTHON));
    };
    let place = Place::new();
    fs::write(place.path().join("s.toml"), STUDY).unwrap();
    let words =
        "train --quiet --steps 6 --workers 2 --transport inproc --name first --tag a --note hm --lr 0.02";
    let result = place.ok(words).result();
    place.ok("explore s.toml --quiet");
    let last = place.ok("train --quiet --steps 6 --eval-every 2").result();
    let hidden = place.train("");
    place.ok(&format!("runs archive {hidden}"));
    let out = |format: &str| place.path().join(format);
    for format in ["parquet", "csv", "tensorboard"] {
        place.ok(&format!("export widths --format {format} --out {}", out(format).display()));
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/python/read_store.py");
    let package = installed(&python, place.path());
    let read = &mut Command::new(python);
    read.arg(script).arg(place.store()).args(["parquet", "csv", "tensorboard"].map(out));
    let read = run(read.env("PYTHONPATH", package));
    assert_eq!(read.code, 0, "{}", read.stderr);
    let read = read.result();

    assert_eq!(read["runs"], serde_json::json!(place.listed("")));
    assert!(read["all"].as_array().unwrap().contains(&hidden.as_str().into()));
    let of_study = place.listed("--study widths");
    assert_eq!(read["studies"]["widths"].as_u64(), Some(of_study.len() as u64));
    let named = &read["named"];
    let expected = serde_json::json!({"tags": ["a"], "note": "hm", "state": "ok", "workers": 2, "lr": 0.02,
        "result.steps": 6, "final_accuracy": result["final_accuracy"], "seconds.train": result["seconds"]["train"],
        "sent_bytes": result["ranks"].as_array().unwrap().iter().map(|r| r["sent_bytes"].as_u64().unwrap()).sum::<u64>()});
    assert_eq!(*named, expected);
    assert_eq!((&read["steps"][0], &read["steps"][1]), (&12.into(), &serde_json::json!([0, 1])));
    assert_eq!((&read["evaluations"][0], &read["evaluations"][1]), (&3.into(), &last["final_accuracy"]));
    let errors: Vec<&str> = read["errors"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(errors[0], "no run is called nobody");
    assert!(
        errors[1].starts_with("r could be r") && errors[2].contains("no runs are recorded"),
        "{errors:?}"
    );

    // Datasets and networks are columns, axes are numbers where their levels are, and every run is there.
    let columns: Vec<&str> = read["columns"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(
        columns.starts_with(&["number", "for", "state", "share", "repeat", "run", "data", "model"]),
        "{columns:?}"
    );
    assert_eq!((&read["types"]["lr"], &read["types"]["number"]), (&"float64".into(), &"int64".into()));
    let exported = read["exported"].as_array().unwrap();
    assert_eq!(exported.len(), of_study.len());
    assert!(exported.iter().all(|run| run["data"] == "digits" && run["model"] == "mlp"), "{exported:?}");
    let boards = read["tensorboard"].as_object().unwrap();
    assert_eq!(boards.len(), of_study.len());
    let point = boards.keys().find(|name| name.contains("lr=0.1,transport=inproc,workers=2")).unwrap();
    let number: u64 = point[..3].parse().unwrap();
    let run = exported.iter().find(|run| run["number"] == number).unwrap();
    assert!((boards[point].as_f64().unwrap() - run["final_accuracy"].as_f64().unwrap()).abs() < 1e-6);
}
