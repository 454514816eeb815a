//! `cargo xtask study NAME [--quick | --from STORE] [--binary PROGRAM]`: runs a study of `studies/NAME` again, or takes
//! in the runs of a store that another machine made with `paceline explore studies/NAME/PART.toml --store STORE`.
//!
//! A study is a folder: `*.toml` are its parts, study files for `paceline explore` whose head says what was expected
//! before anything ran; `data/PART/` has every run and every rank as `paceline export` writes them, and the machine;
//! `page.md` is the prose, whose numbers are queries (see [`page`]); `README.md` and its pictures come out of both.
//!
//! - [`compare`]: which differences are real
//! - [`data`]: the kept runs as tables of a database
//! - [`machine`]: where runs were made
//! - [`page`]: prose with queries in it becomes a page
//! - [`repeats`]: how often each configuration was run
//! - [`tuned`]: techniques at their own best settings

mod compare;
mod data;
mod machine;
mod page;
pub mod repeats;
mod tuned;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use paceline_testing::is_root;
use paceline_testing::process::target;

use crate::process::{self, Outcome, cargo, program, root};
pub use compare::compare;

/// What a reduced run changes in every part: a few steps of a few points.
const QUICK: &str = include_str!("quick.toml");

/// Where studies lie, from the repository's root.
pub const FOLDER: &str = "studies";

/// A study's folder and parts.
struct Folder {
    name: String,
    path: PathBuf,
    parts: Vec<String>,
}

impl Folder {
    fn open(name: &str) -> Outcome<Self> {
        let path = root().join(FOLDER).join(name);
        let mut parts: Vec<String> =
            files(&path).filter_map(|file| Some(file.strip_suffix(".toml")?.to_owned())).collect();
        parts.sort();
        if parts.is_empty() {
            return Err(format!("no study `{name}`; there are: {}", names().join(", ")));
        }
        Ok(Self { name: name.into(), path, parts })
    }

    /// The study file of a part.
    fn text(&self, part: &str) -> Outcome<String> {
        read(&self.path.join(format!("{part}.toml")))
    }
}

fn files(folder: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// The studies, by name.
fn names() -> Vec<String> {
    let folder = root().join(FOLDER);
    let mut names: Vec<String> = files(&folder).filter(|name| folder.join(name).is_dir()).collect();
    names.sort();
    names
}

/// What is asked of a study.
#[derive(Debug, Default, PartialEq)]
struct Asked<'a> {
    name: Option<&'a str>,
    quick: bool,
    /// The store with the runs of another machine.
    from: Option<&'a Path>,
    /// The program; built if none is named.
    binary: Option<&'a Path>,
}

impl<'a> Asked<'a> {
    fn parse(words: &[&'a str]) -> Outcome<Self> {
        let usage = || "cargo xtask study [NAME [--quick | --from STORE] [--binary PROGRAM]]".to_owned();
        let (mut asked, mut words) = (Self::default(), words.iter());
        while let Some(word) = words.next() {
            match *word {
                "--quick" => asked.quick = true,
                "--from" => asked.from = Some(Path::new(*words.next().ok_or_else(usage)?)),
                "--binary" => asked.binary = Some(Path::new(*words.next().ok_or_else(usage)?)),
                name if !name.starts_with('-') && asked.name.is_none() => asked.name = Some(name),
                _ => return Err(usage()),
            }
        }
        let alone = asked.name.is_none() && asked != Self::default();
        if alone || (asked.quick && asked.from.is_some()) { Err(usage()) } else { Ok(asked) }
    }
}

/// `cargo xtask study`.
pub fn run(words: &[&str]) -> Outcome {
    let asked = Asked::parse(words)?;
    let Some(name) = asked.name else {
        names().iter().for_each(|name| println!("{name}"));
        return Ok(());
    };
    let folder = Folder::open(name)?;
    let program = match asked.binary {
        Some(program) => fs::canonicalize(program).map_err(|e| format!("{}: {e}", program.display()))?,
        None => process::run(&mut cargo(&["build", "--release"])).map(|()| program())?,
    };
    let place = target().join("studies").join(if asked.quick { "quick" } else { "whole" }).join(name);
    let store = match asked.from {
        Some(store) => fs::canonicalize(store).map_err(|e| format!("{}: {e}", store.display()))?,
        None => place.join("store"),
    };
    rerun(
        &folder,
        &Rerun { program, place, store, quick: asked.quick, with_data: process::with_data },
        &asked,
    )
}

/// Makes every part's runs, or takes them in. A reduced run leaves the kept data alone: it goes to `target/studies`.
fn rerun(folder: &Folder, rerun: &Rerun, asked: &Asked<'_>) -> Outcome {
    let kept = if rerun.quick { &rerun.place } else { &folder.path };
    rerun.begin()?;
    for part in &folder.parts {
        let text = folder.text(part)?;
        match asked.from {
            Some(from) if !rerun.has(&text)? => {
                println!("{part} stays as it is: it is not in {}", from.display());
            }
            Some(_) => rerun.keep(folder, part, kept)?,
            None if needs_root(&text) && !is_root() => println!("{part} is left out: it needs root"),
            None => rerun.part(folder, part, kept)?,
        }
    }
    if rerun.quick {
        // Of a few points the prose's questions may have no answer; the files must be there.
        return data::open(&kept.join("data")).map(drop);
    }
    forget(folder)?;
    let pages = pages_of(folder)?;
    for (path, text) in &pages {
        write(&root().join(path), text)?;
    }
    println!("{}/{}/README.md is made from {} parts", FOLDER, folder.name, folder.parts.len());
    Ok(())
}

/// Removes the data of parts that are no more.
fn forget(folder: &Folder) -> Outcome {
    let data = folder.path.join("data");
    for part in files(&data).filter(|part| !folder.parts.contains(part)) {
        fs::remove_dir_all(data.join(&part)).map_err(|e| format!("{part}: {e}"))?;
    }
    Ok(())
}

/// How parts are run.
struct Rerun {
    program: PathBuf,
    /// Study files and reports go here.
    place: PathBuf,
    /// Where runs are recorded.
    store: PathBuf,
    /// Whether parts are reduced.
    quick: bool,
    /// Tells a command where datasets are.
    with_data: fn(&mut Command),
}

impl Rerun {
    /// Makes an empty place: what a rerun is for is new runs.
    fn begin(&self) -> Outcome {
        let _ = fs::remove_dir_all(&self.place);
        fs::create_dir_all(&self.place).map_err(|e| format!("{}: {e}", self.place.display()))
    }

