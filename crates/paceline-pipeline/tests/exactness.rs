//! Any stages along any pipeline give what one worker gives with the same micro-batches, bit for bit: losses,
//! parameters and running statistics, after several steps with Adam and an uneven last batch. What breaks the rules
//! gives something else.

#[path = "../../paceline-nn/tests/every_layer/mod.rs"]
mod every_layer;

use std::collections::HashMap;
use std::sync::Arc;

use every_layer::{Case, layers, models};
use paceline_nn::layers::{Activation, Add, BatchNorm, Conv2d, Dense, Dropout, Function, GlobalAveragePool};
use paceline_nn::optim::{OPTIMISERS, Settings, Step};
use paceline_nn::{Compute, Graph, GraphPart, Network, Pass, Shape};
use paceline_pipeline::{CheckedProgram, CutCosts, Cuts, PIPELINES, Pipeline, Work, WorkKind};

/// Samples of the batches that are trained on: the last one is uneven, and has fewer samples than micro-batches.
const BATCHES: [usize; 3] = [13, 13, 5];

/// What training leaves, as bits.
#[derive(Debug, PartialEq)]
struct Trained {
    losses: Vec<u64>,
    params: Vec<u32>,
    state: Vec<u32>,
}

/// A way to break the rules.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mutant {
    /// Nothing is broken.
    None,
    /// The first two micro-batches come back in each other's place.
    SwappedMicroBatches,
    /// Gradients of values that skip a stage, or were handed on, are lost.
    DroppedSkipGradient,
    /// A slot is used again before its micro-batch has come back.
    SlotTooEarly,
}

/// A network, or one of its stages, with all that it trains.
struct Stage {
    network: Network<f32>,
    params: Vec<f32>,
    grads: Vec<f32>,
    state: Vec<f32>,
    memory: Vec<f32>,
}

impl Stage {
    fn new(case: &Case, part: GraphPart, capacity: usize, slots: usize, threads: usize) -> Self {
        let graph = &case.graph;
        let (mut params, mut state) = (vec![0.0; graph.param_count()], vec![0.0; graph.state_count()]);
        graph.init(1, &mut params, &mut state);
        let (params, state) = (params[part.params.clone()].to_vec(), state[part.state.clone()].to_vec());
        let compute = Arc::new(Compute::new(threads, false));
        Self {
            network: Network::of_part(Arc::clone(graph), part, capacity, slots, compute),
            // A stale gradient must not shine through.
            grads: vec![f32::NAN; params.len()],
            memory: vec![0.0; 2 * params.len()],
            params,
            state,
        }
    }

    fn forward(&mut self, pass: &Pass<'_>) {
        self.network.forward(pass, &self.params, &mut self.state);
    }

    fn backward(&mut self, pass: &Pass<'_>) {
        self.network.backward(pass, &self.params, &mut self.grads, &mut |_, _| {});
    }

    fn update(&mut self, step: u64) {
        let adam = OPTIMISERS.iter().find(|optimiser| optimiser.name == "adam").unwrap();
        let update = Step {
            params: &mut self.params,
            grads: &self.grads,
            memory: &mut self.memory,
            lr: 0.01,
            step: step + 1,
        };
        adam.apply(&Compute::new(1, false), &Settings::default(), update);
    }
}

fn bits<'a>(numbers: impl IntoIterator<Item = &'a f32>) -> Vec<u32> {
    numbers.into_iter().map(|number| number.to_bits()).collect()
}

/// The samples of a step.
fn ids(step: usize) -> Vec<u32> {
    (0..BATCHES[step] as u32).map(|i| (i * 5 + 17 * step as u32) % 97).collect()
}

/// Micro-batch `i`; nothing where it is empty.
fn micro_batch<'a>(ids: &'a [u32], step: usize, i: usize, count: usize, slot: usize) -> Option<Pass<'a>> {
    let pass = Pass { slot, ..Pass::training(3, step as u64, ids).micro_batch(i, count) };
    (pass.samples > 0).then_some(pass)
}

/// The largest micro-batch.
fn capacity(micro_batches: usize) -> usize {
    BATCHES[0].div_ceil(micro_batches)
}

