//! Synchronous first, asynchronous from a fraction of the samples on.

use super::{Consistency, ConsistencyModel, Free};
use crate::options::{Kind, Parameter};

const SWITCH_AT: Parameter = Parameter {
    name: "switch-at",
    about: "fraction of the samples after which synchronous training becomes asynchronous",
    default: "0.25",
    kind: Kind::Number { least: 0.0, most: 1.0 },
};
const STRAGGLER_POLICY: Parameter = Parameter {
    name: "straggler-policy",
    about: "greedy: asynchronous also while a worker is a straggler, then synchronous again",
    default: "none",
    kind: Kind::Choice(&["none", "greedy"]),
};

pub(super) const SWITCH: ConsistencyModel = ConsistencyModel {
    name: "switch",
    about: "bsp first, asp after a fraction of the samples",
    detail: "Sync-Switch (ICDCS'21). Synchronous for the first fraction of the samples, asynchronous \
             after; \
             the momentum is kept. The authors' configuration policy is --lr-scaling linear: p times the \
             rate while a step is a whole global batch, the plain rate for single pushes. Greedy straggler \
             policy: asynchronous also while a worker's step time is over median + 3·MAD for 5 steps (which takes at least 3 workers).",
    parameters: &[&SWITCH_AT, &STRAGGLER_POLICY],
    whole_batches: true,
    make: |options, steps| {
        let greedy = options.text(&STRAGGLER_POLICY) == "greedy";
        Consistency {
            together_until: (options.number(&SWITCH_AT) * steps as f64 - 1e-6).ceil() as u64,
            greedy,
            central: greedy,
            ..Consistency::gated(|_| Box::new(Free))
        }
    },
};
