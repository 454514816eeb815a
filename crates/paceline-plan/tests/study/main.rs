//! Study files, their conditions and their spaces: what they say, and what is said of their mistakes.

mod condition;
mod space;

use paceline_plan::study::*;
use paceline_plan::*;

const GOOD: &str = r#"
sampler = "lhs"
seed = 7
repeats = 2
max-repeats = 4
constraints = ["servers <= workers", "final_accuracy >= 0.9"]

[workload]
data = "digits"
epochs = 3

[axes]
workers = [4, 1, 2]
servers = [1, 2]
sync = ["bsp", "ssp"]
lr = { from = 0.001, to = 0.1, count = 3, scale = "log" }
batch = { from = 16, to = 64, count = 4 }
staleness = { values = [1, 3], when = 'sync = "ssp"' }

[[objectives]]
metric = "time_to_accuracy_s"
goal = "minimize"

[budget]
runs = 40
minutes = 10

[control]
every = 5
point = { workers = 2 }
"#;

fn read(text: &str) -> Result<Study, StudyError> {
    Study::read("study.toml", "study", text)
}

#[test]
fn a_study_file_becomes_a_study() {
    let study = read(GOOD).unwrap();
    assert_eq!((study.name.as_str(), study.sampler.as_str(), study.seed), ("study", "lhs", 7));
    assert_eq!((study.repeats, study.max_repeats, study.runs, study.minutes), (2, 4, Some(40), Some(10.0)));
    let names: Vec<_> = study.space.axes().iter().map(|a| a.name.as_str()).collect();
    assert_eq!(names, ["workers", "servers", "sync", "lr", "batch", "staleness"], "the order of the file");
    let levels = |i: usize| study.space.axes()[i].levels.iter().map(Value::to_string).collect::<Vec<_>>();
    assert_eq!(levels(0), ["1", "2", "4"]);
    assert_eq!(levels(3), ["0.001", "0.01", "0.1"]);
    assert_eq!(levels(4), ["16", "32", "48", "64"]);
    assert_eq!(study.space.axes()[3].scale, Scale::Log);
    assert_eq!(study.space.axes()[4].scale, Scale::Linear);
    // Axes and what is measured are told apart.
    assert_eq!(study.space.constraints().len(), 1);
    assert_eq!(study.outcomes[0].0, 1);
    assert_eq!(study.objectives, [Objective { metric: "time_to_accuracy_s".into(), goal: Goal::Minimize }]);
    assert_eq!((study.control_every, study.control.len()), (5, 1));
}

