//! Makes a study's runs: each a child process under a keeper.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use paceline_analyze::chart::duration;
use paceline_explore::schedule::{End, Next, PlannedRun, Role, StudyRun, observations};
use paceline_launch::Exit;
use paceline_launch::trial::{self, Ended, Trial, TrialEvent};
use paceline_plan::{Goal, Study, Workload};
use paceline_record::FailureKind;
use paceline_record::figures::{COST, FigureKind, Figures};
use serde_json::{Value as Json, json};

use crate::error::StudyFailure;
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

struct Active {
    job: PlannedRun,
    trial: Trial,
    reader: FigureReader,
    lane: usize,
    /// Why this process ended it, if it did.
    stopped: Option<Stop>,
    /// How the training ended, while the network's answers are timed.
    trained: Option<Ended>,
}

#[derive(Clone, Copy, PartialEq)]
enum Stop {
    Beaten,
    Late,
}

/// Makes all runs that are left, so many side by side. Interrupted, it ends what is under way and says so.
pub fn drive(
    state: &mut StudyState,
    store: &Path,
    parallel: usize,
    observer: StudyObserver<'_>,
) -> Result<(), StudyFailure> {
    let study = state.known.study.clone();
    let prior = crate::prior::prior(state, observer)?;
    let mut schedule = crate::schedule_expecting(&study, &state.known.registries, state.known.added, prior)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let expected = schedule.expected();
    let lanes = lanes(parallel)?;
    let mut again: VecDeque<PlannedRun> =
        state.known.made.iter().filter(|m| m.end.is_none()).map(|m| m.job.clone()).collect();
    let minutes = study.minutes.map(|minutes| minutes + state.known.added_minutes);
    let (started, earlier_s) = (Instant::now(), state.known.wall_s / parallel as f64);
    let program = std::env::current_exe()?;
    let start = |id: u64, call: &Call, cores: &[usize], tree: Option<&Path>| {
        Trial::start(&program, "keeper", cores, tree, &call.words, &call.document)
            .map_err(|source| StudyFailure::NotStarted { id, source })
    };
    let mut active: Vec<Active> = Vec::new();
    observer(progress(state, expected))?;
    loop {
        if interrupted.load(Ordering::Relaxed) {
            // Dropping the runs ends them; they are begun again when the study is resumed.
            drop(active);
            return Err(StudyFailure::Interrupted { name: study.name });
        }
        let spent_s = earlier_s + started.elapsed().as_secs_f64();
        let over = minutes.is_some_and(|minutes| spent_s > 60.0 * minutes);
        // When time is over, a last control closes the bracket around the points that were run.
        let closing = if over && active.is_empty() { schedule.closing(&state.known.made) } else { None };
        let mut finished = over && active.is_empty() && closing.is_none();
        while active.len() < lanes.len() {
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
            let lane = (0..lanes.len()).find(|l| active.iter().all(|a| a.lane != *l)).unwrap_or(0);
            state.begin(&job)?;
            let cores = &lanes[lane];
            let count = if cores.is_empty() { trial::cores().len() } else { cores.len() };
            let call = match workload::call(state.known.of(&job), &state.known.registries, &job, store, count)
            {
                Ok(call) => call,
                Err(refusal) => {
                    let ended = refused(&refusal);
                    let end = End::Refused { cause: ended.cause() };
                    settle(state, &job, (end, None), &ended, observer)?;
                    observer(progress(state, expected))?;
                    continue;
                }
            };
            let tree = call.document.is_empty().then(|| state.tree(job.id));
            let trial = start(job.id, &call, cores, tree.as_deref())?;
            let reader = FigureReader::new(&study, &state.known.registries.figures);
            active.push(Active { job, trial, reader, lane, stopped: None, trained: None });
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
        let mut i = 0;
        while i < active.len() {
            match listen(&mut active[i], &state.known) {
                None => i += 1,
                Some(ended) => {
                    let one = &mut active[i];
                    let well = ended.exit.code == Some(0) && one.stopped.is_none() && one.reader.complete;
                    let timing = (well && one.trained.is_none()).then(|| {
                        workload::inference(state.known.of(&one.job), &state.known.registries, &one.job)
                    });
                    let (trained, ended) = match timing {
                        Some(Ok(Some(call))) => {
                            one.trial = start(one.job.id, &call, &lanes[one.lane], None)?;
                            one.reader.answers = true;
                            one.trained = Some(ended);
                            continue;
                        }
                        Some(Err(refusal)) => (Some(ended), refused(&refusal)),
                        _ => (one.trained.take(), ended),
                    };
                    let Active { job, reader, stopped, .. } = active.swap_remove(i);
                    let end = end(state.known.of(&job), &job, &reader, stopped, trained.as_ref(), &ended);
                    settle(state, &job, (end, reader.run), &ended, observer)?;
                    observer(progress(state, expected))?;
                }
            }
        }
    }
}

/// The cores of each lane; none named where there is one lane.
fn lanes(parallel: usize) -> Result<Vec<Vec<usize>>, StudyFailure> {
    if parallel <= 1 {
        return Ok(vec![Vec::new()]);
    }
    let cores = trial::cores();
    if parallel > cores.len() {
        return Err(StudyFailure::Parallel { parallel, cores: cores.len() });
    }
    let each = cores.len() / parallel;
    Ok((0..parallel).map(|lane| cores[lane * each..(lane + 1) * each].to_vec()).collect())
}

/// Takes in what a run says; its end, when it has come.
fn listen(one: &mut Active, known: &StudyHistory) -> Option<Ended> {
    let study = known.of(&one.job);
    let deadline = Instant::now() + LOOK;
    loop {
        match one.trial.hear(deadline.saturating_duration_since(Instant::now())) {
            Some(TrialEvent::Line(line)) => one.reader.line(&line),
            Some(TrialEvent::Ended(ended)) => return Some(ended),
            None => break,
        }
    }
    if one.stopped.is_some() || one.reader.complete {
        return None;
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
    None
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
    observer: StudyObserver<'_>,
) -> Result<(), StudyFailure> {
    let study = state.known.of(job);
    let document = json!({
        "type": "run", "id": job.id, "role": job.role, "workload": job.workload, "repeat": job.repeat, "share": job.share,
        "levels": workload::levels(study, job), "run": run, "end": end, "exit": ended.exit,
    });
    let line = line(study, &state.known.registries.figures, job, &end, ended.wall_s);
    let failed = match &end {
        End::Failed { cause } | End::Refused { cause } if job.role == Role::WarmUp => {
            Some(StudyFailure::FirstRun { name: study.name.clone(), cause: cause.clone() })
        }
        _ => None,
    };
    state.end(job.id, end, ended, run)?;
    observer(StudyEvent::RunEnd { line, document })?;
    failed.map_or(Ok(()), Err)
}

/// Done, left, best, and how long the rest will take.
fn progress(state: &StudyState, expected: u64) -> StudyEvent<'static> {
    let made = &state.known.made;
    let done: Vec<&StudyRun> = made.iter().filter(|m| m.end.is_some()).collect();
    let walls: Vec<f64> = done.iter().filter_map(|m| m.metrics()?.get("wall_s").copied()).collect();
    let each = walls.iter().sum::<f64>() / walls.len().max(1) as f64;
    let left = expected.saturating_sub(done.len() as u64);
    let best = crate::report::BestSoFar::new(&state.known)
        .and_then(|best| best.words())
        .map(|best| format!("best {best}, "));
    let message = format!("{left} left, {}about {}", best.unwrap_or_default(), duration(each * left as f64));
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
