//! A made-up model in stages, with numbers: values that skip stages and are handed on, uneven micro-batches.

use std::collections::HashMap;
use std::sync::Arc;

use paceline_pipeline::CheckedProgram;
use paceline_protocol::setup::part;
use paceline_protocol::{
    Action, BatchLengths, Buf, Buffers, Crossing, MsgId, Rank, Region, Setup, Stage, StageSetup, Strategy,
    Work, WorkKind,
};
use paceline_sim::{RankMemory, StepStart};

/// Elements that cross per sample, and parameters of a stage.
const WIDTH: usize = 3;
const PARAMS: usize = 5;

/// What crosses, as `(from, to)`: every stage hands something to the next; a value of the first one is read by the third,
/// which hands it on to the last.
fn pairs(stages: usize) -> Vec<(usize, usize)> {
    let mut pairs: Vec<_> = (1..stages).map(|to| (to - 1, to)).collect();
    if stages > 2 {
        pairs.push((0, 2));
    }
    if stages > 4 {
        pairs.push((2, stages - 1));
    }
    pairs
}

/// A run of `replicas` models in stages along a program; batches of `batch` samples per replica, a smaller one each third
/// step.
pub fn setup(
    strategy: &Strategy,
    program: &CheckedProgram,
    replicas: usize,
    batch: usize,
    steps: u64,
) -> Setup {
    let (stages, micro_batches) = (program.stages(), program.micro_batches());
    let pairs = pairs(stages);
    let inputs = |stage: usize| pairs.iter().copied().filter(move |pair| pair.1 == stage);
    let outputs = |stage: usize| pairs.iter().copied().filter(move |pair| pair.0 == stage);
    let stage = |own: usize| {
        let crossing = |pair: (usize, usize)| {
            let (there, number) = if pair.1 == own {
                let before = inputs(pair.0).count();
                (pair.0, before + outputs(pair.0).position(|other| other == pair).unwrap())
            } else {
                (pair.1, inputs(pair.1).position(|other| other == pair).unwrap())
            };
            Crossing { stage: there, there: number, size: WIDTH, gradient: true }
        };
        Stage {
            work: program.ranks()[program.rank_of(own)].work.clone(),
            slots: program.slots(own),
            crossings: inputs(own).chain(outputs(own)).map(crossing).collect(),
            received: inputs(own).count(),
            params: own * PARAMS..(own + 1) * PARAMS,
        }
    };
    let whole = replicas * batch;
    let lengths = move |step: u64| if step % 3 == 2 { whole / 3 } else { whole };
    let staged = StageSetup {
        stages: (0..stages).map(stage).collect(),
        micro_batches,
        capacity: batch.div_ceil(micro_batches),
        batches: BatchLengths(Arc::new(lengths)),
    };
    let servers = if strategy.servers { 2 * stages } else { 0 };
    Setup {
        bucket: 3,
        message: 4,
        stages: Some(Arc::new(staged)),
        ..Setup::new(replicas * stages, servers, stages * PARAMS, steps)
    }
}

/// Where training begins.
fn start(setup: &Setup) -> Vec<f32> {
    (0..setup.params).map(|i| (i as f32 * 0.37).sin()).collect()
}

/// A number that belongs to a sample of a step.
fn sample(step: u64, replica: usize, sample: usize, i: usize) -> f32 {
    ((step * 131 + replica as u64 * 17 + sample as u64 * 7 + i as u64) as f32 * 0.71).cos()
}

/// A rank's numbers.
#[derive(Default)]
struct Own {
    param: Vec<f32>,
    grads: Vec<Vec<f32>>,
    scratch: Vec<Vec<f32>>,
    work: Vec<u32>,
    values: Vec<Vec<f32>>,
    slopes: Vec<Vec<f32>>,
    held: HashMap<MsgId, Vec<f32>>,
    step: u64,
}

/// The numbers of every rank.
pub struct StagedNumbers<'a> {
    setup: &'a Setup,
    ranks: Vec<Own>,
    /// The worker that leaves, and before which step.
    pub leaves: Option<(Rank, u64)>,
}

impl<'a> StagedNumbers<'a> {
    pub fn new(setup: &'a Setup, scratch: Vec<Vec<usize>>) -> Self {
        let stages = setup.stages.as_ref().unwrap();
        let all = start(setup);
        let own = |(rank, lens): (Rank, Vec<usize>)| {
            let stage = &stages.stages[setup.stage_of(rank)];
            let room = |crossing: &Crossing| vec![f32::NAN; stage.slots * stages.room(crossing)];
            let crossings = || stage.crossings.iter().map(room).collect();
            Own {
                param: all[stage.params.clone()].to_vec(),
                grads: vec![vec![f32::NAN; stage.params.len()]],
                scratch: lens.into_iter().map(|len| vec![0.0; len]).collect(),
                values: crossings(),
                slopes: crossings(),
                ..Own::default()
            }
        };
        Self { setup, ranks: scratch.into_iter().enumerate().map(own).collect(), leaves: None }
    }

