//! The participants of a run with stages: around the strategy that averages among the ranks of one stage stands the
//! walk through the stage's work ([`worker`]). The strategy inside is the one of a run without stages: it counts only the
//! ranks of its stage, and knows nothing of others.

mod worker;

use std::collections::HashMap;

use crate::codec::Family;
use crate::setup::{Averages, Refusal, Setup};
use crate::strategies::Strategy;
use crate::vocabulary::{Action, Actions, Input, OpId, Outcome, Participant, Rank, Time};

/// The participant of a rank.
pub fn participant(strategy: &Strategy, setup: &Setup, rank: Rank) -> Box<dyn Participant> {
    let averaging = StageAveraging::new(strategy, setup, rank);
    match &setup.stages {
        Some(stages) if rank < setup.workers => {
            Box::new(worker::StageWorker::new(averaging, setup, stages, rank))
        }
        _ => Box::new(StageServer { averaging, finished: false }),
    }
}

/// The ranks that a rank exchanges messages with.
pub fn links(strategy: &Strategy, setup: &Setup, rank: Rank) -> Vec<Rank> {
    let stage = setup.stage_of(rank);
    let same = (strategy.links)(&setup.of_stage(stage), setup.rank_in_stage(rank));
    let mut links: Vec<Rank> = same.into_iter().map(|number| setup.rank_of_stage(stage, number)).collect();
    if let (Some(stages), true) = (&setup.stages, rank < setup.workers) {
        let replica = setup.rank_in_stage(rank);
        let crossings = stages.stages[stage].crossings.iter();
        links.extend(crossings.map(|crossing| setup.stage_rank(replica, crossing.stage)));
    }
    links.sort_unstable();
    links.dedup();
    links
}

/// What a strategy cannot do in a run with so many stages, whatever the network.
pub fn check_settings(strategy: &Strategy, setup: &Setup, count: usize) -> Result<(), Refusal> {
    let refuse = |flag: &str, value: &dyn ToString, problem: &str| {
        Err(Refusal::new(flag, value.to_string(), format!("{problem}, or leave --stages out")))
    };
    if setup.program.is_some() || !(strategy.path.is_some() || strategy.servers) {
        let problem = "replicas of a model in stages average gradients along an exact path or over servers: use e.g. \
                       ring-allreduce or ps";
        return refuse("--strategy", &strategy.name, problem);
    }
    if setup.shares.is_some() {
        let problem = "with --stages there is one share per replica of the model: leave it out";
        return refuse("--shares", &setup.shares(), problem);
    }
    if !setup.sync.is_bsp() {
        let problem = "stages of a model make every step together: use --sync bsp";
        return refuse("--sync", &"other than bsp", problem);
    }
    if setup.averages == Averages::Weights {
        let problem = "replicas of a model in stages average gradients: leave it out";
        return refuse("--averages", &setup.averages.name(), problem);
    }
    if let Some(coder) = setup.coder.filter(|coder| strategy.servers || coder.codec.family != Family::PerHop)
    {
        let problem = "what this code leaves out is kept by a rank for its own part of the model, and lost where a run is cut \
                       anew: use fp16 along an exact path, leave it out";
        return refuse("--compression", &coder, problem);
    }
    if !setup.servers.is_multiple_of(count) {
        let problem = format!("each of the {count} stages has servers of its own: use a multiple of {count}");
        return refuse("--servers", &setup.servers, &problem);
    }
    Ok(())
}

/// What a strategy cannot do in a run with stages.
pub fn check(strategy: &Strategy, setup: &Setup) -> Result<(), Refusal> {
    let Some(stages) = &setup.stages else { return Ok(()) };
    check_settings(strategy, setup, stages.stages.len())?;
    for (stage, own) in stages.stages.iter().enumerate() {
        let inner = setup.of_stage(stage);
        if inner.servers > own.params.len() {
            let problem = format!(
                "stage {stage} has {} servers for {} parameters: give fewer --servers, or cut elsewhere (--cuts)",
                inner.servers,
                own.params.len()
            );
            return Err(Refusal::new("--servers", setup.servers, problem));
        }
        if !own.params.is_empty() {
            strategy.check_unstaged(&inner)?;
        }
    }
    Ok(())
}

/// What averages among the ranks of one stage.
struct StageAveraging {
    setup: Setup,
    stage: usize,
    inner: Box<dyn Participant>,
    actions: Actions,
    /// Its sends under way: their number in the rank's count, and in its own.
    sends: HashMap<OpId, OpId>,
}

impl StageAveraging {
    fn new(strategy: &Strategy, setup: &Setup, rank: Rank) -> Self {
        let stage = setup.stage_of(rank);
        let inner = (strategy.make)(&setup.of_stage(stage), setup.rank_in_stage(rank));
        Self { setup: setup.clone(), stage, inner, actions: Actions::default(), sends: HashMap::new() }
    }

    /// Hands on an input. What it asks for goes to `out`; the steps that it begins, for whom it waits and how it ends go to
    /// `told`, with the ranks of the run.
    fn on(&mut self, now: Time, input: Input, out: &mut Actions, mut told: impl FnMut(Action, &mut Actions)) {
        let input = match input {
            Input::Message { from, tag, head, body } => {
                Input::Message { from: self.setup.rank_in_stage(from), tag, head, body }
            }
            Input::Done(op) => match self.sends.remove(&op) {
                Some(op) => Input::Done(op),
                None => return,
            },
            Input::Lost(rank) => Input::Lost(self.setup.rank_in_stage(rank)),
            input => input,
        };
        let mut actions = std::mem::take(&mut self.actions);
        self.inner.on(now, input, &mut actions);
        for action in actions.drain() {
            match action {
                Action::Send { op, to, tag, head, src } => {
                    let outer = out.send(self.setup.rank_of_stage(self.stage, to), tag, head, src);
                    self.sends.insert(outer, op);
                }
                Action::WaitingFor(rank) => {
                    told(Action::WaitingFor(self.setup.rank_of_stage(self.stage, rank)), out);
                }
                Action::BeginStep { .. } | Action::Finish(_) => told(action, out),
                action => out.push(action),
            }
        }
        self.actions = actions;
    }

    /// Ends it because a rank of the run is lost: whatever it holds is given back.
    fn lose(&mut self, now: Time, rank: Rank, out: &mut Actions) {
        self.on(now, Input::Lost(rank), out, |_, _| {});
        out.push(Action::Finish(Outcome::Lost(rank)));
    }
}

/// A server of one stage's parameters.
struct StageServer {
    averaging: StageAveraging,
    finished: bool,
}

impl Participant for StageServer {
    fn on(&mut self, now: Time, input: Input, out: &mut Actions) {
        match input {
            Input::Lost(_) if self.finished => {}
            Input::Lost(rank) => {
                self.finished = true;
                self.averaging.lose(now, rank, out);
            }
            input => {
                let finished = &mut self.finished;
                self.averaging.on(now, input, out, |action, out| {
                    *finished |= matches!(action, Action::Finish(_));
                    out.push(action);
                });
            }
        }
    }

    fn scratch(&self) -> Vec<usize> {
        self.averaging.inner.scratch()
    }
}
