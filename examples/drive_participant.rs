//! Drives the participants of a strategy by hand: three workers of a ring all-reduce average their gradients.
//!
//! A participant has no sockets, clocks or threads. This driver owns the memory and a queue: it hands inputs to the
//! participants and does what they ask for. `cargo run -p paceline-protocol --example drive-participant`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::{HashMap, VecDeque};

use paceline_protocol::{Action, Actions, Buf, Buffers, Input, MsgId, Participant, Region, Setup, find};

const WORKERS: usize = 3;
const PARAMS: usize = 6;

/// A worker: its participant, and the buffers that actions name.
struct Worker {
    participant: Box<dyn Participant>,
    param: Vec<f32>,
    grad: Vec<f32>,
    scratch: Vec<Vec<f32>>,
    /// Received bodies, until they are released.
    bodies: HashMap<MsgId, Vec<f32>>,
}

impl Worker {
    fn new(setup: &Setup, rank: usize) -> Self {
        let participant = (find("ring-allreduce").expect("it is registered").make)(setup, rank);
        let scratch = participant.scratch().into_iter().map(|len| vec![0.0; len]).collect();
        let (param, grad) = (vec![0.0; PARAMS], vec![0.0; PARAMS]);
        Self { participant, param, grad, scratch, bodies: HashMap::new() }
    }

    /// The content of a region, as it is sent.
    fn read(&self, region: Region) -> Vec<f32> {
        let buffer = match region.buf {
            Buf::Param => &self.param,
            Buf::Grad | Buf::HostedGrad(_) => &self.grad,
            Buf::Scratch(n) => &self.scratch[usize::from(n)],
            Buf::Msg(msg) => &self.bodies[&msg],
            Buf::Optimiser(_) => unreachable!("this run's members do not change"),
            Buf::Value(_) | Buf::Slope(_) => unreachable!("the model is not cut into stages"),
        };
        buffer[region.range()].to_vec()
    }

    /// Does a computation on the buffers.
    fn compute(&mut self, action: &Action) {
        let Self { param, grad, scratch, bodies, .. } = self;
        let accumulate = |dst: &mut [f32], src: &[f32]| dst.iter_mut().zip(src).for_each(|(d, s)| *d += s);
        let mut buffers =
            Buffers { param, grads: std::slice::from_mut(grad), scratch, work: &mut Vec::new(), accumulate };
        buffers.compute(action, &|msg| &bodies[&msg][..]);
    }
}

fn main() {
    let setup = Setup::new(WORKERS, 0, PARAMS, 1);
    let mut workers: Vec<Worker> = (0..WORKERS).map(|rank| Worker::new(&setup, rank)).collect();
    let mut inputs: VecDeque<(usize, Input)> = (0..WORKERS).map(|rank| (rank, Input::Start)).collect();
    let (mut actions, mut messages) = (Actions::default(), 0);
    while let Some((rank, input)) = inputs.pop_front() {
        workers[rank].participant.on(0, input, &mut actions);
        for action in actions.drain().collect::<Vec<_>>() {
            match action {
                // The backward pass of this worker: every gradient is its rank plus one, weighted by its share.
                Action::BeginStep { .. } => {
                    workers[rank].grad.fill((rank + 1) as f32 / WORKERS as f32);
                    inputs.push_back((rank, Input::GradReady { from: 0 }));
                    inputs.push_back((rank, Input::BackwardDone));
                }
                Action::Send { op, to, tag, head, src } => {
                    let body = src.map(|region| {
                        messages += 1;
                        let numbers = workers[rank].read(region);
                        workers[to].bodies.insert(MsgId(messages), numbers);
                        MsgId(messages)
                    });
                    println!("worker {rank} sends {} numbers to worker {to}", src.map_or(0, |s| s.len));
                    inputs.push_back((to, Input::Message { from: rank, tag, head, body }));
                    inputs.push_back((rank, Input::Done(op)));
                }
                Action::Release(msg) => drop(workers[rank].bodies.remove(&msg)),
                // Plain gradient descent with a learning rate of 1.
                Action::Apply { params, grad, .. } => {
                    let step = workers[rank].read(grad);
                    let own = &mut workers[rank].param[params.range()];
                    own.iter_mut().zip(step).for_each(|(param, grad)| *param -= grad);
                }
                Action::Finish(outcome) => println!("worker {rank} is finished: {outcome:?}"),
                Action::WaitingFor(_) | Action::Staleness(_) => {}
                computation => workers[rank].compute(&computation),
            }
        }
    }
    for (rank, worker) in workers.iter().enumerate() {
        println!("parameters of worker {rank}: {:?}", worker.param);
        assert!(worker.param.iter().all(|&param| param == -2.0), "the mean of 1, 2 and 3 was subtracted");
        assert!(worker.bodies.is_empty(), "every body was released");
    }
}
