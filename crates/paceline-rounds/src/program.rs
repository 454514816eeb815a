//! A file as a strategy's program: compiled once for a run, and shared by its ranks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_protocol::{
    Averages, GradientScale, Participant, Rank, Refusal, ReplicaAgreement, Setup, StepDriver, StrategyProgram,
};

use crate::check::{CheckedSteps, check};
use crate::compile::{Cut, Iteration, RoundOp, State, compile, cut};
use crate::file::{StrategyFileError, read};
use crate::scope::{Place, World};
use crate::statement::{Chunks, Description, Expr, StatementKind};
use crate::values::Detail;
use crate::worker::RoundsWorker;

/// A file to begin with, for `paceline strategy new`.
pub const TEMPLATE: &str = include_str!("template.toml");

/// Operations of iterations that are kept.
const MOST_KEPT: usize = 2_000_000;

/// A strategy that a file describes.
pub struct Program {
    pub(crate) description: Arc<Description>,
    compiled: Mutex<HashMap<Key, Arc<Compiled>>>,
}

/// What a compiled program depends on besides the file.
type Key = (usize, Vec<usize>, u64);

/// A program for a number of workers on their hosts.
pub struct Compiled {
    pub description: Arc<Description>,
    pub world: World,
    pub cut: Cut,
    /// Most chunks of one message.
    pub piece: usize,
    /// Whether two registers are swapped.
    pub swaps: bool,
    pub scale: GradientScale,
    /// Whether the model is averaged, and not gradients alone.
    pub weights: bool,
    /// Whether every iteration is the same.
    pub steady: bool,
    /// Whether an iteration depends on those before it.
    stateful: bool,
    cache: Mutex<Cache>,
    checked: Mutex<HashMap<(u64, bool), Result<CheckedSteps, StrategyFileError>>>,
}

#[derive(Default)]
struct Cache {
    iterations: BTreeMap<u64, Arc<Iteration>>,
    ops: usize,
    /// The next step of a program whose iterations depend on each other, and what it begins with.
    next: Option<(u64, State)>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({})", self.description.name)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Program {
    /// Reads a strategy file; `file` is its name in mistakes.
    pub fn parse(file: &str, text: &str) -> Result<Self, StrategyFileError> {
        Ok(Self { description: Arc::new(read(file, text)?), compiled: Mutex::default() })
    }

    /// What the strategy is called in its file.
    pub fn name(&self) -> &str {
        &self.description.name
    }

    /// What its file says about it.
    pub fn about(&self) -> &str {
        &self.description.about
    }

    /// Refuses what cannot be run by so many workers, for the steps of a run; hosts are each worker's own where none are
    /// given.
    pub fn check(
        &self,
        workers: usize,
        hosts: &[usize],
        seed: u64,
        steps: u64,
    ) -> Result<CheckedSteps, StrategyFileError> {
        self.compiled(workers, hosts, seed)?.check(steps)
    }

    /// Refuses what cannot be done with scripts, which make their updates by themselves.
    pub fn check_scripts(&self) -> Result<(), StrategyFileError> {
        let fail = |(line, problem): (usize, &str)| StrategyFileError {
            file: self.description.file.clone(),
            line,
            key: "update".into(),
            problem: problem.into(),
        };
        self.description.takes_scripts().map_err(fail)
    }

    /// The program for a number of workers.
    pub(crate) fn compiled(
        &self,
        workers: usize,
        hosts: &[usize],
        seed: u64,
    ) -> Result<Arc<Compiled>, StrategyFileError> {
        let hosts = hosts.get(..workers).unwrap_or_default().to_vec();
        let key = (workers, hosts, seed);
        let mut all = lock(&self.compiled);
        if let Some(known) = all.get(&key) {
            return Ok(Arc::clone(known));
        }
        let compiled = Arc::new(Compiled::new(&self.description, World::new(workers, &key.1, seed))?);
        if all.len() > 64 {
            all.clear();
        }
        all.insert(key, Arc::clone(&compiled));
        Ok(compiled)
    }

    fn of(&self, setup: &Setup) -> Result<Arc<Compiled>, StrategyFileError> {
        self.compiled(setup.workers, &setup.hosts, setup.seed)
    }

