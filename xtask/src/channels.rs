//! `cargo xtask bench channels`: the figures behind `docs/channels.md`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use paceline_bench::Channels;
use serde_json::Value;

use crate::process::{self, Outcome, cargo, program, root};

/// Where the figures lie, from the repository's root.
pub const FILE: &str = "bench/channels/channels.json";

/// What is measured: every transport that is registered.
pub const COMMAND: &str = "bench channels --sizes 64,4KiB,64KiB,1MiB,16MiB --buffers default,64KiB,1MiB \
                           --payload uniform,random,skewed --repeats 5 --seconds 0.3 --seed 1 --json";

/// Builds the program, measures, and keeps every repeat.
pub fn measure() -> Outcome {
    process::run(&mut cargo(&["build", "--release"]))?;
    println!("$ paceline {COMMAND}");
    let mut command = Command::new(program());
    let output = command.args(COMMAND.split_whitespace()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{}: {error}", program().display()))?;
    if !output.status.success() {
        return Err(format!("`paceline {COMMAND}` failed: {}", output.status));
    }
    let document: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("`paceline {COMMAND}` did not print one document: {error}"))?;
    let path = root().join(FILE);
    fs::create_dir_all(path.parent().expect("the file lies in a folder"))
        .and_then(|()| fs::write(&path, by_lines(document)))
        .map_err(|error| format!("{FILE}: {error}"))?;
    println!("{FILE} is written; `cargo xtask docs` puts it into docs/channels.md");
    Ok(())
}

/// A document with one point per line: readable, and changes show line by line.
fn by_lines(mut document: Value) -> String {
    let points = document["points"].take();
    let points: Vec<_> =
        points.as_array().into_iter().flatten().map(|point| format!("    {point}")).collect();
    let text = serde_json::to_string_pretty(&document).expect("plain data");
    text.replace("\"points\": null", &format!("\"points\": [\n{}\n  ]", points.join(",\n"))) + "\n"
}

/// The figures, if there are any.
pub fn read(path: &Path) -> Outcome<Option<Channels>> {
    if !path.exists() {
        return Ok(None);
    }
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text).map(Some).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_is_kept_with_one_point_per_line() {
        let document = json!({"bench": "channels", "points": [{"a": [1, 2]}, {"a": [3]}], "seed": 1});
        let text = by_lines(document.clone());
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), document);
        assert!(text.contains("    {\"a\":[1,2]},\n    {\"a\":[3]}\n"), "{text}");
    }
}
