//! The registry of figures.

use paceline_record::figures::{FIGURES, Figures};

#[test]
fn names_are_unique_and_old_ones_are_still_read() {
    let figures = Figures::default();
    let mut names: Vec<&str> =
        FIGURES.iter().flat_map(|f| f.old_names.iter().copied().chain([f.name])).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(FIGURES.iter().all(|figure| !(figure.of_runs.is_empty() && figure.of_commands.is_empty())));
    assert_eq!((figures.name("train_s"), figures.name("mine")), ("seconds.train", "mine"));
    assert_eq!(figures.renamed([("train_s".into(), 1.0)].into())["seconds.train"], 1.0);
}

#[test]
fn what_the_registry_does_not_have_is_told_by_its_name() {
    let figures = Figures::default();
    assert_eq!(["samples_per_s", "mine_per_s", "x"].map(|n| figures.unit(n)), ["samples/s", "1/s", ""]);
    let pace = ["samples_per_s", "infer.p95_ms", "seconds.train", "mine_s", "sent_bytes", "mine"];
    assert_eq!(pace.map(|name| figures.follows_pace(name)), [true, true, true, true, false, false]);
}