    /// Whether the store has runs of this study file; those of another text under its name are refused.
    fn has(&self, text: &str) -> Outcome<bool> {
        let study: toml::Table = toml::from_str(text).map_err(|e| e.to_string())?;
        let name = study.get("name").and_then(toml::Value::as_str).ok_or("a study of studies/ has a name")?;
        let journal = self.store.join("studies").join(name).join("journal.ndjson");
        if !journal.is_file() {
            return Ok(false);
        }
        let first = read(&journal)?.lines().next().unwrap_or_default().to_owned();
        let first: serde_json::Value = serde_json::from_str(&first).unwrap_or_default();
        match first["entry"]["text"].as_str() == Some(text) {
            true => Ok(true),
            false => Err(format!("{} is of another study file named {name}", journal.display())),
        }
    }

    fn paceline(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).arg("--store").arg(&self.store);
        command.current_dir(root()).env("PACELINE", &self.program);
        (self.with_data)(&mut command);
        command
    }

    /// The study file that is run; reduced where that is asked for.
    fn file(&self, folder: &Folder, part: &str) -> Outcome<String> {
        let file = self.place.join(format!("{part}.toml"));
        let text = folder.text(part)?;
        write(&file, &if self.quick { reduced(&text)? } else { text })?;
        Ok(file.to_string_lossy().into_owned())
    }

    /// Runs a part; its data goes to `data/PART` in `kept`.
    fn part(&self, folder: &Folder, part: &str, kept: &Path) -> Outcome {
        process::run(&mut self.paceline(&["explore", &self.file(folder, part)?]))?;
        self.keep(folder, part, kept)
    }

    /// Takes a part's runs out of the store.
    fn keep(&self, folder: &Folder, part: &str, kept: &Path) -> Outcome {
        let (study, data) = (self.file(folder, part)?, kept.join("data").join(part));
        let _ = fs::remove_dir_all(&data);
        let out = data.to_string_lossy();
        process::run(&mut self.paceline(&["export", &study, "--format", "csv", "--out", &out]))?;
        let report = self.place.join("report").join(part);
        process::run(self.paceline(&["report", &study]).arg("--out").arg(report))?;
        write(&data.join("machine.json"), &machine::document(&self.store, &data.join("runs.csv"))?)
    }
}

/// Whether a part can be run by root alone.
fn needs_root(text: &str) -> bool {
    text.contains("\n# needs root\n")
}

