//! Conventions that the compiler does not check.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use paceline_testing::process::root;

/// Public types that are defined in more than one crate, and why.
const SHARED_NAMES: &[(&str, &str)] = &[
    ("Event", "`record`: an event of a run; `wire`: what a transport reports. To be renamed in `wire`"),
    ("Gather", "to be renamed in `launch`"),
    ("Layer", "`nn`: a layer with its memory, not exported; `virtual`: a layer's costs"),
    ("Outcome", "to be renamed in `nn` and `testing`"),
    ("Place", "`nn`: not exported; `launch`: a rank's place on its machine"),
    ("Progress", "to be renamed in `bench` or `nn`"),
    ("Schedule", "to be renamed in `nn`: a learning-rate schedule"),
    ("Stream", "to be renamed in `wire`: `random` has the seeded streams"),
    ("Tensor", "to be renamed in `nn` or `protocol`"),
    ("Update", "to be renamed in `nn` or `train`"),
];

/// The program's library is `main_with`: other crates cannot meet the names of its own types.
const NO_LIBRARY: &[&str] = &["paceline"];

/// The names of the public types that a source file defines.
fn public_types(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let item = line.trim_start().strip_prefix("pub ")?;
        let item = item.strip_prefix("unsafe ").unwrap_or(item);
        let name =
            ["struct ", "enum ", "trait ", "type ", "union "].iter().find_map(|k| item.strip_prefix(k))?;
        name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
    })
}

fn collect(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(public_types(&fs::read_to_string(&path).unwrap()).map(str::to_owned));
        }
    }
}

#[test]
fn a_public_type_is_defined_in_one_crate_only() {
    let mut crates_by_type: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let (folder, mut names) = (entry.unwrap().path(), BTreeSet::new());
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        if NO_LIBRARY.contains(&name.as_str()) {
            continue;
        }
        collect(&folder.join("src"), &mut names);
        names.into_iter().for_each(|each| crates_by_type.entry(each).or_default().push(name.clone()));
    }
    assert!(crates_by_type.len() > 400, "{} types were found", crates_by_type.len());
    crates_by_type.retain(|_, crates| crates.len() > 1);
    let excepted = |name: &str| SHARED_NAMES.iter().any(|(known, _)| *known == name);
    let twice: Vec<_> = crates_by_type.iter().filter(|(name, _)| !excepted(name)).collect();
    assert!(twice.is_empty(), "one name, one meaning: {twice:?}");
    let stale: Vec<_> = SHARED_NAMES.iter().filter(|(name, _)| !crates_by_type.contains_key(*name)).collect();
    assert!(stale.is_empty(), "exceptions that are no longer needed: {stale:?}");
    assert!(SHARED_NAMES.len() <= 12, "{} exceptions", SHARED_NAMES.len());
}

/// Lines of the source files below a folder, by path.
fn lines(folder: &Path) -> Vec<(String, usize)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(lines(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            all.push((path.display().to_string(), text.lines().count()));
        }
    }
    all
}

#[test]
fn the_program_is_thin_logic_lives_in_libraries() {
    let source = root().join("crates/paceline/src");
    let all: usize = lines(&source).iter().map(|(_, lines)| lines).sum();
    assert!(all < 6000, "crates/paceline/src has {all} lines");
    let long: Vec<_> = lines(&source.join("verbs")).into_iter().filter(|(_, lines)| *lines > 300).collect();
    assert!(long.is_empty(), "verbs of more than 300 lines: {long:?}");
}

#[test]
fn the_program_of_somebody_else_is_built_from_the_same_versions() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let packages = |lock: &str| -> BTreeSet<String> {
        let head = |package: &str| package.lines().take(2).map(|line| format!("{line} ")).collect();
        lock.split("[[package]]\n").skip(1).map(head).collect()
    };
    let mut theirs = packages(&read("examples/own-strategy/Cargo.lock"));
    theirs.retain(|package| !package.contains("\"own-strategy\""));
    let ours = packages(&read("Cargo.lock"));
    let other: Vec<_> = theirs.difference(&ours).collect();
    let hint = "cp Cargo.lock examples/own-strategy/ && cargo metadata --offline --manifest-path \
                examples/own-strategy/Cargo.toml";
    assert!(theirs.len() > 100 && other.is_empty(), "{other:?}\n{hint}");
}

/// What code that decides by the text of an error looks like.
const DECIDES_BY_TEXT: &[&str] = &[
    "to_string().contains(",
    "to_string().starts_with(",
    "to_string().ends_with(",
    "error.contains(",
    "message.contains(",
    "cause.contains(",
    "problem.contains(",
    "stderr.contains(",
];

/// Lines of the crates' code, tests and comments apart, that have one of these forms.
fn lines_with(forms: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        for (path, _) in lines(&entry.unwrap().path().join("src")) {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let all = code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
            let hits = all
                .filter(|(_, line)| forms.iter().any(|form| line.contains(form)))
                .map(|(n, line)| format!("{path}:{}: {}", n + 1, line.trim()));
            found.extend(hits.filter(|_| !path.ends_with("tests.rs")));
        }
    }
    found
}

#[test]
fn no_text_of_an_error_decides_anything() {
    let found = lines_with(DECIDES_BY_TEXT);
    assert!(found.is_empty(), "failures are enums (`FailureKind`), not texts:\n{}", found.join("\n"));
}

/// What code that looks a name up among the program's own entries looks like.
const PROGRAMS_OWN: &[&str] = &[
    "STRATEGIES.",
    "CONSISTENCIES.",
    "TRANSPORTS.",
    "DATASETS.",
    "MODELS.",
    "OPTIMISERS.",
    "PIPELINES.",
    "SAMPLERS.",
    "FIGURES.",
    "Registry::default()",
    "Registries::default()",
    "Protocols::default()",
    "Figures::default()",
    "paceline_protocol::find(",
    "consistency::find(",
];

/// Where the registries begin, and what tests look up.
const REGISTRIES_BEGIN: &[&str] = &[
    "paceline-study/src/registries.rs",
    "paceline/src/main.rs",
    "paceline-record/src/figures.rs",
    "paceline-protocol/src/strategies/mod.rs",
    "paceline-protocol/src/consistency/mod.rs",
    // A suite for tests: a strategy is passed in, and these are what it is compared with.
    "paceline-conformance/src/",
];

#[test]
fn names_are_looked_up_in_registries_that_are_passed_in() {
    let mut found = lines_with(PROGRAMS_OWN);
    found.retain(|line| !REGISTRIES_BEGIN.iter().any(|file| line.contains(file)));
    assert!(found.is_empty(), "an entry of `main_with`'s caller is unknown here:\n{}", found.join("\n"));
}

#[test]
fn public_types_are_found_in_every_form() {
    let text = "pub struct A<T> {\n    pub struct B;\npub(crate) struct C;\nstruct D;\npub unsafe trait E: F {\npub type G = H;";
    assert_eq!(public_types(text).collect::<Vec<_>>(), ["A", "B", "E", "G"]);
}
