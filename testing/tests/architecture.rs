//! `ARCHITECTURE.md` is true: its crates and arrows are those of the manifests, and what it names is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// What is named and is not in the repository: what builds and runs leave, and what is not used.
const ELSEWHERE: &[&str] = &["target/browser", "target/tmp/browser", "runs/ID/", "gemm", "eval"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn page() -> String {
    fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap()
}

/// Files below a folder, without what builds leave behind.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if name == "target" || name == ".git" {
            continue;
        }
        if path.is_dir() { all.extend(files(&path)) } else { all.push(path) }
    }
    all
}

/// Packages of the workspace, and the ones each depends on (not for its tests).
fn manifests() -> BTreeMap<String, BTreeSet<String>> {
    let folders = fs::read_dir(root().join("crates")).unwrap().flatten().map(|entry| entry.path());
    let read = |folder: PathBuf| {
        let text = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let section =
            text.split("\n[").find(|section| section.starts_with("dependencies]")).unwrap_or_default();
        let names = section.lines().skip(1).filter_map(|line| line.split(['.', ' ', '=']).next());
        let own = names.filter_map(|name| name.strip_prefix("paceline-")).map(str::to_owned);
        let package = text.lines().find_map(|line| line.strip_prefix("name = \"")).unwrap();
        (package.trim_end_matches('"').to_owned(), own.collect())
    };
    folders.chain(["testing", "xtask"].map(|folder| root().join(folder))).map(read).collect()
}

#[test]
fn the_table_of_crates_lists_every_package() {
    let page = page();
    let listed: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .filter(|name| name.starts_with("paceline-") || ["paceline", "xtask"].contains(name))
        .collect();
    let manifests = manifests();
    assert_eq!(listed, manifests.keys().map(String::as_str).collect());
}

#[test]
fn the_arrows_are_those_of_the_manifests() {
    let short = |name: &str| name.strip_prefix("paceline-").unwrap_or(name).to_owned();
    let line = |(name, on): (&String, &BTreeSet<String>)| {
        let on: Vec<&str> = on.iter().map(String::as_str).collect();
        format!("{} → {}", short(name), if on.is_empty() { "nothing".into() } else { on.join(", ") })
    };
    let expected: Vec<String> = manifests().iter().map(line).collect();
    let page = page();
    let block =
        page.split("```arrows\n").nth(1).and_then(|rest| rest.split("\n```").next()).unwrap_or_default();
    assert_eq!(block, expected.join("\n"), "ARCHITECTURE.md, `arrows`: should be\n{}", expected.join("\n"));
}

#[test]
fn whatever_is_named_in_backticks_is_there() {
    let all = files(&root());
    let names: Vec<String> =
        all.iter().map(|path| path.strip_prefix(root()).unwrap().display().to_string()).collect();
    let words: BTreeSet<String> = all
        .iter()
        .filter(|path| {
            path.extension().is_some_and(|e| ["rs", "toml", "js", "proto"].iter().any(|x| e == *x))
        })
        .flat_map(|path| {
            let text = fs::read_to_string(path).unwrap();
            let words = text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-');
            words.map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    let page = page();
    // Blocks of code are pictures.
    let prose: String = page.split("```").step_by(2).collect();
    let mut missing = Vec::new();
    for token in prose.split('`').skip(1).step_by(2) {
        let there = if token.contains('/') || token.contains(".rs") || token.contains(".md") {
            // A file or a folder; a pattern; or an address.
            token.contains([' ', '*'])
                || token.contains("NAME")
                || token.starts_with('/')
                || names.iter().any(|name| format!("/{name}").contains(&format!("/{token}")))
        } else if token.starts_with('-') || token.contains(' ') || !token.starts_with(char::is_alphabetic) {
            // Flags and commands.
            true
        } else {
            let last = token.trim_end_matches("()").rsplit("::").next().unwrap_or_default();
            last.split(['.', '=', '(', ',', '!', '*']).next().is_some_and(|word| words.contains(word))
        };
        if !there && !ELSEWHERE.contains(&token) {
            missing.push(token);
        }
    }
    assert!(missing.is_empty(), "ARCHITECTURE.md names what is not there: {missing:?}");
}
