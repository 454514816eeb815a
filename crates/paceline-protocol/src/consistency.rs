//! When a worker may go on: the registry of consistency models. To add one: a variant of [`Consistency`], its gate
//! in `strategies/ps/gate.rs`, and its line in [`CONSISTENCIES`].

use crate::options::{Kind, Options, Parameter};

/// When a worker may go on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Consistency {
    /// Everybody waits for everybody after each step.
    Bsp,
    /// Nobody waits.
    Asp,
    /// A worker may be at most this many steps ahead of the slowest when it starts one.
    Ssp(u64),
    /// The same bound; servers push fresh values when the slowest has made a step.
    Essp(u64),
    /// A lead of `lower`, and up to `upper` where waiting is predicted to be shorter that way.
    Dssp {
        /// The bound of ordinary steps.
        lower: u64,
        /// The bound of granted steps.
        upper: u64,
    },
    /// A bound per worker that follows its speed.
    Adaptive {
        /// The slowest worker's bound.
        base: u64,
        /// The least bound.
        lower: u64,
        /// The greatest.
        upper: u64,
        /// Steps that the slowest makes between synchronisations, at least.
        least_steps: u64,
    },
    /// Synchronous before this step, asynchronous from there on.
    Switch {
        /// The first asynchronous step.
        from: u64,
        /// Asynchronous also while a straggler lasts.
        greedy: bool,
    },
}

impl Consistency {
    /// Whether a run that begins, or goes on, with this step begins it together.
    pub fn together_at(self, step: u64) -> bool {
        self == Self::Bsp || matches!(self, Self::Switch { from, .. } if step < from)
    }

    /// Whether every step of a run of so many is synchronous.
    pub fn always_together(self, steps: u64) -> bool {
        self == Self::Bsp || matches!(self, Self::Switch { from, greedy: false } if from >= steps)
    }
}

/// A consistency model that users can name.
pub struct ConsistencyModel {
    /// The name on the command line.
    pub name: &'static str,
    /// One line for help texts and tables.
    pub about: &'static str,
    /// What it does, for the docs.
    pub detail: &'static str,
    /// Its parameters.
    pub parameters: &'static [&'static Parameter],
    /// The model with its parameters, for a run of so many steps.
    pub make: fn(&Options, u64) -> Consistency,
}

const STALENESS: Parameter = Parameter {
    name: "staleness",
    about: "steps that a worker may be ahead of the slowest (adaptive: the slowest worker's own bound)",
    default: "3",
    kind: Kind::Count { least: 0 },
};
const BOUNDS: Parameter = Parameter {
    name: "staleness-bounds",
    about: "the least and the greatest lead that are allowed, L,U",
    default: "3,15",
    kind: Kind::Bounds,
};
const LEAST_STEPS: Parameter = Parameter {
    name: "least-steps",
    about: "steps that the slowest worker makes between two synchronisations, at least",
    default: "1",
    kind: Kind::Count { least: 0 },
};
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

/// Every consistency model.
pub static CONSISTENCIES: &[ConsistencyModel] = &[
    ConsistencyModel {
        name: "bsp",
        about: "everybody waits for everybody (or for whom its path needs) after each step",
        detail: "With ps or an exact path this is the reference: p workers do exactly what one worker \
                 does with the p-fold batch, and a step takes as long as its slowest worker. With the \
                 other strategies workers wait for those whose message they need.",
        parameters: &[],
        make: |_, _| Consistency::Bsp,
    },
    ConsistencyModel {
        name: "asp",
        about: "nobody waits",
        detail: "Each push is an update of its own, applied on arrival to whatever the parameters are by \
                 then. \
                 The fastest; updates are as stale as the others are busy, so it wants a smaller learning rate or less momentum than bsp.",
        parameters: &[],
        make: |_, _| Consistency::Asp,
    },
    ConsistencyModel {
        name: "ssp",
        about: "a worker may be a few steps ahead of the slowest, not more",
        detail: "A worker may start a step only if it is at most s steps ahead of the slowest. What it reads \
                 contains every update up to s + 1 steps back, and its own. Absorbs passing slowness; behind a \
                 worker that is always slow, everybody ends up at its pace.",
        parameters: &[&STALENESS],
        make: |o, _| Consistency::Ssp(o.count(&STALENESS)),
    },
    ConsistencyModel {
        name: "essp",
        about: "ssp, with fresh values pushed when the slowest has made a step",
        detail: "The bound of ssp. Whenever the slowest worker has made a step, each shard pushes its \
                 values to \
                 all workers; one that waits for another shard takes them and starts from fresher parameters. \
                 More bytes for less observed staleness.",
        parameters: &[&STALENESS],
        make: |o, _| Consistency::Essp(o.count(&STALENESS)),
    },
    ConsistencyModel {
        name: "dssp",
        about: "ssp whose bound is raised where that shortens the predicted wait",
        detail: "Zhao et al. 2019. Up to a lead of L everybody goes on. The fastest worker beyond it is \
                 granted \
                 r extra steps, at most U − L: the r whose predicted end lies nearest to a predicted push of \
                 the slowest, from the last push intervals of both. No new grant until its lead is L again.",
        parameters: &[&BOUNDS],
        make: |o, _| {
            let (lower, upper) = o.bounds(&BOUNDS);
            Consistency::Dssp { lower, upper }
        },
    },
    ConsistencyModel {
        name: "adaptive",
        about: "ssp with a bound per worker that follows its speed",
        detail: "Zhang et al. 2018; the full text was not found, this is our reading. A worker's speed is \
                 its \
                 share of a core divided by the CPU seconds of its steps, both smoothed; its bound is --staleness times its speed relative to the slowest, between L and U. When the fastest has made U steps \
                 since the last synchronisation and the slowest fewer than --least-steps, everybody waits for it.",
        parameters: &[&STALENESS, &BOUNDS, &LEAST_STEPS],
        make: |o, _| {
            let (lower, upper) = o.bounds(&BOUNDS);
            Consistency::Adaptive {
                base: o.count(&STALENESS),
                lower,
                upper,
                least_steps: o.count(&LEAST_STEPS),
            }
        },
    },
    ConsistencyModel {
        name: "switch",
        about: "bsp first, asp after a fraction of the samples",
        detail: "Sync-Switch (ICDCS'21). Synchronous for the first fraction of the samples, asynchronous \
                 after; \
                 the momentum is kept. The authors' configuration policy is --lr-scaling linear: p times the \
                 rate while a step is a whole global batch, the plain rate for single pushes. Greedy straggler \
                 policy: asynchronous also while a worker's step time is over median + 3·MAD for 5 steps (which takes at least 3 workers).",
        parameters: &[&SWITCH_AT, &STRAGGLER_POLICY],
        make: |o, steps| Consistency::Switch {
            from: (o.number(&SWITCH_AT) * steps as f64 - 1e-6).ceil() as u64,
            greedy: o.text(&STRAGGLER_POLICY) == "greedy",
        },
    },
];

/// The consistency model of that name.
pub fn find(name: &str) -> Option<&'static ConsistencyModel> {
    CONSISTENCIES.iter().find(|c| c.name == name)
}