/// `GOOD` with one thing changed, and the message that this must give.
#[test]
fn typical_mistakes_are_named_with_line_and_key_and_what_would_be_right() {
    let cases: &[(&str, &str, &str)] = &[
        // A typo in a key.
        (
            "repeats = 2\n",
            "repaets = 2\n",
            "study.toml:4: repaets: there is no key `repaets`; did you mean `repeats`? possible: name, sampler, \
             prior, calibration, seed, repeats, max-repeats, constraints, workload, common, points, command, axes, objectives, budget, control, infer, prices",
        ),
        // A typo in a key of an axis.
        (
            "count = 3, scale",
            "counts = 3, scale",
            "study.toml:16: axes.lr.counts: there is no key `counts`; did you mean `count`? possible: values, \
             from, to, count, scale, when",
        ),
        // A number in quotes.
        (
            "repeats = 2\n",
            "repeats = \"2\"\n",
            "study.toml:4: repeats: found string \"2\", expected a whole number",
        ),
        // One level without a list.
        (
            "workers = [4, 1, 2]",
            "workers = 4",
            "study.toml:13: axes.workers: found integer `4`, expected a list of levels, e.g. [1, 2, 4], or a range \
             { from = 1, to = 8, count = 4 }",
        ),
        // A level twice.
        ("[4, 1, 2]", "[4, 1, 4]", "study.toml:13: axes.workers: the level 4 is there twice"),
        // Half a range.
        (
            "lr = { from = 0.001, to = 0.1, count = 3, scale = \"log\" }",
            "lr = { from = 0.001, to = 0.1 }",
            "study.toml:16: axes.lr: either `values = […]`, or all of `from`, `to` and `count`, e.g. { from = 0.001, \
             to = 0.1, count = 5, scale = \"log\" }",
        ),
        // A range upside down.
        (
            "from = 16, to = 64",
            "from = 64, to = 16",
            "study.toml:17: axes.batch: `from` must be a number below `to`",
        ),
        // A logarithm of nothing.
        ("from = 0.001, to", "from = 0, to", "study.toml:16: axes.lr: a logarithmic range starts above 0"),
        // A scale that does not exist.
        (
            "scale = \"log\"",
            "scale = \"logarithmic\"",
            "study.toml:16: axes.lr.scale: `logarithmic` is not possible; possible: linear, log",
        ),
        // A constraint on an axis that does not exist.
        (
            "servers <= workers",
            "servers <= wrokers",
            "study.toml:6: constraints[0]: `wrokers` in `servers <= wrokers` is not an axis; did you mean `workers`?",
        ),
        // A constraint that is not one.
        (
            "servers <= workers",
            "servers < = workers",
            "study.toml:6: constraints[0]: a name, a number or text in quotes is needed, found a comparison, at \
             column 11 of `servers < = workers`",
        ),
        // A word without quotes in a condition.
        (
            "sync = \"ssp\"'",
            "sync = ssp'",
            "study.toml:18: axes.staleness: `ssp` in `sync = ssp` is not an axis; axes: workers, servers, sync, lr, \
             batch, staleness",
        ),
        // Constraints that nothing meets.
        (
            "servers <= workers",
            "servers > workers + 4",
            "study.toml:6: constraints: no combination of levels meets all of them",
        ),
        // A goal that does not exist.
        (
            "goal = \"minimize\"",
            "goal = \"min\"",
            "study.toml:22: objectives[0].goal: `min` is not possible; possible: minimize, maximize",
        ),
        // Something that is both fixed and varied.
        (
            "epochs = 3",
            "epochs = 3\nbatch = 32",
            "study.toml:11: workload.batch: is an axis too: leave one of them out",
        ),
        // A control that is not on an axis.
        (
            "point = { workers = 2 }",
            "point = { threads = 2 }",
            "study.toml:30: control.point.threads: is not an axis; what never varies belongs into [workload]",
        ),
        // No budget to speak of.
        ("runs = 40", "runs = 0", "study.toml:25: budget.runs: at least 1 is needed"),
        // Giving up before anybody has won.
        (
            "minutes = 10",
            "give-up = 0.5",
            "study.toml:26: budget.give-up: must be at least 1 (times the best), or 0 for never",
        ),
        // A forgotten quote.
        ("sampler = \"lhs\"", "sampler = \"lhs", "study.toml:2: invalid basic string, expected `\"`"),
        // A table missing.
        (
            "[workload]\ndata = \"digits\"\nepochs = 3\n",
            "",
            "study.toml:1: a table [workload] (flags of paceline train) or [command] is missing",
        ),
        // More repeats without any to begin with.
        (
            "repeats = 2\n",
            "repeats = 1\n",
            "study.toml:5: max-repeats: noise shows only in repeats: set `repeats` to at least 2",
        ),
        // A price that pays.
        (
            "[budget]",
            "[prices]\nworker-hour = -1\n[budget]",
            "study.toml:25: prices.worker-hour: must be a number of at least 0",
        ),
        // Prices of nothing.
        (
            "[budget]",
            "[prices]\n[budget]",
            "study.toml:24: prices: nothing costs anything: give one of run-hour, worker-hour, server-hour and gigabyte",
        ),
        // No time to measure in.
        (
            "[budget]",
            "[infer]\nseconds = 0\n[budget]",
            "study.toml:25: infer.seconds: must be between 0.01 and 3600 seconds",
        ),
        // A name that leads out of the store.
        (
            "seed = 7",
            "seed = 7\nname = \"../other\"",
            "study.toml:4: name: letters, digits, `-`, `_` and `.` are possible, up to 64, the first one a letter \
             or digit",
        ),
    ];
    for (old, new, message) in cases {
        assert!(GOOD.contains(old), "{old}");
        let error = read(&GOOD.replacen(old, new, 1)).map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), *message, "{new}");
    }
}

