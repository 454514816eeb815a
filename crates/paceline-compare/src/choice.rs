//! What the search says: each contender's variant and learning rate in each cell, and the accuracy whose time is asked
//! for. Functions of the runs on the search's seeds: those of the comparison decide nothing here.

use std::collections::BTreeMap;

use crate::cell::ComparedCell;
use crate::execute::RunFigures;
use crate::journal::{ComparedEnd, ComparisonHistory, RunKey};
use crate::search::{SearchScore, TunedRate, best, next, rate};

/// How far a target lies below what the first rival reaches in the search.
const BELOW: f64 = 0.02;

/// Whose accuracy in the search sets the targets.
pub(crate) const REFERENCE: usize = 1;

/// A contender in a cell, as the search has tuned it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TunedSettings {
    pub variant: usize,
    pub tuned: TunedRate,
}

impl TunedSettings {
    pub fn rate(&self) -> f64 {
        rate(self.tuned.place)
    }
}

/// What the search has decided.
#[derive(Clone, Debug)]
pub(crate) struct Choices {
    of: BTreeMap<(ComparedCell, usize), TunedSettings>,
    targets: BTreeMap<ComparedCell, f64>,
}

impl Choices {
    /// A contender in a cell.
    pub fn get(&self, cell: ComparedCell, contender: usize) -> TunedSettings {
        self.of[&(cell, contender)]
    }

    /// The accuracy whose time is asked for in a cell.
    pub fn target(&self, cell: ComparedCell) -> f64 {
        self.targets[&cell.searched()]
    }

    /// A contender's run in a cell.
    pub fn key(&self, cell: ComparedCell, contender: usize, seed: u64) -> RunKey {
        let TunedSettings { variant, tuned } = self.get(cell, contender);
        RunKey { cell, contender, variant, rate: tuned.place, seed }
    }
}

impl ComparisonHistory {
    fn search_seeds(&self) -> Vec<u64> {
        self.document.search_seeds(self.extent.map_or(0, |extent| extent.search_seeds))
    }

    /// Where rates are searched.
    fn searched_cells(&self) -> Vec<ComparedCell> {
        paceline_statistics::distinct(self.document.cells().into_iter().map(ComparedCell::searched))
    }

    fn variants(&self) -> impl Iterator<Item = (usize, usize)> {
        let all = self.document.contenders.iter().enumerate();
        all.flat_map(|(contender, entry)| (0..entry.variants.len()).map(move |variant| (contender, variant)))
    }

    /// The rates that a variant was tried with, and the runs that the last ones of them lack.
    fn tried(
        &self,
        cell: ComparedCell,
        (contender, variant): (usize, usize),
    ) -> (Vec<(i32, SearchScore)>, Vec<RunKey>) {
        let seeds = self.search_seeds();
        let key = |rate: i32, seed: u64| RunKey { cell, contender, variant, rate, seed };
        let mut tried: Vec<(i32, SearchScore)> = Vec::new();
        loop {
            let places = next(&tried);
            if places.is_empty() {
                return (tried, Vec::new());
            }
            let wanted = places.iter().flat_map(|place| seeds.iter().map(|seed| key(*place, *seed)));
            let missing: Vec<RunKey> = wanted.filter(|key| self.end(key).is_none()).collect();
            if !missing.is_empty() || seeds.is_empty() {
                return (tried, missing);
            }
            for place in places {
                let ends = seeds.iter().filter_map(|seed| self.end(&key(place, *seed)));
                tried.push((place, SearchScore::mean(&ends.map(score).collect::<Vec<_>>())));
            }
        }
    }

    /// Runs that the search for learning rates needs next.
    pub(crate) fn search_wanted(&self) -> Vec<RunKey> {
        let all = self.searched_cells().into_iter();
        all.flat_map(|cell| self.variants().flat_map(move |variant| self.tried(cell, variant).1)).collect()
    }

    /// A variant's rate; none before its search is over.
    fn tuned(&self, cell: ComparedCell, variant: (usize, usize)) -> Option<TunedRate> {
        let (tried, missing) = self.tried(cell.searched(), variant);
        best(&tried).filter(|_| missing.is_empty())
    }

