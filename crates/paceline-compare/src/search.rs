//! Learning rates: a short search that is the same for every strategy.

/// The rate in the middle of the search; the others are powers of two away.
const MIDDLE: f64 = 0.05;

/// Rates that each strategy is tried with in each cell.
pub(crate) const RATES: usize = 7;

/// Those that are tried first.
const FIRST: [i32; 3] = [-2, 0, 2];

/// Rates that are tried together afterwards.
const MORE: usize = 2;

/// The learning rate of a place on the ladder.
pub(crate) fn rate(place: i32) -> f64 {
    MIDDLE * 2f64.powi(place)
}

/// What a rate has reached on the search's seeds: accuracy over the later half of the run, its loss where that is even.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SearchScore {
    pub accuracy: f64,
    pub loss: f64,
}

impl SearchScore {
    /// Runs that diverge have learned nothing.
    pub const NOTHING: Self = Self { accuracy: 0.0, loss: f64::INFINITY };

    /// The mean of several.
    pub fn mean(all: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| all.iter().map(figure).sum::<f64>() / all.len() as f64;
        Self { accuracy: of(|s| s.accuracy), loss: of(|s| s.loss) }
    }

    fn beats(&self, other: &Self) -> bool {
        (self.accuracy, -self.loss) > (other.accuracy, -other.loss)
    }
}

/// The best rate of those that were tried, and whether nothing was tried beyond it on one side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TunedRate {
    pub place: i32,
    pub score: SearchScore,
    pub edge: bool,
}

/// The best of the rates that were tried; of equals, the smallest.
pub(crate) fn best(tried: &[(i32, SearchScore)]) -> Option<TunedRate> {
    let mut tried = tried.to_vec();
    tried.sort_by_key(|(place, _)| *place);
    let (mut place, mut score) = *tried.first()?;
    for (other, reached) in &tried[1..] {
        if reached.beats(&score) {
            (place, score) = (*other, *reached);
        }
    }
    let edge = place == tried[0].0 || place == tried[tried.len() - 1].0;
    Some(TunedRate { place, score, edge })
}

/// The rates that are tried next: the nearest to the best that were not tried. Beside an edge, these lie beyond it.
pub(crate) fn next(tried: &[(i32, SearchScore)]) -> Vec<i32> {
    let Some(best) = best(tried) else { return FIRST.to_vec() };
    let untried = |place: &i32| tried.iter().all(|(other, _)| other != place);
    let nearest = (1..).flat_map(|distance| [best.place - distance, best.place + distance]).filter(untried);
    nearest.take(MORE.min(RATES - tried.len())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries all rates of a made-up strategy whose best rate is known.
    fn searched(reached: impl Fn(i32) -> SearchScore) -> (Vec<i32>, TunedRate) {
        let mut tried: Vec<(i32, SearchScore)> = Vec::new();
        loop {
            let next = next(&tried);
            if next.is_empty() {
                let best = best(&tried).unwrap();
                return (tried.into_iter().map(|(place, _)| place).collect(), best);
            }
            tried.extend(next.into_iter().map(|place| (place, reached(place))));
        }
    }

    fn peak(at: i32) -> impl Fn(i32) -> SearchScore {
        move |place| SearchScore { accuracy: 1.0 - 0.1 * f64::from((place - at).abs()), loss: 1.0 }
    }

    #[test]
    fn every_strategy_is_tried_with_the_same_number_of_rates_and_the_best_is_found() {
        for at in -4..=5 {
            let (tried, best) = searched(peak(at));
            assert_eq!(tried.len(), RATES);
            assert_eq!(best.place, at, "{tried:?}");
        }
    }

    #[test]
    fn a_rate_at_the_edge_is_said_to_be_there() {
        let (_, far) = searched(peak(30));
        assert!(far.edge);
        let (tried, near) = searched(peak(0));
        assert!(!near.edge, "{tried:?}");
    }

    #[test]
    fn of_equals_the_smallest_rate_is_taken_and_divergence_never_wins() {
        let (_, best) = searched(|_| SearchScore { accuracy: 0.5, loss: 1.0 });
        assert!(best.place < 0);
        let (_, best) = searched(|place| match place > -2 {
            true => SearchScore::NOTHING,
            false => SearchScore { accuracy: 0.1, loss: 2.3 },
        });
        assert!(best.place <= -2);
    }
}
