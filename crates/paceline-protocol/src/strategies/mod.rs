//! The registry of strategies. To add one: write its file, then add its line to [`STRATEGIES`]; it then
//! appears in the command line's help, the plan's checks, the simulator, the docs and the conformance suite.

mod auto;
mod delegated;
mod direct;
mod from_file;
mod gossip;
mod halving_doubling;
mod hierarchical;
mod local;
mod ps;
mod ring_allreduce;
mod ring_reduce;
mod stepwise;
mod tree;

pub use auto::{AUTO_PATHS, choose_paths};
pub use from_file::{FROM_FILE, StrategyProgram};
pub use ps::messages as ps_messages;

use paceline_registry::Registry;

use crate::codec::{self, Coder};
use crate::collective;
use crate::commit::Commit;
use crate::consistency::{BSP, Consistency, ConsistencyModel};
use crate::departure::Departure;
use crate::handover::HandingOver;
use crate::hosting::{Hosting, MOST_POSITIONS};
use crate::options::{Options, Parameter};
use crate::own_weights::OwnWeights;
use crate::schedule::CollectivePath;
use crate::setup::{Averages, Refusal, Setup};
use crate::staged;
use crate::vocabulary::{Participant, Rank};

/// A strategy that users can name.
pub struct Strategy {
    /// The name on the command line.
    pub name: &'static str,
    /// One line for help texts and tables.
    pub about: &'static str,
    /// What it does, for the docs.
    pub detail: &'static str,
    /// Time of one step's communication, with fixed costs and without overlap.
    pub cost: &'static str,
    /// When it is good.
    pub good: &'static str,
    /// What it is bad at.
    pub bad: &'static str,
    /// What the loss of a worker does to the average, for the docs; empty where that changes nothing.
    pub loss: &'static str,
    /// Whether it needs servers.
    pub servers: bool,
    /// Whether it lets single workers go on: then it can be run with every consistency model, else only with bsp.
    pub gated: bool,
    /// What it can average; the first is the default.
    pub averages: &'static [Averages],
    /// Its parameters.
    pub parameters: &'static [&'static Parameter],
    /// Fills in what a preset stands for, before defaults are.
    pub presets: fn(&mut Options),
    /// What it refuses by itself.
    pub check: fn(&Setup) -> Result<(), Refusal>,
    /// What it refuses where members may change and every worker has weights of its own.
    pub check_members: fn(&Setup) -> Result<(), Refusal>,
    /// How far the workers' models agree after a step.
    pub agreement: fn(&Setup) -> ReplicaAgreement,
    /// The participant of a rank, or of one position of it: [`Strategy::participant`] makes a rank's.
    pub make: fn(&Setup, Rank) -> Box<dyn Participant>,
    /// The ranks that a rank exchanges messages with, one position each: see [`Strategy::links_of`].
    pub links: fn(&Setup, Rank) -> Vec<Rank>,
    /// The path, where the strategy is an exact average along one.
    pub path: Option<CollectivePath>,
    /// The backend of the script's own framework, where that averages in place of this program.
    pub delegated: Option<&'static str>,
}

/// How far the workers' models agree after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaAgreement {
    /// They are the model that one worker with the whole batch would have.
    Exact,
    /// They are identical.
    Common,
    /// They differ: the model is the servers', or the mean of the workers'.
    Apart,
}

/// What most serverless strategies have in common: they name the rest.
pub const COLLECTIVE: Strategy = Strategy {
    name: "",
    about: "",
    detail: "",
    cost: "",
    good: "",
    bad: "",
    loss: "",
    servers: false,
    gated: false,
    averages: &[Averages::Gradients, Averages::Weights],
    parameters: &[],
    presets: |_| {},
    check: collective::check,
    check_members: |_| Ok(()),
    agreement: collective::agreement,
    make: |_, _| unreachable!("every strategy makes its own participants"),
    links: ring_links,
    path: None,
    delegated: None,
};

/// Every strategy.
pub static STRATEGIES: &[Strategy] = &[
    ring_allreduce::RING_ALLREDUCE,
    ring_reduce::RING_REDUCE,
    tree::TREE,
    halving_doubling::HALVING_DOUBLING,
    direct::DIRECT,
    hierarchical::HIERARCHICAL,
    auto::AUTO,
    stepwise::STEPWISE,
    gossip::GOSSIP,
    local::LOCAL,
    ps::PS,
];

paceline_registry::entries!(Strategy, STRATEGIES);

/// What scripts can leave averaging to: their own framework, beside which this program is measured.
pub static DELEGATED: &[Strategy] = &[delegated::DDP_GLOO, delegated::DDP_NCCL];

