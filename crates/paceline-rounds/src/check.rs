//! What is refused before anything starts.

use paceline_protocol::{GradientScale, ReplicaAgreement};

use crate::compile::{Iteration, RoundOp, State};
use crate::file::StrategyFileError;
use crate::program::Compiled;
use crate::statement::{Statement, StatementKind};
use crate::values::Detail;

/// Most steps that are looked at before a run.
pub const MOST_CHECKED: u64 = 2048;
/// Operations after which no further steps are looked at, once there were a few.
const BUDGET: usize = 400_000;
const FEW: u64 = 16;
/// What a row may be off one.
const OFF: f64 = 1e-6;

/// What was found in the steps that were looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedSteps {
    /// How many.
    pub steps: u64,
    /// Whether every step of the run was among them, or is the same as they are.
    pub all: bool,
    /// How far the workers' models agree.
    pub agreement: ReplicaAgreement,
    /// Whether something of an earlier iteration is used.
    pub carried: bool,
    /// A line whose messages are not just added or copied.
    pub(crate) weighted: Option<usize>,
}

pub fn check(compiled: &Compiled, steps: u64, coded: bool) -> Result<CheckedSteps, StrategyFileError> {
    let workers = compiled.world.workers;
    let mut state = compiled.start(if coded { Detail::CodedProbes } else { Detail::Probes });
    let mut found = CheckedSteps {
        steps: 0,
        all: true,
        agreement: ReplicaAgreement::Exact,
        carried: false,
        weighted: None,
    };
    let mut traffic = SentTo { edges: vec![Vec::new(); workers] };
    let mut ops = 0;
    let last = if compiled.steady { steps.min(2) } else { steps };
    for step in 0..last {
        let enough = ops > BUDGET && found.steps >= FEW || found.steps >= MOST_CHECKED;
        if enough {
            found.all = false;
            break;
        }
        let iteration = compiled.compile(step, &mut state, true)?;
        ops += (0..workers).map(|rank| iteration.of(rank).count()).sum::<usize>();
        updates(compiled, &state, step)?;
        rows(compiled, &state, step)?;
        found.agreement = worse(found.agreement, agreement(compiled, &state));
        found.carried |= state.values.iter().any(|values| values.carried);
        traffic.note(&iteration);
        if found.weighted.is_none() && weighs(&iteration) {
            found.weighted = Some(weighing_line(compiled));
        }
        found.steps += 1;
    }
    if found.carried && workers > 1 {
        found.agreement = ReplicaAgreement::Apart;
    }
    traffic.bounded(compiled)?;
    Ok(found)
}

fn fail(compiled: &Compiled, line: usize, key: &str, problem: String) -> StrategyFileError {
    StrategyFileError { file: compiled.description.file.clone(), line, key: key.into(), problem }
}

fn line_of(compiled: &Compiled, is: impl Fn(&Statement) -> bool) -> usize {
    let first = compiled.description.rounds.first().map_or(1, |round| round.line);
    compiled.description.statements().filter(|statement| is(statement)).last().map_or(first, |s| s.line)
}

/// Every worker makes one update in each iteration.
fn updates(compiled: &Compiled, state: &State, step: u64) -> Result<(), StrategyFileError> {
    let workers = compiled.world.workers;
    let updates = state.values.iter().flat_map(|values| values.updates.iter().enumerate());
    let Some((at, times)) = updates.into_iter().find(|(_, times)| **times != 1) else { return Ok(()) };
    let line = line_of(compiled, |s| matches!(s.kind, StatementKind::Update { .. }));
    let problem = format!(
        "worker {} makes {times} updates in step {step} (with {workers} workers): each iteration needs one \
         {{ update = \"x\" }}, or its gradient counts for nothing or twice",
        at % workers,
    );
    Err(fail(compiled, line, "update", problem))
}

/// Models keep their size: rows sum to one.
fn rows(compiled: &Compiled, state: &State, step: u64) -> Result<(), StrategyFileError> {
    let workers = compiled.world.workers;
    let touches = |s: &Statement| match &s.kind {
        StatementKind::Send(send) => {
            send.into.0 == crate::statement::X || send.register != crate::statement::X
        }
        StatementKind::Set { dst, .. } | StatementKind::Scale { dst, .. } => *dst <= crate::statement::G,
        _ => false,
    };
    let line = line_of(compiled, touches);
    for values in &state.values {
        for chunk in 0..values.chunks() {
            for rank in 0..workers {
                let (models, gradients) = values.model_mass(chunk, rank);
                if gradients != 0.0 {
                    let problem = format!(
                        "worker {rank}'s model holds gradients in step {step} (with {workers} workers): they reach it \
                         through {{ update = \"x\" }} alone, which knows the learning rate"
                    );
                    return Err(fail(compiled, line, "", problem));
                }
                let parts = if compiled.scale == GradientScale::Part { workers as f64 } else { 1.0 };
                let (sum, what) = match compiled.weights {
                    true => (models, "model"),
                    false => (values.applied(chunk, rank).0 / parts, "gradient"),
                };
                if (sum - 1.0).abs() <= OFF {
                    continue;
                }
                let grows = if sum.abs() < 1.0 { "shrinks" } else { "grows" };
                let mean = if compiled.weights { "" } else { " of the mean over all workers" };
                let problem = format!(
                    "the row of worker {rank} does not sum to one in step {step} (with {workers} workers): its {what} \
                     is {sum:.6} times an average{mean}, so it {grows}; scale it by 1 / {sum:.6}, or change keep and add"
                );
                return Err(fail(compiled, line, "", problem));
            }
        }
    }
    if !compiled.weights && !same_gradients(state, workers) {
        let line = line_of(compiled, |s| matches!(s.kind, StatementKind::Update { .. }));
        let problem = format!(
            "workers apply different gradients in step {step} (with {workers} workers), and nothing ever contracts \
             their models: they drift apart for ever; average x, or give every worker the same gradient"
        );
        return Err(fail(compiled, line, "update", problem));
    }
    Ok(())
}

