//! Names: the field's words, and one meaning each.

use std::fs;
use std::path::{Path, PathBuf};

/// Names of a private language, and participles, adverbs and question words: no type, function or module has them.
const PRIVATE: &[&str] = &[
    "Voyage",
    "sail",
    "Harbour",
    "Crew",
    "fleet",
    "Fleet",
    "Tidings",
    "News",
    "Raw",
    "muster",
    "Muster",
    "Seat",
    "Leash",
    "Ledger",
    "Stretch",
    "Rounds",
    "Stepper",
    "Weigh",
    "Porch",
    "Shelf",
    "Choice",
    "Analyst",
    "root_in_place",
    "believing",
    "Told",
    "Made",
    "Kept",
    "Known",
    "Did",
    "How",
    "Then",
    "Over",
    "Said",
    "Heard",
    "Seen",
    "Sync",
    "Into",
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && entry.file_name() != "target" {
            all.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            all.push(path);
        }
    }
    all
}

/// The name that a line defines, if it defines an item.
fn defined(line: &str) -> Option<&str> {
    let words = line.trim_start().split(|c: char| !c.is_alphanumeric() && c != '_');
    let mut words =
        words.filter(|word| !["pub", "crate", "super", "in", "unsafe", "const", "async", ""].contains(word));
    let item = ["struct", "enum", "trait", "type", "fn", "mod", "union"].contains(&words.next()?);
    if item { words.next() } else { None }
}

#[test]
fn no_item_has_a_name_of_the_private_language() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for path in sources(&root.join("crates")).into_iter().chain(sources(&root.join("xtask"))) {
        let text = fs::read_to_string(&path).unwrap();
        for (n, line) in text.lines().enumerate() {
            if let Some(name) = defined(line).filter(|name| PRIVATE.contains(name)) {
                found.push(format!("{}:{}: {name}", path.display(), n + 1));
            }
        }
    }
    assert!(found.is_empty(), "names that a reader of the field would not guess:\n{}", found.join("\n"));
}

#[test]
fn definitions_are_found_wherever_they_stand() {
    assert_eq!(defined("    pub(crate) struct Crew<'a> {"), Some("Crew"));
    assert_eq!(defined("pub fn sail(self) {"), Some("sail"));
    assert_eq!(defined("let crew = Crew::new();"), None);
}
