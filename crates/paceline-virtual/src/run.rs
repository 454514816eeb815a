//! A plan in virtual time, from its costs to its result.

use std::sync::Arc;
use std::time::Instant;

use paceline_data::{Dataset, Order};
use paceline_launch::RankAccount;
use paceline_launch::gather::Gather;
use paceline_launch::run::{check, check_hosts};
use paceline_nn::{Compute, Graph};
use paceline_pipeline::StagePlan;
use paceline_plan::{Plan, PlanError};
use paceline_protocol::exchange::lanes;
use paceline_protocol::{
    Crossing, Participant, Refusal, ReplicaAgreement, Schedule, Setup, Strategy, Topology,
};
use paceline_record::event::SCHEMA;
use paceline_record::process::{self, Started};
use paceline_record::{Event, HostsUsed, RunResult, Simulation, SimulationDetails};
use paceline_resolve::{TypedPlan, paths};
use paceline_sim::{Costs, SimulationReport, SizesOnly, evaluate};
use paceline_train::model::{self, params_sha256};
use paceline_train::{Layout, Update, native, worker};

use crate::calibration::Calibration;
use crate::changes::{self, Changed, MemberChanges};
use crate::error::VirtualError;
use crate::learn::{Learning, LearningTask};
use crate::price::{self, PassTiming, Terms};
use crate::rows;
use crate::script::RecordedScript;

/// A run that is to be simulated.
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct Scenario<'a> {
    pub plan: &'a Plan,
    pub dataset: &'a Dataset,
    pub terms: Terms<'a>,
    /// Whether gradients are computed.
    pub learn: bool,
    /// How the run's members change, if they may.
    pub changes: Option<&'a MemberChanges>,
    /// Messages and waits of each rank that are told one by one, at most; with any, steps are as well.
    pub trace: u64,
    pub run: &'a str,
    pub started: Started,
}

/// A run of a script that is to be simulated.
#[allow(missing_docs, reason = "the names say what the fields are")]
pub struct ScriptScenario<'a> {
    pub plan: &'a Plan,
    /// What is known of the script.
    pub script: &'a RecordedScript,
    pub terms: Terms<'a>,
    /// As a [`Scenario`]'s.
    pub trace: u64,
    pub run: &'a str,
    pub started: Started,
}

/// What both have.
struct Conditions<'a> {
    plan: &'a Plan,
    terms: Terms<'a>,
    run: &'a str,
    started: Started,
    /// Seconds until the first step.
    startup: f64,
}

/// Messages that are driven one by one in a second of real time.
const MESSAGES_PER_S: f64 = 5e5;
/// Hosts whose messages are counted to estimate those of all, and ranks of each behind the first.
const COUNTED: usize = 64;
const COUNTED_OF_HOST: usize = 4;

/// What is told of a run while it is simulated.
#[derive(Clone, Debug, PartialEq)]
pub enum DrivenEvent {
    /// It goes event by event, from the start.
    Begins {
        /// Why it has to.
        why: String,
        /// Its messages, about.
        messages: f64,
        /// Seconds of real time, about.
        seconds: f64,
        /// Whether it takes less if steps repeat.
        at_most: bool,
    },
    /// So many steps are done.
    Step(u64),
}

/// A split that a step goes through so often, and more, is one that nobody would train on with as many workers.
const FEW: usize = 4;

/// Samples that a split counts as: where no gradient is computed, it need not have a sample for every worker, nor a quarter of
/// a global batch, and each step then has whole batches.
pub fn samples(plan: &Plan, dataset: &Dataset, learn: bool) -> usize {
    let there = dataset.train.len();
    let few = plan.shares() > there || plan.global_batch() > FEW * there;
    if !learn && few { plan.global_batch() } else { there }
}

/// A scenario that can be run: everything that follows from it.
pub(crate) struct PreparedRun {
    placed: Plan,
    /// The network; a script's is not known.
    pub(crate) graph: Option<Arc<Graph>>,
    strategy: &'static Strategy,
    pub(crate) setup: Setup,
    pub(crate) order: Order,
    /// Samples of the training split, where there is one.
    samples: Option<usize>,
    costs: Costs,
    /// What passes take, of each stage where the network is cut into some.
    pub(crate) timings: Vec<PassTiming>,
    /// Where the network is cut, if it is.
    pub(crate) stages: Option<StagePlan>,
}

