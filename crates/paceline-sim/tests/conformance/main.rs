//! The conformance suite of strategies, in virtual time: every strategy in the registry must pass it, with
//! every consistency model, codec and variant that it has. What holds for every strategy is in `paceline-conformance`;
//! what single ones promise is here.

mod changing;
mod changing_apart;
mod changing_weights;
mod consistency;
mod exact;
mod faults;
mod feedback;
mod hosting;
mod identities;
mod mixing;
mod stepwise;

use paceline_conformance::{StrategyCase as Case, costs, make, norm, numbers, run, start};
use paceline_protocol::{Averages, CODECS, Coder, Family, Protocols, STRATEGIES, Setup};

/// Every strategy with every consistency model, and the variants of those that have some.
fn main_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for strategy in STRATEGIES {
        for sync in Protocols::default().syncs(strategy) {
            cases.push(Case::new(strategy.name, sync, &[]));
        }
    }
    for variant in ["naive", "rotate", "push-sum", "periodic", "chunked"] {
        cases.push(Case::new("stepwise", "bsp", &[("variant", variant)]));
    }
    cases.push(Case::new("gossip", "bsp", &[("neighbours", "1")]));
    cases.push(Case::new("ps", "switch", &[("straggler-policy", "greedy"), ("switch-at", "0.8")]));
    cases
}

/// The rest: other settings, what is averaged, codecs.
fn more_cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("stepwise", "bsp", &[("start", "rotate-1")]),
        Case::new("stepwise", "bsp", &[("variant", "chunked"), ("debias", "push-sum")]),
        Case::new("stepwise", "bsp", &[("variant", "push-sum"), ("sync-every", "2")]),
        Case::new("stepwise", "bsp", &[("variant", "naive"), ("sync-every", "1")]),
        Case::new("stepwise", "bsp", &[("variant", "chunked"), ("sync-every", "1")]),
        Case {
            averages: Averages::Gradients,
            ..Case::new("stepwise", "bsp", &[("variant", "rotate"), ("sync-every", "2")])
        },
        Case::new("local", "bsp", &[("local-steps", "1")]),
        Case::new("local", "bsp", &[("local-steps", "2"), ("outer", "nesterov")]),
        Case::new("ps", "ssp", &[("staleness", "0")]),
        Case::new("ps", "dssp", &[("staleness-bounds", "0,2")]),
        Case::new("ps", "adaptive", &[("staleness", "1"), ("staleness-bounds", "0,3"), ("least-steps", "2")]),
        Case::new("ps", "switch", &[("switch-at", "0")]),
        Case::new("ps", "switch", &[("switch-at", "1")]),
    ];
    for strategy in STRATEGIES {
        let base = Case::new(strategy.name, "bsp", &[]);
        for &averages in &strategy.averages[1..] {
            let case = Case { averages, ..base.clone() };
            if (strategy.check)(&case.setup(Setup::new(2, 1, 9, 1))).is_ok() {
                cases.push(case);
            }
        }
        for coder in CODECS.iter().map(Coder::new).filter(|c| strategy.codecs().contains(&c.codec.name)) {
            cases.push(Case { coder: Some(coder), ..base.clone() });
            if strategy.name == "ps" {
                let asynchronous = Case::new("ps", "asp", &[]);
                cases.push(Case { coder: Some(coder), ..asynchronous });
            }
            if coder.codec.family == Family::PerHop
                && strategy.averages.len() > 1
                && strategy.name != "stepwise"
            {
                cases.push(Case { coder: Some(coder), averages: strategy.averages[1], ..base.clone() });
            }
        }
    }
    let together = Case::new("stepwise", "bsp", &[("variant", "naive"), ("sync-every", "1")]);
    let coder = "fp16".parse().ok();
    cases.push(Case { coder, ..together });
    cases
}

fn all() -> Vec<Case> {
    [main_cases(), more_cases()].concat()
}