/// The strategy of that name.
pub fn find(name: &str) -> Option<&'static Strategy> {
    STRATEGIES.iter().find(|s| s.name == name)
}

/// The name of the choice between paths that a plan holds.
pub const AUTO: &str = auto::AUTO.name;

/// The name in a plan of plain training by one worker.
pub const SINGLE: &str = "single";

/// What can be named to say how workers average, and when they go on.
#[derive(Clone, Debug, Default)]
pub struct Protocols {
    /// The strategies.
    pub strategies: Registry<Strategy>,
    /// The consistency models.
    pub consistencies: Registry<ConsistencyModel>,
}

impl Strategy {
    /// Whether bodies may stay in their sender's memory until the receiver has taken them in: where the sender waits for its
    /// receiver anyway, which is along an exact path, between stages, and between workers and servers under bsp. Elsewhere
    /// nobody slow may hold others up, and codes are short.
    pub fn lends(&self, setup: &Setup) -> bool {
        let waited_for = self.path.is_some() || self.servers && setup.sync.is_bsp();
        setup.stages.is_some() || waited_for && setup.coder.is_none()
    }
}

impl Protocols {
    /// The strategy that carries out a plan of this name. One worker alone takes an exact path: between no ranks all
    /// paths are the same.
    pub fn of_plan(&self, name: &str) -> Option<&'static Strategy> {
        let delegated = || DELEGATED.iter().find(|strategy| strategy.name == name);
        if name == SINGLE { Some(&STRATEGIES[0]) } else { self.strategies.find(name).or_else(delegated) }
    }

    /// When workers may go on, in a run of so many steps; with everybody if nobody knows the name.
    pub fn consistency(&self, name: &str, options: &Options, steps: u64) -> Consistency {
        self.consistencies.find(name).map_or_else(Consistency::bsp, |model| (model.make)(options, steps))
    }

    /// Every parameter that a strategy or a consistency model has, once.
    pub fn parameters(&self) -> Vec<&'static Parameter> {
        let of_strategies = self.strategies.iter().flat_map(|s| s.parameters);
        let mut parameters: Vec<&'static Parameter> = Vec::new();
        for parameter in of_strategies.chain(self.consistencies.iter().flat_map(|c| c.parameters)) {
            if parameters.iter().all(|known| known.name != parameter.name) {
                parameters.push(parameter);
            }
        }
        parameters
    }

    /// To whom a parameter belongs, as flags.
    pub fn owners(&self, name: &str) -> String {
        let has = |parameters: &[&Parameter]| parameters.iter().any(|p| p.name == name);
        let strategies = self.strategies.iter().filter(|s| has(s.parameters));
        let strategies = strategies.map(|s| format!("--strategy {}", s.name));
        let syncs = self.consistencies.iter().filter(|c| has(c.parameters));
        strategies.chain(syncs.map(|c| format!("--sync {}", c.name))).collect::<Vec<_>>().join(", ")
    }

    /// The consistency models that a strategy can be run with, by name.
    pub fn syncs(&self, strategy: &Strategy) -> Vec<&'static str> {
        self.consistencies.iter().map(|c| c.name).filter(|name| strategy.gated || *name == BSP).collect()
    }

    /// Refuses what does not belong to this strategy with this consistency model, and fills in the rest.
    pub fn resolve(&self, strategy: &Strategy, sync: &str, options: &mut Options) -> Result<(), Refusal> {
        let syncs = self.syncs(strategy);
        if !syncs.contains(&sync) {
            let problem = format!("{} has no {sync}; valid: {}", strategy.name, syncs.join(", "));
            return Err(Refusal::new("--sync", sync, problem));
        }
        let of_sync = self.consistencies.find(sync).map_or(&[][..], |c| c.parameters);
        let known: Vec<_> = strategy.parameters.iter().chain(of_sync).copied().collect();
        (strategy.presets)(options);
        options.resolve(&known, |name| self.owners(name))
    }
}

