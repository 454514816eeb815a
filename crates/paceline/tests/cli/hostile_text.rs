//! Text of others (levels, commands, errors, columns) reaches no terminal and no page as anything but text.

use std::fs;
use std::path::Path;
use std::process::Command;

use paceline_record::Store;
use paceline_record::store::FILE;

use crate::support::{Ran, joined, run};

/// Sets a terminal's title, clears the screen, and turns the direction of the rest of the line.
const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{202e}txt";
/// The same as people may see it.
const SHOWN: &str = "\\u{1b}]0;owned\\u{7}\\u{1b}[2J\\u{9b}31m\\u{202e}txt";

/// The characters that must not come out.
fn hostile(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn assert_harmless(what: &str, text: &str) {
    assert!(!text.contains(hostile), "{what}: {text:?}");
}

fn paceline(folder: &Path, words: &[&str]) -> Ran {
    let store = folder.join("store");
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    let ran = run(command.args(words).arg("--store").arg(store).current_dir(folder));
    assert_harmless(&format!("{words:?}, standard output"), &ran.stdout);
    assert_harmless(&format!("{words:?}, standard error"), &ran.stderr);
    ran
}

/// The levels of one axis; the third makes the command fail with the same text as its last words.
fn study() -> String {
    let level = HOSTILE.replace('\u{1b}', "\\u001b").replace('\u{7}', "\\u0007").replace('\u{9b}', "\\u009b");
    format!(
        "sampler = \"grid\"\n[command]\n\
         run = [\"sh\", \"-c\", 'case $0 in fail*) echo \"$0\" >&2; exit 3;; esac; echo time_s=2', \"{{a}}\"]\n\
         metrics = {{ time_s = 'time_s=(\\d+)' }}\n[axes]\n\
         a = [\"{level}\", \"two\\nlines\", \"fail {level}\"]\n\
         [[objectives]]\nmetric = \"time_s\"\ngoal = \"minimize\"\n"
    )
}

#[test]
fn levels_and_errors_of_studies_are_shown_escaped_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("s.toml"), study()).unwrap();
    let planned = paceline(folder, &["plan", "s.toml", "--no-probe"]);
    assert!(
        planned.stdout.contains(SHOWN) && planned.stdout.contains("a two\\nlines\n"),
        "{}",
        planned.stdout
    );
    let explored = paceline(folder, &["explore", "s.toml"]);
    assert_eq!(explored.code, 0, "{}", explored.stderr);
    assert!(joined(&explored.stderr).contains(&format!("failed: fail {SHOWN}")), "{}", explored.stderr);
    assert!(explored.stdout.contains(&format!("best: a {SHOWN}\n")), "{}", explored.stdout);
    assert!(paceline(folder, &["status", "s"]).stdout.contains(SHOWN));
    for words in [&["status"][..], &["analyze", "s"], &["resume", "s"], &["predict", "s"]] {
        paceline(folder, words);
    }
    // Programs get the text as it was.
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    let json = run(command.args(["status", "s", "--json", "--store"]).arg(folder.join("store")));
    assert_eq!(json.result()["best"]["levels"]["a"], HOSTILE);
}

#[test]
fn mistakes_in_files_and_words_are_quoted_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for text in [
        format!("name = \"{HOSTILE}\"\n"),
        study().replace("[axes]", &format!("[axes]\n\"{HOSTILE}\" = [1]")),
    ] {
        fs::write(folder.join("bad.toml"), text).unwrap();
        let checked =
            run(Command::new(env!("CARGO_BIN_EXE_paceline")).args(["check", "bad.toml"]).current_dir(folder));
        assert_eq!(checked.code, 3, "{}", checked.stderr);
        assert_harmless("check", &checked.stderr);
    }
    for words in [
        &["show", HOSTILE][..],
        &["status", HOSTILE],
        &["explore", HOSTILE],
        &["analyze", "--factor", HOSTILE],
    ] {
        assert_ne!(paceline(folder, words).code, 0);
    }
    let unknown = run(Command::new(env!("CARGO_BIN_EXE_paceline")).arg(HOSTILE));
    assert_eq!(unknown.code, 2);
    assert_harmless("an unknown verb", &unknown.stderr);
    assert!(unknown.stderr.contains("error: unrecognized subcommand"), "{}", unknown.stderr);
}

#[test]
fn a_stored_error_is_listed_and_shown_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    drop(Store::create(&store).unwrap());
    let sql = "INSERT INTO runs (run, origin, state, started_s, seen_s, ended_s, steps, steps_done, error) \
               VALUES ('r1', 'measured', 'failed', 1, 2, 3, 10, 10, ?)";
    let connection = rusqlite::Connection::open(store.join(FILE)).unwrap();
    connection.execute(sql, [format!("lost\n{HOSTILE}")]).unwrap();
    drop(connection);
    let listed = paceline(folder.path(), &["runs"]);
    assert!(joined(&listed.stdout).contains(&format!("lost\\n{SHOWN}")), "{}", listed.stdout);
    assert!(paceline(folder.path(), &["show", "r1"]).stdout.contains(SHOWN));
    paceline(folder.path(), &["explain", "r1"]);
}

#[test]
fn columns_and_levels_of_a_table_are_text_in_analyses_and_reports() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let column = "<script>alert(1)</script>";
    let mut text = format!("{column},time_s\n");
    for i in 0..24 {
        let level = if i % 2 == 0 { HOSTILE } else { "![x](http://example.org/y) <img src=x>" };
        text += &format!("{level},{}\n", 1.0 + f64::from(i % 2) + 0.01 * f64::from(i % 5));
    }
    fs::write(folder.join("runs.csv"), text).unwrap();
    let asked = ["--table", "runs.csv", "--factor", column, "--response", "time_s"];
    let analysed = paceline(folder, &[&["analyze"], &asked[..]].concat());
    assert_eq!(analysed.code, 0, "{}", analysed.stderr);
    assert!(analysed.stdout.contains(SHOWN), "{}", analysed.stdout);
    let reported = paceline(folder, &[&["report"], &asked[..]].concat());
    assert_eq!(reported.code, 0, "{}", reported.stderr);
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    let markdown = read(&folder.join("report/report.md"));
    assert_harmless("report.md", &markdown);
    assert!(markdown.contains("&lt;script&gt;alert(1)") && markdown.contains("!\\[x\\](http"), "{markdown}");
    for bad in ["<script", "<img", "![x]"] {
        assert!(!markdown.contains(bad), "{bad}: {markdown}");
    }
    let html = read(&folder.join("report/report.html"));
    assert!(!html.contains("<script>alert") && !html.contains("<img src=x"));
    assert!(html.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    let mut drawings = 0;
    for entry in fs::read_dir(folder.join("report/charts")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|kind| kind == "svg") {
            let svg = read(&path);
            assert_harmless(&path.display().to_string(), &svg);
            assert!(!svg.contains("<script") && !svg.contains("<img"), "{}", path.display());
            drawings += 1;
        }
    }
    assert!(drawings > 0);
}
