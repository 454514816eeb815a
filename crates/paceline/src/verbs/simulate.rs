//! `paceline simulate`: one run in virtual time.

use std::cell::RefCell;
use std::path::PathBuf;

use paceline_data::Dataset;
use paceline_plan::PlanError;
use paceline_record::process::{self, Started};
use paceline_record::store::EventSink;
use paceline_record::{Event, NewRun, Record, RunOrigin};
use paceline_resolve::{TypedPlan, command_line};
use paceline_study::script_costs;
use paceline_train::{model, weights};
use paceline_virtual::run::{self, DrivenEvent, Scenario, ScriptScenario};
use paceline_virtual::{
    Calibration, Cluster, HardwareModel, MemberChanges, RecordedScript, reservations, words,
};

use super::store::BUILD;
use super::train;
use crate::failure::Failure;
use crate::flags::registries;
use crate::output::{self, Follow, Show};
use crate::request::{conclude, dry_run};

/// Flags of `paceline simulate`.
#[derive(clap::Args, Debug)]
#[group(skip)]
pub struct Args {
    #[command(flatten)]
    train: train::RunArgs,
    /// Compute real gradients in the simulated order: accuracy against virtual time
    #[arg(long)]
    learn: bool,
    #[command(flatten)]
    hardware: Hardware,
}

/// Flags that say what things cost in virtual time.
#[derive(clap::Args, Debug)]
pub struct Hardware {
    /// The cluster: a file of hosts with cores, speed, bandwidth, latency and price (see docs/simulate.md)
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// What things cost, as `paceline calibrate` measured it [default: round numbers]
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// Whether compute times vary [default: on with a calibration]
    #[arg(long, value_parser = ["on", "off"])]
    jitter: Option<String>,
}

impl Hardware {
    /// The flags, with absolute paths.
    fn words(&self) -> Vec<String> {
        let files = [("cluster", &self.cluster), ("calibration", &self.calibration)];
        let files = files.into_iter().filter_map(|(flag, path)| Some(train::file_flag(flag, path.as_ref()?)));
        let jitter = self.jitter.iter().flat_map(|jitter| ["--jitter".to_owned(), jitter.clone()]);
        files.flatten().chain(jitter).collect()
    }

    /// Reads the files that the flags name.
    pub fn read(&self) -> Result<HardwareModel, Failure> {
        Ok(HardwareModel {
            cluster: self.cluster.as_deref().map(Cluster::load).transpose()?,
            calibration: self.calibration.as_deref().map(Calibration::load).transpose()?,
            jitter: self.jitter.as_deref().map(|jitter| jitter == "on"),
        })
    }
}

/// Says where times come from, if from nowhere.
pub fn tell(known: &HardwareModel, show: Show) {
    if known.calibration.is_none() {
        show.note(
            "no --calibration: times come from round numbers (docs/simulate.md lists them); \
             `paceline calibrate --out FILE` measures this machine",
        );
    }
}

/// What is simulated: a network with its dataset, or a script by what is known of it.
enum Subject {
    Network(Box<Dataset>),
    Script(Box<RecordedScript>),
}