/// One worker.
fn alone(case: &Case, micro_batches: usize) -> Trained {
    let mut all = Stage::new(case, case.graph.whole(), capacity(micro_batches), 1, 1);
    let mut losses = Vec::new();
    for step in 0..BATCHES.len() {
        let ids = ids(step);
        for pass in (0..micro_batches).filter_map(|i| micro_batch(&ids, step, i, micro_batches, 0)) {
            case.load(&mut all.network, 0, pass.ids);
            all.forward(&pass);
            let scale = 1.0 / ids.len() as f64;
            losses.push(case.loss(&mut all.network, 0, &case.classes(pass.ids), scale).to_bits());
            all.backward(&pass);
        }
        all.update(step as u64);
    }
    Trained { losses, params: bits(&all.params), state: bits(&all.state) }
}

/// Stages that hand values and gradients to each other.
struct Staged<'a> {
    case: &'a Case,
    program: CheckedProgram,
    order: Vec<Work>,
    stages: Vec<Stage>,
    mutant: Mutant,
    /// Values and gradients that are under way: (stage, value, forward or backward, micro-batch).
    messages: HashMap<(usize, usize, bool, usize), Vec<f32>>,
    losses: Vec<u64>,
}

impl<'a> Staged<'a> {
    fn new(case: &'a Case, program: CheckedProgram, cuts: &[usize], mutant: Mutant) -> Self {
        let capacity = capacity(program.micro_batches());
        let parts = case.graph.parts(cuts).into_iter().enumerate();
        let stage = |(i, part)| Stage::new(case, part, capacity, program.slots(i), 1 + i % 2);
        let stages = parts.map(stage).collect();
        let order = program.order().to_vec();
        Self { case, program, order, stages, mutant, messages: HashMap::new(), losses: Vec::new() }
    }

    /// The same with another interleaving of the ranks: whoever is the furthest behind in the pipeline goes first.
    fn last_rank_first(self) -> Self {
        let (ranks, stages) = (self.program.ranks(), self.program.stages());
        let (mut at, mut order) = (vec![0; ranks.len()], Vec::new());
        while order.len() < self.order.len() {
            let ready = |&(rank, at): &(usize, &usize)| {
                let next = ranks[rank].work.get(*at);
                next.is_some_and(|work| work.waits_for(stages).is_none_or(|other| order.contains(&other)))
            };
            let (rank, _) = at.iter().enumerate().rev().find(ready).expect("a checked program goes on");
            order.push(ranks[rank].work[at[rank]]);
            at[rank] += 1;
        }
        Self { order, ..self }
    }

    fn train(mut self) -> Trained {
        for step in 0..BATCHES.len() {
            let ids = ids(step);
            for work in self.order.clone() {
                self.run(&ids, step, work);
            }
            assert!(self.messages.is_empty(), "everything that was sent is used");
            self.stages.iter_mut().for_each(|stage| stage.update(step as u64));
        }
        Trained {
            losses: self.losses,
            params: bits(self.stages.iter().flat_map(|stage| &stage.params)),
            state: bits(self.stages.iter().flat_map(|stage| &stage.state)),
        }
    }

    fn run(&mut self, ids: &[u32], step: usize, mut work: Work) {
        if self.mutant == Mutant::SwappedMicroBatches && work.kind == WorkKind::Backward && work.micro < 2 {
            work.micro = 1 - work.micro;
        }
        let slots = self.program.slots(work.stage);
        let slot = match self.mutant {
            Mutant::SlotTooEarly => work.micro % (slots - 1).max(1),
            _ => self.program.slot(work),
        };
        let Some(pass) = micro_batch(ids, step, work.micro, self.program.micro_batches(), slot) else {
            return;
        };
        match work.kind {
            WorkKind::Forward => self.forward(work, &pass),
            WorkKind::Backward => self.backward(work, &pass, ids.len()),
        }
    }