#[test]
fn an_axis_table_is_missing_and_so_are_objectives() {
    let without = |from: &str, to: &str| {
        let (start, end) = (GOOD.find(from).unwrap(), GOOD.find(to).unwrap());
        read(&format!("{}{}", &GOOD[..start], &GOOD[end..])).unwrap_err().problem
    };
    assert_eq!(without("[axes]", "[[objectives]]"), "the key `axes` is missing");
    assert_eq!(without("[[objectives]]", "[budget]"), "the key `objectives` is missing");
}

const COMMAND: &str = r#"
[command]
run = ["python3", "train.py", "--lr={lr}", "--seed", "{seed}"]
metrics = { accuracy = 'accuracy: ([0-9.]+)' }
[axes]
lr = [0.1, 0.01]
[[objectives]]
metric = "accuracy"
goal = "maximize"
"#;

#[test]
fn an_axis_that_no_placeholder_can_name_is_refused_with_its_character() {
    let named = |name: &str| {
        let axis = toml::Value::from(name);
        read(&COMMAND.replace("{lr}", &format!("{{{name}}}")).replace("lr = ", &format!("{axis} = ")))
    };
    let fails = |name: &str| named(name).unwrap_err().to_string();
    let rest = "an axis of a command is named with letters, digits, `-` and `_` only";
    for (name, bad) in [
        ("x<b>y", "has `<`"),
        ("", "is empty"),
        ("two words", "has a space"),
        ("a.b", "has `.`"),
        ("{x}", "has `{`"),
        ("a\u{202e}b", "has `\\u{202e}`"),
    ] {
        assert_eq!(
            fails(name).split_once(&format!("axes.{name}: ")).unwrap().1,
            format!("the name {bad}: {rest}")
        );
    }
    for name in ["-x", "größe", "層", "a_b-2", "9"] {
        assert_eq!(named(name).unwrap().space.axes()[0].name, name);
    }
}

#[test]
fn commands_use_every_axis_and_nothing_else() {
    let study = read(COMMAND).unwrap();
    let Workload::Command { metrics: MetricsFile::Patterns(patterns), .. } = &study.workload else {
        panic!()
    };
    assert_eq!(patterns["accuracy"], "accuracy: ([0-9.]+)");
    assert_eq!(placeholders("--a={b}/{c-d}{}").collect::<Vec<_>>(), ["b", "c-d"]);
    let fails = |old: &str, new: &str| read(&COMMAND.replacen(old, new, 1)).unwrap_err().to_string();
    assert_eq!(fails("{lr}", "{rl}"), "study.toml:3: command.run: {rl} is not an axis; did you mean {lr}?");
    assert_eq!(
        fails("--lr={lr}", "--lr=1"),
        "study.toml:6: axes.lr: the command does not use it: write {lr} where its level belongs"
    );
    assert!(fails("run = [\"python3\", ", "run = [\"\", ").contains("the program is missing"));
    assert!(fails("metrics = {", "metrics = \"xml\"\n#").contains("found string \"xml\", expected \"json\""));
    assert!(fails("[axes]", "[workload]\n[axes]").contains("either a [workload] or a [command]"));
}

#[test]
fn the_published_schema_is_the_one_of_these_types() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/study.schema.json");
    let text = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    if std::env::var_os("PACELINE_WRITE_SCHEMA").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let published = std::fs::read_to_string(path).unwrap_or_default();
    assert!(published == text, "docs/study.schema.json is out of date: PACELINE_WRITE_SCHEMA=1 writes it");
}

#[test]
fn the_schema_knows_every_key_that_the_reader_knows() {
    let schema = schema();
    let error = read(&GOOD.replacen("seed = 7", "sede = 7", 1)).unwrap_err().problem;
    let possible = error.split("possible: ").nth(1).unwrap();
    for key in possible.split(", ") {
        assert!(schema["properties"][key].is_object(), "{key}");
    }
    assert_eq!(schema["properties"].as_object().unwrap().len(), possible.split(", ").count());
    assert_eq!(schema["additionalProperties"], false);
}

/// The keys of all mistakes, in the order in which they are found.
fn mistakes(text: &str) -> Vec<String> {
    let (_, mistakes) = Study::read_with_mistakes("study.toml", "study", text);
    mistakes.iter().map(|mistake| format!("{}: {}", mistake.line, mistake.key)).collect()
}

