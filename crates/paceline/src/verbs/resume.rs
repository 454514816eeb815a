//! `paceline resume`: goes on with a run from its last checkpoint, or with a study where it was left.

use paceline_launch::RunEnd;
use paceline_pipeline::Cuts;
use paceline_record::RunOrigin;
use paceline_record::process::Started;
use paceline_resolve::NewStages;
use paceline_study::StudyState;

use super::explore::{Running, tell};
use super::listen::Listening;
use crate::failure::Failure;
use crate::flags::{PlaceFlags, RecordingFlags, registries};
use crate::output::{self, Show};
use crate::request::RunRequest;

/// Flags of `paceline resume`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A run: its id or its name, the beginning of either, or `last`; or a study: its name or its file
    #[arg(value_name = "RUN|STUDY")]
    what: String,
    #[command(flatten)]
    running: Running,
    #[command(flatten, next_help_heading = "Of studies")]
    study: StudyArgs,
    #[command(flatten, next_help_heading = "Of runs")]
    cut: CutArgs,
    #[command(flatten, next_help_heading = "Of runs")]
    place: PlaceFlags,
    #[command(flatten, next_help_heading = "Of runs")]
    kept: RecordingFlags,
    #[command(flatten, next_help_heading = "Over several machines")]
    listening: Listening,
}

/// Flags that make sense for studies only.
#[derive(clap::Args, Debug)]
struct StudyArgs {
    /// Make runs again that failed or diverged
    #[arg(long)]
    failed: bool,
    /// Add this many runs to the study's budget
    #[arg(long, value_name = "RUNS", default_value_t = 0, hide_default_value = true)]
    add_budget: u64,
    /// Add this many minutes to the study's time
    #[arg(long, value_name = "MINUTES", default_value_t = 0, hide_default_value = true)]
    add_minutes: u32,
}

/// How the network of a run is cut from now on.
#[derive(clap::Args, Debug)]
struct CutArgs {
    /// Cut the run's network into this many stages from now on; 1 puts it together again
    #[arg(long, value_name = "S")]
    stages: Option<usize>,
    /// In which order stages pass micro-batches [default: the run's, or 1f1b]
    #[arg(long, value_name = "NAME", requires = "stages")]
    pipeline: Option<String>,
    /// Where the network is cut: auto, or the first layer of each stage but the first [default: auto]
    #[arg(long, value_name = "LAYER,...", requires = "stages")]
    cuts: Option<Cuts>,
}

impl CutArgs {
    fn new_stages(&self) -> Option<NewStages> {
        let Self { stages, pipeline, cuts } = self;
        stages.map(|stages| NewStages { stages, pipeline: pipeline.clone(), cuts: cuts.clone() })
    }
}

/// `paceline resume`.
pub fn run(args: &Args, show: Show, started: Started) -> Result<(), Failure> {
    let store = args.running.store.folder();
    let listening = args.listening.with_job(&store)?;
    if listening.take_part(args.place.0.data_folders(), show)? {
        return Ok(());
    }
    match paceline_study::find(&store, &args.what, registries())? {
        Some(name) => resume_study(args, &name, &listening, show),
        None => resume_run(args, &listening, show, started),
    }
}

fn resume_run(args: &Args, listening: &Listening, show: Show, started: Started) -> Result<(), Failure> {
    let store = args.running.store.folder();
    let of_studies = [
        ("--failed", args.study.failed),
        ("--add-budget", args.study.add_budget > 0),
        ("--add-minutes", args.study.add_minutes > 0),
        ("--parallel", args.running.parallel.is_some_and(|parallel| parallel > 1)),
    ];
    if let Some((flag, _)) = of_studies.iter().find(|(_, given)| *given) {
        return Err(Failure::for_studies(flag, &store, &args.what));
    }
    let found = args.running.store.open().and_then(|store| store.find(&args.what));
    let found = found.map_err(|error| Failure::from(error).neither(&store))?;
    let run = found.run;
    if let Some(result) = found.result {
        if args.cut.stages.is_some() {
            return Err(Failure::usage(format!("run {run} has ended already: leave --stages out")));
        }
        let ended = format!("run {run} has ended already; `paceline show {run}` shows it\n");
        if show.to_people() {
            return Ok(output::text(&ended)?);
        }
        show.note(ended.trim_end());
        let origin = if result.simulated.is_some() { RunOrigin::Simulated } else { RunOrigin::Measured };
        return Ok(output::result(result, origin)?);
    }
    let mut labels = found.labels;
    let mut plan = found.plan.ok_or_else(|| Failure::plan(&run))?;
    if let Some(new) = args.cut.new_stages() {
        let before = plan.clone();
        plan = new.of(plan)?;
        new.left_out(&before, &plan).iter().for_each(|line| show.note(line));
        labels.command = labels.command.map(|command| NewStages::command(&command, &plan));
    }
    plan.check(usize::MAX)?;
    listening.check(&plan, plan.strategy == paceline_protocol::SINGLE && plan.stages == 1)?;
    let request = RunRequest {
        plan,
        folders: args.place.0.data_folders(),
        store,
        run,
        resumes: true,
        recording: Some(args.kept.0.recording()?),
        labels,
    };
    request.execute(listening, show, started)
}

fn resume_study(args: &Args, name: &str, listening: &Listening, show: Show) -> Result<(), Failure> {
    if args.cut.stages.is_some() {
        return Err(Failure::usage(format!(
            "{name} is a study: its file says what is run; leave --stages out"
        )));
    }
    if args.place.0.given("data-dir") {
        let problem = "is a study: its file says where its data are";
        return Err(Failure::usage(format!("{name} {problem}; leave --data-dir out")));
    }
    listening.nodes(args.running.parallel)?;
    let state = listening.or_dismiss(opened(args, name))?;
    if state.known.finished {
        listening.dismiss(RunEnd::default());
        if !show.quiet {
            output::note("the study is finished; --add-budget adds runs, --failed repeats those that failed");
        }
        return tell(&state, show);
    }
    listening.or_dismiss(paceline_study::prepare(&state.known.study).map_err(Failure::from))?;
    let ready = args.running.prepare(&state.known.study, listening, show)?;
    args.running.go(state, ready, show)
}

/// A study with what is added to it.
fn opened(args: &Args, name: &str) -> Result<StudyState, Failure> {
    let mut state = StudyState::open(&args.running.store.folder(), name, registries())?;
    let (runs, minutes) = (args.study.add_budget, f64::from(args.study.add_minutes));
    if runs > 0 && state.known.study.runs.is_none() {
        return Err(Failure::usage("--add-budget: the study has no `runs` in its [budget] to add to"));
    }
    if minutes > 0.0 && state.known.study.minutes.is_none() {
        return Err(Failure::usage("--add-minutes: the study has no `minutes` in its [budget] to add to"));
    }
    if runs > 0 || minutes > 0.0 {
        state.add(runs, minutes)?;
    }
    if args.study.failed {
        for id in state.known.failed() {
            state.retry(id)?;
        }
    }
    Ok(state)
}