    fn forward(&mut self, work: Work, pass: &Pass<'_>) {
        let stage = &mut self.stages[work.stage];
        if work.stage == 0 {
            self.case.load(&mut stage.network, pass.slot, pass.ids);
        }
        let GraphPart { receives, sends, .. } = stage.network.part().clone();
        for edge in receives {
            let key = (work.stage, edge.value.index(), true, work.micro);
            let values = self.messages.remove(&key).expect("it was sent");
            stage.network.value_mut(pass.slot, edge.value, pass.samples).copy_from_slice(&values);
        }
        stage.forward(pass);
        for edge in sends {
            let values = stage.network.value(pass.slot, edge.value, pass.samples).to_vec();
            self.messages.insert((edge.part, edge.value.index(), true, work.micro), values);
        }
    }

    fn backward(&mut self, work: Work, pass: &Pass<'_>, batch: usize) {
        let last = work.stage + 1 == self.stages.len();
        let stage = &mut self.stages[work.stage];
        if last {
            let classes = self.case.classes(pass.ids);
            let loss = self.case.loss(&mut stage.network, pass.slot, &classes, 1.0 / batch as f64);
            self.losses.push(loss.to_bits());
        }
        let GraphPart { receives, sends, nodes, .. } = stage.network.part().clone();
        for edge in sends.iter().filter(|edge| edge.gradient) {
            let key = (work.stage, edge.value.index(), false, work.micro);
            let mut values = self.messages.remove(&key).expect("it was sent");
            if self.mutant == Mutant::DroppedSkipGradient && edge.value.index() != nodes.end {
                values.fill(0.0);
            }
            stage.network.incoming_gradient(edge.value, pass.samples).copy_from_slice(&values);
        }
        stage.backward(pass);
        for edge in receives.iter().filter(|edge| edge.gradient) {
            let values = stage.network.outgoing_gradient(edge.value, pass.samples).to_vec();
            self.messages.insert((edge.part, edge.value.index(), false, work.micro), values);
        }
    }
}

fn staged(case: &Case, pipeline: &Pipeline, cuts: &[usize], micro_batches: usize, mutant: Mutant) -> Trained {
    let program = pipeline.program(cuts.len() + 1, micro_batches).unwrap();
    Staged::new(case, program, cuts, mutant).train()
}

fn check(case: &Case, pipeline: &Pipeline, cuts: &[usize], micro_batches: usize, want: &Trained) {
    let got = staged(case, pipeline, cuts, micro_batches, Mutant::None);
    let what = format!("{}, {} cut before {cuts:?}, {micro_batches} micro-batches", case.name, pipeline.name);
    assert_eq!(got.losses, want.losses, "{what}");
    assert_eq!(got.params.len(), want.params.len(), "{what}");
    let other = got.params.iter().zip(&want.params).position(|(got, want)| got != want);
    assert_eq!(other, None, "{what}: parameters differ");
    assert_eq!(got.state, want.state, "{what}");
}

/// The cut that is found, and one after every so many layers, wherever that is.
fn cuts(graph: &Graph, stages: usize) -> Vec<Vec<usize>> {
    let layers = graph.nodes().len();
    let even = (1..stages).map(|i| i * layers / stages).collect();
    let auto = Cuts::Auto.find(graph, &CutCosts::counted(graph, 1), stages).unwrap();
    let mut all = vec![auto, even];
    all.dedup();
    all
}

/// E1 for a model: stages 1–4, micro-batches 1, 3, 8, every pipeline.
fn exact(name: &str) {
    let models = models();
    let case = models.iter().find(|case| case.name == name).unwrap();
    let most = case.graph.nodes().len().min(4);
    assert!(most >= 2, "{name}");
    for micro_batches in [1, 3, 8] {
        let want = alone(case, micro_batches);
        for stages in 1..=most {
            for cuts in cuts(&case.graph, stages) {
                PIPELINES.iter().for_each(|pipeline| check(case, pipeline, &cuts, micro_batches, &want));
            }
        }
    }
}

#[test]
fn mlp_in_stages_is_one_worker_bit_for_bit() {
    exact("mlp");
}

#[test]
fn lenet_in_stages_is_one_worker_bit_for_bit() {
    exact("lenet");
}

#[test]
fn resnet20_in_stages_is_one_worker_bit_for_bit() {
    exact("resnet20");
}

#[test]
fn transformer_in_stages_is_one_worker_bit_for_bit() {
    exact("transformer");
}

