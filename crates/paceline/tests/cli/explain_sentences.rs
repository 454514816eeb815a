//! What `explain` says of 200 runs, recorded and simulated: its numbers are its figures, nothing is advised that is so
//! already, and nothing contradicts a run that was measured.

use std::fmt::Write as _;
use std::thread;

use serde_json::Value;

use crate::support::paceline;

/// Runs of the test.
const RUNS: usize = 200;
/// Every so many of them is a real one.
const REAL: usize = 16;
const THREADS: usize = 2;

/// The settings of a run that advice could name.
#[derive(Clone)]
struct Settings {
    real: bool,
    trace: bool,
    model: &'static str,
    strategy: &'static str,
    sync: &'static str,
    workers: usize,
    servers: usize,
    batch: usize,
    bucket: &'static str,
    compression: Option<&'static str>,
    network: Option<&'static str>,
    straggler: Option<&'static str>,
    optimizer: &'static str,
}

impl Settings {
    /// Number `i`: settings go round with different periods, so that they meet in many combinations.
    fn new(i: usize) -> Self {
        let real = i.is_multiple_of(REAL);
        let pick = |from: &[&'static str], every: usize| from[i / every % from.len()];
        let option = |from: &[Option<&'static str>], every: usize| from[i / every % from.len()];
        let workers: usize = if real { [1, 2, 3, 2, 4][i / REAL % 5] } else { [2, 4, 1, 8, 3, 6, 5][i % 7] };
        let mut strategy = pick(&["ring-allreduce", "ps", "tree", "local", "halving-doubling", "ps"], 1);
        if strategy == "halving-doubling" && !workers.is_power_of_two() {
            strategy = "tree";
        }
        if workers == 1 {
            strategy = "single";
        }
        let ps = strategy == "ps";
        let model = pick(&["mlp", "conv1d", "mlp", "lenet"], 3);
        let exact = ["ring-allreduce", "tree", "halving-doubling"].contains(&strategy);
        let stalled =
            if workers > 1 { option(&[None, None, Some("rank=1,factor=4"), None, None], 1) } else { None };
        Self {
            real,
            trace: !real || !i.is_multiple_of(5),
            model,
            strategy,
            sync: if ps { pick(&["bsp", "asp", "ssp"], 2) } else { "bsp" },
            workers,
            servers: if ps { 1 + i / 6 % 3 } else { 0 },
            batch: [1, 8, 32, 2, 64][i / 2 % 5],
            bucket: if model == "lenet" { "1MiB" } else { pick(&["4MiB", "1MiB", "16KiB", "8MiB"], 2) },
            compression: option(&[None, None, Some("fp16"), None, Some("int8")], 1).filter(|_| exact),
            network: option(&[None, Some("100mbit,20us"), Some("25gbit,5ms"), None], 1)
                .filter(|_| workers > 1),
            straggler: stalled,
            optimizer: pick(&["sgd", "adam"], 7),
        }
    }

    fn flags(&self) -> String {
        let mut words = format!(
            "{} --quiet --data synthetic --steps 8 --eval-every 1000 --lr 0.01 --model {} --workers {} --batch {} \
             --bucket {}",
            if self.real { "train" } else { "simulate" },
            self.model,
            self.workers,
            self.batch,
            self.bucket
        );
        if self.workers > 1 {
            let _ = write!(words, " --strategy {} --sync {}", self.strategy, self.sync);
        }
        if self.servers > 0 {
            let _ = write!(words, " --servers {}", self.servers);
        }
        for (flag, value) in
            [("compression", self.compression), ("network", self.network), ("straggler", self.straggler)]
        {
            value.iter().for_each(|value| words += &format!(" --{flag} {value}"));
        }
        let _ = write!(words, " --optimizer {}", self.optimizer);
        if self.trace { words + " --trace" } else { words }
    }

    /// What a flag is set to.
    fn value(&self, flag: &str) -> Option<String> {
        Some(match flag {
            "--strategy" => self.strategy.into(),
            "--sync" => self.sync.into(),
            "--workers" => self.workers.to_string(),
            "--servers" => self.servers.to_string(),
            "--batch" => self.batch.to_string(),
            "--bucket" => self.bucket.into(),
            "--compression" => self.compression?.into(),
            _ => return None,
        })
    }
}

/// Texts between backticks, and what is outside of them.
fn quoted(sentence: &str) -> (Vec<&str>, String) {
    let pieces: Vec<&str> = sentence.split('`').collect();
    let inside = pieces.iter().skip(1).step_by(2).copied().collect();
    (inside, pieces.iter().step_by(2).copied().collect::<Vec<_>>().join(" "))
}

/// Numbers of a text with how far each may be off, in the units of figures.
fn numbers(text: &str) -> Vec<(f64, f64, String)> {
    let chars: Vec<char> = text.chars().collect();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < chars.len() {
        let in_word = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
        if !chars[at].is_ascii_digit() || in_word {
            at += 1;
            continue;
        }
        let begin = at;
        while at < chars.len()
            && (chars[at].is_ascii_digit()
                || chars[at] == '.' && chars.get(at + 1).is_some_and(char::is_ascii_digit))
        {
            at += 1;
        }
        let number: String = chars[begin..at].iter().collect();
        let rest: String = chars[at..].iter().collect();
        let units =
            [("%", 1e-2), (" ns", 1e-9), (" µs", 1e-6), (" ms", 1e-3), (" MB", 1e6), (" Gbit/s", 1e9)];
        let scale = units.iter().find(|(unit, _)| rest.starts_with(unit)).map_or(1.0, |(_, scale)| *scale);
        let digits = number.split('.').nth(1).map_or(0, str::len);
        let half = 0.5 * 10f64.powi(-(digits as i32)) * scale;
        found.push((number.parse::<f64>().unwrap() * scale, half * (1.0 + 1e-9), number + &rest));
    }
    found
}

fn check_figures(said: &Value, sentences: &[&str]) {
    let figures: Vec<f64> =
        said["figures"].as_object().unwrap().values().map(|value| value.as_f64().unwrap()).collect();
    for sentence in sentences {
        let (names, outside) = quoted(sentence);
        let flags = names.into_iter().filter(|name| name.starts_with("--")).map(str::to_owned);
        for (value, half, text) in flags.chain([outside]).flat_map(|text| numbers(&text)) {
            let known = figures.iter().any(|figure| (figure - value).abs() <= half);
            assert!(known, "{text:?} of {sentence:?} is none of {}", said["figures"]);
        }
    }
}

fn texts(values: &Value) -> Vec<&str> {
    values.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

fn check_advice(said: &Value, settings: &Settings) {
    for change in said["verdict"]["changes"].as_array().unwrap() {
        let what = change["what"].as_str().unwrap();
        let words: Vec<&str> = quoted(what).0.into_iter().flat_map(str::split_whitespace).collect();
        let pairs: Vec<[&str; 2]> = words.windows(2).map(|pair| [pair[0], pair[1]]).collect();
        let set = pairs.iter().filter(|[flag, value]| flag.starts_with("--") && !value.starts_with("--"));
        let mut same = set.map(|[flag, value]| settings.value(flag).as_deref() == Some(value)).peekable();
        let so_already = same.peek().is_some() && same.all(|same| same);
        assert!(!so_already, "{what:?} is so already: {}", settings.flags());
        let id = change["if"].as_str().unwrap();
        let servers = ["more-servers", "faster-servers", "no-slow-server", "ring"].contains(&id);
        assert!(!servers || settings.servers > 0, "{what:?} without servers: {}", settings.flags());
        let codec = id == "no-codec";
        assert!(!codec || settings.compression.is_some(), "{what:?} without a codec: {}", settings.flags());
    }
}

/// What is said of two runs, both ways, agrees with how fast they were.
fn check_both(said: &Value) {
    let other = &said["vs"];
    let rate = |of: &Value| of["samples_per_s"].as_f64().unwrap();
    let workers =
        |of: &Value| of["ranks"].as_array().unwrap().iter().filter(|rank| rank["role"] == "worker").count();
    let sentence = said["comparison"]["sentence"].as_str().unwrap();
    check_figures(said, &[sentence]);
    let word = |speed: f64| match speed {
        s if (s - 1.0).abs() < 0.05 => "about as fast as",
        s if s < 1.0 => "times slower than",
        _ => "times faster than",
    };
    let speed = rate(said) / rate(other);
    assert!(sentence.contains(word(speed)), "{speed}: {sentence}");
    for (own, beside) in [(said, other), (other, said)] {
        let alone = &own["alone"];
        assert_eq!(alone.is_object(), workers(own) > 1 && workers(beside) == 1, "{alone}");
        if alone.is_object() {
            let words = alone["sentence"].as_str().unwrap();
            assert!((rate(alone) / rate(beside) - 1.0).abs() < 1e-9, "{words}");
            assert!(words.contains(word(rate(own) / rate(beside))), "{words}");
            assert!(words.contains("both measured") && !words.contains("predicted"), "{words}");
        }
        for change in own["verdict"]["changes"].as_array().unwrap() {
            let slower = rate(beside) < rate(own);
            let contradicted = match change["if"].as_str().unwrap() {
                "more-workers" => workers(beside) > workers(own) && slower,
                "fewer-workers" => workers(beside) < workers(own) && slower,
                _ => false,
            };
            assert!(!contradicted, "{change} beside {}", beside["run"]);
        }
    }
}

fn explain_one(i: usize, place: &str) {
    let settings = Settings::new(i);
    let words = settings.flags();
    let ran = paceline(&format!("{words} {place}"));
    assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
    let run = ran.result()["run"].as_str().unwrap().to_owned();
    let explain = |words: &str| {
        let said = paceline(&format!("explain {words} --json {place}"));
        assert_eq!(said.code, 0, "{words}: {}", said.stderr);
        said.result()
    };
    let said = explain(&run);
    check_figures(&said, &texts(&said["sentences"]));
    check_advice(&said, &settings);
    // Without single messages, what to do about that is said.
    let gaps = texts(&said["cannot_tell"]).join(" ");
    assert_eq!(gaps.contains("`--trace`"), !settings.trace && settings.workers > 1, "{words}: {gaps}");
    // Beside one worker, and beside a run that follows the advice of a codec.
    if i.is_multiple_of(4) && settings.workers > 1 {
        let alone = Settings {
            workers: 1,
            servers: 0,
            strategy: "single",
            compression: None,
            network: None,
            straggler: None,
            ..settings.clone()
        };
        let other =
            paceline(&format!("{} {place}", alone.flags())).result()["run"].as_str().unwrap().to_owned();
        check_both(&explain(&format!("{run} --vs {other}")));
        check_both(&explain(&format!("{other} --vs {run}")));
    }
}

#[test]
fn over_200_runs_numbers_are_figures_advice_is_new_and_nothing_contradicts_a_measured_run() {
    let folder = tempfile::tempdir().unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let place = format!("--store {}", folder.path().join(thread.to_string()).display());
            scope.spawn(move || (thread..RUNS).step_by(THREADS).for_each(|i| explain_one(i, &place)));
        }
    });
}

#[test]
fn a_run_that_followed_the_advice_takes_the_place_of_the_prediction() {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("--store {}", folder.path().display());
    let words = "simulate --quiet --data synthetic --steps 12 --trace --model lenet --workers 4 --network 300mbit,20us";
    let made = |more: &str| {
        let ran = paceline(&format!("{words} {more} {place}"));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.result()["run"].as_str().unwrap().to_owned()
    };
    let (plain, shorter) = (made(""), made("--compression fp16"));
    let said = paceline(&format!("explain {plain} --vs {shorter} --json {place}")).result();
    let changes = said["verdict"]["changes"].as_array().unwrap();
    let half = changes.iter().find(|change| change["if"] == "half").unwrap();
    assert_eq!(half["source"]["measured"], shorter.as_str(), "{half}");
    let rate = |of: &Value| of["samples_per_s"].as_f64().unwrap();
    let gain = 1.0 - rate(&said) / rate(&said["vs"]);
    assert!((half["gain"].as_f64().unwrap() - gain).abs() < 1e-9, "{half}: {gain}");
    let text = paceline(&format!("explain {plain} --vs {shorter} {place}")).stdout;
    assert!(text.contains(&format!("measured in `{shorter}`")), "{text}");
}