impl Strategy {
    /// The participant of a rank: with all its positions, and able to end when a worker leaves. In a run whose members
    /// may change, its parameters are those of a step whenever it ends.
    pub fn participant(&self, setup: &Setup, rank: Rank) -> Box<dyn Participant> {
        let own_weights = setup.membership.is_some() && self.own_weights(setup);
        let inner = match setup.one_position_each() {
            _ if setup.stages.is_some() => staged::participant(self, setup, rank),
            _ if own_weights => (self.make)(&setup.between_workers(), rank),
            true => (self.make)(setup, rank),
            false => Box::new(Hosting::new(self, setup, rank)),
        };
        let links = self.exchange_links(setup, rank);
        let departs =
            Box::new(Departure::new(inner, rank, links, setup.generation, self.deterministic(setup)));
        let Some(members) = &setup.membership else { return departs };
        // What workers that take units one by one have of the parameters is a copy of the servers'.
        let commits: Box<dyn Participant> = match rank < setup.workers && setup.batch.is_none() {
            true if own_weights => Box::new(OwnWeights::new(departs, setup, members, rank)),
            true => {
                let (workers, votes) = (setup.workers, !self.servers);
                Box::new(Commit::new(departs, rank, workers, setup.generation, setup.from, votes))
            }
            false => departs,
        };
        Box::new(HandingOver::new(commits, setup, members, rank))
    }

    /// The ranks that a rank exchanges messages with.
    pub fn links_of(&self, setup: &Setup, rank: Rank) -> Vec<Rank> {
        let mut links = self.exchange_links(setup, rank);
        if let Some(members) = &setup.membership {
            links.extend(HandingOver::links(members, rank));
            if !self.servers && !self.own_weights(setup) {
                links.extend(Commit::links(rank, setup.workers));
            }
            links.retain(|peer| *peer != rank);
            links.sort_unstable();
            links.dedup();
        }
        links
    }

    /// The ranks that a rank's positions exchange messages with.
    fn exchange_links(&self, setup: &Setup, rank: Rank) -> Vec<Rank> {
        match setup.one_position_each() {
            _ if setup.stages.is_some() => staged::links(self, setup, rank),
            _ if setup.membership.is_some() && self.own_weights(setup) => {
                (self.links)(&setup.between_workers(), rank)
            }
            true => (self.links)(setup, rank),
            false => Hosting::links(self, setup, rank),
        }
    }

    /// Whether every worker has weights of its own, which no other one may have.
    pub fn own_weights(&self, setup: &Setup) -> bool {
        setup.averages == Averages::Weights || !(self.path.is_some() || self.servers)
    }

    /// How far the workers' models agree in a run whose members may change: an exchange that was given up may have
    /// reached some workers and not others.
    pub fn agreement_of_members(&self, setup: &Setup, changing: bool) -> ReplicaAgreement {
        match changing && self.own_weights(setup) {
            true => ReplicaAgreement::Apart,
            false => (self.agreement)(setup),
        }
    }

    /// Refuses shares that the strategy cannot spread over fewer workers.
    fn check_shares(&self, setup: &Setup) -> Result<(), Refusal> {
        let (shares, workers) = (setup.shares(), setup.workers);
        let refuse = |problem: String| Err(Refusal::new("--shares", shares, problem));
        if shares < workers {
            return refuse(format!("{workers} workers need at least {workers} shares"));
        }
        if shares.div_ceil(workers.max(1)) > MOST_POSITIONS {
            return refuse(format!("at most {MOST_POSITIONS} shares per worker"));
        }
        if self.own_weights(setup) {
            let problem = "every worker has weights of its own, so there is one share per worker: leave it out, or \
                           average gradients along an exact path, e.g. --strategy ring-allreduce";
            return refuse(problem.into());
        }
        if !self.deterministic(setup) {
            return refuse(
                "without steps that all make together there is one share per worker: leave it out, or \
                           use --sync bsp"
                    .into(),
            );
        }
        Ok(())
    }

    /// Refuses what cannot go on with other members. A run's shares give the same numbers whoever computes them only if
    /// nothing else is kept by single workers; where these have weights of their own, the strategy says what may be lost.
    pub fn check_membership(&self, setup: &Setup, backups: bool) -> Result<(), Refusal> {
        let refuse = |flag: &str, value: &str, problem: &str| Err(Refusal::new(flag, value, problem));
        if self.own_weights(setup) {
            (self.check_members)(setup)?;
        }
        if let Some(stages) = &setup.stages {
            let problem = "a stage's parameters are with its ranks alone: members can change without stages";
            return Err(Refusal::new("--stages", stages.stages.len(), problem));
        }
        if !setup.sync.is_bsp() && (setup.sync.greedy || setup.sync.together_until > 0) {
            let problem = "its steps together need a worker for every share, its single steps do not: members can change \
                           where all steps are of one kind (bsp, asp, ssp, essp, dssp, adaptive)";
            return refuse("--sync", "", problem);
        }
        // Pushes to servers have error feedback with every codec.
        let rests = |coder: &Coder| self.servers || coder.codec.family != codec::Family::PerHop;
        if let Some(coder) = setup.coder.filter(rests) {
            let problem = "what a worker has not sent yet is lost with it: members can change without compression, or \
                           with fp16 along an exact path";
            return Err(Refusal::new("--compression", coder, problem));
        }
        if backups && setup.servers < 2 {
            let problem =
                "the backup of a server's shard is another server: give --strategy ps --servers 2, or more";
            return refuse("--backup", "1", problem);
        }
        Ok(())
    }

