//! Whatever is in a file, it is read or refused: examples with random bytes changed, words taken out and doubled.

use std::path::Path;

use paceline_random::{Purpose, Stream};
use paceline_rounds::Program;

/// Words that are put in.
const WORDS: &[&str] = &[
    "0",
    "-1",
    "1e300",
    "workers",
    "rank",
    "k",
    "step",
    "mod",
    "if",
    "else",
    "(",
    ")",
    "mass(x)",
    "random(step, 0)",
    "peer",
    "chunk",
    "relay = true",
    "when = \"false\"",
    "window = 1",
    "repeat = 3",
    "[[round]]",
    "{ update = \"x\" }",
    "independent = true",
    "chunks = 3",
    "\"",
    "=",
    ",",
    "pow(10, 400)",
    "1 / 0",
];

fn mutant(text: &str, seed: u64) -> String {
    let s = Stream::new(seed, Purpose::Bench);
    let mut words: Vec<&str> = text.split_inclusive([' ', '\n']).collect();
    for change in 0..1 + s.below(0, 3) {
        let at = s.below(4 * change + 1, words.len() as u64) as usize;
        let word = WORDS[s.below(4 * change + 2, WORDS.len() as u64) as usize];
        match s.below(4 * change + 3, 4) {
            0 => drop(words.remove(at)),
            1 => words.insert(at, words[at]),
            2 => words.insert(at, word),
            _ => words[at] = word,
        }
    }
    words.concat()
}

#[test]
fn a_changed_file_is_read_or_refused_and_never_a_crash() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/strategies");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    let (mut read, mut refused) = (0, 0);
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        for seed in 0..400 {
            let changed = mutant(&text, seed);
            let checked = Program::parse("mutant.toml", &changed).and_then(|program| {
                program.check(1 + seed as usize % 5, &[], seed, 12)?;
                // What passes can be shown.
                program.rounds(1 + seed as usize % 5, seed % 12, seed)
            });
            match checked {
                Ok(_) => read += 1,
                Err(error) => {
                    refused += 1;
                    assert!(
                        !error.problem.is_empty() && error.line <= changed.lines().count() + 1,
                        "{error}"
                    );
                }
            }
        }
    }
    assert!(read > 100 && refused > 1_000, "{read} read, {refused} refused");
}
