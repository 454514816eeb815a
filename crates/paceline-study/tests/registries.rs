//! Entries that are only passed in are like any other: they are set, checked, trained with, priced, explained, sampled
//! and studied, wherever their family is.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_analyze::{Explanation, RecordedRun};
use paceline_data::Dataset;
use paceline_explore::samplers::{self, SamplerKind};
use paceline_launch::CheckpointContext;
use paceline_launch::run::{Launch, run as launch};
use paceline_plan::{Plan, Study, Value};
use paceline_protocol::consistency::{ConsistencyModel, Gate, WorkerClocks};
use paceline_protocol::{Consistency, Rank, Strategy};
use paceline_record::export::{Exported, FORMATS, Target};
use paceline_record::metric::{Metric, MetricKind, ProcessReading};
use paceline_record::process::Started;
use paceline_record::store::{Build, Record};
use paceline_record::{Checkpoints, Event, NewRun, Recording, RunLabels, RunOrigin, RunResult, Store};
use paceline_registry::Registry;
use paceline_resolve::{PlanSettings, Registries, SettingTable, TypedPlan, resolve};
use paceline_study::AllRegistries;
use paceline_train::model;
use paceline_virtual::run::{Scenario, run as simulate};
use paceline_virtual::whatif::FittedRun;
use paceline_virtual::{Terms, predict};
use paceline_wire::{TransportDefaults, TransportKind, inproc};

const BUILD: Build = Build { version: "1", commit: "c", rustc: "r" };

/// Lets a worker go on when it is no step ahead.
struct Even;

impl Gate for Even {
    fn open(&mut self, worker: Rank, race: &WorkerClocks) -> bool {
        race.lead(worker) == 0
    }
}

static EVEN: ConsistencyModel = ConsistencyModel {
    name: "even",
    about: "nobody is ahead",
    detail: "",
    parameters: &[],
    whole_batches: false,
    make: |_, _| Consistency::gated(|_| Box::new(Even)),
};

/// Threads of this process, at a price of their own.
static SLOW: TransportKind = TransportKind {
    name: "slow",
    about: "threads that cost as much as a satellite",
    defaults: TransportDefaults { latency_us: 250_000.0, message_us: 10.0, ns_per_byte: 1.0 },
    ..inproc::KIND
};

static LAST: SamplerKind = SamplerKind {
    name: "last",
    about: "a grid under another name",
    variants: &[],
    adaptive: false,
    shortens: false,
    finite: true,
    make: |problem, _| samplers::make(&Registry::default(), "grid", problem),
};

static ANSWER: Metric<ProcessReading> = Metric {
    name: "answer",
    unit: "1",
    kind: MetricKind::Gauge,
    about: "always the same",
    source: "this test",
    read: |_| Some(42.0),
};

fn all() -> AllRegistries {
    let ring = Registries::default().protocols.strategies.find("ring-allreduce").unwrap();
    let detour: &'static Strategy =
        Box::leak(Box::new(Strategy { name: "detour", about: "a ring under another name", ..*ring }));
    AllRegistries::default().with(detour).with(&EVEN).with(&SLOW).with(&LAST).with(&ANSWER)
}

/// The plan of settings, in the world of a table.
fn plan(table: &Arc<SettingTable>, settings: &[(&str, &str)]) -> Result<Plan, String> {
    let value = |text: &str| text.parse().map_or_else(|_| Value::Text(text.into()), Value::Number);
    let values: BTreeMap<String, Value> =
        settings.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect();
    let settings = PlanSettings::from_values(table, &values).map_err(|error| error.to_string())?;
    resolve(&settings).map_err(|error| error.to_string())
}

const DETOUR: &[(&str, &str)] =
    &[("strategy", "detour"), ("transport", "slow"), ("workers", "2"), ("steps", "6")];
const EVENLY: &[(&str, &str)] = &[
    ("strategy", "ps"),
    ("sync", "even"),
    ("transport", "slow"),
    ("workers", "2"),
    ("servers", "1"),
    ("steps", "6"),
];

fn digits(plan: &TypedPlan<'_>) -> Dataset {
    plan.dataset().unwrap().load(&Default::default(), &model::settings(plan)).unwrap()
}

#[test]
fn settings_name_them_and_the_program_alone_does_not() {
    let [table, builtin] = [all(), AllRegistries::default()].map(|registries| registries.settings);
    for (setting, name) in [("strategy", "detour"), ("sync", "even"), ("transport", "slow")] {
        table.find(setting).unwrap().check(name).unwrap();
        assert!(builtin.find(setting).unwrap().check(name).is_err(), "{name}");
    }
    for settings in [DETOUR, EVENLY] {
        plan(&table, settings).unwrap();
        assert!(plan(&builtin, settings).is_err());
    }
    // A gate is all that a consistency model needs; a strategy without one refuses it.
    let refused = plan(&table, &[("strategy", "detour"), ("sync", "even"), ("workers", "2")]).unwrap_err();
    assert!(refused.contains("detour has no even; valid: bsp"), "{refused}");
}

fn record(store: &std::path::Path, plan: &Plan, origin: RunOrigin, registries: &Registries) -> Record {
    let new = NewRun { id: "r1", plan, labels: &RunLabels::default(), origin };
    Record::create(store, &new, BUILD, &registries.metrics, None).unwrap()
}