/// A plan on the hosts of a cluster, if there is one.
pub(crate) fn placed(plan: &Plan, terms: &Terms<'_>) -> Result<Plan, VirtualError> {
    let Some(cluster) = terms.cluster else { return Ok(plan.clone()) };
    let placed = cluster.place(plan)?;
    // The cluster says who sits where, so that another path may be the right one.
    Ok(Plan { paths: paths(&placed, &terms.registries.transports), ..placed })
}

impl PreparedRun {
    fn new(scenario: &Scenario<'_>) -> Result<Self, VirtualError> {
        let Scenario { plan, dataset, terms, .. } = scenario;
        let registries = terms.registries;
        let placed = placed(plan, terms)?;
        check_hosts(&placed, &registries.transports, false)?;
        let plan = TypedPlan::new(plan, registries)?;
        let typed = TypedPlan::new(&placed, registries)?;
        check(&typed, registries, Some(dataset))?;
        let graph = Arc::new(model::graph(&plan, dataset)?);
        let samples = samples(&plan, dataset, scenario.learn);
        let stages = typed.stage_plan(&graph)?;
        let setup = worker::staged_setup(&typed, &Layout::of(&graph), stages.as_ref(), samples);
        plan.strategy.check(&setup).map_err(|refusal| {
            let Refusal { flag, value, problem } = refusal;
            PlanError { flag, value, problem }
        })?;
        let order = || match samples == dataset.train.len() {
            true => native::sample_order(&plan, dataset),
            false => Order::new(plan.seed, samples, plan.global_batch(), plan.total_samples(samples)),
        };
        let (costs, timings) = match &stages {
            Some(stages) => price::staged_costs(&typed, &graph, stages, &setup, terms),
            None => {
                let (costs, timing) = price::costs(&typed, &graph, &setup, order(), terms);
                (costs, vec![timing])
            }
        };
        let (strategy, order) = (plan.strategy, order());
        let (graph, samples) = (Some(graph), Some(samples));
        Ok(Self { placed, graph, strategy, setup, order, samples, costs, timings, stages })
    }

    fn of_script(scenario: &ScriptScenario<'_>) -> Result<Self, VirtualError> {
        let ScriptScenario { plan, script, terms, .. } = scenario;
        RecordedScript::check(plan)?;
        let placed = placed(plan, terms)?;
        check_hosts(&placed, &terms.registries.transports, false)?;
        let typed = TypedPlan::new(&placed, terms.registries)?;
        check(&typed, terms.registries, None)?;
        let steps = script.steps(plan)?;
        let (setup, costs) = script.priced(&typed, steps, terms)?;
        let batch = script.batch() * plan.workers;
        let all = steps * batch as u64;
        let order = Order::new(plan.seed, usize::try_from(all).unwrap_or(usize::MAX), batch, all);
        let (strategy, timings) = (typed.strategy, vec![script.timing(plan)]);
        Ok(Self { placed, graph: None, strategy, setup, order, samples: None, costs, timings, stages: None })
    }

    fn participants(&self) -> Vec<Box<dyn Participant>> {
        (0..self.setup.world()).map(|rank| self.strategy.participant(&self.setup, rank)).collect()
    }
}

/// Runs it, telling `report` what happens in virtual time.
pub fn run(scenario: &Scenario<'_>, report: &mut dyn FnMut(Event<'_>)) -> Result<RunResult, VirtualError> {
    run_watched(scenario, report, &mut |_| {})
}

