//! Workers that share one GPU: how fast they are beside DDP, what being attached costs one, whether they compute the same,
//! and whether the step of more of them is predicted.
//!
//! NCCL refuses two ranks on one GPU: with it stands one worker, which bounds what handing gradients over costs.

use std::path::{Path, PathBuf};
use std::process::Command;

use paceline_gpu::{Mps, MpsState};
use paceline_statistics::median;
use serde_json::{Value, json};

use super::numbers::{distance, parameters};
use crate::accept::{Line, Report, Setup, number, peers};
use crate::process::{Outcome, last_json, root};

/// The loop that every side runs.
pub const LOOP: &str = "bench/peers/torch_gpu.py";

/// Runs that each median is made from: each holds a median over its own steps, and ten minutes are all that there is.
const ROUNDS: u64 = 3;
/// The GPU.
const GPUS: &str = "--gpus 0 --transport shm";

/// A network, the batch of a worker, further words of both sides, and DDP's buckets in MB.
struct Case {
    model: &'static str,
    batch: u32,
    words: &'static str,
    buckets: [&'static str; 2],
}

const TWO: [Case; 2] = [
    Case { model: "resnet50", batch: 64, words: "--channels-last --steps 25", buckets: ["25", "100"] },
    Case { model: "lenet", batch: 512, words: "--steps 150", buckets: ["25", "1"] },
];
/// Times DDP over gloo.
const FASTER: f64 = 1.2;
/// ResNet-50 computes in the order of memory that NVIDIA's cores are made for, as everybody with autocast should have it; in the
/// other one two workers compute for so long that no exchange shows (58 ms a step, DDP's 62).
const FORMAT: &str = "--channels-last";
/// What one worker computes.
const ONE: &str = "resnet50:128";
/// Its step beside DDP's over NCCL, and beside the plain script's.
const BESIDE_NCCL: f64 = 1.05;
const BESIDE_PLAIN: f64 = 1.10;
/// What is trained for its parameters, and how far they may be from DDP's, in thousandths.
const SAME: [&str; 2] = ["resnet50:16", "lenet:512"];
const CLOSE: f64 = 1.0;
/// What more workers compute, and how far a prediction may be off, in percent.
const SHARED: &str = "resnet50:64";
const OFF: f64 = 10.0;

/// What is asked of one GPU, part by part: a machine that is lent may be taken away before the end.
pub const PARTS: &[&str] = &["parameters", "two", "one", "more"];

/// A part of what is asked of one GPU.
pub fn measure(setup: &Setup, part: &str) -> Outcome<Report> {
    let sides = Sides::new(setup)?;
    let mut report = Report { lines: Vec::new(), runs: vec![json!({"mps": sides.state.name()})] };
    let measured = match part {
        "parameters" => same_parameters(&sides, &mut report),
        "two" => two_workers(&sides, &mut report),
        "one" => one_worker(&sides, &mut report),
        "more" => more_workers(&sides, &mut report),
        other => Err(format!("torch-gpu has no part {other}")),
    };
    measured.map(|()| report)
}

/// How the sides are started: both with the same multi-process service.
struct Sides<'a> {
    setup: &'a Setup,
    state: MpsState,
    mps: Option<Mps>,
    folder: PathBuf,
    rounds: u64,
}

impl<'a> Sides<'a> {
    fn new(setup: &'a Setup) -> Outcome<Self> {
        let folder = setup.work("torch-gpu");
        std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let (state, mps) = Mps::start();
        if let MpsState::Absent(why) = &state {
            println!("     without MPS on either side: {why}");
        }
        Ok(Self { setup, state, mps, folder, rounds: setup.rounds.unwrap_or(ROUNDS) })
    }

