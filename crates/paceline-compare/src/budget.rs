//! What fits into the minutes: how many steps a run has, on how many seeds rates are searched, and how many rounds follow.

use serde::{Deserialize, Serialize};

use crate::request::ComparisonDocument;
use crate::search::RATES;

/// Of the budget, what the search may take before runs become shorter.
const SEARCH_SHARE: f64 = 0.4;

/// Rounds in virtual time and real ones that must fit before runs become shorter.
const WANTED_ROUNDS: (f64, f64) = (6.0, 3.0);

/// Of the time behind the search, what real rounds take as long as those in virtual time are not all done.
const REAL_SHARE: f64 = 0.6;

/// How much is done: fixed once the first runs are timed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say what the fields are")]
pub(crate) struct Extent {
    /// Steps of a run.
    pub steps: u64,
    /// Seeds of the search.
    pub search_seeds: u64,
    /// Seconds that runs were estimated to take, as `Pace` has them.
    pub pace: Pace,
}

/// What runs take in real time, as the first ones tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pace {
    /// Seconds per step of a run in virtual time, with few and with many workers, all cores busy, per core.
    pub virtual_step_s: (f64, f64),
    /// Seconds of a real run without any step, and per step without and behind the link.
    pub real_start_s: f64,
    pub real_step_s: (f64, f64),
    /// Cores that runs in virtual time have.
    pub cores: usize,
}

impl Pace {
    fn virtual_s(&self, few: f64, many: f64, steps: u64) -> f64 {
        let (of_few, of_many) = self.virtual_step_s;
        steps as f64 * (few * of_few + many * of_many) / self.cores.max(1) as f64
    }

    /// The search: rates for every variant, then variants behind the link.
    pub fn search_s(&self, document: &ComparisonDocument, steps: u64, seeds: u64) -> f64 {
        let variants: usize = document.contenders.iter().map(|c| c.variants.len()).sum();
        let of_several =
            document.contenders.iter().map(|c| c.variants.len()).filter(|n| *n > 1).sum::<usize>();
        let runs = (2 * (variants * RATES + of_several)) as f64 * seeds as f64;
        let (few, many) = (f64::from(document.few > 0), f64::from(document.many > 0));
        self.virtual_s(runs * few, runs * many, steps)
    }

    /// A round in virtual time: every contender in every cell, on one seed.
    pub fn virtual_round_s(&self, document: &ComparisonDocument, steps: u64) -> f64 {
        let cells = if document.many > 0 { 4 } else { 0 };
        self.virtual_s(0.0, (cells * document.contenders.len()) as f64, steps)
    }

    /// A real round.
    pub fn real_round_s(&self, document: &ComparisonDocument, steps: u64) -> f64 {
        if document.few == 0 {
            return 0.0;
        }
        let (without, behind) = self.real_step_s;
        let each = 2.0 * self.real_start_s + steps as f64 * (without + behind);
        2.0 * document.contenders.len() as f64 * each
    }
}

/// How much is done in so many seconds.
pub(crate) fn extent(document: &ComparisonDocument, pace: Pace, budget_s: f64) -> Extent {
    let fits = |steps: u64, seeds: u64, share: f64| {
        let search = pace.search_s(document, steps, seeds);
        let (virtual_rounds, real_rounds) = WANTED_ROUNDS;
        let rounds = virtual_rounds * pace.virtual_round_s(document, steps)
            + real_rounds * pace.real_round_s(document, steps);
        search <= share * budget_s && search + rounds <= 0.9 * budget_s
    };
    let shorter = [1, 2, 4, 8].map(|part| (document.steps / part).max(1));
    let steps = shorter.into_iter().find(|steps| fits(*steps, 2, SEARCH_SHARE)).unwrap_or(shorter[3]);
    let search_seeds = [4, 3, 2].into_iter().find(|seeds| fits(steps, *seeds, SEARCH_SHARE)).unwrap_or(1);
    Extent { steps, search_seeds, pace }
}

/// How many rounds in virtual time and real ones fit into what is left; at most so many of each.
pub(crate) fn rounds(left_s: f64, virtual_s: f64, real_s: f64, most: (u64, u64)) -> (u64, u64) {
    let count = |seconds: f64, each: f64, most: u64| match each > 0.0 {
        true => ((seconds / each).floor().max(0.0) as u64).min(most),
        false => 0,
    };
    let share = if virtual_s > 0.0 { REAL_SHARE } else { 1.0 };
    let first = count(share * left_s, real_s, most.1);
    let of_virtual = count(left_s - first as f64 * real_s, virtual_s, most.0);
    let of_real = count(left_s - of_virtual as f64 * virtual_s, real_s, most.1).max(first);
    (of_virtual, of_real)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_never_take_more_than_is_left_and_use_what_is_there() {
        for (left, virtual_s, real_s) in
            [(60.0, 2.0, 20.0), (900.0, 3.0, 25.0), (5.0, 2.0, 20.0), (60.0, 0.0, 9.0)]
        {
            let (of_virtual, of_real) = rounds(left, virtual_s, real_s, (12, 12));
            let taken = of_virtual as f64 * virtual_s + of_real as f64 * real_s;
            assert!(taken <= left, "{of_virtual} and {of_real} rounds in {left} s");
            let full = |n: u64, each: f64| n == 12 || each == 0.0 || left - taken < each;
            assert!(
                full(of_virtual, virtual_s) && full(of_real, real_s),
                "{of_virtual} and {of_real} in {left} s"
            );
        }
        assert_eq!(rounds(60.0, 2.0, 0.0, (12, 12)), (12, 0), "without real cells there are no real rounds");
    }
}
