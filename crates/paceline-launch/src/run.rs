//! A run, from the plan to the result.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;

use paceline_data::{Dataset, Folders};
use paceline_plan::{Plan, PlanError};
use paceline_protocol::Refusal;
use paceline_record::process::Started;
use paceline_record::{Event, FailureKind, Recording, RunResult};
use paceline_registry::Registry;
use paceline_resolve::{Registries, TypedPlan};
use paceline_train::model::evaluation_samples;
use paceline_wire::TransportKind;

use crate::devices::{ScriptConditions, ScriptDevices};
use crate::elastic;
use crate::error::LaunchError;
use crate::hosts::Hosts;
use crate::joining::{self, RunEnd};
use crate::lead::Lead;
use crate::pauses::CheckpointContext;
use crate::rank::RankContext;
use crate::ranks::{Incoming, Ranks};
use crate::rendezvous::{self, Listen};
use crate::requests::RequestPort;
use crate::revoking::Revoking;
use crate::watch::{Snapshot, Watch, evaluate};

/// Sizes of a connection's buffer that can be asked for.
const BUFFERS: RangeInclusive<usize> = 4 << 10..=1 << 30;

/// What a run needs from outside.
#[derive(Clone)]
pub struct Launch<'a> {
    /// The plan.
    pub plan: &'a TypedPlan<'a>,
    /// What its names are looked up in.
    pub registries: &'a Registries,
    /// The dataset, loaded; none where scripts have their own.
    pub dataset: Option<&'a Dataset>,
    /// Where ranks find it.
    pub folders: &'a Folders,
    /// The run's id.
    pub run: &'a str,
    /// The program, and the word that makes it a rank.
    pub program: (PathBuf, &'static str),
    /// When this process began.
    pub started: Started,
    /// Where the run's checkpoints are, and what may end it early.
    pub checkpointing: &'a CheckpointContext,
    /// What to record of each rank, if anything.
    pub recording: Option<Recording>,
    /// What scripts are started with besides what the plan says.
    pub conditions: &'a ScriptConditions,
    /// The GPUs that the plan names.
    pub devices: Option<&'a ScriptDevices>,
}

/// A free port of this machine, where a script's own framework can meet.
pub fn meeting_port() -> std::io::Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// The transport that a run asks for, if its buffers can be what it asks for.
pub fn transport(
    transports: &Registry<TransportKind>,
    name: &str,
    buffer: Option<usize>,
) -> Result<&'static TransportKind, PlanError> {
    let names = |which: fn(&TransportKind) -> bool| {
        transports.iter().filter(|kind| which(kind)).map(|kind| kind.name).collect::<Vec<_>>().join(", ")
    };
    let Some(kind) = transports.find(name) else {
        return Err(PlanError::new("--transport", name, format!("valid: {}", names(|_| true))));
    };
    let Some(bytes) = buffer else { return Ok(kind) };
    if kind.buffer.is_none() {
        let with = names(|kind| kind.buffer.is_some());
        let problem = format!("{name} has no buffer to size ({}); valid with {with}", kind.about);
        return Err(PlanError::new("--buffer", bytes, problem));
    }
    if !BUFFERS.contains(&bytes) {
        return Err(PlanError::new("--buffer", bytes, "must be between 4KiB and 1GiB"));
    }
    Ok(kind)
}

/// Whether the hosts of a plan can be what the run asks for: other machines that join it, or emulated ones.
pub fn check_hosts(plan: &Plan, transports: &Registry<TransportKind>, joined: bool) -> Result<(), PlanError> {
    let refuse = |flag: &str, value: &dyn ToString, problem: String| {
        Err(PlanError::new(flag, value.to_string(), problem))
    };
    if !joined {
        let problem = "says where ranks sit; give --network, e.g. 1gbit,200us, to emulate hosts, or --listen for \
                       other machines to join";
        return match (&plan.hosts, plan.network) {
            (Some(hosts), None) => refuse("--hosts", hosts, problem.into()),
            _ => Ok(()),
        };
    }
    if let Some(network) = plan.network {
        return refuse("--network", &network, "emulates links on one machine; --listen has real ones".into());
    }
    let hosts = plan.host_count();
    if hosts < 2 {
        let problem = "with --listen at least 2 hosts are needed, this one included: --hosts 2".into();
        return refuse("--hosts", &hosts, problem);
    }
    let kind = transport(transports, &plan.transport, plan.buffer)?;
    if kind.bind_at.is_none() {
        let far: Vec<_> = transports.iter().filter(|k| k.bind_at.is_some()).map(|k| k.name).collect();
        let problem = format!(
            "does not go to other machines ({}); valid with --listen: {}",
            kind.about,
            far.join(", ")
        );
        return refuse("--transport", &kind.name, problem);
    }
    let layout = plan.layout();
    if let Some(idle) = (0..hosts).find(|host| !layout.contains(host)) {
        let problem = format!("host {idle} would have nothing to do; give more --workers or fewer hosts");
        return refuse("--hosts", &hosts, problem);
    }
    Ok(())
}