fn alike(a: &[f64], b: &[f64]) -> bool {
    a.iter().zip(b).all(|(a, b)| (a - b).abs() <= OFF)
}

fn same_gradients(state: &State, workers: usize) -> bool {
    state.values.iter().all(|values| {
        (0..values.chunks()).all(|chunk| {
            let first = values.applied(chunk, 0).1;
            (1..workers).all(|rank| alike(values.applied(chunk, rank).1, first))
        })
    })
}

fn agreement(compiled: &Compiled, state: &State) -> ReplicaAgreement {
    let (workers, scale) = (compiled.world.workers, compiled.scale);
    if workers == 1 {
        return ReplicaAgreement::Exact;
    }
    let mut found = ReplicaAgreement::Exact;
    for values in &state.values {
        let mean = values.mean();
        for chunk in 0..values.chunks() {
            let row = |rank| match compiled.weights {
                true => values.model(chunk, rank).to_vec(),
                false => {
                    let parts = if scale == GradientScale::Part { workers as f64 } else { 1.0 };
                    values.applied(chunk, rank).1.iter().map(|value| value / parts).collect()
                }
            };
            let first = row(0);
            // To the last bit: sums in another order round differently, and replicas would not be the same.
            let same = (1..workers).all(|rank| row(rank) == first);
            found = worse(
                found,
                match (same, alike(&first, &mean) && scale != GradientScale::Own) {
                    (true, true) => ReplicaAgreement::Exact,
                    (true, false) => ReplicaAgreement::Common,
                    (false, _) => ReplicaAgreement::Apart,
                },
            );
        }
    }
    found
}

fn worse(a: ReplicaAgreement, b: ReplicaAgreement) -> ReplicaAgreement {
    let order = [ReplicaAgreement::Apart, ReplicaAgreement::Common, ReplicaAgreement::Exact];
    order.into_iter().find(|agreement| *agreement == a || *agreement == b).unwrap_or(a)
}

/// Whether some message is neither just added nor just copied.
fn weighs(iteration: &Iteration) -> bool {
    iteration.ops.iter().flatten().flatten().any(|op| {
        matches!(op, RoundOp::Receive { keep, add, .. } if ![(0.0, 1.0), (1.0, 1.0)].contains(&(*keep, *add)))
    })
}

fn weighing_line(compiled: &Compiled) -> usize {
    line_of(
        compiled,
        |s| matches!(&s.kind, StatementKind::Send(send) if send.keep.is_some() || send.add.is_some()),
    )
}

/// Who sends to whom, over all steps that were looked at.
struct SentTo {
    /// By sender: the receiver, and whether a window bounds it.
    edges: Vec<Vec<(usize, bool)>>,
}

impl SentTo {
    fn note(&mut self, iteration: &Iteration) {
        for (rank, edges) in self.edges.iter_mut().enumerate() {
            for op in iteration.of(rank) {
                let RoundOp::Send { to, window, .. } = op else { continue };
                edges.extend(to.iter().map(|peer| (*peer, window.is_some())));
            }
            edges.sort_unstable();
            edges.dedup();
        }
    }

    /// Nobody runs away from a receiver that it never hears of: its messages would fill the receiver's memory.
    fn bounded(&self, compiled: &Compiled) -> Result<(), StrategyFileError> {
        let workers = self.edges.len();
        for sender in 0..workers {
            let Some((receiver, _)) =
                self.edges[sender].iter().find(|(to, window)| !window && !self.hears(*to, sender))
            else {
                continue;
            };
            let line =
                line_of(compiled, |s| matches!(&s.kind, StatementKind::Send(send) if send.window.is_none()));
            let problem = format!(
                "worker {sender} sends to worker {receiver} and never hears of it, not even through others (with \
                 {workers} workers): it may run ahead without bound; give the send window = 8, so that at most 8 steps \
                 are untaken"
            );
            return Err(fail(compiled, line, "window", problem));
        }
        Ok(())
    }

    /// Whether something gets from one worker to another.
    fn hears(&self, from: usize, to: usize) -> bool {
        let mut seen = vec![false; self.edges.len()];
        let mut left = vec![from];
        while let Some(rank) = left.pop() {
            if rank == to {
                return true;
            }
            if !std::mem::replace(&mut seen[rank], true) {
                left.extend(self.edges[rank].iter().map(|(peer, _)| *peer));
            }
        }
        false
    }
}