/// A study file with less to do.
fn reduced(text: &str) -> Outcome<String> {
    let bad = |e: toml::de::Error| e.to_string();
    let mut study: toml::Table = toml::from_str(text).map_err(bad)?;
    let quick: toml::Table = toml::from_str(QUICK).map_err(bad)?;
    let of_commands = study.contains_key("command");
    for (name, value) in quick {
        match (study.get_mut(&name), value) {
            (Some(toml::Value::Table(there)), toml::Value::Table(change)) => there.extend(change),
            (Some(toml::Value::Array(several)), toml::Value::Table(change)) => {
                several
                    .iter_mut()
                    .filter_map(toml::Value::as_table_mut)
                    .for_each(|t| t.extend(change.clone()));
            }
            (None, toml::Value::Table(_)) if name == "workload" && of_commands => {}
            (_, value) => drop(study.insert(name, value)),
        }
    }
    // Work is counted one way.
    for table in ["workload", "common", "axes"] {
        match study.get_mut(table) {
            Some(toml::Value::Table(table)) => drop(table.remove("epochs")),
            Some(toml::Value::Array(several)) => {
                several
                    .iter_mut()
                    .filter_map(toml::Value::as_table_mut)
                    .for_each(|t| drop(t.remove("epochs")));
            }
            _ => {}
        }
    }
    toml::to_string(&study).map_err(|e| e.to_string())
}

/// The pages of every study whose runs are kept, by path from the root: what `cargo xtask docs` writes and checks.
pub fn pages() -> Outcome<Vec<(String, String)>> {
    let mut pages = Vec::new();
    for folder in names().iter().map(|name| Folder::open(name)) {
        let folder = folder?;
        // A study that was never run has nothing to say.
        if folder.path.join("data").is_dir() {
            pages.extend(pages_of(&folder)?);
        }
    }
    Ok(pages)
}

fn pages_of(folder: &Folder) -> Outcome<Vec<(String, String)>> {
    let at = |file: &str| format!("{FOLDER}/{}/{file}", folder.name);
    let database = data::open(&folder.path.join("data"))?;
    let template = read(&folder.path.join("page.md"))?;
    let page = page::render(&template, &database).map_err(|e| format!("{}: {e}", at("page.md")))?;
    let pictures = page.pictures.into_iter().map(|(file, svg)| (at(&file), svg));
    Ok([(at("README.md"), page.text)].into_iter().chain(pictures).collect())
}

