//! Files that are refused before anything starts, each with the reason. A file of `broken/` begins with the numbers of
//! workers that it is refused for, and with what must be said.

use std::path::Path;
use std::time::Instant;

use paceline_rounds::Program;

fn counts(text: &str) -> Vec<usize> {
    match text.split_once("..") {
        Some((first, last)) => (first.parse().unwrap()..=last.parse().unwrap()).collect(),
        None => text.split(',').map(|n| n.parse().unwrap()).collect(),
    }
}

#[test]
fn broken_files_are_refused_with_file_line_and_reason() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/broken");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 60, "{} files", files.len());
    let (begun, mut wrong) = (Instant::now(), Vec::new());
    for path in &files {
        let text = std::fs::read_to_string(path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let head = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_else(|| panic!("{name} has no {key}")).trim().to_owned()
        };
        let said = head("# said:");
        for workers in counts(&head("# workers:")) {
            let refused = Program::parse(&name, &text).and_then(|program| program.check(workers, &[], 1, 64));
            match refused {
                Ok(_) => wrong.push(format!("{name} passes with {workers} workers")),
                Err(error) => {
                    let shown = error.to_string();
                    let placed = shown.starts_with(&format!("{name}:{}: ", error.line));
                    let there = (1..=text.lines().count()).contains(&error.line);
                    if !shown.contains(&said) || !placed || !there {
                        wrong.push(format!("{name} with {workers} workers, not `{said}`: {shown}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // A loop that is followed to its end would take hours.
    assert!(begun.elapsed().as_secs() < 200, "{:?}", begun.elapsed());
}

#[test]
fn what_is_refused_for_some_workers_and_steps_passes_for_others() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/broken");
    for (file, workers, steps) in [
        ("rows-of-three-neighbours.toml", 3, 64),
        ("sends-to-nobody-later.toml", 4, 9),
        ("rows-in-a-late-step.toml", 4, 20),
    ] {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        let program = Program::parse(file, &text).unwrap();
        program.check(workers, &[], 1, steps).unwrap_or_else(|error| panic!("{workers} workers: {error}"));
    }
}
