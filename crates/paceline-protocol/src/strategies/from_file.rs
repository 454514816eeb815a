//! A strategy whose rounds a file describes: the registry's entries are functions, a file is data, so what it says
//! travels in the setup.

use std::fmt;
use std::sync::Arc;

use super::{COLLECTIVE, ReplicaAgreement, Strategy};
use crate::codec::Family;
use crate::setup::{Averages, Refusal, Setup};
use crate::vocabulary::{Participant, Rank};

/// The rounds of a strategy as data.
pub trait StrategyProgram: fmt::Debug + Send + Sync {
    /// What it averages.
    fn averages(&self) -> Averages;
    /// What it refuses.
    fn check(&self, setup: &Setup) -> Result<(), Refusal>;
    /// How far the workers' models agree after a step.
    fn agreement(&self, setup: &Setup) -> ReplicaAgreement;
    /// The participant of a rank.
    fn participant(&self, setup: &Setup, rank: Rank) -> Box<dyn Participant>;
    /// The ranks that a rank exchanges messages with.
    fn links(&self, setup: &Setup, rank: Rank) -> Vec<Rank>;
}

/// The strategy of a run whose setup has a program. It is in no registry: its name is the file's.
pub static FROM_FILE: Strategy = Strategy {
    name: "strategy-file",
    about: "rounds that a file describes",
    detail: "Who sends which register to whom, and what the receiver does with it, is data in a file.",
    cost: "as the file's rounds say: `paceline strategy check FILE`",
    good: "An averaging rule of one's own, without Rust.",
    bad: "What a file cannot say: servers, other consistency models than bsp.",
    averages: &[Averages::Weights, Averages::Gradients],
    make: |setup, rank| program(setup).participant(setup, rank),
    links: |setup, rank| program(setup).links(setup, rank),
    check,
    check_members: |_| {
        let problem = "a strategy file's rounds are checked for the workers that the run begins with: members can \
                       change with gossip, stepwise, local, exact paths and servers";
        Err(Refusal::new("--strategy", "a file", problem))
    },
    agreement: |setup| program(setup).agreement(setup),
    ..COLLECTIVE
};

fn program(setup: &Setup) -> &Arc<dyn StrategyProgram> {
    setup.program.as_ref().expect("a run of a strategy file has its program")
}

fn check(setup: &Setup) -> Result<(), Refusal> {
    let program = program(setup);
    if setup.averages != program.averages() {
        let (given, own) = (setup.averages.name(), program.averages().name());
        let problem = format!("the strategy file averages {own}: leave it out");
        return Err(Refusal::new("--averages", given, problem));
    }
    if let Some(coder) = setup.coder.filter(|coder| coder.codec.family != Family::PerHop) {
        let problem = "a strategy file sends what its rounds say, and has no residual that could bring back what this \
                       loses; valid: fp16";
        return Err(Refusal::new("--compression", coder, problem));
    }
    program.check(setup)
}