/// `paceline simulate`: the summary for people, the result line for programs.
pub fn run(args: &Args, show: Show, started: Started) -> Result<(), Failure> {
    let train::ResolvedRun { mut plan, settings, mut labels } = args.train.resolved()?;
    if plan.stop_at_target && !args.learn {
        let problem = "nothing is evaluated in virtual time without --learn";
        return Err(PlanError::new("--stop-at-target", "", problem).into());
    }
    if plan.script.is_some() && args.learn {
        let problem = "a script computes its gradients itself: virtual time has none of it but its times";
        return Err(PlanError::new("--learn", "", problem).into());
    }
    if plan.script.is_some() && plan.elastic.is_some() {
        let problem =
            "what a script takes is known for the workers that it begins with: leave members that change out";
        return Err(PlanError::new("--elastic", "", problem).into());
    }
    args.train.listening.refuse("virtual time has no other machines; --cluster FILE describes some")?;
    let known = args.hardware.read()?;
    if known.cluster.is_none() {
        let checked = paceline_launch::run::check_hosts(&plan, &registries().runs().transports, false);
        let problem = "says where ranks sit; give --network, e.g. 1gbit,200us, or --cluster FILE";
        checked.map_err(|error| PlanError { problem: problem.into(), ..error })?;
    }
    let folders = settings.data_folders();
    known.decide(&mut plan, registries().runs(), &folders)?;
    let mut more = args.hardware.words();
    more.extend(args.learn.then(|| "--learn".to_owned()));
    let changes = MemberChanges::of(&plan);
    labels.command = command_line("simulate", &settings, &more);
    if args.train.dry_run {
        return dry_run(&plan, (&folders, args.learn), &labels, show);
    }
    let terms = known.terms(registries().runs());
    let (subject, reservations) = if plan.script.is_some() {
        let script = script_costs(&plan, terms.calibration, &args.train.store())?;
        show.note(&format!("the script's steps take what {} says", script.source()));
        let reservations = script.beyond(&plan, &terms);
        (Subject::Script(Box::new(script)), reservations)
    } else {
        let typed = TypedPlan::new(&plan, registries().runs())?;
        let dataset = typed.dataset()?.load(&folders, &model::settings(&plan))?;
        plan.check(run::samples(&plan, &dataset, args.learn))?;
        weights::check(&typed, &dataset)?.iter().for_each(|note| show.note(note));
        show.detail(|| {
            let (train, test) = (dataset.train.len(), dataset.test.len());
            format!("{train} training and {test} test samples of {}", plan.data)
        });
        let reservations = reservations(&plan, &dataset, &terms)?;
        (Subject::Network(Box::new(dataset)), reservations)
    };
    tell(&known, show);
    let id = process::new_run_id();
    let recording = args.train.recording(&settings)?;
    let trace = recording.as_ref().map_or(0, |(_, recording)| recording.trace);
    let told = show.json.then(|| Box::new(|line: &str| drop(output::json_line(line))) as EventSink);
    let mut record = recording
        .map(|(store, _)| {
            let new = NewRun { id: &id, plan: &plan, labels: &labels, origin: RunOrigin::Simulated };
            Record::create(&store, &new, BUILD, &registries().runs().metrics, told)
        })
        .transpose()?;
    let follow = RefCell::new(Follow::new(show, RunOrigin::Simulated, record.is_none()));
    let mut report = |event: Event<'_>| {
        let mut follow = follow.borrow_mut();
        if let Some(record) = &mut record {
            record.event(&event);
            record.trouble().into_iter().for_each(|error| follow.unrecorded(error));
        }
        follow.event(&event);
    };
    let mut watch = |driven: DrivenEvent| match driven {
        DrivenEvent::Step(step) => follow.borrow().bar.position(step),
        begins @ DrivenEvent::Begins { .. } => follow.borrow().bar.note(&words::driven(&begins)),
    };
    let (plan, run, learn, changes) = (&plan, &id[..], args.learn, changes.as_ref());
    let result = match &subject {
        Subject::Network(dataset) => {
            let scenario = Scenario { plan, dataset, terms, learn, changes, trace, run, started };
            run::run_watched(&scenario, &mut report, &mut watch)
        }
        Subject::Script(script) => {
            let scenario = ScriptScenario { plan, script, terms, trace, run, started };
            run::run_script(&scenario, &mut report, &mut watch)
        }
    };
    follow.borrow().finish();
    let result = match result {
        Ok(result) => result,
        Err(error) => {
            let failure = Failure::from(error);
            // What went wrong with the run is told, whatever becomes of its record.
            let _ = record.map(|record| record.fail(failure.message(), failure.code()));
            return Err(failure);
        }
    };
    let learned = args.learn.then(|| follow.borrow().summary(&result));
    let mut text = words::summary(&result, &reservations, learned);
    if let Subject::Network(dataset) = &subject {
        let typed = TypedPlan::new(plan, registries().runs())?;
        let graph = model::graph(&typed, dataset)?;
        if let Some(stages) = typed.stage_plan(&graph)? {
            text += &words::stages(&typed, &graph, &stages, &result);
        }
    }
    conclude(result, text, record, &id, RunOrigin::Simulated, show)
}
