//! What every strategy must pass, in virtual time with real numbers: for Paceline's own tests, for strategy files, and
//! for strategies out of tree (`examples/own-strategy`).
//!
//! [`strategy`] is the whole suite; it panics with what does not hold. Everything is drawn from seeds, so that a
//! failure can be repeated.
//!
//! # Layout
//! - `case`: a strategy with everything that can be chosen, and setups drawn for it
//! - `driving`: costs, gradients, runs
//! - [`checks`]: what must hold, one function each
//!
//! # Deliberately absent
//! What single strategies promise beyond that: see `crates/paceline-sim/tests/conformance`.

#![forbid(unsafe_code)]

mod case;
pub mod checks;
mod driving;

use paceline_protocol::{CODECS, Coder, Protocols, Strategy};

pub use case::StrategyCase;
pub use driving::{Gradient, costs, gradient, make, norm, numbers, run, start};

/// Crashes of the suite, one per seed.
pub const FAULT_SEEDS: u64 = 500;

/// Everything that must hold for a strategy, with each consistency model and codec that it takes.
///
/// # Panics
/// If something does not hold.
pub fn strategy(strategy: &'static Strategy) {
    for sync in Protocols::default().syncs(strategy) {
        let plain = StrategyCase::of(strategy, sync, &[]);
        case(&plain, FAULT_SEEDS);
        for coder in CODECS.iter().map(Coder::new).filter(|c| strategy.codecs().contains(&c.codec.name)) {
            case(&StrategyCase { coder: Some(coder), ..plain.clone() }, FAULT_SEEDS / 5);
        }
    }
}

/// Everything that must hold for one choice of everything, with so many crashes.
///
/// # Panics
/// If something does not hold.
pub fn case(case: &StrategyCase, faults: u64) {
    checks::replicas_are_what_is_said(case, 60);
    checks::one_worker_is_plain_gradient_descent(case);
    checks::timing_decides_nothing(case, 20, case.coder.is_none());
    checks::every_unit_is_done_once(case, 30);
    checks::what_stops_goes_on_as_if_it_had_not(case, 10);
    checks::other_generations_change_nothing(case);
    checks::every_run_ends_or_names_the_lost_rank(case, faults);
}