    /// What both sides share the GPU by, in words.
    fn sharing(&self) -> &'static str {
        if matches!(self.state, MpsState::Absent(_)) { "no MPS" } else { "MPS for both" }
    }

    fn with_mps(&self, mut command: Command) -> Command {
        command.envs(self.mps.iter().flat_map(Mps::variables)).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// PyTorch's own processes.
    fn theirs(&self, words: &str) -> Command {
        let mut command = Command::new(peers::python(self.setup));
        command.arg(root().join(LOOP)).args(["--side", "ddp"]).args(words.split_whitespace());
        self.with_mps(command)
    }

    /// The loop as workers.
    fn ours(&self, flags: &str, words: &str) -> Command {
        let mut command = self.setup.program();
        command
            .args(["train", "--quiet", "--no-record"])
            .args(GPUS.split(' '))
            .args(flags.split_whitespace());
        command.arg("--script").arg(root().join(LOOP)).arg("--python").arg(peers::python(self.setup));
        command.args(["--", "--side", "paceline"]).args(words.split_whitespace());
        self.with_mps(command)
    }
}

/// Runs a side, once more if it fails: DDP's processes abort now and then when they end. Both are kept.
fn run(mut command: Command, side: &str, words: &str, runs: &mut Vec<Value>) -> Outcome<Value> {
    let result = match last_json(&mut command) {
        Err(error) if side != "paceline" => {
            runs.push(json!({"side": side, "words": words, "failed": error}));
            last_json(&mut command)?
        }
        result => result?,
    };
    runs.push(json!({"side": side, "words": words, "result": result}));
    Ok(result)
}

/// Seconds of a step, by the cases of DDP's side.
fn steps_of(result: &Value, count: usize) -> Outcome<Vec<f64>> {
    (0..count).map(|n| number(result, &format!("/cases/{n}/step_s"))).collect()
}

/// Seconds of a worker's step.
fn step_of(result: &Value) -> Outcome<f64> {
    number(result, "/reported/step_s")
}

/// The better of DDP's buckets is the one with the shorter median step.
fn two_workers(sides: &Sides<'_>, report: &mut Report) -> Outcome {
    for Case { model, batch, words: length, buckets } in &TWO {
        let (mut ours, mut theirs) = (Vec::new(), [Vec::new(), Vec::new()]);
        for _ in 0..sides.rounds {
            let words = format!("--case {model}:{batch} {length}");
            ours.push(step_of(&run(
                sides.ours("--workers 2", &words),
                "paceline",
                &words,
                &mut report.runs,
            )?)?);
            let cases = buckets.map(|bucket| format!("--case {model}:{batch}:{bucket}")).join(" ");
            let words = format!("--workers 2 --backend gloo {cases} {length}");
            let result = run(sides.theirs(&words), "ddp", &words, &mut report.runs)?;
            for (steps, step) in theirs.iter_mut().zip(steps_of(&result, 2)?) {
                steps.push(step);
            }
        }
        let (ours, theirs) =
            (median(&ours), theirs.map(|steps| median(&steps)).into_iter().fold(f64::MAX, f64::min));
        println!("     {model}: {:.2} ms beside {:.2} ms", 1e3 * ours, 1e3 * theirs);
        let claim = format!("{model}, b = {batch}, 2 workers, {}: times DDP over gloo", sides.sharing());
        report.lines.push(Line::new(&claim, theirs / ours, FASTER, false));
    }
    Ok(())
}

/// One worker whose gradients travel although nobody needs them, beside NCCL with one rank and the plain script.
fn one_worker(sides: &Sides<'_>, report: &mut Report) -> Outcome {
    let length = format!("--steps 30 {FORMAT}");
    let (mut ours, mut theirs) = (Vec::new(), [Vec::new(), Vec::new()]);
    for _ in 0..sides.rounds {
        let words = format!("--case {ONE} {length}");
        let command = sides.ours("--workers 1 --staging always", &words);
        ours.push(step_of(&run(command, "paceline", &words, &mut report.runs)?)?);
        let words = format!("--workers 1 --backend nccl --case {ONE}:25 --case {ONE}:plain {length}");
        let result = run(sides.theirs(&words), "ddp", &words, &mut report.runs)?;
        for (steps, step) in theirs.iter_mut().zip(steps_of(&result, 2)?) {
            steps.push(step);
        }
    }
    let (ours, [nccl, plain]) = (median(&ours), theirs.map(|steps| median(&steps)));
    println!("     one worker: {:.2} ms, NCCL {:.2} ms, plain {:.2} ms", 1e3 * ours, 1e3 * nccl, 1e3 * plain);
    for (beside, seconds, wanted) in
        [("DDP over NCCL, alone", nccl, BESIDE_NCCL), ("the plain script", plain, BESIDE_PLAIN)]
    {
        let claim = format!("{ONE}, 1 worker, staged: step time, times that of {beside}");
        report.lines.push(Line::new(&claim, ours / seconds, wanted, true));
    }
    Ok(())
}

