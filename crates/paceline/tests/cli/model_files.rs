//! Networks from files: `--model-file` of `train` and `model show`.

use std::fs;

use crate::support::{paceline, result};

/// A file of the repository's examples.
fn example(name: &str) -> String {
    format!("{}/../../examples/models/{name}.toml", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_file_that_describes_a_registered_model_trains_like_it_on_any_number_of_workers() {
    let train = "train --quiet --steps 5 --batch 24";
    for workers in ["--workers 1", "--workers 2"] {
        let named = result(&format!("{train} {workers} --model mlp"));
        let described = result(&format!("{train} {workers} --model-file {}", example("mlp")));
        assert_eq!(named["params_sha256"], described["params_sha256"], "{workers}");
    }
}

#[test]
fn the_record_holds_the_network_itself() {
    let store = tempfile::tempdir().unwrap();
    let place = store.path().display();
    result(&format!("train --quiet --steps 2 --store {place} --model-file {}", example("gru")));
    let tables = paceline(&format!("export last --format json --store {place}")).result();
    let plan = &tables["tables"]["runs"][0]["plan"];
    assert_eq!(plan["model"], "gru.toml");
    assert_eq!(plan["model-file"], fs::read_to_string(example("gru")).unwrap());
}

#[test]
fn model_show_tells_what_a_file_describes() {
    let ran = paceline(&format!("model show --model-file {} --json", example("lenet")));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let shown: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&shown["model"], &shown["parameters"]), (&"lenet.toml".into(), &1_663_370.into()));
    assert_eq!(shown["gradient_bytes_per_step"], 4 * 1_663_370);
    let text =
        paceline(&format!("model show --model-file {} --input 1x64x1 --classes 65", example("transformer")));
    for word in ["attention", "4 heads, causal", "1×64×65", "MFLOP per sample"] {
        assert!(text.stdout.contains(word), "{word}: {}", text.stdout);
    }
}

#[test]
fn a_wrong_file_is_refused_with_its_line_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("net.toml");
    let place = file.display();
    fs::write(&file, "[[layer]]\nkind = \"dense\"\noutputs = 3\n\n[[layer]]\nkind = \"gru\"\nwide = 2\n")
        .unwrap();
    for words in ["train", "train --workers 2", "model show --data digits"] {
        let ran = paceline(&format!("{words} --model-file {place}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains("net.toml"), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains("line 5: layer `gru2`: needs `width`"), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains("hint:"), "{words}: {}", ran.stderr);
    }
    let missing = paceline(&format!("train --model-file {place}.not"));
    assert_eq!(missing.code, 3);
    assert!(
        missing.stderr.contains("--model-file") && missing.stderr.contains("No such file"),
        "{}",
        missing.stderr
    );
    assert_eq!(paceline(&format!("train --model mlp --model-file {place}")).code, 2);
    assert_eq!(paceline("model show").code, 2);
}

#[test]
fn one_answer_per_sample_is_too_few_for_text() {
    let ran = paceline(&format!("train --data letters --model-file {} --steps 1", example("mlp")));
    assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{}", ran.stderr);
    let reason = "the model gives 1 answers per sample, the dataset asks for 64";
    assert!(ran.stderr.contains(reason), "{}", ran.stderr);
}