/// The same, telling `watch` how far it is if that may take a while.
pub fn run_watched(
    scenario: &Scenario<'_>,
    report: &mut dyn FnMut(Event<'_>),
    watch: &mut dyn FnMut(DrivenEvent),
) -> Result<RunResult, VirtualError> {
    let stage = PreparedRun::new(scenario)?;
    let Scenario { plan, terms, run, started, learn, trace, .. } = *scenario;
    let startup = terms.calibration.map_or_else(|| Calibration::defaults().startup_s, |c| c.startup_s).median;
    let conditions = Conditions { plan, terms, run, started, startup };
    conditions.begin(&stage, report);
    let gather = Gather::new(&stage.placed, stage.samples, None);
    let began = Instant::now();
    let mut changed = None;
    let (happened, by, gather, model) = if let Some(changes) = scenario.changes {
        let (of, gather) = change(scenario, changes, &stage, gather, report)?;
        let (happened, model) = (of.happened.clone(), of.model.clone());
        changed = Some(of);
        (happened, "events", gather, model)
    } else if learn {
        let (happened, gather, model) = self::learn(scenario, &stage, gather, report)?;
        (happened, "events", gather, model)
    } else {
        let (happened, by) = time(&stage, trace, watch);
        (happened, by, gather, None)
    };
    let driven = Driven { happened, by, began, changed };
    let mut result = conditions.end(&stage, driven, gather, model, report)?;
    if !learn {
        // Nothing was computed that could be told.
        [result.train_loss, result.final_loss, result.final_accuracy] = [f64::NAN; 3];
        result.params_sha256.clear();
    }
    Ok(result)
}

/// The same of a script.
pub fn run_script(
    scenario: &ScriptScenario<'_>,
    report: &mut dyn FnMut(Event<'_>),
    watch: &mut dyn FnMut(DrivenEvent),
) -> Result<RunResult, VirtualError> {
    let stage = PreparedRun::of_script(scenario)?;
    let ScriptScenario { plan, script, terms, trace, run, started } = *scenario;
    let conditions = Conditions { plan, terms, run, started, startup: script.startup_s() };
    conditions.begin(&stage, report);
    let began = Instant::now();
    let (happened, by) = time(&stage, trace, watch);
    let gather = Gather::new(&stage.placed, None, None);
    let driven = Driven { happened, by, began, changed: None };
    let mut result = conditions.end(&stage, driven, gather, None, report)?;
    result.train_loss = f64::NAN;
    result.params_sha256.clear();
    Ok(result)
}

/// A run that was driven since `began`.
struct Driven {
    happened: SimulationReport,
    /// As a schedule, or event by event.
    by: &'static str,
    began: Instant,
    /// How its members changed, if they might.
    changed: Option<Changed>,
}

impl Conditions<'_> {
    fn begin(&self, stage: &PreparedRun, report: &mut dyn FnMut(Event<'_>)) {
        report(Event::Start {
            schema: SCHEMA,
            run: self.run,
            plan: self.plan,
            plan_sha256: self.plan.hash(),
            parameters: stage.setup.params,
            steps: stage.setup.end(),
            kernels: paceline_nn::accel::Level::detect().to_string(),
        });
    }

    /// What came of it.
    fn end(
        &self,
        stage: &PreparedRun,
        Driven { happened, by, began, changed }: Driven,
        mut gather: Gather<'_>,
        model: Option<String>,
        report: &mut dyn FnMut(Event<'_>),
    ) -> Result<RunResult, VirtualError> {
        let seconds = began.elapsed().as_secs_f64();
        if !happened.stuck.is_empty() {
            let steps = happened.finished.iter().map(Vec::len).min().unwrap_or(0);
            return Err(VirtualError::Stuck { ranks: happened.stuck, steps });
        }
        tell(&self.terms, stage, &happened, &mut gather, report);
        let mut result = gather.result(self.run, self.startup, self.started, model);
        let simulation = Simulation {
            by: by.into(),
            messages: happened.messages,
            real_s: seconds,
            real_total_s: result.seconds.total,
            rss_peak_bytes: process::peak_memory_bytes(),
        };
        if let Some(changed) = &changed {
            let end = stage.setup.end();
            changed.correct(&mut result, end, stage.order.samples_before(end));
        }
        result.seconds.total = self.startup + result.seconds.train;
        let (hosts, cost) = hosts(&self.terms, &stage.placed, result.seconds.train);
        result.membership = changed.map_or_else(Vec::new, |changed| changed.changes);
        result.simulated = Some(Box::new(SimulationDetails {
            trace_sha256: happened.trace_sha256(),
            cost,
            currency: self.terms.cluster.and_then(|cluster| cluster.currency.clone()),
            hosts,
            simulation,
        }));
        Ok(result)
    }
}

/// Time alone: as a recurrence where the run is one and nobody asks for single messages, event by event otherwise;
/// and by which of them.
fn time(
    stage: &PreparedRun,
    trace: u64,
    watch: &mut dyn FnMut(DrivenEvent),
) -> (SimulationReport, &'static str) {
    let PreparedRun { strategy, setup, costs, .. } = stage;
    let path = strategy.sums_along(setup);
    let why = match path {
        _ if trace > 0 => "single messages are to be recorded".into(),
        None if setup.stages.is_some() => "the network is cut into stages".into(),
        None => "gradients are not summed along a path".into(),
        Some(path) => match evaluate(setup, path, costs, &mut |step, _| watch(DrivenEvent::Step(step))) {
            Ok(happened) => return (happened, "schedule"),
            Err(why) => why.to_string(),
        },
    };
    let messages = messages(strategy, setup);
    let repeats = path.is_some() && trace == 0 && costs.jitter.is_empty();
    watch(DrivenEvent::Begins { why, messages, seconds: messages / MESSAGES_PER_S, at_most: repeats });
    let progress = &mut |step, _| watch(DrivenEvent::Step(step));
    let (all, memory) = (stage.participants(), &mut SizesOnly);
    let happened = match path {
        _ if trace > 0 => paceline_sim::record(setup, all, costs, memory, trace as usize, progress),
        Some(_) => paceline_sim::run_repeating(setup, all, costs, progress),
        None => paceline_sim::run_telling(setup, all, costs, memory, progress),
    };
    (happened, "events")
}

/// About how many messages there are: those of some hosts' ranks, as if all were like them. A host's first rank may send
/// for all; the others, and the hosts, are an odd number apart, as paths like powers of two.
fn messages(strategy: &Strategy, setup: &Setup) -> f64 {
    if let Some(stages) = &setup.stages {
        let averaging = (0..stages.stages.len()).map(|stage| messages(strategy, &setup.of_stage(stage)));
        let pieces = |crossing: &Crossing| {
            let ways = 1 + usize::from(crossing.gradient);
            ways * stages.micro_batches * stages.room(crossing).div_ceil(setup.message.max(1))
        };
        let crossing: usize =
            stages.stages.iter().flat_map(|stage| stage.outputs()).map(|(_, c)| pieces(c)).sum();
        let steps = (setup.end() - setup.from) as f64;
        return averaging.sum::<f64>() + (crossing * setup.replicas()) as f64 * steps;
    }
    let of = |rank: usize| match strategy.path {
        Some(path) => {
            let sends =
                |schedule: &Schedule| schedule.moves.iter().filter(|step| step.send.is_some()).count();
            lanes(setup, path, rank).map(|(_, schedule)| sends(&schedule)).sum()
        }
        // Each link carries every piece, there and back where there are servers.
        None => {
            let pieces = setup.buckets().len().max(setup.params.div_ceil(setup.message.max(1)));
            (strategy.links_of(setup, rank).len() * pieces) << usize::from(setup.servers > 0)
        }
    };
    let apart: Vec<usize> = (0..setup.workers).collect();
    let hosts = if setup.hosts.is_empty() { &apart } else { &setup.hosts[..setup.workers] };
    let topology = Topology::of(hosts);
    let counted = (0..topology.hosts()).step_by(topology.hosts().div_ceil(COUNTED) | 1);
    let (mut messages, mut ranks) = (0.0, 0);
    for host in counted {
        let [first, others @ ..] = topology.members(host) else { continue };
        let some = || others.iter().step_by(others.len().div_ceil(COUNTED_OF_HOST) | 1);
        let each = some().map(|rank| of(*rank)).sum::<usize>() as f64 / some().count().max(1) as f64;
        messages += of(*first) as f64 + each * others.len() as f64;
        ranks += 1 + others.len();
    }
    let all = messages * setup.workers as f64 / ranks.max(1) as f64;
    all * (setup.end() - setup.from) as f64
}

/// A run whose members change: time alone, or with learning.
fn change<'a>(
    scenario: &'a Scenario<'_>,
    changes: &MemberChanges,
    stage: &'a PreparedRun,
    gather: Gather<'a>,
    report: &mut dyn FnMut(Event<'_>),
) -> Result<(Changed, Gather<'a>), VirtualError> {
    let PreparedRun { placed, strategy, setup, costs, .. } = stage;
    changes.check(placed, strategy, setup)?;
    let run = (*strategy, setup, costs);
    if scenario.learn {
        let members = setup.world() + changes.elastic.spares;
        let mut learning = learning(scenario, stage, vec![Vec::new(); members], gather, report)?;
        let changed = changes::learn(changes, placed, run, &mut learning)?;
        return Ok((changed, learning.gather));
    }
    let plan = TypedPlan::new(placed, scenario.terms.registries)?;
    let samples = stage.samples.expect("a native network's split");
    let update = Update::new(&plan, samples, Arc::new(Compute::new(1, false)));
    Ok((changes::time_alone(changes, placed, run, update.blocks(), &gather)?, gather))
}

/// The ranks' memory: `scratch` gives each rank's scratch lengths.
fn learning<'a, 'r>(
    scenario: &'a Scenario<'_>,
    stage: &'a PreparedRun,
    scratch: Vec<Vec<usize>>,
    gather: Gather<'a>,
    report: &'r mut dyn FnMut(Event<'_>),
) -> Result<Learning<'a, 'r>, VirtualError> {
    let PreparedRun { placed, graph, strategy, setup, stages, .. } = stage;
    let lesson = LearningTask {
        plan: TypedPlan::new(placed, scenario.terms.registries)?,
        dataset: scenario.dataset,
        setup,
        agreement: strategy.agreement_of_members(setup, scenario.changes.is_some()),
        together: strategy.deterministic(setup),
        graph: graph.clone().expect("a native network"),
        stages: stages.as_ref(),
    };
    Ok(Learning::new(lesson, scratch, gather, report)?)
}

/// Time and learning; the hash of the evaluated model, where that is no rank's own.
fn learn<'a>(
    scenario: &'a Scenario<'_>,
    stage: &'a PreparedRun,
    gather: Gather<'a>,
    report: &mut dyn FnMut(Event<'_>),
) -> Result<(SimulationReport, Gather<'a>, Option<String>), VirtualError> {
    let PreparedRun { placed, strategy, setup, costs, stages, .. } = stage;
    let agreement = (strategy.agreement)(setup);
    let participants = stage.participants();
    let scratch = participants.iter().map(|participant| participant.scratch()).collect();
    let mut learning = learning(scenario, stage, scratch, gather, report)?;
    let happened = match scenario.trace {
        0 => paceline_sim::run(setup, participants, costs, &mut learning),
        trace => {
            paceline_sim::record(setup, participants, costs, &mut learning, trace as usize, &mut |_, _| {})
        }
    };
    if let Some(failed) = learning.failed.take() {
        return Err(failed.into());
    }
    let mut model = None;
    let (params, state) = learning.model();
    if agreement == ReplicaAgreement::Apart {
        model = Some(params_sha256(&params));
        let steps = happened.finished.iter().map(Vec::len).sum::<usize>() / setup.workers;
        learning.tell(steps as u64, end(&happened), &params, state.clone());
    }
    if stages.is_some() {
        model = Some(params_sha256(&params));
    }
    if placed.eval_samples.is_some() {
        let outcome = learning.evaluate_whole(&params, state);
        learning.gather.final_outcome(outcome);
    }
    for rank in setup.workers..setup.world() {
        learning.gather.numbers[rank] = learning.ranks[rank].params[setup.shard_of(rank)].to_vec();
    }
    for rank in 0..setup.world() {
        let own = &learning.ranks[rank];
        let (params, state, last) = (own.params.to_vec(), own.state.clone(), own.last);
        let own_hash = match rank < setup.workers {
            true => params_sha256(&params),
            false => params_sha256(&params[setup.shard_of(rank)]),
        };
        let mut done =
            RankAccount { samples: own.samples, params_sha256: own_hash, ..RankAccount::default() };
        if rank < setup.workers {
            (done.last_loss, done.last_samples) = (last.loss, last.samples);
            let apart = agreement == ReplicaAgreement::Apart && setup.servers == 0;
            done.accuracy = apart.then(|| learning.evaluate_whole(&params, state).accuracy());
        }
        learning.gather.done[rank] = Some(done);
    }
    Ok((happened, learning.gather, model))
}

fn end(happened: &SimulationReport) -> u64 {
    happened.finished.iter().filter_map(|times| times.last()).copied().max().unwrap_or(0)
}

/// Fills in the ranks' accounts, and tells where their time went.
fn tell(
    terms: &Terms<'_>,
    stage: &PreparedRun,
    happened: &SimulationReport,
    gather: &mut Gather<'_>,
    report: &mut dyn FnMut(Event<'_>),
) {
    let PreparedRun { setup, timings, placed, .. } = stage;
    let seconds = |time: u64| time as f64 * 1e-9;
    let kinds = terms.cluster.map(|cluster| cluster.hosts());
    let layout = placed.layout();
    let samples = stage.order.samples_before(setup.end());
    for (rank, spent) in happened.spent.iter().enumerate() {
        let compute = seconds(spent.compute);
        let timing = &timings[setup.stage_of(rank)];
        let phases =
            [timing.data, timing.forward, 1.0 - timing.data - timing.forward].map(|part| part * compute);
        let learned = gather.done[rank].take();
        let unlearned =
            RankAccount { samples: if rank == 0 { samples } else { 0 }, ..RankAccount::default() };
        let steps = happened.finished.get(rank);
        let last = steps.and_then(|times| times.last()).copied().unwrap_or(0);
        let wait_for_s = spent.wait_for.iter().map(|time| seconds(*time)).collect::<Vec<f64>>();
        let (send_s, wait_s, apply_s) =
            (seconds(spent.exchange), seconds(spent.wait()), seconds(spent.apply));
        gather.done[rank] = Some(RankAccount {
            steps: steps.map_or(0, |times| times.len() as u64),
            train_s: seconds(last),
            phases,
            send_s,
            wait_s,
            wait_for_s,
            apply_s,
            sent_bytes: spent.sent_bytes,
            received_bytes: spent.received_bytes,
            staleness: happened.staleness[rank].clone(),
            cpu_s: compute + send_s + apply_s,
            host: kinds.as_ref().map_or("virtual".into(), |kinds| kinds[layout[rank]].name.clone()),
            ..learned.unwrap_or(unlearned)
        });
    }
    gather.phases(report);
    rows::tell(&terms.registries.metrics, stage, happened, report);
}

/// The cluster's hosts in use, and what they cost over so many seconds, if all have a price.
fn hosts(terms: &Terms<'_>, placed: &Plan, seconds: f64) -> (Vec<HostsUsed>, Option<f64>) {
    let Some(cluster) = terms.cluster else { return (Vec::new(), None) };
    let all = cluster.hosts();
    let used = &all[..placed.host_count().min(all.len())];
    let mut groups: Vec<HostsUsed> = Vec::new();
    for host in used {
        match groups.iter_mut().find(|group| group.name == host.name) {
            Some(group) => group.count += 1,
            None => groups.push(HostsUsed { name: host.name.clone(), count: 1 }),
        }
    }
    let prices = used.iter().map(|host| host.price_per_hour);
    (groups, prices.sum::<Option<f64>>().map(|per_hour| per_hour * seconds / 3600.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_as_they_are_sent() {
        for (name, p, hosts) in [
            ("hierarchical", 64, 8),
            ("hierarchical", 256, 128),
            ("direct", 32, 1),
            ("ring-allreduce", 100, 100),
            ("tree", 128, 128),
        ] {
            let hosts = (0..p).map(|rank| rank * hosts / p).collect();
            let setup = Setup { hosts, bucket: 500, ..Setup::new(p, 0, 1_000, 3) };
            let strategy = paceline_protocol::find(name).unwrap();
            let all = (0..p).map(|rank| strategy.participant(&setup, rank)).collect();
            let costs = Costs::constant(p, 1_000, 1_000, 1.0);
            let sent = paceline_sim::run(&setup, all, &costs, &mut SizesOnly).messages as f64;
            let told = messages(strategy, &setup);
            assert!((told / sent - 1.0).abs() < 0.05, "{name}: {told} told, {sent} sent");
        }
    }
}