/// Most ranks of a real run: each is a process, or a thread of one.
const MOST_PROCESSES: usize = 4096;

/// Whether there can be as many processes as the plan has ranks; virtual time needs none.
pub fn check_processes(plan: &Plan) -> Result<(), PlanError> {
    if plan.processes() <= MOST_PROCESSES {
        return Ok(());
    }
    let problem =
        format!("at most {MOST_PROCESSES} processes in all; `paceline simulate` runs more in virtual time");
    Err(PlanError::new("--workers", plan.workers, problem))
}

/// Whether the plan can be run: its strategy, and its evaluations on this dataset.
pub fn check(
    plan: &TypedPlan<'_>,
    registries: &Registries,
    dataset: Option<&Dataset>,
) -> Result<(), LaunchError> {
    if let Some(dataset) = dataset {
        plan.check_test(dataset.test.len())?;
    }
    if plan.alone() {
        return Ok(());
    }
    transport(&registries.transports, &plan.document.transport, plan.buffer)?;
    let context = RankContext::new(plan, dataset, 0)?;
    if let Some(elastic) = &plan.elastic {
        elastic::check(elastic, plan, context.strategy, &context.setup)?;
        if plan.stop_at_target {
            let problem = "a run whose members change does not stop at a target: leave it out";
            return Err(PlanError::new("--stop-at-target", "", problem).into());
        }
    }
    if plan.stop_at_target && !context.evaluates_on_the_way() {
        let problem = "batch norm's statistics are the workers', and where parameters are the servers' they come \
                       together at the end only: the target cannot be noticed before; use --sync bsp without \
                       --compression, an exact path, or a model without batch norm";
        return Err(PlanError::new("--stop-at-target", "", problem).into());
    }
    let refused = |Refusal { flag, value, problem }| PlanError { flag, value, problem };
    Ok(context.strategy.check(&context.setup).map_err(refused)?)
}