    /// The parameters of a replica.
    pub fn params(&self, replica: usize) -> Vec<f32> {
        let stages = 0..self.setup.stage_count();
        stages.flat_map(|stage| &self.ranks[self.setup.stage_rank(replica, stage)].param).copied().collect()
    }

    /// The parameters of the servers of all stages.
    pub fn served(&self) -> Vec<f32> {
        let count = self.setup.stage_count();
        let mut all = Vec::new();
        for stage in 0..count {
            for (shard, range) in self.setup.of_stage(stage).shards().into_iter().enumerate() {
                all.extend_from_slice(&self.ranks[self.setup.workers + shard * count + stage].param[range]);
            }
        }
        all
    }

    pub fn held(&self) -> usize {
        self.ranks.iter().map(|own| own.held.len()).sum()
    }
}

impl Own {
    fn buffer(&mut self, region: Region) -> &mut [f32] {
        let buffer = match region.buf {
            Buf::Value(n) => &mut self.values[usize::from(n)],
            Buf::Slope(n) => &mut self.slopes[usize::from(n)],
            Buf::Param => &mut self.param,
            Buf::Grad => &mut self.grads[0],
            Buf::Scratch(n) => &mut self.scratch[usize::from(n)],
            buf => panic!("{buf:?}"),
        };
        &mut buffer[region.range()]
    }
}

impl RankMemory for StagedNumbers<'_> {
    type Body = Vec<f32>;

    fn gradient(&mut self, _: Rank, _: StepStart) -> bool {
        panic!("passes come one by one")
    }

    fn begin(&mut self, rank: Rank, begin: StepStart) -> bool {
        self.ranks[rank].step = begin.unit.step;
        assert_eq!(begin.unit.share, rank / self.setup.stage_count());
        self.leaves != Some((rank, begin.step))
    }

    fn pass(&mut self, rank: Rank, work: Work, slot: usize) {
        let stages = Arc::clone(self.setup.stages.as_ref().unwrap());
        let (stage, replica) = (self.setup.stage_of(rank), rank / self.setup.stage_count());
        let own = &mut self.ranks[rank];
        let batch = self.setup.replica_batch(own.step, replica);
        let samples = stages.micro_batch(batch, work.micro);
        if work.kind == WorkKind::Backward && samples.start == 0 {
            own.grads[0].fill(0.0);
        }
        let mut numbers = StageAtWork { stages: &stages, stage, slot, first: samples.start, own };
        for i in 0..samples.len() {
            match work.kind {
                WorkKind::Forward => numbers.forward(replica, i),
                WorkKind::Backward => numbers.backward(replica, i),
            }
        }
    }

    fn read(&mut self, rank: Rank, region: Region) -> Vec<f32> {
        self.ranks[rank].buffer(region).to_vec()
    }

    fn hold(&mut self, rank: Rank, msg: MsgId, body: Vec<f32>) {
        assert!(self.ranks[rank].held.insert(msg, body).is_none(), "a new number for each body");
    }

    fn release(&mut self, rank: Rank, msg: MsgId) {
        assert!(self.ranks[rank].held.remove(&msg).is_some(), "released twice");
    }

    fn compute(&mut self, rank: Rank, action: &Action) {
        let own = &mut self.ranks[rank];
        if let Action::Copy { dst: dst @ Region { buf: Buf::Value(_) | Buf::Slope(_), .. }, src } = *action {
            let Buf::Msg(msg) = src.buf else { panic!("{action:?}") };
            let body = own.held[&msg].clone();
            return own.buffer(dst).copy_from_slice(&body);
        }
        if let Action::Apply { params, grad, .. } = *action {
            let grad = match grad.buf {
                Buf::Msg(msg) => own.held[&msg].clone(),
                _ => own.buffer(grad).to_vec(),
            };
            return own.buffer(params).iter_mut().zip(grad).for_each(|(p, g)| *p -= g);
        }
        let Own { param, grads, scratch, work, held, .. } = own;
        let accumulate = |dst: &mut [f32], src: &[f32]| dst.iter_mut().zip(src).for_each(|(d, s)| *d += s);
        Buffers { param, grads, scratch, work, accumulate }.compute(action, &|msg| held[&msg].as_slice());
    }
}

/// One stage at work on a micro-batch.
struct StageAtWork<'a> {
    stages: &'a StageSetup,
    stage: usize,
    slot: usize,
    /// The micro-batch's first sample in its batch.
    first: usize,
    own: &'a mut Own,
}