#[test]
fn every_mistake_is_found_and_none_that_only_follows_from_another() {
    let text = r#"sampler = 3
repeats = 0
[workload]
lr = 0.1
[axes]
workers = "two"
lr = []
batch = { from = 5, to = 1, count = 3 }
[[objectives]]
metric = "final_accuracy"
[[objectives]]
metric = "samples_per_s"
goal = "most"
[budget]
minutes = -1
rnus = 3
"#;
    let expected =
        ["1: sampler", "6: axes.workers", "9: objectives[0]", "13: objectives[1].goal", "16: budget.rnus"];
    let found = mistakes(text);
    assert_eq!(found[..5], expected, "{found:?}");
    assert_eq!(found[5..], ["2: repeats", "15: budget.minutes", "7: axes.lr", "8: axes.batch"]);
    // A workload that is no table is there all the same, and so are axes.
    assert_eq!(
        mistakes("workload = 3\naxes = 4\n[[objectives]]\nmetric = \"a\"\ngoal = \"minimize\"\n"),
        ["1: workload", "2: axes"]
    );
    assert_eq!(mistakes("repeats = 0\n[workload]\n"), ["1: ", "1: ", "1: repeats"], "no axes, no objectives");
    assert_eq!(mistakes("a = \"\n[b\n").len(), 2, "of the form itself as well");
    let endless: String = (0..5000).map(|i| format!("k{i} = 1\n")).collect();
    assert_eq!(mistakes(&endless).len(), 101, "there is an end to it");
}

#[test]
fn arguments_of_a_script_are_axes_and_flags_by_their_names() {
    let text = r#"
[workload]
script = "train.py"
args.epochs = 2
[axes]
workers = [1, 2]
args.lr = { from = 0.01, to = 1, count = 3, scale = "log" }
args.amsgrad = [true, false]
args.beta = { values = [1, 2], when = "args.amsgrad" }
[[objectives]]
metric = "reported.perplexity"
goal = "minimize"
[control]
point = { args.lr = 0.1 }
"#;
    let study = Study::read("s.toml", "s", text).unwrap();
    let names: Vec<&str> = study.space.axes().iter().map(|axis| axis.name.as_str()).collect();
    assert_eq!(names, ["workers", "args.lr", "args.amsgrad", "args.beta"]);
    assert_eq!(study.space.points(100).unwrap().len(), 2 * 3 * (2 + 1));
    let Workload::Train(flags) = &study.workload else { panic!("it is a script") };
    assert_eq!(flags["args.epochs"], Value::Number(2.0));
    assert_eq!(study.control["args.lr"], Value::Number(0.1));
    // All arguments as one text, as a flag and as an axis.
    let whole = text.replace("args.epochs = 2", "args = \"--epochs 2\"");
    let study = Study::read("s.toml", "s", &whole).unwrap();
    let Workload::Train(flags) = &study.workload else { panic!("it is a script") };
    assert_eq!(flags["args"], Value::Text("--epochs 2".into()));
    let texts = "sampler = \"grid\"\n[workload]\nscript = \"train.py\"\n[axes]\nargs = [\"--a 1\", \"--b 2\"]\n\
                 [[objectives]]\nmetric = \"step_s\"\ngoal = \"minimize\"\n";
    assert_eq!(Study::read("s.toml", "s", texts).unwrap().space.axes()[0].name, "args");
}

#[test]
fn mistakes_in_a_scripts_arguments_name_line_and_key() {
    let said = |axes: &str| {
        let text = format!(
            "[workload]\nscript = \"train.py\"\n[axes]\n{axes}\n[[objectives]]\nmetric = \"step_s\"\ngoal = \"minimize\"\n"
        );
        Study::read("s.toml", "s", &text).unwrap_err().to_string()
    };
    let wrong = said("args.lr = 0.1");
    assert!(
        wrong.starts_with("s.toml:4: axes.args.lr: found ") && wrong.contains("a list of levels"),
        "{wrong}"
    );
    assert!(
        said("args.lr = []").starts_with("s.toml:4: axes.args.lr: at least one level"),
        "{}",
        said("args.lr = []")
    );
    assert!(said("args = 3").contains("an axis for each argument"), "{}", said("args = 3"));
    let flag =
        Study::read("s.toml", "s", "[workload]\nlr.a = 1\n[axes]\nworkers = [1]\n").unwrap_err().to_string();
    assert!(flag.starts_with("s.toml:2: workload.lr"), "{flag}");
}
