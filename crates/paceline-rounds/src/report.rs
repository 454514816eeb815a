//! What `paceline strategy check` says of a file and a number of workers.

use std::fmt::Write;
use std::sync::Arc;

use paceline_protocol::{Averages, ReplicaAgreement, StrategyProgram};
use serde::Serialize;

use crate::analysis::{MixingReport, analyse};
use crate::compile::RoundOp;
use crate::file::StrategyFileError;
use crate::program::Program;
use crate::timing::{VirtualRuns, virtual_runs};

/// Steps that a check is asked about.
const STEPS: u64 = 2048;
/// Most workers whose matrices are computed.
const MOST_ANALYSED: usize = 128;
/// Matrices that are part of a report.
const SHOWN: usize = 8;

/// What iterations are timed with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LinkConditions {
    /// Parameters of the model, 4 bytes each.
    pub params: usize,
    /// Seconds of a forward and backward pass.
    pub compute_s: f64,
    /// Bits per second of each worker's link.
    pub bits_per_s: f64,
    /// Seconds that a bit is under way.
    pub latency_s: f64,
}

impl Default for LinkConditions {
    /// A million parameters, 20 ms of computation, 1 Gbit/s, 200 µs.
    fn default() -> Self {
        Self { params: 1_000_000, compute_s: 0.02, bits_per_s: 1e9, latency_s: 200e-6 }
    }
}

/// What a worker sends in an iteration; the mean over the iterations that were followed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WorkerTraffic {
    /// Messages of one lane.
    pub messages: f64,
    /// Models: 1 is the whole model once.
    pub models: f64,
    /// Bytes, at the conditions' number of parameters.
    pub bytes: f64,
}

/// What is known of a strategy file for a number of workers.
#[derive(Clone, Debug, Serialize)]
pub struct StrategyReport {
    /// The file.
    pub file: String,
    /// What it calls itself.
    pub name: String,
    /// Number of workers.
    pub workers: usize,
    /// What is averaged: `weights` or `gradients`.
    pub averages: &'static str,
    /// Chunks of a lane.
    pub chunks: usize,
    /// Steps that were looked at.
    pub steps_checked: u64,
    /// Whether all further steps are the same as those.
    pub all_steps_checked: bool,
    /// How far the workers' models agree after a step: `exact`, `common` or `apart`.
    pub agreement: &'static str,
    /// Matrices, contraction and bias; none with more workers than these are computed for.
    pub mixing: Option<MixingReport>,
    /// What a worker sends per iteration: the mean over workers, the one that sends least, and the one that sends most.
    pub traffic: [WorkerTraffic; 3],
    /// What iterations are timed with.
    pub conditions: LinkConditions,
    /// Virtual time.
    pub virtual_time: VirtualRuns,
}

impl StrategyReport {
    /// Checks a file for a number of workers; refused where it cannot be run.
    pub fn new(
        file: &str,
        program: &Arc<Program>,
        workers: usize,
        seed: u64,
        conditions: LinkConditions,
    ) -> Result<Self, StrategyFileError> {
        let compiled = program.compiled(workers, &[], seed)?;
        let checked = compiled.check(STEPS)?;
        let analysed = workers <= MOST_ANALYSED;
        let mixing = analysed.then(|| analyse(&compiled, checked.carried, SHOWN)).transpose()?;
        let agreement = match checked.agreement {
            ReplicaAgreement::Exact => "exact",
            ReplicaAgreement::Common => "common",
            ReplicaAgreement::Apart => "apart",
        };
        Ok(Self {
            file: file.into(),
            name: program.name().into(),
            workers,
            averages: Averages::name(StrategyProgram::averages(&**program)),
            chunks: compiled.cut.chunks,
            steps_checked: checked.steps,
            all_steps_checked: checked.all && compiled.steady,
            agreement,
            mixing,
            traffic: traffic(&compiled, conditions.params, checked.steps.min(64)),
            conditions,
            virtual_time: virtual_runs(program, workers, seed, &conditions),
        })
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |label: &str, value: String| {
            let _ = writeln!(text, "  {label:<22}{value}");
        };
        let steps = match self.all_steps_checked {
            true => "every iteration is the same".to_owned(),
            false => format!("the first {} iterations were looked at", self.steps_checked),
        };
        let ends = if self.virtual_time.stuck.is_empty() { "yes" } else { "NO" };
        line("ends", format!("{ends}; nothing is sent to nobody or to the finished ({steps})"));
        let chunks = if self.chunks > 1 { format!(", in {} chunks", self.chunks) } else { String::new() };
        line("averages", format!("{}{chunks}; replicas afterwards: {}", self.averages, self.agreement));
        if let Some(mixing) = &self.mixing {
            mixing_lines(mixing, self.workers, &mut line);
        } else {
            line("matrices", format!("not computed for more than {MOST_ANALYSED} workers"));
        }
        let [mean, least, most] = self.traffic;
        line(
            "each worker sends",
            format!(
                "{:.2} models per iteration ({:.2} to {:.2}): {:.2} MB, {:.1} messages per lane",
                mean.models,
                least.models,
                most.models,
                1e-6 * mean.bytes,
                mean.messages
            ),
        );
        let LinkConditions { params, compute_s, bits_per_s, latency_s } = self.conditions;
        line(
            "period behind a link",
            format!(
                "{:.2} ms (ring all-reduce: {:.2} ms) with {params} parameters, {:.1} ms of computation, {:.0} Mbit/s, \
                 {:.0} µs",
                1e3 * self.virtual_time.period_s,
                1e3 * self.virtual_time.ring_allreduce_s,
                1e3 * compute_s,
                1e-6 * bits_per_s,
                1e6 * latency_s
            ),
        );
        let VirtualRuns { lost, completed, named_it, hung, .. } = &self.virtual_time;
        let rest = match (completed.len(), hung.len()) {
            (0, 0) => String::new(),
            (done, 0) => format!(", {done} had finished"),
            (_, hung) => format!(", {hung} NEVER END"),
        };
        if self.workers > 1 {
            line("when worker is lost", format!("(worker {lost}) {} end and name it{rest}", named_it.len()));
        }
        text
    }
}

