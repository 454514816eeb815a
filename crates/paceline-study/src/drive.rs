//! Makes a study's runs: each a child process under a keeper.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use paceline_analyze::chart::duration;
use paceline_explore::schedule::{End, Next, PlannedRun, Role, StudyRun, observations};
use paceline_launch::nodes::NodeChange;
use paceline_launch::trial::{Ended, TrialEvent};
use paceline_launch::{Exit, Interrupt};
use paceline_plan::{Goal, PlanError, Study, Workload};
use paceline_record::FailureKind;
use paceline_record::figures::{COST, FigureKind, Figures};
use paceline_wire::Key;
use serde_json::{Value as Json, json};

use crate::error::StudyFailure;
use crate::lanes::{LaneTrial, Lanes, Places};
use crate::reader::FigureReader;
use crate::report::{configuration, figure};
use crate::state::{StudyHistory, StudyState};
use crate::workload::{self, Call};

/// What happens to a study while its runs are made.
#[allow(missing_docs, reason = "the names say what the fields are")]
pub enum StudyEvent<'a> {
    Note(&'a str),
    Progress {
        done: u64,
        /// Runs in all, as far as that is known.
        expected: u64,
        /// What is left, the best so far, and how long the rest will take.
        message: String,
    },
    RunEnd {
        /// In a line.
        line: String,
        /// For programs.
        document: Json,
    },
}

