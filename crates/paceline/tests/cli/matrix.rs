//! Every dataset with every model, each of both with every family of strategies: that it trains, or is refused in
//! words. Tiny files of the real formats stand in for those that must be fetched.

use std::fs;
use std::path::Path;

use paceline_data::{DATASETS, example};
use paceline_nn::models::MODELS;
use tempfile::TempDir;

use crate::support::{paceline, result};

/// One line for each way of averaging, and for each consistency model of servers.
const FAMILIES: [&str; 13] = [
    "--strategy auto",
    "--strategy ring-allreduce",
    "--strategy ps --servers 2",
    "--strategy stepwise",
    "--strategy ps --servers 1 --sync asp",
    "--strategy gossip",
    "--strategy local --local-steps 2",
    "--strategy ps --servers 1 --sync ssp --staleness 1",
    "--strategy tree --compression fp16",
    "--strategy halving-doubling",
    "--strategy ring-reduce",
    "--strategy direct",
    "--strategy hierarchical",
];
/// Models for images with height and width: a sequence has none.
const FLAT_REFUSED: [&str; 3] = ["lenet", "ddnn", "ddnn-edge"];
/// Models with an answer at every position, as texts need.
const EVERYWHERE: [&str; 3] = ["gru", "lstm", "transformer"];
/// A model whose parameters alone take seconds.
const LARGE: &str = "resnet50";

/// A folder with a small form of every dataset that is read from files.
fn files() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    for name in ["mnist", "fashion-mnist"] {
        images(&dir.join(name));
    }
    example::cifar(&dir.join("cifar-10"), 40, 10).unwrap();
    example::images(&dir.join("image-folder"), 40, 10, 3, 20).unwrap();
    example::series(&dir.join("ts"), 40, 10).unwrap();
    for (place, name) in [("JapaneseVowels", "JapaneseVowels"), ("BasicMotions", "BasicMotions")] {
        fs::create_dir(dir.join(place)).unwrap();
        for part in ["TRAIN", "TEST"] {
            let to = dir.join(place).join(format!("{name}_{part}.ts"));
            fs::copy(dir.join(format!("ts/Waves_{part}.ts")), to).unwrap();
        }
    }
    fs::create_dir(dir.join("tinyshakespeare")).unwrap();
    example::text(&dir.join("tinyshakespeare/tinyshakespeare.txt"), 4_000).unwrap();
    fs::create_dir(dir.join("text")).unwrap();
    example::text(&dir.join("text/own.txt"), 4_000).unwrap();
    folder
}

/// MNIST's four files with 40 and 10 images.
fn images(folder: &Path) {
    fs::create_dir(folder).unwrap();
    for (part, count) in [("train", 40_u32), ("t10k", 10)] {
        let head = |magic: u32, sizes: &[u32]| -> Vec<u8> {
            [magic].iter().chain(sizes).flat_map(|word| word.to_be_bytes()).collect()
        };
        let mut pixels = head(0x803, &[count, 28, 28]);
        pixels.extend((0..count * 784).map(|i| (i % 251) as u8));
        fs::write(folder.join(format!("{part}-images-idx3-ubyte")), pixels).unwrap();
        let mut labels = head(0x801, &[count]);
        labels.extend((0..count).map(|i| (i % 10) as u8));
        fs::write(folder.join(format!("{part}-labels-idx1-ubyte")), labels).unwrap();
    }
}

/// What the samples of a dataset are.
fn kind(data: &str) -> &'static str {
    match data {
        "digits" | "mnist" | "fashion-mnist" | "cifar-10" | "image-folder" | "synthetic"
        | "synthetic-colour" | "views" | "mnist-views" => "images",
        "japanese-vowels" | "basic-motions" | "ts" | "series" => "series",
        "tinyshakespeare" | "text" | "letters" => "text",
        new => panic!("say in this table what the samples of {new} are"),
    }
}

