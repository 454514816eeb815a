//! What must be learnt on each kind of dataset, and how much of the speed is left when images come from disk.

use std::fs;

use paceline_data::example;
use paceline_statistics::median;
use serde_json::json;

use super::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json};

/// Images of the generated folder, their classes, and the side of the originals.
const IMAGES: (usize, usize, usize) = (2_000, 10, 300);
/// Runs that each median of speeds is made from.
const RUNS: usize = 5;

/// Accuracy on images and series, loss on text.
pub fn learning(setup: &Setup) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    for (data, model, words, path, wanted, at_most) in [
        (
            "cifar-10",
            "resnet20",
            "--epochs 6 --batch 64 --lr 0.05 --schedule cosine --weight-decay 5e-4",
            "/final_accuracy",
            0.5,
            false,
        ),
        (
            "japanese-vowels",
            "gru",
            "--epochs 60 --batch 16 --optimizer adam --lr 0.002 --schedule cosine",
            "/final_accuracy",
            0.95,
            false,
        ),
        (
            "tinyshakespeare",
            "transformer",
            "--epochs 2 --batch 32 --optimizer adamw --lr 0.001 --warmup 0.05 --schedule cosine",
            "/final_loss",
            2.0,
            true,
        ),
    ] {
        let result = last_json(setup.train(data, model).args(["--threads", "2"]).args(words.split(' ')))?;
        let claim = format!("{data}/{model}: {}", if at_most { "nats per character" } else { "accuracy" });
        report.lines.push(Line { claim, reached: number(&result, path)?, wanted, at_most });
        if at_most {
            let claim = format!("{data}/{model}: seconds of training");
            let reached = number(&result, "/seconds/train")?;
            report.lines.push(Line { claim, reached, wanted: 300.0, at_most });
        }
        report.runs.push(json!({"data": data, "model": model, "flags": words, "result": result}));
    }
    Ok(report)
}

/// Images decoded while training goes on, beside the same network on samples that lie in memory.
pub fn streaming(setup: &Setup) -> Outcome<Report> {
    let folder = setup.work("images");
    if !folder.join("whole").exists() {
        let (images, classes, side) = IMAGES;
        let made = example::images(&folder, images, images / 20, classes, side);
        made.and_then(|()| fs::write(folder.join("whole"), ""))
            .map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let (mut from_disk, mut from_memory) = (Vec::new(), Vec::new());
    for round in 0..RUNS {
        let mut command = setup.train("image-folder", "resnet50");
        command.arg("--data-dir").arg(&folder).args(["--batch", "16", "--steps", "10", "--lr", "0.01"]);
        let disk = last_json(&mut command)?;
        let mut command = setup.program();
        command.args([
            "bench",
            "compute",
            "--model",
            "resnet50",
            "--batch",
            "16",
            "--seconds",
            "10",
            "--json",
        ]);
        let memory = last_json(&mut command)?;
        from_disk.push(number(&disk, "/samples_per_s")?);
        from_memory.push(number(&memory, "/samples_per_s")?);
        report.runs.push(json!({"round": round, "from_disk": disk, "from_memory": memory}));
    }
    report.lines.push(Line {
        claim: "image-folder/resnet50: speed, as a part of that from memory".into(),
        reached: median(&from_disk) / median(&from_memory),
        wanted: 0.8,
        at_most: false,
    });
    Ok(report)
}