    /// A variant's runs in a cell on the search's seeds, at its rate.
    fn timed(&self, cell: ComparedCell, (contender, variant): (usize, usize)) -> Option<Vec<RunKey>> {
        let tuned = self.tuned(cell, (contender, variant))?;
        let cell = cell.in_virtual_time();
        let key = |seed| RunKey { cell, contender, variant, rate: tuned.place, seed };
        Some(self.search_seeds().into_iter().map(key).collect())
    }

    /// Runs that the choice between variants needs: each at its rate in each cell, in virtual time.
    pub(crate) fn variants_wanted(&self) -> Vec<RunKey> {
        let several =
            |(contender, _): &(usize, usize)| self.document.contenders[*contender].variants.len() > 1;
        let of = |cell: ComparedCell| {
            self.variants().filter(several).filter_map(move |variant| self.timed(cell, variant)).flatten()
        };
        let all = self.document.cells().into_iter().flat_map(of).filter(|key| self.end(key).is_none());
        paceline_statistics::distinct(all)
    }

    /// The accuracy that the reference reaches in the search, less a little, in whole percent.
    fn target(&self, cell: ComparedCell) -> Option<f64> {
        let reference = REFERENCE.min(self.document.contenders.len() - 1);
        let variants = 0..self.document.contenders[reference].variants.len();
        let tuned = variants.filter_map(|variant| Some((variant, self.tuned(cell, (reference, variant))?)));
        let (variant, _) = tuned.max_by(|a, b| a.1.score.accuracy.total_cmp(&b.1.score.accuracy))?;
        let keys = self.timed(cell, (reference, variant))?;
        let reached: Vec<f64> =
            keys.iter().map(|key| self.figures(key).map_or(0.0, |f| f.accuracy)).collect();
        let percent = 100.0 * (paceline_statistics::mean(&reached) - BELOW);
        Some((percent.floor() / 100.0).max(0.0))
    }

    pub(crate) fn figures(&self, key: &RunKey) -> Option<&RunFigures> {
        match self.end(key)? {
            ComparedEnd::Ok { figures } => Some(figures),
            _ => None,
        }
    }

    /// What the search says; none before it is over.
    pub(crate) fn choices(&self) -> Option<Choices> {
        self.extent?;
        if !self.search_wanted().is_empty() || !self.variants_wanted().is_empty() {
            return None;
        }
        let cells = self.searched_cells().into_iter();
        let targets: BTreeMap<_, _> =
            cells.map(|cell| Some((cell, self.target(cell)?))).collect::<Option<_>>()?;
        let mut of = BTreeMap::new();
        for cell in self.document.cells() {
            for (contender, entry) in self.document.contenders.iter().enumerate() {
                let target = targets[&cell.searched()];
                let mut candidates = Vec::new();
                for variant in 0..entry.variants.len() {
                    let tuned = self.tuned(cell, (contender, variant))?;
                    candidates.push((
                        self.rank(cell, (contender, variant), target)?,
                        TunedSettings { variant, tuned },
                    ));
                }
                candidates.sort_by(|a, b| a.0.partial_cmp(&b.0).unwrap_or(std::cmp::Ordering::Equal));
                of.insert((cell, contender), candidates.first()?.1);
            }
        }
        Some(Choices { of, targets })
    }

    /// How variants of one contender are ordered in a cell, the best first: misses of the target, then the time to it, then
    /// the accuracy.
    fn rank(&self, cell: ComparedCell, variant: (usize, usize), target: f64) -> Option<(usize, f64, f64)> {
        let tuned = self.tuned(cell, variant)?;
        let keys = self.timed(cell, variant)?;
        let times: Vec<f64> = keys.iter().filter_map(|key| self.figures(key)?.reached_s(target)).collect();
        let time = if times.is_empty() { f64::MAX } else { paceline_statistics::mean(&times) };
        Some((keys.len() - times.len(), time, -tuned.score.accuracy))
    }
}

fn score(end: &ComparedEnd) -> SearchScore {
    match end {
        ComparedEnd::Ok { figures } => {
            let (accuracy, loss) = figures.later_half();
            SearchScore { accuracy, loss }
        }
        _ => SearchScore::NOTHING,
    }
}