/// Takes events; an error ends the study.
pub type StudyObserver<'o> = &'o mut dyn FnMut(StudyEvent<'_>) -> io::Result<()>;

/// How long one look for news takes.
const LOOK: Duration = Duration::from_millis(20);

/// A run under way.
struct Active {
    job: PlannedRun,
    /// Where it runs; of several lanes, the first leads.
    lanes: Vec<usize>,
    call: Call,
    trial: LaneTrial,
    /// Its other hosts.
    others: Vec<LaneTrial>,
    reader: FigureReader,
    /// Why this process ended it, if it did.
    stopped: Option<Stop>,
    /// How the training ended, while the network's answers are timed.
    trained: Option<Ended>,
    /// When it failed because a host of it was lost, and how: it is soon known whether that was a node.
    doubted: Option<(Instant, Ended)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Stop {
    Beaten,
    Late,
}

/// What was heard of a run.
enum LaneEvent {
    Nothing,
    Ended(Ended),
    /// The node of this lane is gone.
    NodeLost(usize, String),
}

/// Time within which every loss is noticed by everybody.
const ALL_KNOW: Duration = Duration::from_secs(6);

/// Makes all runs that are left, side by side where `places` says. Interrupted, it ends what is under way and says so.
pub fn drive(
    state: &mut StudyState,
    store: &Path,
    places: Places,
    interrupt: &Interrupt,
    observer: StudyObserver<'_>,
) -> Result<(), StudyFailure> {
    let mut lanes = Lanes::new(places)?;
    let incoming = state.incoming();
    let clear = || drop(fs::remove_dir_all(&incoming));
    // What nodes' runs have left is in the store, or was of a run that is made again.
    clear();
    let done = make_runs(state, store, &mut lanes, interrupt, observer);
    clear();
    lanes.end(done.as_ref().err());
    done
}

fn make_runs(
    state: &mut StudyState,
    store: &Path,
    lanes: &mut Lanes,
    interrupt: &Interrupt,
    observer: StudyObserver<'_>,
) -> Result<(), StudyFailure> {
    let study = state.known.study.clone();
    let prior = crate::prior::prior(state, observer)?;
    let mut schedule = crate::schedule_expecting(&study, &state.known.registries, state.known.added, prior)?;
    let expected = schedule.expected();
    let mut again: VecDeque<PlannedRun> =
        state.known.made.iter().filter(|m| m.end.is_none()).map(|m| m.job.clone()).collect();
    let minutes = study.minutes.map(|minutes| minutes + state.known.added_minutes);
    let (started, earlier_s) = (Instant::now(), state.known.wall_s / lanes.most() as f64);
    let mut active: Vec<Active> = Vec::new();
    observer(progress(state, expected, lanes))?;
    loop {
        if interrupt.requested() {
            // Dropping the runs ends them; they are begun again when the study is resumed.
            drop(active);
            return Err(StudyFailure::Interrupted { name: study.name });
        }
        for change in lanes.changes() {
            observer(StudyEvent::Note(&node_words(&change)))?;
            observer(progress(state, expected, lanes))?;
        }
        let spent_s = earlier_s + started.elapsed().as_secs_f64();
        let over = minutes.is_some_and(|minutes| spent_s > 60.0 * minutes);
        // When time is over, a last control closes the bracket around the points that were run.
        let closing = if over && active.is_empty() { schedule.closing(&state.known.made) } else { None };
        let mut finished = over && active.is_empty() && closing.is_none();
        while active.len() < lanes.most() {
            let taken: Vec<usize> = active.iter().flat_map(|one| one.lanes.clone()).collect();
            let mut free = lanes.free(&taken);
            let Some(&first) = free.first() else { break };
            let last = closing.as_ref().filter(|_| active.is_empty());
            let job = match again.pop_front().filter(|_| !over).or_else(|| last.cloned()) {
                Some(job) => job,
                None if over => break,
                None => match schedule.next(&state.known.made) {
                    Next::Run(job) => job,
                    Next::Wait => break,
                    Next::Finished => {
                        finished = active.is_empty();
                        break;
                    }
                },
            };
            let (own, registries) = (state.known.of(&job), &state.known.registries);
            let call = workload::call(own, registries, &job, store, lanes.cores(first));
            let call = call.and_then(|call| fitting(call, lanes));
            let call = match call {
                Ok(call) => call,
                Err(refusal) => {
                    state.begin(&job)?;
                    let ended = refused(&refusal);
                    let end = End::Refused { cause: ended.cause() };
                    settle(state, &job, (end, None), &ended, None, observer)?;
                    observer(progress(state, expected, lanes))?;
                    continue;
                }
            };
            let (needed, present) = (lanes.needed(&call), lanes.present());
            if needed > present && active.is_empty() {
                let (name, id, size) = (study.name, job.id, lanes.size());
                return Err(StudyFailure::NodesLost { name, id, needed, present, size });
            }
            if needed > free.len() {
                // Nothing else begins before it.
                again.push_front(job);
                break;
            }
            free.truncate(needed);
            state.begin(&job)?;
            let tree = call.document.is_none().then(|| state.tree(job.id));
            let begun = start(lanes, &free, call, state.incoming(), tree.as_deref());
            let not_started = |source| StudyFailure::NotStarted { id: job.id, source };
            let Some((call, trial)) = begun.map_err(not_started)? else {
                again.push_front(job);
                break;
            };
            let reader = FigureReader::new(&study, &state.known.registries.figures);
            let (others, stopped, trained, doubted) = (Vec::new(), None, None, None);
            active.push(Active { job, lanes: free, call, trial, others, reader, stopped, trained, doubted });
        }
        if finished {
            if over && schedule.next(&state.known.made) != Next::Finished {
                let name = &study.name;
                let note =
                    format!("the study's time is over; `paceline resume {name} --add-minutes M` goes on");
                state.time_over()?;
                return Ok(observer(StudyEvent::Note(&note))?);
            }
            return state.finish();
        }
        let patience = LOOK / active.len().max(1) as u32;
        if active.is_empty() {
            std::thread::sleep(LOOK);
        }
        let mut i = 0;
        while i < active.len() {
            let one = &mut active[i];
            let not_started = |id| move |source| StudyFailure::NotStarted { id, source };
            let ended = match listen(one, &state.known, patience) {
                LaneEvent::Nothing => {
                    match one.invite(lanes, &state.incoming()).map_err(not_started(one.job.id))? {
                        None => {
                            i += 1;
                            continue;
                        }
                        Some(lane) => LaneEvent::NodeLost(lane, "it was gone when the run began".into()),
                    }
                }
                heard => heard,
            };
            let ended = match ended {
                LaneEvent::Nothing => continue,
                LaneEvent::NodeLost(lane, cause) => {
                    let Active { job, .. } = active.swap_remove(i);
                    let node = lanes.node(lane).unwrap_or_default();
                    let note = format!("run {} is made again: {node} was lost with it: {cause}", job.id);
                    state.node_lost(job.id, node, cause)?;
                    observer(StudyEvent::Note(&note))?;
                    again.push_front(job);
                    continue;
                }
                LaneEvent::Ended(ended) => ended,
            };
            one.trial.take_in(store, &state.known.registries.runs().metrics, &state.tree(one.job.id))?;
            let well = ended.exit.code == Some(0) && one.stopped.is_none() && one.reader.complete;
            let timing = (well && one.trained.is_none())
                .then(|| workload::inference(state.known.of(&one.job), &state.known.registries, &one.job));
            let (trained, ended) = match timing {
                Some(Ok(Some(call))) => {
                    one.others.clear();
                    let into = state.incoming().join("answers");
                    let begun = lanes.start(one.lanes[0], &call, None, into);
                    match begun.map_err(not_started(one.job.id))? {
                        Some(trial) => {
                            one.trial = trial;
                            one.reader.answers = true;
                            one.trained = Some(ended);
                        }
                        // Its node is gone: the run is made again, with its answers.
                        None => again.push_front(active.swap_remove(i).job),
                    }
                    continue;
                }
                Some(Err(refusal)) => (Some(ended), refused(&refusal)),
                _ => (one.trained.take(), ended),
            };
            let Active { job, reader, stopped, lanes: own, .. } = active.swap_remove(i);
            let end = end(state.known.of(&job), &job, &reader, stopped, trained.as_ref(), &ended);
            settle(state, &job, (end, reader.run), &ended, lanes.node(own[0]), observer)?;
            observer(progress(state, expected, lanes))?;
        }
    }
}

/// Refuses a run that wants more nodes than the study has.
fn fitting(call: Call, lanes: &Lanes) -> Result<Call, StudyFailure> {
    let (needed, size) = (lanes.needed(&call), lanes.size());
    if needed > size {
        let problem = format!("the study has {size} nodes, and each is a host");
        return Err(PlanError::new("--hosts", needed, problem).into());
    }
    Ok(call)
}

/// Starts a run on lanes, of which the first leads; how it was called, and what came of it. None if the node is gone.
fn start(
    lanes: &mut Lanes,
    own: &[usize],
    mut call: Call,
    incoming: PathBuf,
    tree: Option<&Path>,
) -> io::Result<Option<(Call, LaneTrial)>> {
    if own.len() > 1 {
        let key = Key::generate().map_err(io::Error::other)?;
        let Some(address) = lanes.address(own[0]) else { return Ok(None) };
        call.document = call.document.map(|document| document.led_at(address, &key));
    }
    let trial = lanes.start(own[0], &call, tree, incoming.join(format!("lane-{}", own[0])))?;
    Ok(trial.map(|trial| (call, trial)))
}

impl Active {
    /// Starts its other hosts, once it waits for them. The lane whose node is gone, if one is.
    fn invite(&mut self, lanes: &mut Lanes, incoming: &Path) -> io::Result<Option<usize>> {
        let hosts = self.lanes.len();
        let Some(address) = self.reader.address.filter(|_| self.others.len() + 1 < hosts) else {
            return Ok(None);
        };
        for host in 1..hosts {
            let document =
                self.call.document.as_ref().and_then(|document| document.joined(address, host, hosts));
            let (lane, call) = (self.lanes[host], Call { document, ..self.call.clone() });
            match lanes.start(lane, &call, None, incoming.join(format!("lane-{lane}")))? {
                Some(trial) => self.others.push(trial),
                None => return Ok(Some(lane)),
            }
        }
        Ok(None)
    }
}

/// What became of a node, for people.
pub fn node_words(change: &NodeChange) -> String {
    match change {
        NodeChange::Came { node } => format!("{node} has come"),
        NodeChange::Lost { node, cause } => format!("{node} is gone: {cause}"),
        NodeChange::Liveness { node, there: true } => format!("{node} is there again"),
        NodeChange::Liveness { node, there: false } => format!("nothing was heard from {node} for 2 s"),
        NodeChange::Refused { cause } => format!("turned away: {cause}"),
    }
}

/// Takes in what a run says; its end, when it has come.
fn listen(one: &mut Active, known: &StudyHistory, patience: Duration) -> LaneEvent {
    let study = known.of(&one.job);
    let deadline = Instant::now() + patience;
    for (other, lane) in one.others.iter_mut().zip(&one.lanes[1..]) {
        // What another host says is said by the first as well.
        while let Some(heard) = other.hear(Duration::ZERO) {
            match heard {
                Err(cause) => return LaneEvent::NodeLost(*lane, cause),
                Ok(TrialEvent::Ended(_)) => break,
                Ok(TrialEvent::Line(_)) => {}
            }
        }
    }
    if let Some((since, ended)) = &one.doubted {
        let ended = (since.elapsed() > ALL_KNOW).then(|| LaneEvent::Ended(ended.clone()));
        return ended.unwrap_or(LaneEvent::Nothing);
    }
    loop {
        match one.trial.hear(deadline.saturating_duration_since(Instant::now())) {
            Some(Ok(TrialEvent::Line(line))) => one.reader.line(&line),
            Some(Ok(TrialEvent::Ended(ended))) => {
                let lost = one.reader.failure == Some(FailureKind::Lost) && one.stopped.is_none();
                if lost && one.lanes.len() > 1 {
                    one.doubted = Some((Instant::now(), ended));
                    return LaneEvent::Nothing;
                }
                return LaneEvent::Ended(ended);
            }
            Some(Err(cause)) => return LaneEvent::NodeLost(one.lanes[0], cause),
            None => break,
        }
    }
    if one.stopped.is_some() || one.reader.complete {
        return LaneEvent::Nothing;
    }
    let late = matches!(&study.workload, Workload::Command { timeout_s: Some(limit), .. } if one.trial.seconds() > *limit);
    if late {
        one.stopped = Some(Stop::Late);
    } else if beaten(one, study, &known.made) {
        one.stopped = Some(Stop::Beaten);
    }
    if one.stopped.is_some() {
        one.trial.kill();
    }
    LaneEvent::Nothing
}

/// Whether a run's clock is already far beyond the best.
fn beaten(one: &Active, study: &Study, made: &[StudyRun]) -> bool {
    let [objective] = study.objectives.as_slice() else { return false };
    if one.job.role != Role::Point
        || study.give_up == 0.0
        || objective.goal != Goal::Minimize
        || one.reader.figures.kind(&objective.metric) != FigureKind::Clock
    {
        return false;
    }
    let best = best_loss(study, &one.reader.figures, made);
    // A run that has reached its target only finishes its work.
    let reached = objective.metric == "time_to_accuracy_s" && target_reached(one, study);
    best.is_some_and(|best| one.reader.train_s > study.give_up * best) && !reached
}

/// The first objective of the workload's best point so far, less being better.
fn best_loss(study: &Study, figures: &Figures, made: &[StudyRun]) -> Option<f64> {
    let problem = crate::problem(study, figures);
    let own: Vec<StudyRun> =
        made.iter().filter(|run| run.job.workload.as_deref() == study.workload_name()).cloned().collect();
    let history = observations(&problem, &own);
    problem.best(&history).first().and_then(|i| problem.losses(&history[*i])).map(|losses| losses[0])
}

fn target_reached(one: &Active, study: &Study) -> bool {
    let levels = workload::levels(study, &one.job);
    let fixed =
        if let Workload::Train(fixed) = &study.workload { fixed.get("target-accuracy") } else { None };
    let target = levels.get("target-accuracy").or(fixed).and_then(paceline_plan::Value::number);
    let accuracy = one.reader.metrics(0.0, None, None).get("final_accuracy").copied();
    accuracy.zip(target).is_some_and(|(accuracy, target)| accuracy >= target)
}

/// The end of a run that was not started: the same as of one that refuses its plan.
fn refused(refusal: &StudyFailure) -> Ended {
    let exit = Exit { code: Some(refusal.kind().code().into()), ..Exit::default() };
    let stderr = format!("error: {refusal}");
    Ended { exit, cpu_s: None, wall_s: 0.0, tree: None, stderr }
}

fn end(
    study: &Study,
    job: &PlannedRun,
    reader: &FigureReader,
    stopped: Option<Stop>,
    trained: Option<&Ended>,
    ended: &Ended,
) -> End {
    let of = trained.unwrap_or(ended);
    let mut metrics = reader.metrics(of.wall_s, of.cpu_s, of.tree);
    if let Some(cost) = workload::cost(study, job, &metrics) {
        metrics.insert(COST.into(), cost);
    }
    match (stopped, ended.exit.code) {
        (None, code) if trained.is_some() && code != Some(0) => {
            End::Failed { cause: format!("its network's answers could not be timed: {}", ended.cause()) }
        }
        (Some(Stop::Late), _) => {
            End::Failed { cause: format!("ran past its timeout of {:.0} s", ended.wall_s.floor()) }
        }
        (Some(Stop::Beaten), _) => {
            for objective in &study.objectives {
                metrics.insert(objective.metric.clone(), reader.train_s);
            }
            End::Beaten { metrics }
        }
        (None, Some(0)) if reader.complete => match workload::unreported(study, &metrics) {
            Some(cause) => End::Failed { cause },
            None => End::Ok { metrics },
        },
        _ if reader.failure == Some(FailureKind::Diverged) => {
            End::Diverged { cause: ended.last_words().unwrap_or_default().into() }
        }
        _ => End::Failed { cause: ended.cause() },
    }
}

/// Writes down how a run ended, and the id of its record.
fn settle(
    state: &mut StudyState,
    job: &PlannedRun,
    (end, run): (End, Option<String>),
    ended: &Ended,
    node: Option<String>,
    observer: StudyObserver<'_>,
) -> Result<(), StudyFailure> {
    let study = state.known.of(job);
    let mut document = json!({
        "type": "run", "id": job.id, "role": job.role, "workload": job.workload, "repeat": job.repeat, "share": job.share,
        "levels": workload::levels(study, job), "run": run, "end": end, "exit": ended.exit,
    });
    node.iter().for_each(|node| document["node"] = json!(node));
    let line = line(study, &state.known.registries.figures, job, &end, ended.wall_s);
    let failed = match &end {
        End::Failed { cause } | End::Refused { cause } if job.role == Role::WarmUp => {
            Some(StudyFailure::FirstRun { name: study.name.clone(), cause: cause.clone() })
        }
        _ => None,
    };
    state.end(job.id, end, ended, run, node)?;
    observer(StudyEvent::RunEnd { line, document })?;
    failed.map_or(Ok(()), Err)
}

/// Done, left, best, how long the rest will take, and the nodes.
fn progress(state: &StudyState, expected: u64, lanes: &Lanes) -> StudyEvent<'static> {
    let made = &state.known.made;
    let done: Vec<&StudyRun> = made.iter().filter(|m| m.end.is_some()).collect();
    let walls: Vec<f64> = done.iter().filter_map(|m| m.metrics()?.get("wall_s").copied()).collect();
    let each = walls.iter().sum::<f64>() / walls.len().max(1) as f64;
    let left = expected.saturating_sub(done.len() as u64);
    let best = crate::report::BestSoFar::new(&state.known)
        .and_then(|best| best.words())
        .map(|best| format!("best {best}, "));
    let side_by_side = lanes.most().min(lanes.present()).max(1);
    let about = duration(each * left as f64 / side_by_side as f64);
    let nodes = lanes.words().map(|words| format!(", {words}")).unwrap_or_default();
    let message = format!("{left} left, {}about {about}{nodes}", best.unwrap_or_default());
    StudyEvent::Progress { done: done.len() as u64, expected, message }
}

fn line(study: &Study, figures: &Figures, job: &PlannedRun, end: &End, wall_s: f64) -> String {
    let what = match job.role {
        Role::Point => configuration(&workload::levels(study, job)),
        Role::Control => "control".into(),
        Role::Baseline => "one worker alone".into(),
        Role::WarmUp => "warm-up".into(),
    };
    let of = job.workload.as_ref().map(|name| format!("{name}, ")).unwrap_or_default();
    let how = match end {
        End::Ok { metrics } => {
            let one = |o: &paceline_plan::Objective| {
                let reached = metrics.get(&o.metric).map(|value| figure(figures, &o.metric, *value));
                reached.unwrap_or_else(|| format!("{} not reached", o.metric))
            };
            study.objectives.iter().map(one).collect::<Vec<_>>().join(", ")
        }
        End::Beaten { .. } => "ended early: can no longer win".into(),
        End::Diverged { cause } => format!("diverged: {cause}"),
        End::Failed { cause } => format!("failed: {cause}"),
        End::Refused { cause } => format!("refused: {cause}"),
    };
    format!("{:>4}  {of}{what}: {how} ({wall_s:.1} s)", job.id)
}