    /// Whether the strategy can be run with a setup whose options are resolved.
    pub fn check(&self, setup: &Setup) -> Result<(), Refusal> {
        if setup.stages.is_some() { staged::check(self, setup) } else { self.check_unstaged(setup) }
    }

    /// Whether replicas of a model in so many stages can average with it, as far as that can be told without the model.
    pub fn check_stages(&self, setup: &Setup, stages: usize) -> Result<(), Refusal> {
        staged::check_settings(self, setup, stages)
    }

    /// Whether the ranks of one stage can average, or those of a run without stages.
    pub(crate) fn check_unstaged(&self, setup: &Setup) -> Result<(), Refusal> {
        match (self.servers, setup.servers) {
            (true, 0) => {
                return Err(Refusal::new("--servers", 0, format!("{} needs at least 1 server", self.name)));
            }
            (false, 1..) => {
                let problem = format!("{} has no servers: leave it out", self.name);
                return Err(Refusal::new("--servers", setup.servers, problem));
            }
            (_, servers) if servers > setup.params => {
                let problem = format!("at most one server per parameter ({})", setup.params);
                return Err(Refusal::new("--servers", servers, problem));
            }
            _ => {}
        }
        if !self.averages.contains(&setup.averages) {
            let valid: Vec<_> = self.averages.iter().map(|a| a.name()).collect();
            let problem = format!("{} averages {}", self.name, valid.join(" or "));
            return Err(Refusal::new("--averages", setup.averages.name(), problem));
        }
        if !setup.one_position_each() {
            self.check_shares(setup)?;
        }
        (self.check)(setup)
    }

    /// The path, where a run is nothing but gradients that are summed along it, lane by lane, and then applied.
    pub fn sums_along(&self, setup: &Setup) -> Option<CollectivePath> {
        let plain = setup.averages == Averages::Gradients && setup.coder.is_none();
        self.path.filter(|_| plain && setup.one_position_each() && setup.stages.is_none())
    }

    /// Whether a run's result does not depend on timing.
    pub fn deterministic(&self, setup: &Setup) -> bool {
        setup.sync.always_together(setup.end())
    }

    /// The codecs that it can be run with, by name.
    pub fn codecs(&self) -> Vec<&'static str> {
        let setup = |coder| Setup {
            coder: Some(coder),
            averages: self.averages[0],
            ..Setup::new(2, usize::from(self.servers), 100, 1)
        };
        let coders = codec::CODECS.iter().map(Coder::new);
        coders.filter(|coder| (self.check)(&setup(*coder)).is_ok()).map(|coder| coder.codec.name).collect()
    }
}

/// Strategies that pass on weights have no place for a residual.
fn refuse_lossy(setup: &Setup, name: &str) -> Result<(), Refusal> {
    match setup.coder {
        Some(coder) if coder.codec.family != codec::Family::PerHop => Err(Refusal::new(
            "--compression",
            coder,
            format!(
                "{name} passes on weights, not gradients: there is no residual that could bring back what \
                 this loses; valid: fp16"
            ),
        )),
        _ => Ok(()),
    }
}

/// The two neighbours on the ring.
fn ring_links(setup: &Setup, rank: Rank) -> Vec<Rank> {
    let p = setup.workers;
    let mut links = vec![(rank + p - 1) % p, (rank + 1) % p];
    links.sort_unstable();
    links.dedup();
    links.retain(|&peer| peer != rank);
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_lent_where_their_sender_waits_for_their_receiver() {
        let protocols = Protocols::default();
        let bsp = Setup::new(2, 2, 100, 1);
        let asp = Setup { sync: protocols.consistency("asp", &Options::default(), 10), ..bsp.clone() };
        let coder = codec::CODECS.iter().map(Coder::new).find(|coder| coder.codec.name == "fp16");
        let coded = Setup { coder, ..bsp.clone() };
        assert!(coded.coder.is_some() && !asp.sync.is_bsp());
        for (name, setup, lends) in [
            ("ring-allreduce", &bsp, true),
            ("ring-allreduce", &coded, false),
            ("ps", &bsp, true),
            ("ps", &coded, false),
            ("ps", &asp, false),
            ("stepwise", &bsp, false),
        ] {
            assert_eq!(find(name).unwrap().lends(setup), lends, "{name} {:?}", setup.coder);
        }
    }
}
