//! A network in stages, a core for each: beside one worker that passes the same micro-batches, beside what even stages could
//! reach at best, and beside torch's Schedule1F1B over gloo.

use paceline_statistics::median;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};

use super::peers::Peers;
use super::{Line, Report, Setup, number};
use crate::process::{Outcome, last_json, with_data};

/// The peer's loop.
pub const LOOP: &str = "bench/peers/torch_pipeline.py";

/// Rounds that medians are made from; `--rounds` says otherwise.
const ROUNDS: u64 = 5;
/// Samples of a micro-batch.
const MICRO_BATCH: u32 = 16;

/// A network in this many stages.
struct Case {
    stages: u32,
    /// Cores from which on it is measured, and from which on it is not any more.
    cores: (usize, usize),
    /// Our steps, and those of one worker.
    steps: (u32, u32),
    /// The part of what is possible that is asked for.
    wanted: f64,
}

const CASES: [Case; 3] = [
    Case { stages: 2, cores: (2, 8), steps: (24, 24), wanted: 0.93 },
    Case { stages: 4, cores: (8, usize::MAX), steps: (32, 12), wanted: 0.88 },
    Case { stages: 8, cores: (16, usize::MAX), steps: (32, 6), wanted: 0.88 },
];

impl Case {
    fn micro_batches(&self) -> u32 {
        4 * self.stages
    }

    /// A replica's batch.
    fn batch(&self) -> u32 {
        self.micro_batches() * MICRO_BATCH
    }

    /// What all cases have in common, in words that both sides understand.
    fn words(&self) -> String {
        format!("--batch {} --micro-batches {}", self.batch(), self.micro_batches())
    }

    /// The speed of stages, by their rate, that of one worker, and the seconds that each stage computes.
    fn speed(&self, rate: f64, alone: f64, stages: &[f64]) -> Speed {
        let [s, m] = [self.stages, self.micro_batches()].map(f64::from);
        let balance = stages.iter().sum::<f64>() / s / stages.iter().copied().fold(0.0, f64::max);
        let efficiency = rate / (s * alone);
        Speed { efficiency, balance, of_possible: efficiency / (balance * m / (m + s - 1.0)) }
    }
}

/// The speed of s stages.
struct Speed {
    /// Of s times one worker.
    efficiency: f64,
    /// The mean stage's time, of the longest one's.
    balance: f64,
    /// Of what stages of these lengths could reach without waiting for messages.
    of_possible: f64,
}

/// A side's speed in each round.
#[derive(Default)]
struct SpeedSamples(Vec<Speed>);

impl SpeedSamples {
    fn push(&mut self, side: &str, speed: Speed) {
        println!(
            "     {side}: {:.1}% of s times one worker, balance {:.1}%, {:.1}% of what is possible",
            100.0 * speed.efficiency,
            100.0 * speed.balance,
            100.0 * speed.of_possible
        );
        self.0.push(speed);
    }

    fn of_possible(&self) -> f64 {
        median(&self.0.iter().map(|speed| speed.of_possible).collect::<Vec<_>>())
    }
}

/// Numbers of stages, each a part.
pub const PARTS: &[&str] = &["2", "4", "8"];

/// Stages beside one worker, ours and torch's. All parts together leave out what the machine has too few or too many cores for.
pub fn measure(setup: &Setup, part: &str) -> Outcome<Report> {
    let mut report = Report { lines: Vec::new(), runs: Vec::new() };
    let allowed = sched_getaffinity(None).map_err(|error| format!("cores of this process: {error}"))?;
    let here = cores_of(&allowed).len();
    let fits = |case: &&Case| setup.only.is_some() || (case.cores.0..case.cores.1).contains(&here);
    let case = CASES.iter().filter(|case| case.stages.to_string() == part).find(fits);
    let Some(case) = case else {
        println!("-    {part} stages: not measured on {here} cores, unless `--only {part}` asks for it");
        return Ok(report);
    };
    let peers = Peers::new(setup)?;
    let own = own_cores(&allowed);
    report.runs.push(json!({"allowed_cores": cores_of(&allowed), "physical_cores": own}));
    // Where two cores are one, a stage that shares it would be measured beside a worker that has it alone.
    let apart = own.len() >= case.stages as usize;
    let set = if apart { set_of(&own) } else { allowed };
    if !apart {
        println!("     {} stages share {} physical cores", case.stages, own.len());
    }
    sched_setaffinity(None, &set).map_err(|error| format!("choosing cores: {error}"))?;
    let measured = beside(setup, &peers, case, &mut report);
    sched_setaffinity(None, &allowed).map_err(|error| format!("choosing cores: {error}"))?;
    measured.map(|()| report)
}

/// A case's rounds, and its lines.
fn beside(setup: &Setup, peers: &Peers<'_>, case: &Case, report: &mut Report) -> Outcome {
    let cuts = automatic(setup, case)?;
    println!("     {} stages, cut before {cuts}", case.stages);
    let (mut ours, mut theirs) = (SpeedSamples::default(), SpeedSamples::default());
    for round in 0..setup.rounds.unwrap_or(ROUNDS).max(1) {
        ours.push("ours", own(peers, round, case, &cuts, &mut report.runs)?);
        theirs.push("torch's Schedule1F1B over gloo", peer(peers, round, case, &cuts, &mut report.runs)?);
    }
    let reached = ours.of_possible();
    let claim = format!(
        "resnet20, {} stages, {} micro-batches of {MICRO_BATCH}: part of balance × m/(m+s−1) × s × one worker",
        case.stages,
        case.micro_batches()
    );
    report.lines.push(Line::new(&claim, reached, case.wanted, false));
    // Of s times one worker nobody can have more than m ÷ (m + s − 1): both are parts of what their own stages allow.
    let claim = format!(
        "{} stages: the same, beside that part of torch's Schedule1F1B over gloo ({:.1}%) + 10 points (at most 95%)",
        case.stages,
        100.0 * theirs.of_possible()
    );
    report.lines.push(Line::new(&claim, reached, (theirs.of_possible() + 0.1).min(0.95), false));
    Ok(())
}

