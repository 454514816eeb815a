//! Text asks for an answer at every position: a network that gives them learns, and shares of a batch add up.

use std::sync::Arc;

use paceline_data::{Dataset, DatasetSettings, Folders, Order};
use paceline_nn::layers::Conv2d;
use paceline_nn::{Compute, Graph, Outcome, Pass, Shape};
use paceline_plan::{Plan, TrainingLength};
use paceline_resolve::{Registries, TypedPlan};
use paceline_train::model::{self, SampleBatch};
use paceline_train::{Clock, Replica, TrainError};

fn plan() -> Plan {
    let text = r#"{"data": "letters", "model": "mlp", "workers": 1, "servers": 0, "strategy": "single",
        "sync": "bsp", "options": {}, "averages": "gradients", "shard": "iid", "transport": "tcp",
        "bucket": 4194304, "batch": 32, "optimizer": "sgd", "lr": 0.05, "lr-scaling": "none",
        "schedule": "constant", "warmup": 0.0, "momentum": 0.9, "nesterov": false, "weight-decay": 0.0,
        "work": {"epochs": 1.0}, "stop-at-target": false, "seed": 1, "threads": 1, "pin": false,
        "placement": "colocated", "keep": 2, "restarts": 0}"#;
    serde_json::from_str(text).expect("a plan")
}

fn letters() -> Dataset {
    let settings = DatasetSettings { window: Some(16), ..DatasetSettings::default() };
    Registries::default().datasets.find("letters").unwrap().load(&Folders::default(), &settings).unwrap()
}

fn graph_of(plan: &Plan, dataset: &Dataset) -> Result<Graph, TrainError> {
    model::graph(&TypedPlan::new(plan, &Registries::default()).unwrap(), dataset)
}

/// Looks at each character alone.
fn graph(dataset: &Dataset) -> Arc<Graph> {
    let mut graph = Graph::new(Shape::new(1, dataset.positions, 1));
    graph.then("wide", Conv2d::square(32, 1, 1, 0, true)).unwrap();
    graph.relu();
    graph.then("out", Conv2d::square(dataset.classes, 1, 1, 0, true)).unwrap();
    Arc::new(graph)
}

/// A replica, and the parameters that it starts from.
fn replica(plan: &Plan, dataset: &Dataset) -> (Replica, Vec<f32>) {
    let graph = graph(dataset);
    let (params, _) = model::start(plan, &graph).expect("no weights to read");
    (Replica::new(plan, graph, Arc::new(Compute::new(1, false))), params)
}

fn gradient(
    replica: &mut Replica,
    dataset: &Dataset,
    params: &[f32],
    pass: Pass<'_>,
    scale: f64,
) -> (Outcome, Vec<f32>) {
    let (batch, mut grads) = (SampleBatch { pass, scale, micro_batches: 1 }, vec![0.0; params.len()]);
    let clock = &mut Clock::default();
    let outcome =
        replica.gradient(dataset, &batch, params, &mut [], &mut grads, &mut |_, _| {}, clock).unwrap();
    (outcome, grads)
}

fn pass(step: u64, ids: &[u32]) -> Pass<'_> {
    Pass::training(1, step, ids)
}

#[test]
fn shares_of_a_batch_add_up_to_the_whole() {
    let (plan, dataset) = (plan(), letters());
    let (mut replica, params) = replica(&plan, &dataset);
    let mut gradient = |ids: &[u32]| gradient(&mut replica, &dataset, &params, pass(3, ids), 0.25);
    let (whole, gradients) = gradient(&[5, 1, 9, 30]);
    assert_eq!((whole.samples, whole.predictions), (4, 4 * dataset.positions));
    let (mut parts, one) = gradient(&[5]);
    let (rest, three) = gradient(&[1, 9, 30]);
    parts += rest;
    assert!((parts.loss - whole.loss).abs() < 1e-9 && parts.correct == whole.correct);
    for ((g, a), b) in gradients.iter().zip(&one).zip(&three) {
        assert!((g - a - b).abs() < 1e-6, "{g} {a} {b}");
    }
}

#[test]
fn text_is_learnt_and_the_loss_is_in_nats_per_character() {
    let (plan, dataset) = (plan(), letters());
    let (mut replica, mut params) = replica(&plan, &dataset);
    let before =
        replica.evaluate(&dataset, &model::all_samples(dataset.test.len()), &params, &mut []).unwrap();
    assert_eq!(before.predictions, dataset.test.len() * dataset.positions);
    let mut order = Order::new(1, dataset.train.len(), plan.batch, 4 * dataset.train.len() as u64);
    for step in 0..order.steps() {
        let ids = order.batch(step, 0, 1);
        let scale = 1.0 / ids.len() as f64;
        let (_, grads) = gradient(&mut replica, &dataset, &params, pass(step, ids), scale);
        params.iter_mut().zip(grads).for_each(|(p, g)| *p -= 0.02 * g);
    }
    let after =
        replica.evaluate(&dataset, &model::all_samples(dataset.test.len()), &params, &mut []).unwrap();
    // Better than guessing evenly among all characters.
    let guessing = (dataset.classes as f64).ln();
    assert!(after.mean_loss() < before.mean_loss().min(guessing - 0.3), "{before:?} {after:?} {guessing}");
    assert!(after.accuracy() > 2.0 / dataset.classes as f64, "{after:?}");
}

#[test]
fn a_model_with_one_answer_is_refused_for_text() {
    let refused = graph_of(&plan(), &letters());
    let Err(error @ TrainError::Positions { answers: 1, asked: 16, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert!(error.hint().contains("model list"));
    let images = Plan { data: "digits".into(), work: TrainingLength::Steps(1), ..plan() };
    let digits = Registries::default().datasets.find("digits").unwrap();
    assert!(
        graph_of(&images, &digits.load(&Folders::default(), &DatasetSettings::default()).unwrap()).is_ok()
    );
}