    /// The program of a run that was checked.
    fn checked(&self, setup: &Setup) -> Arc<Compiled> {
        self.of(setup).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// A mistake as a run's refusal.
fn refusal(error: &StrategyFileError) -> Refusal {
    let StrategyFileError { file, line, key, problem } = error;
    let between = if key.is_empty() { "" } else { ": " };
    Refusal::new("--strategy-file", file, format!("line {line}: {key}{between}{problem}"))
}

impl StrategyProgram for Program {
    fn averages(&self) -> Averages {
        if self.description.touches_model() { Averages::Weights } else { Averages::Gradients }
    }

    fn check(&self, setup: &Setup) -> Result<(), Refusal> {
        let compiled = self.of(setup).map_err(|error| refusal(&error))?;
        let checked = compiled.check(setup.end()).map_err(|error| refusal(&error))?;
        if let (Some(coder), Some(line)) = (setup.coder, checked.weighted) {
            let problem = format!(
                "line {line} of the strategy file weighs what it receives: encoded messages are added or copied \
                 (keep 0 or 1, add 1). Send what is weighed already, or leave --compression out"
            );
            return Err(Refusal::new("--compression", coder, problem));
        }
        Ok(())
    }

    fn agreement(&self, setup: &Setup) -> ReplicaAgreement {
        let coded = setup.coder.is_some();
        let checked = self.of(setup).and_then(|compiled| compiled.check_coded(setup.end(), coded));
        match (checked.map(|checked| checked.agreement), setup.coder) {
            (Ok(ReplicaAgreement::Exact), Some(_)) => ReplicaAgreement::Common,
            (Ok(agreement), _) => agreement,
            (Err(_), _) => ReplicaAgreement::Apart,
        }
    }

    fn participant(&self, setup: &Setup, rank: Rank) -> Box<dyn Participant> {
        let worker = RoundsWorker::new(self.checked(setup), setup, rank);
        Box::new(StepDriver::new(setup, rank, worker))
    }

    fn links(&self, setup: &Setup, rank: Rank) -> Vec<Rank> {
        self.checked(setup).links(rank)
    }
}

impl Compiled {
    fn new(description: &Arc<Description>, world: World) -> Result<Self, StrategyFileError> {
        let cut = cut(description, &world)?;
        let sends = description.statements().filter(|s| matches!(s.kind, StatementKind::Send(_)));
        let several = sends.filter(|s| !matches!(s.chunks, Chunks::One(_))).count() > 0;
        let weights = description.touches_model();
        let stateful = !description.scalars.is_empty() || description.uses("mass");
        let scale = if weights { GradientScale::Even } else { GradientScale::Part };
        Ok(Self {
            piece: if several && !description.independent { cut.chunks } else { 1 },
            swaps: description.statements().any(|s| matches!(s.kind, StatementKind::Swap(..))),
            scale: description.gradient.unwrap_or(scale),
            weights,
            steady: !stateful && !description.uses("step"),
            stateful,
            description: Arc::clone(description),
            world,
            cut,
            cache: Mutex::default(),
            checked: Mutex::default(),
        })
    }

    /// Checks the steps of a run, once.
    pub fn check(&self, steps: u64) -> Result<CheckedSteps, StrategyFileError> {
        self.check_coded(steps, false)
    }

    /// The same where messages are encoded: replicas agree less.
    fn check_coded(&self, steps: u64, coded: bool) -> Result<CheckedSteps, StrategyFileError> {
        let known = lock(&self.checked).get(&(steps, coded)).cloned();
        known.unwrap_or_else(|| {
            let found = check(self, steps, coded);
            lock(&self.checked).insert((steps, coded), found.clone());
            found
        })
    }

    /// A state before the first step.
    pub fn start(&self, detail: Detail) -> State {
        State::new(&self.description, &self.world, self.cut, detail)
    }

    /// Compiles a step from a state.
    pub fn compile(&self, step: u64, state: &mut State, fresh: bool) -> Result<Iteration, StrategyFileError> {
        compile(&self.description, &self.world, self.cut, step, state, fresh)
    }

    /// The iteration of a step. Steps beyond those that were checked can still be wrong: then the rank ends with what is.
    pub fn iteration(&self, step: u64) -> Arc<Iteration> {
        let step = if self.steady { 0 } else { step };
        let mut cache = lock(&self.cache);
        if let Some(known) = cache.iterations.get(&step) {
            return Arc::clone(known);
        }
        let made = |result: Result<Iteration, StrategyFileError>| match result {
            Ok(iteration) => Arc::new(iteration),
            Err(error) => panic!("{error}"),
        };
        if !self.stateful {
            let iteration = made(self.compile(step, &mut self.start(Detail::Nothing), true));
            return cache.keep(step, iteration);
        }
        let begun = cache.next.take().filter(|(next, _)| *next <= step);
        let (mut at, mut state) = begun.unwrap_or_else(|| (0, self.start(Detail::Masses)));
        loop {
            let iteration = made(self.compile(at, &mut state, true));
            let kept = cache.keep(at, iteration);
            at += 1;
            if at > step {
                cache.next = Some((at, state));
                return kept;
            }
        }
    }

    /// The ranks that a rank exchanges messages with, in any step.
    pub fn links(&self, rank: Rank) -> Vec<Rank> {
        if self.steady {
            let iteration = self.iteration(0);
            let peers = iteration.of(rank).flat_map(|op| match op {
                RoundOp::Send { to, .. } => to.clone(),
                RoundOp::Receive { from, .. } => vec![*from],
                _ => Vec::new(),
            });
            return peers.collect::<BTreeSet<_>>().into_iter().collect();
        }
        let all = || (0..self.world.workers).filter(|peer| *peer != rank).collect();
        let mut links = Vec::new();
        for round in &self.description.rounds {
            let varies = round.repeat.iter().chain(&round.until).any(|expr| self.varies(expr));
            for statement in &round.statements {
                let StatementKind::Send(send) = &statement.kind else { continue };
                if varies || send.to.iter().any(|to| self.varies(to)) {
                    return all();
                }
                let place = |rank| self.place(rank);
                let repeats = match (&round.repeat, &round.until) {
                    (Some(repeat), _) => place(0).whole(repeat).unwrap_or(1),
                    (None, Some(_)) => return all(),
                    _ => 1,
                };
                for sender in 0..self.world.workers {
                    for k in 0..repeats {
                        let place = Place { k, ..place(sender) };
                        let to = send.to.iter().filter_map(|to| place.whole(to).ok());
                        for to in to.filter(|to| *to < self.world.workers && *to != sender) {
                            links.extend(
                                [(sender, to), (to, sender)].iter().filter(|l| l.0 == rank).map(|l| l.1),
                            );
                        }
                    }
                }
            }
        }
        links.sort_unstable();
        links.dedup();
        links
    }

    fn place(&self, rank: Rank) -> Place<'_> {
        Place {
            description: &self.description,
            world: &self.world,
            step: 0,
            rank: Some(rank),
            k: 0,
            round: 0,
            chunk: 0,
            chunks: self.cut.chunks,
            peer: None,
            scalars: &[],
            masses: &[],
        }
    }

    /// Whether an expression may have another value in another step, round or chunk.
    fn varies(&self, expr: &Expr) -> bool {
        let scalar = |name: &str| self.description.scalars.iter().any(|(known, _)| known == name);
        let named = expr.formula.names();
        let lets = self.description.lets.iter().filter(|(name, _)| named.contains(&name.as_str()));
        named.iter().any(|name| ["step", "round", "chunk"].contains(name) || scalar(name))
            || expr.formula.calls().iter().any(|(name, _)| *name == "mass")
            || lets.into_iter().any(|(_, expr)| self.varies(expr))
    }
}

impl Cache {
    fn keep(&mut self, step: u64, iteration: Arc<Iteration>) -> Arc<Iteration> {
        let ops = |iteration: &Iteration| iteration.ops.iter().flatten().map(Vec::len).sum::<usize>();
        self.ops += ops(&iteration);
        self.iterations.insert(step, Arc::clone(&iteration));
        while self.ops > MOST_KEPT && self.iterations.len() > 1 {
            let Some((_, first)) = self.iterations.pop_first() else { break };
            self.ops -= ops(&first);
        }
        iteration
    }
}