/// Where `--cuts auto` cuts: the names of the layers that it cuts before.
fn automatic(setup: &Setup, case: &Case) -> Outcome<String> {
    let mut show = setup.program();
    show.args(["model", "show", "resnet20", "--json", "--stages", &case.stages.to_string()]);
    let shown = last_json(show.args(case.words().split_whitespace()))?;
    let stages = shown.pointer("/pipeline/stage").and_then(Value::as_array).into_iter().flatten().skip(1);
    let names: Vec<&str> = stages.filter_map(|stage| stage["first_layer"].as_str()).collect();
    if names.len() + 1 == case.stages as usize {
        Ok(names.join(","))
    } else {
        Err(format!("model show says no first layer of each stage: {shown}"))
    }
}

/// Our stages along 1f1b beside one worker, one after the other.
fn own(peers: &Peers<'_>, round: u64, case: &Case, cuts: &str, runs: &mut Vec<Value>) -> Outcome<Speed> {
    let mut run = |steps: u32, stages: &str| {
        let mut command = peers.paceline();
        with_data(&mut command);
        command
            .args(["train", "--quiet", "--data", "synthetic-colour", "--model", "resnet20", "--no-record"])
            .args(["--eval-every", "1000000", "--eval-samples", "64", "--pin", "--steps", &steps.to_string()])
            .args(case.words().split_whitespace())
            .args(stages.split_whitespace());
        let result = last_json(&mut command)?;
        runs.push(json!({"round": round, "side": "paceline", "words": stages, "result": result}));
        Ok::<_, String>(result)
    };
    let alone = number(&run(case.steps.1, "")?, "/samples_per_s")?;
    let words = format!("--stages {} --pipeline 1f1b --cuts {cuts} --transport shm", case.stages);
    let staged = run(case.steps.0, &words)?;
    let stages: Outcome<Vec<f64>> =
        (0..case.stages).map(|rank| number(&staged, &format!("/ranks/{rank}/compute_s"))).collect();
    Ok(case.speed(number(&staged, "/samples_per_s")?, alone, &stages?))
}

/// Torch's stages beside one process.
fn peer(peers: &Peers<'_>, round: u64, case: &Case, cuts: &str, runs: &mut Vec<Value>) -> Outcome<Speed> {
    let mut command = peers.own_script(LOOP);
    command.args(case.words().split_whitespace()).args(["--cuts", cuts]).env("PYTHONDONTWRITEBYTECODE", "1");
    let [staged, alone] = [case.steps.0, case.steps.1].map(|steps| (steps / 2).max(4).to_string());
    let result = last_json(command.args(["--steps", &staged, "--alone-steps", &alone]))?;
    let stages: Outcome<Vec<f64>> =
        (0..case.stages).map(|stage| number(&result, &format!("/stage_s/{stage}"))).collect();
    let [rate, alone] = ["/samples_per_s", "/alone_samples_per_s"].map(|path| number(&result, path));
    let speed = case.speed(rate?, alone?, &stages?);
    runs.push(json!({"round": round, "side": "torch", "result": result}));
    Ok(speed)
}

fn cores_of(set: &CpuSet) -> Vec<usize> {
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

fn set_of(cores: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cores.iter().for_each(|&core| set.set(core));
    set
}

/// Of the cores that this process may use, the first one of each physical core. (A kernel that does not tell has none
/// that are shared.)
fn own_cores(allowed: &CpuSet) -> Vec<usize> {
    let mut seen = Vec::new();
    let siblings = |core: usize| {
        let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        std::fs::read_to_string(path).unwrap_or_else(|_| core.to_string())
    };
    cores_of(allowed)
        .into_iter()
        .filter(|&core| {
            let siblings = siblings(core);
            let first = !seen.contains(&siblings);
            seen.push(siblings);
            first
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_possible_is_balance_and_filling() {
        let case = &CASES[0];
        // 8 micro-batches in 2 stages: 8 of 9 turns are filled.
        let even = case.speed(2.0 * 8.0 / 9.0, 1.0, &[3.0, 3.0]);
        assert!((even.of_possible - 1.0).abs() < 1e-12 && (even.balance - 1.0).abs() < 1e-12);
        assert!((even.efficiency - 8.0 / 9.0).abs() < 1e-12);
        let uneven = case.speed(8.0 / 9.0, 1.0, &[1.0, 3.0]);
        assert!((uneven.balance - 2.0 / 3.0).abs() < 1e-12);
        assert!((uneven.of_possible - 0.75).abs() < 1e-12);
    }

    #[test]
    fn every_case_is_a_part() {
        assert_eq!(CASES.map(|case| case.stages.to_string()), PARTS);
    }

    #[test]
    fn every_machine_with_two_cores_has_a_case() {
        for cores in 2..=64 {
            assert!(CASES.iter().any(|case| (case.cores.0..case.cores.1).contains(&cores)), "{cores}");
        }
    }
}
