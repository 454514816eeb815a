//! A run's command line gives the same plan again, whatever its settings are.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use paceline_resolve::{
    PlanSettings, Registries, RunSetting, SettingKind, SettingTable, command_line, quoted, resolve,
};

/// Numbers that look random, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }
}

/// Values of settings that are read as text; a new setting needs some here.
const TEXTS: &[(&str, &[&str])] = &[
    ("image-size", &["32", "224"]),
    ("window", &["16", "64"]),
    ("decoders", &["1", "2"]),
    ("python", &["python3", "my python"]),
    ("args", &["--lr 0.1", "--name 'it'\\''s a name' --switch"]),
    ("workers", &["1", "2", "4"]),
    ("stages", &["1", "2"]),
    ("cuts", &["auto", "fc2"]),
    ("shares", &["1", "2", "4", "8"]),
    ("elastic", &["1..4", "2..8"]),
    ("spare", &["0", "2"]),
    ("servers", &["0", "1", "2"]),
    ("compression", &["fp16", "int8", "topk,ratio=0.1", "sign"]),
    ("shard", &["iid", "by-label", "dirichlet(0.5)"]),
    ("buffer", &["65536", "256KiB"]),
    ("network", &["1gbit,200us", "100mbit"]),
    ("hosts", &["2", "0,0,1,1", "0,1"]),
    ("bucket", &["4MiB", "4194304", "25MB"]),
    ("straggler", &["rank=0,factor=2", "moving,factor=1.5", "lognormal,sigma=0.3"]),
    ("stop-after-step", &["5"]),
    ("batch", &["64", "64", "16", "128"]),
    ("micro-batches", &["1", "2", "4"]),
    ("lr", &["0.05", "5e-2", "0.1", "1e-7"]),
    ("schedule", &["constant", "cosine", "step,every=2,factor=0.1"]),
    ("warmup", &["0", "0.1"]),
    ("momentum", &["0.9", "0", "0.5"]),
    ("weight-decay", &["0", "1e-4"]),
    ("epochs", &["5", "5.0", "0.5"]),
    ("steps", &["10", "100"]),
    ("target-accuracy", &["0.9"]),
    ("eval-every", &["10"]),
    ("eval-samples", &["100"]),
    ("checkpoint-every", &["10"]),
    ("keep", &["2", "3"]),
    ("restarts", &["3", "1"]),
    ("seed", &["1", "7", "18446744073709551615"]),
    ("threads", &["1", "2"]),
    ("sample-hz", &["10", "0", "50"]),
    ("trace", &["0", "1000"]),
];

fn value(setting: &RunSetting, numbers: &mut Numbers, folder: &Path) -> String {
    let inside = |name: &str| folder.join(name).display().to_string();
    match &setting.kind {
        SettingKind::Switch => String::new(),
        SettingKind::Name(names) => names[numbers.below(names.len())].0.to_owned(),
        SettingKind::List if setting.name == "gpus" => numbers.of(&["0", "0,1", "GPU-5d1f"]).to_owned(),
        SettingKind::List => numbers.of(&["conv1", "conv1,layer1"]).to_owned(),
        SettingKind::Path if setting.name == "data-dir" => inside("it's data"),
        SettingKind::Path if setting.name == "strategy-file" => inside("a strategy.toml"),
        SettingKind::Path if setting.name == "revoke" => inside("who is taken away.toml"),
        SettingKind::Path => inside("a file.toml"),
        SettingKind::Parameter(parameter) => {
            let tried = [parameter.default, "1", "2", "3", "0.5", "1,3"];
            let possible: Vec<&str> = tried.into_iter().filter(|text| setting.check(text).is_ok()).collect();
            numbers.of(&possible).to_owned()
        }
        SettingKind::Text(_) => {
            let known = TEXTS.iter().find(|(name, _)| *name == setting.name);
            let (_, values) = known.unwrap_or_else(|| panic!("--{} needs values in TEXTS", setting.name));
            numbers.of(values).to_owned()
        }
    }
}

/// The words of a command line, as a shell splits it.
fn words(line: &str) -> Vec<String> {
    let (mut all, mut word, mut inside, mut chars) = (Vec::new(), String::new(), false, line.chars());
    while let Some(c) = chars.next() {
        match (c, inside) {
            ('\'', _) => inside = !inside,
            ('\\', false) => word.extend(chars.next()),
            (' ', false) => all.push(std::mem::take(&mut word)),
            _ => word.push(c),
        }
    }
    all.push(word);
    all
}