#[test]
fn gru_in_stages_is_one_worker_bit_for_bit() {
    exact("gru");
}

#[test]
fn every_layer_may_be_cut_off_from_the_next() {
    // Networks with early exits are not cut.
    for case in layers().into_iter().filter(|case| case.graph.exits().is_empty()) {
        let want = alone(&case, 3);
        for at in 1..case.graph.nodes().len() {
            PIPELINES.iter().for_each(|pipeline| check(&case, pipeline, &[at], 3, &want));
        }
    }
}

/// A network whose values skip layers, with batch norm and dropout: every cut is inside a residual block.
fn skipping() -> Case {
    let mut g = Graph::new(Shape::new(7, 6, 3));
    let conv = || Conv2d::square(6, 3, 1, 1, true);
    let x = g.then("stem", conv()).unwrap();
    g.then("a", conv()).unwrap();
    let a = g.then("norm a", BatchNorm::default()).unwrap();
    let first = g.push("first", Add, &[a, x]).unwrap();
    g.relu();
    g.then("b", conv()).unwrap();
    g.then("drop", Dropout { rate: 0.3 }).unwrap();
    let b = g.then("tanh", Activation { function: Function::Tanh }).unwrap();
    let second = g.push("second", Add, &[b, first]).unwrap();
    let c = g.then("c", conv()).unwrap();
    let third = g.push("third", Add, &[c, x]).unwrap();
    g.push("fourth", Add, &[third, second]).unwrap();
    g.then("pool", GlobalAveragePool).unwrap();
    g.then("answer", Dense { outputs: 10 }).unwrap();
    Case { name: "skipping".into(), graph: Arc::new(g) }
}

#[test]
fn cuts_inside_residual_blocks_give_the_same_bits() {
    let case = skipping();
    let count = case.graph.nodes().len();
    for micro_batches in [1, 5] {
        let want = alone(&case, micro_batches);
        for pipeline in PIPELINES {
            for (first, second) in (1..count).flat_map(|a| (a + 1..count).map(move |b| (a, b))) {
                check(&case, pipeline, &[first, second], micro_batches, &want);
            }
            // A stage for every layer.
            check(&case, pipeline, &(1..count).collect::<Vec<_>>(), micro_batches, &want);
        }
    }
}

#[test]
fn it_does_not_matter_which_rank_is_ahead() {
    let case = skipping();
    let want = alone(&case, 5);
    for pipeline in PIPELINES {
        let program = pipeline.program(3, 5).unwrap();
        let staged = Staged::new(&case, program.clone(), &[3, 9], Mutant::None).last_rank_first();
        assert_ne!(staged.order, program.order(), "{}", pipeline.name);
        assert_eq!(staged.train(), want, "{}", pipeline.name);
    }
}

#[test]
fn micro_batches_in_each_others_place_are_caught() {
    let case = skipping();
    let want = alone(&case, 3);
    let gpipe = PIPELINES.iter().find(|pipeline| pipeline.name == "gpipe").unwrap();
    assert_eq!(staged(&case, gpipe, &[4, 9], 3, Mutant::None), want);
    let broken = staged(&case, gpipe, &[4, 9], 3, Mutant::SwappedMicroBatches);
    assert_ne!(broken.params, want.params);
}

#[test]
fn a_dropped_skip_gradient_is_caught() {
    let case = skipping();
    let want = alone(&case, 3);
    for pipeline in PIPELINES {
        // `x` goes on from the first stage to the second, and from there to the third.
        assert_eq!(staged(&case, pipeline, &[3, 9], 3, Mutant::None), want);
        let broken = staged(&case, pipeline, &[3, 9], 3, Mutant::DroppedSkipGradient);
        assert_ne!(broken.params, want.params, "{}", pipeline.name);
    }
}

#[test]
fn a_slot_that_is_used_again_too_early_is_caught() {
    let case = skipping();
    let want = alone(&case, 5);
    for pipeline in PIPELINES {
        assert_eq!(staged(&case, pipeline, &[4, 9], 5, Mutant::None), want);
        let broken = staged(&case, pipeline, &[4, 9], 5, Mutant::SlotTooEarly);
        assert_ne!(broken.params, want.params, "{}", pipeline.name);
    }
}