fn read(path: &Path) -> Outcome<String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn write(path: &Path, text: &str) -> Outcome {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use paceline_testing::{Need, has_network_namespaces, skip};

    use super::*;

    #[test]
    fn a_reduced_study_is_short_and_counts_its_work_in_steps() {
        let text = "sampler = \"grid\"\n[workload]\nepochs = 3\ndata = \"digits\"\n[axes]\nworkers = [1, 2]\nepochs = [1, 2]\n";
        let study: toml::Table = toml::from_str(&reduced(text).unwrap()).unwrap();
        assert!(study["budget"]["runs"].as_integer().unwrap() <= 6);
        assert!(study["workload"].get("epochs").is_none() && study["axes"].get("epochs").is_none());
        assert!(study["workload"]["steps"].is_integer());
        assert_eq!(study["workload"]["data"].as_str(), Some("digits"));
        let several =
            "[common]\nepochs = 2\n[[workload]]\nname = \"a\"\nepochs = 1\n[[workload]]\nname = \"b\"\n";
        let study: toml::Table = toml::from_str(&reduced(several).unwrap()).unwrap();
        assert!(study["common"].get("epochs").is_none());
        let workloads = study["workload"].as_array().unwrap();
        assert_eq!((workloads.len(), workloads[1]["name"].as_str()), (2, Some("b")));
        assert!(workloads.iter().all(|w| w.get("epochs").is_none() && w["steps"].is_integer()));
    }

    #[test]
    fn runs_are_made_or_taken_in_not_both() {
        let asked = Asked::parse(&["buckets", "--from", "there", "--binary", "p"]).unwrap();
        assert_eq!((asked.name, asked.quick), (Some("buckets"), false));
        assert_eq!((asked.from, asked.binary), (Some(Path::new("there")), Some(Path::new("p"))));
        assert_eq!(Asked::parse(&[]).unwrap(), Asked::default());
        for wrong in
            [&["a", "b"][..], &["--quick"], &["a", "--from"], &["a", "--quick", "--from", "s"], &["a", "--x"]]
        {
            assert!(Asked::parse(wrong).unwrap_err().starts_with("cargo xtask study "), "{wrong:?}");
        }
    }

    #[test]
    fn runs_of_another_study_file_are_not_taken_in() {
        let store = std::env::temp_dir().join(format!("paceline-taken-{}", std::process::id()));
        let rerun = |store: &Path| Rerun {
            program: PathBuf::new(),
            place: PathBuf::new(),
            store: store.into(),
            quick: false,
            with_data: |_| {},
        };
        let (text, journal) = ("name = \"a\"\n", store.join("studies/a/journal.ndjson"));
        assert_eq!(rerun(&store).has(text), Ok(false));
        fs::create_dir_all(journal.parent().unwrap()).unwrap();
        fs::write(&journal, serde_json::json!({"entry": {"entry": "study", "text": text}}).to_string())
            .unwrap();
        assert_eq!(rerun(&store).has(text), Ok(true));
        assert!(rerun(&store).has("name = \"a\"\nseed = 2\n").unwrap_err().contains("another study file"));
        fs::remove_dir_all(&store).unwrap();
    }

    #[test]
    fn every_study_says_beforehand_what_is_expected() {
        for name in names() {
            let folder = Folder::open(&name).unwrap();
            for part in &folder.parts {
                let text = folder.text(part).unwrap();
                assert!(text.starts_with("# ") && text.contains("\n# Expected:"), "{name}/{part}.toml");
            }
        }
    }

    /// One test per part of a study, `-` being `_`: a reduced run, end to end.
    macro_rules! reduced_runs {
        ($($study:ident: $($part:ident),+;)+) => {
            mod reduced_run_of {
                $(mod $study {
                    $(#[test] fn $part() { super::super::reduced_run(stringify!($study), stringify!($part)); })+
                })+
            }
            const REDUCED: &[(&str, &[&str])] = &[$((stringify!($study), &[$(stringify!($part)),+])),+];
        };
    }

    reduced_runs! {
        averaging: grid, spread;
        buckets: held_out, made;
        consistency: rates;
        placement: links, namespaces, transports;
        transfer: workloads;
    }

    #[test]
    fn every_part_of_every_study_has_its_reduced_run() {
        let tested: Vec<(String, Vec<String>)> = REDUCED
            .iter()
            .map(|(study, parts)| {
                (study.replace('_', "-"), parts.iter().map(|p| p.replace('_', "-")).collect())
            })
            .collect();
        let there: Vec<(String, Vec<String>)> =
            names().iter().map(|name| (name.clone(), Folder::open(name).unwrap().parts)).collect();
        assert_eq!(tested, there);
    }

    fn reduced_run(study: &str, part: &str) {
        let (folder, part) = (Folder::open(&study.replace('_', "-")).unwrap(), part.replace('_', "-"));
        let text = folder.text(&part).unwrap();
        if needs_root(&text) && !has_network_namespaces() {
            return;
        }
        let program = paceline();
        for name in datasets(&text) {
            let path = Command::new(&program).args(["data", "path", &name]).output().unwrap();
            if !path.status.success() {
                return skip(Need::Datasets, name);
            }
        }
        let place =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tmp/studies").join(study).join(&part);
        // Of datasets it knows what the test was told: those beside the checkout are not a stranger's.
        let store = place.join("store");
        let rerun = Rerun { program, place, store, quick: true, with_data: |_| {} };
        rerun.begin().unwrap();
        rerun.part(&folder, &part, &rerun.place).unwrap();
        data::open(&rerun.place.join("data")).unwrap();
    }

    /// The datasets that a study file names.
    fn datasets(text: &str) -> Vec<String> {
        let study: toml::Table = toml::from_str(text).unwrap();
        let tables = ["workload", "common", "axes"].iter().filter_map(|table| study.get(*table));
        let tables =
            tables.flat_map(|table| table.as_array().cloned().unwrap_or_else(|| vec![table.clone()]));
        tables
            .filter_map(|table| table.get("data").cloned())
            .flat_map(|data| match data {
                toml::Value::Array(names) => names,
                name => vec![name],
            })
            .map(|name| name.as_str().expect("datasets are names").to_owned())
            .collect()
    }

    #[test]
    fn a_study_file_names_its_datasets() {
        let text = "[workload]\ndata = \"digits\"\n";
        assert_eq!(datasets(text), ["digits"]);
        assert_eq!(datasets("[axes]\ndata = [\"digits\", \"mnist\"]\n"), ["digits", "mnist"]);
        let several = "[[workload]]\ndata = \"digits\"\n[[workload]]\ndata = \"mnist\"\n";
        assert_eq!(datasets(several), ["digits", "mnist"]);
        assert!(datasets("[command]\nrun = [\"true\"]\n").is_empty());
    }

    fn paceline() -> PathBuf {
        let test = std::env::current_exe().unwrap();
        let profile = test.parent().and_then(Path::parent).unwrap();
        let program = profile.join("paceline");
        assert!(program.is_file(), "{} is built with the other tests: cargo xtask test", program.display());
        program
    }
}