/// What the words of `paceline train` set.
fn read(line: &str, table: &Arc<SettingTable>) -> PlanSettings {
    let all = words(line);
    assert_eq!(all[..2], ["paceline", "train"]);
    let (mut settings, mut rest) = (PlanSettings::new(table), all[2..].iter());
    while let Some(flag) = rest.next() {
        if flag == "--" {
            let arguments: Vec<String> = rest.map(|word| quoted(word)).collect();
            settings.put("args", arguments.join(" "));
            break;
        }
        let name = flag.strip_prefix("--").unwrap();
        let setting = table.find(name).unwrap();
        let switch = matches!(setting.kind, SettingKind::Switch);
        let text = if switch { String::new() } else { rest.next().unwrap().clone() };
        settings.put(name, text);
    }
    settings
}

#[test]
fn a_command_line_gives_the_plan_again_and_says_nothing_twice() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a file.toml"), "a network, or weights").unwrap();
    std::fs::write(folder.path().join("a strategy.toml"), paceline_rounds::TEMPLATE).unwrap();
    std::fs::write(folder.path().join("who is taken away.toml"), "[[revoke]]\nat-s = 1\nrank = 0\n").unwrap();
    let table = Arc::new(SettingTable::new(Registries::default()));
    let all: Vec<&RunSetting> = table.iter().collect();
    let (mut numbers, mut plans, mut met) = (Numbers(0x9e37_79b9_7f4a_7c15), 0, BTreeSet::new());
    for _ in 0..60_000 {
        let mut settings = PlanSettings::new(&table);
        for _ in 0..numbers.below(7) {
            let setting = all[numbers.below(all.len())];
            settings.put(setting.name, value(setting, &mut numbers, folder.path()));
            if ["image-size", "decoders"].contains(&setting.name) {
                settings.put("data", "image-folder");
            }
            // What belongs to a script means nothing without one.
            if setting.requires == Some("script") || setting.requires == Some("gpus") {
                settings.put("script", folder.path().join("a file.toml"));
            }
            if setting.requires == Some("gpus") {
                settings.put("gpus", "0,1");
            }
            // A parameter belongs to few strategies and consistency models.
            if let SettingKind::Parameter(_) = setting.kind {
                settings.put("workers", "4");
                for other in ["strategy", "sync"].map(|name| table.find(name).unwrap()) {
                    settings.put(other.name, value(other, &mut numbers, folder.path()));
                }
            }
        }
        let Ok(plan) = resolve(&settings) else { continue };
        plans += 1;
        let line = command_line("train", &settings, &[]).unwrap();
        let again = read(&line, &table);
        let context = format!("{settings:?}\n{line}");
        assert_eq!(resolve(&again).unwrap().hash(), plan.hash(), "{context}");
        assert_eq!(again.data_folders().0, settings.data_folders().0, "{context}");
        assert_eq!(again.recording(), settings.recording(), "{context}");
        assert!(again.given("seed"), "{context}");
        assert_eq!(command_line("train", &again, &[]).unwrap(), line, "it is its own command line");
        met.extend(all.iter().map(|setting| setting.name).filter(|name| settings.given(name)));
    }
    assert!(plans > 5_000, "{plans} plans");
    let unmet: Vec<&str> =
        all.iter().map(|setting| setting.name).filter(|name| !met.contains(name)).collect();
    assert!(unmet.is_empty(), "settings that no plan had: {unmet:?}");
}

#[test]
fn only_what_differs_from_the_defaults_is_said() {
    let table = Arc::new(SettingTable::new(Registries::default()));
    let mut settings = PlanSettings::new(&table);
    for (name, text) in [
        ("workers", "2"),
        ("strategy", "auto"),
        ("transport", "shm"),
        ("epochs", "5"),
        ("lr", "0.050"),
        ("batch", "32"),
        ("sample-hz", "10"),
        ("shard", "dirichlet(0.5)"),
    ] {
        settings.put(name, text);
    }
    let line = command_line("train", &settings, &[]).unwrap();
    assert_eq!(line, "paceline train --workers 2 --shard 'dirichlet(0.5)' --batch 32 --seed 1");
}