fn mixing_lines(mixing: &MixingReport, workers: usize, line: &mut impl FnMut(&str, String)) {
    let range = |[least, most]: [f64; 2]| match most - least < 1e-9 {
        true => format!("{least:.4}"),
        false => format!("{least:.4} to {most:.4}"),
    };
    let kept = match (mixing.column_sums[0] - 1.0).abs() < 1e-9 && (mixing.column_sums[1] - 1.0).abs() < 1e-9
    {
        true => "the mean of all is kept",
        false => "the mean of all is not kept in each iteration",
    };
    line(
        "row sums",
        format!("{} (column sums {}: {kept})", range(mixing.row_sums), range(mixing.column_sums)),
    );
    let period = match (mixing.period, mixing.carried) {
        (Some(1), _) => "period of 1 iteration".into(),
        (Some(period), _) => format!("period of {period} iterations"),
        (None, true) => "registers carry something from one iteration to the next".into(),
        (None, false) => format!("no period within {} iterations", mixing.followed),
    };
    line("iterations", period);
    let contraction = &mixing.contraction;
    let variance = contraction.variance_left.map_or_else(String::new, |left| {
        format!("at most {:.4} of the workers' variance is left after one; ", left)
    });
    line(
        "contraction",
        format!("{variance}distances shrink to {:.4} per iteration", contraction.per_iteration),
    );
    match (&mixing.influence, mixing.bias, mixing.noise) {
        (Some(influence), Some(bias), Some(noise)) => {
            let most =
                influence.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(rank, _)| rank);
            let who = match bias < 1.0 + 1e-6 {
                true => "all workers count the same".to_owned(),
                false => format!("worker {most} counts {bias:.3} times its share"),
            };
            line(
                "in the long run",
                format!("{who}; noise {noise:.3} (1: the mean of all, {workers}: one alone)"),
            );
        }
        _ if mixing.carried => {}
        _ => line("in the long run", "workers never agree: there is no common model".into()),
    }
}

fn traffic(compiled: &crate::program::Compiled, params: usize, steps: u64) -> [WorkerTraffic; 3] {
    let workers = compiled.world.workers;
    let steps = if compiled.steady { 1 } else { steps.max(1) };
    let mut each = vec![(0usize, 0.0); workers];
    for step in 0..steps {
        let iteration = compiled.iteration(step);
        let chunks = (iteration.chunks * iteration.ops.len()) as f64;
        for (rank, (messages, models)) in each.iter_mut().enumerate() {
            for op in iteration.of(rank) {
                let RoundOp::Send { to, chunks: sent, .. } = op else { continue };
                *messages += to.len();
                *models += (to.len() * sent.len()) as f64 / chunks;
            }
        }
    }
    let of = |(messages, models): (f64, f64)| {
        let (messages, models) = (messages / steps as f64, models / steps as f64);
        WorkerTraffic { messages, models, bytes: models * 4.0 * params as f64 }
    };
    let sum = each.iter().fold((0.0, 0.0), |(m, n), (messages, models)| (m + *messages as f64, n + models));
    let by = |a: &&(usize, f64), b: &&(usize, f64)| a.1.total_cmp(&b.1);
    let one = |found: Option<&(usize, f64)>| found.map_or((0.0, 0.0), |(m, n)| (*m as f64, *n));
    [
        of((sum.0 / workers as f64, sum.1 / workers as f64)),
        of(one(each.iter().min_by(by))),
        of(one(each.iter().max_by(by))),
    ]
}