/// Parameters after 50 steps, with deterministic algorithms.
fn same_parameters(sides: &Sides<'_>, report: &mut Report) -> Outcome {
    for case in SAME {
        let model = case.split(':').next().unwrap_or(case);
        let words = format!("--deterministic --case {case} --warmup 0 --steps 50");
        let trained = |side: &str, command: &mut Command| -> Outcome<Vec<Vec<f32>>> {
            let file = sides.folder.join(side);
            last_json(command.arg("--keep").arg(&file))?;
            (0..2).map(|rank| parameters(Path::new(&format!("{}.{model}.{rank}", file.display())))).collect()
        };
        let ours = trained("ours", &mut sides.ours("--workers 2", &words))?;
        let theirs = trained("theirs", &mut sides.theirs(&format!("--workers 2 {words}")))?;
        let differing = ours[0].iter().zip(&ours[1]).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        let apart = distance(&ours[0], &theirs[0]);
        report
            .runs
            .push(json!({"case": case, "numbers": ours[0].len(), "differing": differing, "apart": apart}));
        let claim = format!("{model}, 2 workers, 50 steps: parameters that differ between both");
        report.lines.push(Line::new(&claim, differing as f64, 0.0, true));
        let claim = format!("{model}, 2 workers, 50 steps: distance to DDP's parameters, thousandths");
        report.lines.push(Line::new(&claim, 1e3 * apart, CLOSE, true));
    }
    Ok(())
}

/// Steps of 4 and 8 workers, predicted from a calibration with 1 and 2.
fn more_workers(sides: &Sides<'_>, report: &mut Report) -> Outcome {
    let words = format!("--case {SHARED} --steps 1000 {FORMAT}");
    let file = sides.folder.join("calibration.toml");
    let mut calibrate = sides.setup.program();
    calibrate.args(["calibrate", "--quick", "--quiet", "--workers", "1,2", "--gpus", "0", "--steps", "40"]);
    calibrate.arg("--script").arg(root().join(LOOP)).arg("--python").arg(peers::python(sides.setup));
    calibrate.arg("--out").arg(&file).args(["--", "--side", "paceline"]).args(words.split_whitespace());
    // An entry of an earlier time would stay.
    let _ = std::fs::remove_file(&file);
    crate::process::run(&mut sides.with_mps(calibrate))?;
    let measured = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    report.runs.push(json!({"calibration": measured}));
    for workers in [4, 8] {
        let flags = format!("--workers {workers} --strategy ring-allreduce --threads 1 --steps 32");
        let result = run(sides.ours(&flags, &words), "paceline", &flags, &mut report.runs)?;
        // A mean beside a mean: the simulation has no medians.
        let real = number(&result, "/reported/mean_step_s")?;
        let mut simulate = sides.setup.program();
        simulate
            .args(["simulate", "--quiet", "--no-record"])
            .args(GPUS.split(' '))
            .args(flags.split_whitespace());
        simulate.arg("--script").arg(root().join(LOOP)).arg("--python").arg(peers::python(sides.setup));
        simulate
            .arg("--calibration")
            .arg(&file)
            .args(["--", "--side", "paceline"])
            .args(words.split_whitespace());
        let result = run(simulate, "simulate", &flags, &mut report.runs)?;
        let predicted = number(&result, "/seconds/train")? / number(&result, "/steps")?;
        println!("     {workers} workers: {:.2} ms, predicted {:.2} ms", 1e3 * real, 1e3 * predicted);
        let claim = format!(
            "{SHARED}, {workers} workers on one GPU from a calibration with 1 and 2: step time off by percent"
        );
        report.lines.push(Line::new(&claim, 100.0 * (predicted / real - 1.0).abs(), OFF, true));
    }
    Ok(())
}
