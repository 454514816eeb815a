use std::collections::BTreeMap;

use paceline_explore::schedule::{End, PlannedRun, Role, StudyRun};
use paceline_plan::{Study, Value};
use paceline_record::figures::{FigureKind, Figures, PredictionBasis, RunFigure, less};
use paceline_record::process::Started;
use paceline_record::store::{Build, Record};
use paceline_record::{Event, NewRun, RunLabels, RunOrigin, Store};
use paceline_virtual::run::{Scenario, run};
use paceline_virtual::{Terms, predict};

use super::registries::AllRegistries;
use super::state::StudyHistory;
use super::{export, predict as predicted, table, workload};

const STUDY: &str = "sampler = \"grid\"\n[workload]\nsteps = 4\n[axes]\nworkers = [1, 2]\n\
                     [[objectives]]\nmetric = \"halved_s\"\ngoal = \"minimize\"\n[control]\nevery = 0\n";

/// Nothing but this line says what it is.
static HALVED: RunFigure = less("halved_s", "half s", FigureKind::Time, "half of the training clock")
    .formerly(&["half_s"])
    .read(|result| Some(result.seconds.train / 2.0))
    .predicted(PredictionBasis::Timing);

#[test]
fn a_figure_of_one_line_is_known_to_studies_analyses_predictions_and_exports() {
    let figures = Figures::default().with(&HALVED);
    let registries = AllRegistries { figures: figures.clone(), ..AllRegistries::default() };
    let read = |text: &str| Study::read("s.toml", "s", text).unwrap();
    let study = read(STUDY);
    let refused = workload::check(&study, &AllRegistries::default()).unwrap_err().to_string();
    assert!(refused.contains("`halved_s` is not measured"), "{refused}");
    workload::check(&study, &registries).unwrap();
    let old = workload::renamed(read(&STUDY.replace("halved_s", "half_s")), &figures);
    assert_eq!(old.objectives, study.objectives, "an old name is still read");

    let mut known = StudyHistory::new(study.clone(), registries.clone());
    let (folder, mut points) = (tempfile::tempdir().unwrap(), Vec::new());
    for (id, level) in [(0, 0), (1, 1)] {
        let levels: BTreeMap<String, Value> =
            [("workers".into(), Value::Number(f64::from(level) + 1.0))].into();
        let mut datasets = workload::Datasets::new();
        let (plan, dataset) = workload::planned(&study, &registries, &levels, &mut datasets).unwrap();
        let terms = Terms {
            registries: &registries.settings.registries,
            calibration: None,
            cluster: None,
            jitter: None,
        };
        let scenario = Scenario {
            plan: &plan,
            dataset,
            terms,
            learn: false,
            changes: None,
            trace: 0,
            run: "r",
            started: Started::now(),
        };
        let result = run(&scenario, &mut |_| {}).unwrap();
        let prediction = predict(&plan, dataset, &terms, false).unwrap();
        let halved = prediction.figure(&figures, "half_s").unwrap();
        assert_eq!(halved.median, prediction.train_s.median / 2.0);
        assert!(halved.low < halved.median && prediction.figure(&Figures::default(), "halved_s").is_none());

        let mut reader = crate::reader::FigureReader::new(&study, &figures);
        reader.line(&serde_json::to_string(&Event::Result(result.clone())).unwrap());
        let metrics = reader.metrics(1.0, None, None);
        assert_eq!(metrics["halved_s"], result.seconds.train / 2.0);
        let job = PlannedRun {
            id,
            role: Role::Point,
            workload: None,
            levels: vec![Some(level)],
            share: 1.0,
            repeat: 0,
        };
        known.made.push(StudyRun { job, end: Some(End::Ok { metrics }) });
        known.runs.push(None);
        let point = paceline_plan::Point(vec![Some(level)]);
        points.push(predicted::PointPrediction { workload: None, point, levels, prediction });
        let build = Build { version: "1", commit: "c", rustc: "r" };
        let (id, labels) = (format!("r{id}"), RunLabels::default());
        let new = NewRun { id: &id, plan: &plan, labels: &labels, origin: RunOrigin::Measured };
        let metrics = &registries.settings.registries.metrics;
        Record::create(folder.path(), &new, build, metrics, None).unwrap().finish(&result).unwrap();
    }
    assert!(figures.predicted().contains(&"halved_s"));
    let compared = predicted::compare(&study, &known, &points);
    assert_eq!(compared.iter().map(|c| c.metric.as_str()).collect::<Vec<_>>(), ["step_s", "halved_s"]);
    assert_eq!(table(&known).responses[0].named(), "halved_s, half s");
    assert!(export::runs(&known, &[]).columns.contains(&"halved_s".to_owned()));

    let runs = Store::open(folder.path()).unwrap().runs().unwrap();
    let asked = [paceline_analyze::table::Response::parse("half_s").unwrap()];
    let recorded = paceline_analyze::table::recorded("runs", &runs, &[], &asked, &figures).unwrap();
    assert_eq!((recorded.responses[0].name.as_str(), recorded.measured(0).len()), ("halved_s", 2));
}

#[test]
fn a_refused_plan_is_no_failed_run() {
    let registries = AllRegistries::default();
    let folder = tempfile::tempdir().unwrap();
    let path = crate::journal(folder.path(), "s");
    let (mut journal, _) = paceline_record::Journal::open(&path).unwrap();
    let text = STUDY.replace("halved_s", "step_s");
    let mut put = |entry: serde_json::Value| journal.append(&entry).unwrap();
    put(
        serde_json::json!({"entry": "study", "file": "s.toml", "name": "s", "text": text, "version": "1", "at_ms": 0}),
    );
    for (id, end) in [
        (0, End::Ok { metrics: [("step_s".to_owned(), 1.0)].into() }),
        (1, End::Refused { cause: "--batch 9: no".into() }),
    ] {
        let job = PlannedRun {
            id,
            role: Role::Point,
            workload: None,
            levels: vec![Some(id as u32)],
            share: 1.0,
            repeat: 0,
        };
        put(serde_json::json!({"entry": "begin", "job": job, "at_ms": 0}));
        put(
            serde_json::json!({"entry": "end", "id": id, "end": end, "wall_s": 1.0, "run": null, "at_ms": 0}),
        );
    }
    let known = crate::StudyState::peek(folder.path(), "s", &registries).unwrap();
    let findings = crate::Findings::new(&known);
    let (told, words) = (findings.json(folder.path()), findings.text(folder.path()));
    assert_eq!((&told["failed"], &told["refused"]), (&0.into(), &1.into()), "{told}");
    assert!(words.contains("1 refused") && !words.contains("failed"), "{words}");
    assert!(known.failed().is_empty(), "it is not made again by --failed");
}