/// Runs it; with `listen` on other machines too, which it waits for first. A run that loses a rank starts again from
/// its last checkpoint, as often as the plan says.
pub fn run(
    launch: &Launch<'_>,
    listen: Option<Listen>,
    report: &mut dyn FnMut(Event<'_>),
) -> Result<RunResult, LaunchError> {
    let plan = launch.plan;
    check_processes(plan)?;
    if !plan.alone() {
        check_hosts(plan, &launch.registries.transports, listen.is_some())?;
    }
    check(plan, launch.registries, launch.dataset)?;
    if let (Some(_), true) = (plan.strategy.delegated, listen.is_some()) {
        let problem = "the script's framework meets on this machine: not with --listen";
        return Err(PlanError::new("--strategy", &plan.document.strategy, problem).into());
    }
    if let (Some(elastic), true) = (plan.elastic, plan.alone() || plan.transport.mesh.is_some()) {
        let problem = "members can change where each is a process: with several workers, or shares, and not over \
                       --transport inproc";
        let bounds = format!("{}..{}", elastic.least, elastic.most);
        return Err(PlanError::new("--elastic", bounds, problem).into());
    }
    if let (Some(elastic), true) = (plan.elastic, listen.as_ref().is_some_and(|listen| !listen.by_hand)) {
        let problem = "members can change among the processes of one machine and of those that `paceline join` with --listen: \
                       an engine ends all processes of a job when one of them dies";
        let bounds = format!("{}..{}", elastic.least, elastic.most);
        return Err(PlanError::new("--elastic", bounds, problem).into());
    }
    if let (Some(elastic), Some(_), true) = (plan.elastic, &plan.script, listen.is_some()) {
        let problem = "members can change among scripts of one machine only: not with --listen";
        let bounds = format!("{}..{}", elastic.least, elastic.most);
        return Err(PlanError::new("--elastic", bounds, problem).into());
    }
    if plan.restarts > 0 && listen.is_some() {
        let problem = "a machine that is lost does not come back by itself: not with --listen";
        return Err(PlanError::new("--on-loss", "restart", problem).into());
    }
    launch.devices.into_iter().for_each(|devices| report(devices.event()));
    let mut checkpointing = launch.checkpointing.clone();
    checkpointing.cut(plan, launch.dataset)?;
    // Who was taken away once is not taken away again by a run that starts again.
    let mut revoking = Revoking::new(plan.revoke.as_ref());
    let mut done =
        attempt(&Launch { checkpointing: &checkpointing, ..launch.clone() }, listen, &mut revoking, report);
    for left in (0..plan.restarts).rev() {
        let Err(error) = &done else { break };
        if error.kind() != FailureKind::Lost {
            break;
        }
        checkpointing.resumed = checkpointing.checkpoints.latest(&plan.checkpoint_hash())?.0.map(Arc::new);
        checkpointing.cut(plan, launch.dataset)?;
        let step = checkpointing.resumed.as_ref().map_or(0, |checkpoint| checkpoint.step);
        report(Event::Restarted { step, cause: &error.to_string(), left });
        done =
            attempt(&Launch { checkpointing: &checkpointing, ..launch.clone() }, None, &mut revoking, report);
    }
    done
}

/// Runs it once, from the beginning or from where it was saved.
fn attempt(
    launch: &Launch<'_>,
    listen: Option<Listen>,
    revoking: &mut Revoking,
    report: &mut dyn FnMut(Event<'_>),
) -> Result<RunResult, LaunchError> {
    let (sender, heard) = channel();
    let hosts = match listen {
        Some(listen) => {
            let limit = longest_word(launch)?;
            Some(rendezvous::rendezvous(launch, listen, limit, sender.clone(), &heard, report)?)
        }
        None => None,
    };
    let folder = launch.checkpointing.checkpoints.run_folder();
    let asks = launch.plan.elastic.is_some() && launch.recording.is_some();
    let port = asks.then(|| RequestPort::open(folder, sender.clone())).transpose();
    let what = || format!("the socket for requests in {}", folder.display());
    let _port = port.map_err(|source| LaunchError::System { what: what(), source })?;
    std::thread::scope(|scope| {
        let (jobs, to_do) = channel::<Snapshot>();
        let (done, results) = channel();
        // Snapshots are evaluated beside the run: watching it must not wait.
        scope.spawn(move || {
            let test = launch.dataset.map_or(0, |dataset| dataset.test.len());
            let samples = evaluation_samples(launch.plan, test);
            for job in to_do {
                let Snapshot { step, train_s, params, state } = job;
                // Summed up as workers without stages would, each on its share.
                let whole = launch.plan.stages > 1 || launch.plan.elastic.is_some();
                let together = whole && state.as_ref().is_none_or(Vec::is_empty);
                let shares = if together { launch.plan.replicas() } else { 1 };
                let outcome = evaluate(launch, &params, state, &samples, shares);
                if done.send((step, train_s, outcome)).is_err() {
                    return;
                }
            }
        });
        let watch = Watch::new(launch, Some(jobs), results);
        supervise(scope, launch, watch, hosts, (sender, heard), revoking, report)
    })
}

/// Most bytes of what a machine may say at once: a model, its state, and some words.
fn longest_word(launch: &Launch<'_>) -> Result<usize, LaunchError> {
    let context = RankContext::new(launch.plan, launch.dataset, 0)?;
    // Parameters, what the optimiser remembers and what a strategy puts by; and a line for each update.
    let numbers = 8 * context.setup.params + context.state_count() * launch.plan.shares();
    let updates = 24_usize.saturating_mul(context.setup.end() as usize).saturating_mul(launch.plan.shares());
    if launch.plan.script.is_some() {
        // How large a script's model is, and what it keeps, is not known yet.
        return Ok(joining::LARGEST);
    }
    Ok(joining::DOCUMENT + size_of::<f32>() * numbers + updates)
}

/// Starts the ranks, leads them to the end, and ends them.
fn supervise<'scope>(
    scope: &'scope Scope<'scope, '_>,
    launch: &'scope Launch<'scope>,
    mut watch: Watch<'_>,
    hosts: Option<Hosts>,
    channel: (Sender<Incoming>, Receiver<Incoming>),
    revoking: &mut Revoking,
    report: &mut dyn FnMut(Event<'_>),
) -> Result<RunResult, LaunchError> {
    let mut ranks = Ranks::start(scope, launch, hosts, channel)?;
    let led = Lead::new(launch, &mut watch, &mut ranks, revoking).and_then(|lead| lead.finish(report));
    let done = led.and_then(|()| watch.finish(report));
    ranks.dismiss(match &done {
        Ok(result) => RunEnd { result: serde_json::to_value(result).ok(), ..RunEnd::default() },
        Err(e) => RunEnd::failed(e),
    });
    done
}