/// Whether a model can be trained on such samples.
fn fits(model: &str, kind: &str) -> bool {
    match kind {
        "images" => true,
        "series" => !FLAT_REFUSED.contains(&model),
        _ => EVERYWHERE.contains(&model),
    }
}

fn words(data: &str, model: &str, dir: &Path) -> String {
    // Datasets that are somebody's own need their folder; the others are found in theirs.
    let (place, settings) = match data {
        "image-folder" => (dir.join(data), "--image-size 12"),
        "ts" => (dir.join(data), ""),
        "text" => (dir.join(data), "--window 16"),
        "tinyshakespeare" | "letters" => (dir.into(), "--window 16"),
        _ => (dir.into(), ""),
    };
    let place = place.display();
    format!("train --quiet --data {data} --model {model} {settings} --data-dir {place}")
}

/// Trains two steps, and looks whether they came to something.
fn trains(data: &str, model: &str, family: &str, dir: &Path) {
    let run = "--workers 2 --transport inproc --steps 2 --batch 4 --lr 0.001 --eval-every 1000000";
    let words = format!("{} {run} {family}", words(data, model, dir));
    let result = result(&words);
    // After two updates that do not wait for each other, the large model's running statistics are nobody's: its loss on
    // the test split is anything up to infinity.
    let loss = if model == LARGE && family.contains("--sync") { "train_loss" } else { "final_loss" };
    assert!(result[loss].as_f64().is_some_and(f64::is_finite), "{words}: {result}");
    assert_eq!(result["samples"], 16, "{words}");
}

/// All pairs of the datasets of a kind with the models that pass, families taking turns.
fn matrix(of: &str, chosen: impl Fn(&str) -> bool) {
    let folder = files();
    for (d, source) in DATASETS.iter().enumerate().filter(|(_, source)| kind(source.name) == of) {
        for (m, model) in MODELS.iter().enumerate().filter(|(_, model)| chosen(model.name)) {
            if fits(model.name, of) {
                trains(source.name, model.name, FAMILIES[(d + m) % FAMILIES.len()], folder.path());
            } else {
                let ran = paceline(&words(source.name, model.name, folder.path()));
                assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{}: {}", model.name, ran.stderr);
                assert!(ran.stderr.contains("hint:"), "{}", ran.stderr);
            }
        }
    }
}

#[test]
fn every_model_trains_on_every_kind_of_image() {
    matrix("images", |model| model != LARGE);
}

#[test]
fn every_model_for_sequences_trains_on_every_kind_of_series() {
    matrix("series", |model| model != LARGE);
}

#[test]
fn every_model_with_answers_everywhere_trains_on_every_text() {
    matrix("text", |_| true);
    // Few models fit, so that the families do not all come round by themselves.
    let folder = files();
    for (i, family) in FAMILIES.iter().enumerate() {
        let (data, model) = (["letters", "text", "tinyshakespeare"][i % 3], EVERYWHERE[(i / 3) % 3]);
        trains(data, model, family, folder.path());
    }
}

#[test]
fn the_large_model_trains_on_images_and_series() {
    let folder = files();
    let sets = DATASETS.iter().filter(|source| fits(LARGE, kind(source.name)));
    for (i, source) in sets.enumerate() {
        trains(source.name, LARGE, FAMILIES[i % FAMILIES.len()], folder.path());
    }
}

#[test]
fn every_strategy_is_in_a_family_and_every_family_comes_round() {
    let strategies = paceline_protocol::STRATEGIES;
    let named = |name: &str| FAMILIES.iter().any(|family| family.contains(&format!("--strategy {name}")));
    assert!(strategies.iter().all(|strategy| named(strategy.name)), "a strategy is in no family");
    // A turn of the datasets is as long as that of the families; one of the models leaves few of them out.
    assert!(MODELS.len() + 3 >= FAMILIES.len() && DATASETS.len() >= FAMILIES.len());
}
