//! Travelling averages do what their page says (`docs/travelling-averages.md`): the file beside the rule written down a second
//! time, with averages that lie nowhere instead of registers.

use std::path::Path;
use std::sync::Arc;

use paceline_protocol::setup::part;
use paceline_protocol::{FROM_FILE, GradientScale, Participant, Setup, StrategyProgram, WorkUnit};
use paceline_random::{Purpose, Stream};
use paceline_rounds::Program;
use paceline_sim::{Costs, NumericMemory, simulate};

const PARAMS: usize = 67;

fn text() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/strategies");
    std::fs::read_to_string(folder.join("travelling-averages.toml")).unwrap()
}

fn replaced(text: &str, what: &str, by: &str) -> String {
    assert_eq!(text.matches(what).count(), 1, "{what}");
    text.replace(what, by)
}

/// Each worker pulls towards numbers of its own.
fn optimum(rank: usize, i: usize) -> f32 {
    Stream::new(7, Purpose::Bench).fork(rank as u64).normal(i as u64) as f32
}

fn gradient(rank: usize, params: &[f32], grads: &mut [f32]) {
    for (i, (g, p)) in grads.iter_mut().zip(params).enumerate() {
        *g = 0.02 * (p - optimum(rank, i));
    }
}

/// What the file makes of everybody's parameters, in virtual time.
fn of_file(text: &str, workers: usize, steps: u64) -> Vec<Vec<f32>> {
    let program = Arc::new(Program::parse("travelling-averages.toml", text).unwrap());
    let averages = StrategyProgram::averages(&*program);
    let (bucket, message) = (1 << 20, 1 << 20);
    let setup =
        Setup { bucket, message, averages, program: Some(program), ..Setup::new(workers, 0, PARAMS, steps) };
    FROM_FILE.check(&setup).unwrap();
    let participants: Vec<Box<dyn Participant>> =
        (0..workers).map(|rank| FROM_FILE.participant(&setup, rank)).collect();
    let scratch = participants.iter().map(|p| p.scratch()).collect();
    let compute = |rank: usize, _: WorkUnit, _: GradientScale, params: &[f32], grads: &mut [f32]| {
        gradient(rank, params, grads);
    };
    let mut memory = NumericMemory::new(&[0.5; PARAMS], scratch, compute);
    let costs = Costs::constant(workers, 1_000, 100, 1.0);
    let report = simulate(&setup, participants, &costs, &mut memory, None, &[]);
    assert_eq!(report.stuck, [0usize; 0]);
    (0..workers).map(|rank| memory.params(rank).to_vec()).collect()
}

/// The rule by hand: one average per chunk, and whom it visits.
fn by_hand(lap: usize, workers: usize, steps: u64) -> Vec<Vec<f32>> {
    let (rests, hops) = ((lap / workers).max(1), (workers / lap).max(1));
    let chunks = workers * rests;
    let learn = (0.5 * hops as f64 / chunks as f64) as f32;
    let share = (1.0 / workers as f64) as f32;
    let mut models = vec![vec![0.5f32; PARAMS]; workers];
    let mut averages = vec![0.0f32; PARAMS];
    let (mut taken, mut drift) = (models.clone(), vec![vec![0.0f32; PARAMS]; workers]);
    for step in 0..steps as usize {
        for rank in 0..workers {
            let mut grads = vec![0.0; PARAMS];
            gradient(rank, &models[rank], &mut grads);
            for i in 0..PARAMS {
                models[rank][i] -= grads[i];
                models[rank][i] += drift[rank][i];
            }
        }
        if step == 0 {
            taken.clone_from(&models);
            for chunk in 0..chunks {
                let range = part(&(0..PARAMS), chunks, chunk);
                averages[range.clone()].copy_from_slice(&models[chunk / rests][range]);
            }
        }
        for hop in 0..hops {
            for first in 0..workers {
                let chunk = first * rests + step % rests;
                let rank = (first + step / rests * hops + hop) % workers;
                for i in part(&(0..PARAMS), chunks, chunk) {
                    let (x, average) = (&mut models[rank][i], &mut averages[i]);
                    *average += share * *x;
                    *average += -share * taken[rank][i];
                    drift[rank][i] = 0.9 * drift[rank][i] + learn * *average;
                    drift[rank][i] += -learn * *x;
                    *x = *average;
                    taken[rank][i] = *average;
                }
            }
        }
    }
    models
}

#[test]
fn the_file_is_the_rule_written_down_a_second_time() {
    let text = text();
    for lap in [2, 3, 16] {
        let short = replaced(&text, "lap = 16", &format!("lap = {lap}"));
        for workers in 2..10 {
            let (file, hand) = (of_file(&short, workers, 45), by_hand(lap, workers, 45));
            assert_eq!(file, hand, "{workers} workers, a lap of {lap} steps");
        }
    }
}

/// How far replicas are from the mean of all optima, at most.
fn off(models: &[Vec<f32>]) -> f32 {
    let workers = models.len();
    let mean = |i| (0..workers).map(|rank| optimum(rank, i)).sum::<f32>() / workers as f32;
    models
        .iter()
        .flat_map(|model| model.iter().enumerate().map(|(i, x)| (x - mean(i)).abs()))
        .fold(0.0, f32::max)
}

#[test]
fn every_worker_comes_to_the_mean_of_all_optima_and_drift_is_corrected() {
    let with = text();
    let without = replaced(&with, "\"0.5 * hops", "\"0 * hops");
    for workers in [2, 4, 7] {
        let (with, without) = (off(&of_file(&with, workers, 900)), off(&of_file(&without, workers, 900)));
        assert!(
            3.0 * with < without && with < 0.2,
            "{workers} workers: off by {with}, without drift by {without}"
        );
    }
}
