//! Local SGD: workers train by themselves and average their weights every H steps.

use super::{COLLECTIVE, ReplicaAgreement, Strategy, ring_allreduce, ring_links};
use crate::collective::average::{Average, Outer};
use crate::collective::check;
use crate::options::{Kind, Parameter};
use crate::setup::{Averages, Refusal, Setup};
use crate::step_driver::StepDriver;

pub(super) const LOCAL: Strategy = Strategy {
    name: "local",
    about: "local SGD / DiLoCo: weights are averaged every H steps",
    detail: "Each worker makes H steps on its own; then the weights are averaged by a ring all-reduce. With \
             the outer optimiser (DiLoCo), what the average has moved since the last one is taken as a \
             gradient and applied with Nesterov's momentum. With H = 1 and no outer optimiser it is \
             ring-allreduce of weights.",
    cost: "1/H of a ring all-reduce per step",
    good: "Slow networks: bytes and waiting shrink by H, and a passing straggler is only felt every H steps.",
    bad: "Workers whose data differ drift apart between averages; accuracy falls as H grows.",
    loss: "What the lost worker has learned since the last average is gone; what it had learned by then is in everybody's \
           weights, and counts 1/p. The next average is that of the others, 1/(p − 1) each: compared with the \
           average of all p it jumps by (m − x)/(p − 1), where m is that of all and x what the lost worker had. After \
           an average all are equal, and nothing jumps. An average under way is given up, piece by piece: a worker \
           that has a piece of it keeps that, others keep their own weights until the next average. No sum is applied \
           twice or in part, and what weights count always adds up to 1.",
    parameters: &[&LOCAL_STEPS, &OUTER, &OUTER_LR, &OUTER_MOMENTUM],
    averages: &[Averages::Weights],
    make: |setup, rank| {
        let every = setup.options.count(&LOCAL_STEPS);
        let rounds = Average::along(ring_allreduce::PATH, setup, rank, every, outer(setup));
        Box::new(StepDriver::new(setup, rank, rounds))
    },
    links: ring_links,
    check,
    check_members: |setup| match outer(setup) {
        None => Ok(()),
        Some(_) => Err(Refusal::new(
            "--outer",
            "nesterov",
            "the outer optimiser remembers what all workers had at the last average: who joins does not know it, and after \
             an average that was given up they would differ; members can change with --outer none",
        )),
    },
    agreement: |setup| match (setup.options.count(&LOCAL_STEPS), outer(setup), setup.coder) {
        (1, None, None) => ReplicaAgreement::Exact,
        (1, ..) => ReplicaAgreement::Common,
        _ => ReplicaAgreement::Apart,
    },
    ..COLLECTIVE
};

const LOCAL_STEPS: Parameter = Parameter {
    name: "local-steps",
    about: "steps between two averages (H)",
    default: "8",
    kind: Kind::Count { least: 1 },
};
const OUTER: Parameter = Parameter {
    name: "outer",
    about: "what is done with the average: adopted as it is (none), or used as a gradient with Nesterov's \
            momentum",
    default: "none",
    kind: Kind::Choice(&["none", "nesterov"]),
};
const OUTER_LR: Parameter = Parameter {
    name: "outer-lr",
    about: "learning rate of the outer optimiser",
    default: "0.7",
    kind: Kind::Number { least: 0.0, most: 10.0 },
};
const OUTER_MOMENTUM: Parameter = Parameter {
    name: "outer-momentum",
    about: "momentum of the outer optimiser",
    default: "0.9",
    kind: Kind::Number { least: 0.0, most: 0.999 },
};

fn outer(setup: &Setup) -> Option<Outer> {
    let options = &setup.options;
    (options.text(&OUTER) == "nesterov").then(|| Outer {
        lr: options.number(&OUTER_LR) as f32,
        momentum: options.number(&OUTER_MOMENTUM) as f32,
    })
}