/// Trains for real, with ranks as threads, and records it.
fn trained(plan: &Plan, registries: &Registries, store: &std::path::Path) -> RunResult {
    let typed = TypedPlan::new(plan, registries).unwrap();
    let dataset = digits(&typed);
    let checkpointing =
        CheckpointContext { checkpoints: Checkpoints::of(store), resumed: None, interrupt: Arc::default() };
    let mut record = record(store, plan, RunOrigin::Measured, registries);
    let launched = Launch {
        plan: &typed,
        registries,
        dataset: Some(&dataset),
        conditions: &Default::default(),
        devices: None,
        folders: &Default::default(),
        run: "r1",
        program: ("nowhere".into(), "rank"),
        started: Started::now(),
        checkpointing: &checkpointing,
        recording: Some(Recording::default()),
    };
    let result = launch(&launched, None, &mut |event: Event<'_>| record.event(&event)).unwrap();
    record.finish(&result).unwrap();
    result
}

#[test]
fn runs_are_trained_and_recorded_with_them() {
    let AllRegistries { settings: table, .. } = all();
    let registries = &table.registries;
    for settings in [DETOUR, EVENLY] {
        let (plan, folder) = (plan(&table, settings).unwrap(), tempfile::tempdir().unwrap());
        let result = trained(&plan, registries, folder.path());
        assert_eq!((result.steps, result.samples), (6, 6 * 2 * 64), "{settings:?}");
        if settings == DETOUR {
            // The strategy that it is under another name gives the same bits.
            let ring = Plan { strategy: "ring-allreduce".into(), ..plan.clone() };
            let other = tempfile::tempdir().unwrap();
            assert_eq!(result.params_sha256, trained(&ring, registries, other.path()).params_sha256);
        }
        let store = Store::open_with(folder.path(), &registries.metrics).unwrap();
        let run = &store.runs().unwrap()[0];
        let sampled = store.rows("samples", run).unwrap();
        assert!(sampled.numbers("answer").contains(&Some(42.0)), "the metric is in the store");
        for name in ["json", "prometheus"] {
            let format = FORMATS.iter().find(|format| format.name == name).unwrap();
            let Target::Document(write) = format.target else { panic!("{name} is a document") };
            let mut text = Vec::new();
            write(&Exported { store: &store, run }, &mut text).unwrap();
            assert!(String::from_utf8(text).unwrap().contains("answer"), "{name} has the metric");
        }
    }
}

#[test]
fn prices_and_what_ifs_know_them() {
    let (AllRegistries { settings: table, .. }, builtin) = (all(), Registries::default());
    let registries = &table.registries;
    let terms = |registries| Terms { registries, calibration: None, cluster: None, jitter: None };
    for settings in [DETOUR, EVENLY] {
        let plan = plan(&table, settings).unwrap();
        let dataset = digits(&TypedPlan::new(&plan, registries).unwrap());
        assert!(predict(&plan, &dataset, &terms(&builtin), false).is_err());
        let slow = predict(&plan, &dataset, &terms(registries), false).unwrap().train_s.median;
        let usual = Plan { transport: "inproc".into(), ..plan.clone() };
        let usual = predict(&usual, &dataset, &terms(registries), false).unwrap().train_s.median;
        assert!(slow > 6.0 * 0.25 && usual < 0.25, "its own price, nobody else's: {slow} {usual}");

        let folder = tempfile::tempdir().unwrap();
        let mut record = record(folder.path(), &plan, RunOrigin::Simulated, registries);
        let (plan, terms, started) = (&plan, terms(registries), Started::now());
        let scenario = Scenario {
            plan,
            dataset: &dataset,
            terms,
            learn: false,
            changes: None,
            trace: 1000,
            run: "r1",
            started,
        };
        let result = simulate(&scenario, &mut |event: Event<'_>| record.event(&event)).unwrap();
        record.finish(&result).unwrap();
        let store = Store::open(folder.path()).unwrap();
        let recorded = RecordedRun::read(&store, &store.runs().unwrap()[0]).unwrap();
        let said = Explanation::new(&recorded).unwrap();
        let fitted = FittedRun::new(plan, registries, recorded.params, &said).expect("it can be asked");
        assert!(fitted.step_s > 0.0);
        assert!(FittedRun::new(plan, &builtin, recorded.params, &said).is_none());
    }
}

#[test]
fn studies_know_them() {
    let registries = all();
    let text = "sampler = \"last\"\n[workload]\nsteps = 4\nworkers = 2\ntransport = \"slow\"\n\
                [axes]\nstrategy = [\"detour\", \"tree\"]\n[[objectives]]\nmetric = \"samples_per_s\"\n\
                goal = \"maximize\"\n[control]\nevery = 0\n";
    let study = Study::read("s.toml", "s", text).unwrap();
    paceline_study::check(&study, &registries).unwrap();
    let schedule = paceline_study::schedule(&study, &registries, 0).unwrap();
    assert!(schedule.known());
    assert_eq!(schedule.expected(), 4, "a warm-up, one worker alone, and a point per strategy");
    let refused = paceline_study::check(&study, &AllRegistries::default()).unwrap_err().to_string();
    assert!(refused.contains("there is no sampler `last`"), "{refused}");
}