impl StageAtWork<'_> {
    fn at(&self, sample: usize) -> usize {
        self.slot * self.stages.capacity * WIDTH + sample * WIDTH
    }

    fn stage(&self) -> &Stage {
        &self.stages.stages[self.stage]
    }

    /// What a stage works on: the sample itself in the first one, and what came in.
    fn inputs(&self, replica: usize, i: usize) -> [f32; WIDTH] {
        let at = self.at(i);
        std::array::from_fn(|k| {
            let mut sum =
                if self.stage == 0 { sample(self.own.step, replica, self.first + i, k) } else { 0.0 };
            (0..self.stage().received).for_each(|n| sum += self.own.values[n][at + k]);
            sum
        })
    }

    /// The crossing that comes in and is handed on as this one that goes out.
    fn handed_on(&self, n: usize) -> Option<usize> {
        let skips = |crossing: &Crossing| crossing.stage.abs_diff(self.stage) > 1;
        let stage = self.stage();
        let first = (0..stage.received).find(|&n| skips(&stage.crossings[n]));
        first.filter(|_| skips(&stage.crossings[n]))
    }

    fn forward(&mut self, replica: usize, i: usize) {
        let (a, at) = (self.inputs(replica, i), self.at(i));
        for n in self.stage().received..self.stage().crossings.len() {
            let on = self.handed_on(n);
            for (k, a) in a.iter().enumerate() {
                self.own.values[n][at + k] = match on {
                    Some(from) => self.own.values[from][at + k],
                    None => (a * self.own.param[(k + n) % PARAMS]).sin(),
                };
            }
        }
    }

    fn backward(&mut self, replica: usize, i: usize) {
        let (a, at) = (self.inputs(replica, i), self.at(i));
        let (received, count) = (self.stage().received, self.stage().crossings.len());
        let last = count == received;
        let mut back = [0.0f32; WIDTH];
        for (k, a) in a.into_iter().enumerate() {
            let outs = if last { received..received + 1 } else { received..count };
            for n in outs {
                if !last && self.handed_on(n).is_some() {
                    continue;
                }
                let p = self.own.param[(k + n) % PARAMS];
                let slope = if last { 0.1 } else { self.own.slopes[n][at + k] };
                let inside = slope * (a * p).cos();
                self.own.grads[0][(k + n) % PARAMS] += 0.05 * inside * a;
                back[k] += inside * p;
            }
        }
        for n in 0..received {
            let onward = (received..count).find(|out| self.handed_on(*out) == Some(n));
            for (k, back) in back.iter().enumerate() {
                let more = onward.map_or(0.0, |out| self.own.slopes[out][at + k]);
                self.own.slopes[n][at + k] = back + more;
            }
        }
    }
}

/// One process that passes each micro-batch through all stages and back, replica after replica; then the sum of the
/// replicas' gradients, and the update.
pub fn reference(setup: &Setup) -> Vec<f32> {
    let stages = setup.stages.as_ref().unwrap();
    let mut memory = StagedNumbers::new(setup, vec![Vec::new(); setup.workers]);
    for step in 0..setup.end() {
        for replica in 0..setup.replicas() {
            let batch = part(&(0..(stages.batches.0)(step)), setup.replicas(), replica).len();
            for micro in (0..stages.micro_batches).filter(|micro| stages.computes(batch, *micro)) {
                pass_through(&mut memory, setup, replica, step, micro);
            }
        }
        for stage in 0..setup.stage_count() {
            let grads = |replica| memory.ranks[setup.stage_rank(replica, stage)].grads[0].clone();
            let mut sum: Vec<f32> = grads(0);
            for replica in 1..setup.replicas() {
                sum.iter_mut().zip(grads(replica)).for_each(|(s, g)| *s += g);
            }
            for replica in 0..setup.replicas() {
                let own = &mut memory.ranks[setup.stage_rank(replica, stage)];
                own.param.iter_mut().zip(&sum).for_each(|(p, g)| *p -= g);
            }
        }
    }
    memory.params(0)
}

/// A micro-batch through all stages and back.
fn pass_through(memory: &mut StagedNumbers<'_>, setup: &Setup, replica: usize, step: u64, micro: usize) {
    let stages = Arc::clone(setup.stages.as_ref().unwrap());
    let count = stages.stages.len();
    let slot = |stage: usize| micro % stages.stages[stage].slots;
    let size = stages.capacity * WIDTH;
    for kind in [WorkKind::Forward, WorkKind::Backward] {
        for i in 0..count {
            let stage = if kind == WorkKind::Forward { i } else { count - 1 - i };
            let rank = setup.stage_rank(replica, stage);
            memory.ranks[rank].step = step;
            memory.pass(rank, Work { stage, kind, micro }, slot(stage));
            let own = &stages.stages[stage];
            let range =
                if kind == WorkKind::Forward { own.received..own.crossings.len() } else { 0..own.received };
            for n in range {
                let Crossing { stage: to, there, .. } = own.crossings[n];
                let [from, into] = [slot(stage), slot(to)].map(|slot| slot * size..(slot + 1) * size);
                let peer = setup.stage_rank(replica, to);
                if kind == WorkKind::Forward {
                    let values = memory.ranks[rank].values[n][from].to_vec();
                    memory.ranks[peer].values[there][into].copy_from_slice(&values);
                } else {
                    let slopes = memory.ranks[rank].slopes[n][from].to_vec();
                    memory.ranks[peer].slopes[there][into].copy_from_slice(&slopes);
                }
            }
        }
    }
}
