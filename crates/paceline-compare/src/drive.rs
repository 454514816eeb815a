//! Makes a comparison's runs: the search in virtual time, then rounds of all contenders in all cells on one seed after
//! another, as many as fit into the minutes.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use paceline_launch::trial::cores;
use paceline_random::{Purpose, Stream};
use paceline_statistics::mean;

use crate::budget::{Extent, Pace, extent, rounds};
use crate::cell::{CellClock, ComparedCell};
use crate::choice::Choices;
use crate::error::CompareFailure;
use crate::journal::{ComparedEnd, ComparisonState, EndedRun, RunKey};
use crate::request::StrategyComparison;

/// What happens while runs are made.
#[allow(missing_docs, reason = "the names say what the fields are")]
pub enum CompareEvent<'e> {
    Note(&'e str),
    Progress { spent_s: f64, budget_s: f64, message: String },
}

/// Takes events; an error ends the comparison.
pub type CompareObserver<'o> = &'o mut dyn FnMut(CompareEvent<'_>) -> io::Result<()>;

/// Of the budget, what the search may take; a comparison without its second half would be none.
const SEARCH_ENDS: f64 = 0.8;

/// Seconds that are kept for the page.
const PAGE_S: f64 = 1.0;

/// How far the last runs may go beyond the budget.
const BEYOND: f64 = 1.05;

/// The part of a run's steps that is timed at first.
const TIMED_PART: u64 = 4;

/// Makes all runs that are left. Interrupted, it ends what is under way and says so.
pub fn drive(
    comparison: &StrategyComparison<'_>,
    state: &mut ComparisonState,
    store: &Path,
    observer: CompareObserver<'_>,
) -> Result<(), CompareFailure> {
    if state.known.finished {
        return Ok(());
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The first signal ends it in order, a second one at once.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&interrupted))?;
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    state.session()?;
    let (earlier_s, budget_s) = (state.known.spent_s, 60.0 * comparison.document.minutes);
    let mut driver = Driver {
        comparison,
        state,
        store,
        observer,
        interrupted,
        started: Instant::now(),
        earlier_s,
        budget_s,
    };
    let extent = match driver.state.known.extent {
        Some(extent) => extent,
        None => driver.measure()?,
    };
    match driver.search(extent)? {
        Some(choices) => driver.rounds(extent, &choices)?,
        None => (driver.observer)(CompareEvent::Note(
            "the minutes were over before the search was: nothing is compared; give more with --budget",
        ))?,
    }
    driver.state.finish()
}

struct Driver<'d, 'o> {
    comparison: &'d StrategyComparison<'d>,
    state: &'d mut ComparisonState,
    store: &'d Path,
    observer: CompareObserver<'o>,
    interrupted: Arc<AtomicBool>,
    started: Instant,
    earlier_s: f64,
    budget_s: f64,
}

impl Driver<'_, '_> {
    fn spent_s(&self) -> f64 {
        self.earlier_s + self.started.elapsed().as_secs_f64()
    }

    fn progress(&mut self, message: String) -> Result<(), CompareFailure> {
        let (spent_s, budget_s) = (self.spent_s(), self.budget_s);
        Ok((self.observer)(CompareEvent::Progress { spent_s, budget_s, message })?)
    }

    /// Times a few short runs and decides how much is done.
    fn measure(&mut self) -> Result<Extent, CompareFailure> {
        self.progress("timing the first runs".into())?;
        let document = self.comparison.document.clone();
        let steps = (document.steps / TIMED_PART).max(1);
        let of = |cell: ComparedCell| {
            [0, 1.min(document.contenders.len() - 1)].map(|contender| RunKey {
                cell,
                contender,
                variant: 0,
                rate: 0,
                seed: document.seed,
            })
        };
        let mut pace = Pace { cores: cores().len(), ..Pace::default() };
        let alike = |workers: usize, clock: CellClock, link: bool| ComparedCell {
            clock,
            workers,
            by_label: false,
            link,
        };
        let mut step_s = [0.0; 2];
        for (i, workers) in [document.few, document.many].into_iter().enumerate().filter(|(_, n)| *n > 0) {
            let keys = of(alike(workers, CellClock::Virtual, false)).repeat(pace.cores.div_ceil(2));
            let mut walls = Vec::new();
            self.comparison.virtual_runs(&keys, steps, &self.interrupted, &mut |_, run| {
                walls.push(run.wall_s);
                Ok(true)
            })?;
            step_s[i] = mean(&walls) / steps as f64;
        }
        pace.virtual_step_s = (step_s[0], step_s[1]);
        if document.few > 0 {
            let (mut starts, mut per_step) = (Vec::new(), [Vec::new(), Vec::new()]);
            for link in [false, true] {
                for key in of(alike(document.few, CellClock::Real, link)) {
                    let run = self.comparison.real_run(
                        &key,
                        steps,
                        self.store,
                        self.patience_s(),
                        &self.interrupted,
                    )?;
                    let train_s = match &run.end {
                        ComparedEnd::Ok { figures } => figures.seconds,
                        ComparedEnd::Diverged => run.wall_s,
                        ComparedEnd::Failed { cause } => {
                            let label = &document.contenders[key.contender].label;
                            let note = format!("{label}, {}: a first run failed: {cause}", key.cell.words());
                            (self.observer)(CompareEvent::Note(&note))?;
                            run.wall_s
                        }
                    };
                    starts.push((run.wall_s - train_s).max(0.0));
                    per_step[usize::from(link)].push(train_s / steps as f64);
                }
            }
            pace.real_start_s = mean(&starts);
            pace.real_step_s = (mean(&per_step[0]), mean(&per_step[1]));
        }
        let extent = extent(&document, pace, self.budget_s);
        self.state.extent(extent)?;
        let note = format!(
            "{} steps per run, rates searched on {} seeds{}",
            extent.steps,
            extent.search_seeds,
            if extent.steps < document.steps { " (shorter, so that it fits into the minutes)" } else { "" }
        );
        (self.observer)(CompareEvent::Note(&note))?;
        Ok(extent)
    }

    /// Makes runs in virtual time; false where the seconds were over before they were.
    fn virtual_runs(
        &mut self,
        keys: &[RunKey],
        steps: u64,
        until_s: f64,
        what: &str,
    ) -> Result<bool, CompareFailure> {
        let (comparison, interrupted) = (self.comparison, Arc::clone(&self.interrupted));
        let mut made = 0;
        comparison.virtual_runs(keys, steps, &interrupted, &mut |key, run| {
            self.state.run(key, run)?;
            made += 1;
            self.progress(format!("{what}: {made} of {} runs", keys.len()))?;
            Ok(self.spent_s() < until_s)
        })?;
        Ok(made == keys.len())
    }

    /// Learning rates, then variants; none where the minutes were over before.
    fn search(&mut self, extent: Extent) -> Result<Option<Choices>, CompareFailure> {
        let until = SEARCH_ENDS * self.budget_s;
        loop {
            let rates = self.state.known.search_wanted();
            let (keys, what) = match rates.is_empty() {
                false => (rates, "search of learning rates"),
                true => (self.state.known.variants_wanted(), "search of variants"),
            };
            if keys.is_empty() {
                return Ok(self.state.known.choices());
            }
            if !self.virtual_runs(&keys, extent.steps, until, what)? {
                return Ok(None);
            }
        }
    }

    /// The runs of a round that are not made yet.
    fn round(&self, choices: &Choices, clock: CellClock, round: u64) -> Vec<RunKey> {
        let document = &self.comparison.document;
        let seed = document.round_seed(round);
        let cells = document.cells().into_iter().filter(|cell| cell.clock == clock);
        let all: Vec<RunKey> = cells
            .flat_map(|cell| {
                (0..document.contenders.len()).map(move |contender| choices.key(cell, contender, seed))
            })
            .collect();
        // Nobody is always first: what changes over the session falls on everybody.
        let order = Stream::new(seed, Purpose::Explore).permutation(all.len());
        let shuffled = order.into_iter().map(|i| all[i as usize]);
        shuffled.filter(|key| self.state.known.end(key).is_none()).collect()
    }

    fn rounds(&mut self, extent: Extent, choices: &Choices) -> Result<(), CompareFailure> {
        let document = self.comparison.document.clone();
        let most = document.most_seeds;
        let mut each_s = [
            extent.pace.virtual_round_s(&document, extent.steps),
            extent.pace.real_round_s(&document, extent.steps),
        ];
        let clocks = [CellClock::Virtual, CellClock::Real];
        let mut done = clocks
            .map(|clock| (0..most).take_while(|r| self.round(choices, clock, *r).is_empty()).count() as u64);
        // A clock without cells has no rounds.
        let has = clocks.map(|clock| document.cells().iter().any(|cell| cell.clock == clock));
        loop {
            let left = self.budget_s - PAGE_S - self.spent_s();
            let room = |i: usize| if has[i] { most.saturating_sub(done[i]) } else { 0 };
            let (of_virtual, of_real) = rounds(left, 1.1 * each_s[0], 1.1 * each_s[1], (room(0), room(1)));
            let more = [of_virtual, of_real];
            let part = |i: usize| done[i] as f64 / (done[i] + more[i]).max(1) as f64;
            let next = match more {
                [0, 0] => return Ok(()),
                [0, _] => 1,
                [_, 0] => 0,
                _ => usize::from(part(1) <= part(0)),
            };
            let keys = self.round(choices, clocks[next], done[next]);
            let begun = Instant::now();
            let what = format!("round {} {}", done[next] + 1, ["in virtual time", "of real runs"][next]);
            let whole = match clocks[next] {
                CellClock::Virtual => {
                    self.virtual_runs(&keys, extent.steps, BEYOND * self.budget_s, &what)?
                }
                CellClock::Real => self.real_runs(&keys, extent.steps, each_s[1], &what)?,
            };
            if !whole {
                return Ok(());
            }
            done[next] += 1;
            // What rounds take is known better with each one; a part of one, after an interrupt, tells nothing.
            if keys.len() == document.contenders.len() * 4 {
                let took = begun.elapsed().as_secs_f64();
                each_s[next] = if done[next] == 1 { took } else { 0.5 * (each_s[next] + took) };
            }
        }
    }

    fn patience_s(&self) -> f64 {
        (1.08 * self.budget_s - self.spent_s()).max(5.0)
    }

    fn real_runs(
        &mut self,
        keys: &[RunKey],
        steps: u64,
        round_s: f64,
        what: &str,
    ) -> Result<bool, CompareFailure> {
        for (made, key) in keys.iter().enumerate() {
            if self.spent_s() + round_s / keys.len() as f64 > BEYOND * self.budget_s {
                return Ok(false);
            }
            self.progress(format!("{what}: {} of {} runs", made + 1, keys.len()))?;
            let patience = self.patience_s();
            let run = self.comparison.real_run(key, steps, self.store, patience, &self.interrupted)?;
            if let EndedRun { end: ComparedEnd::Failed { cause }, .. } = &run {
                let label = &self.comparison.document.contenders[key.contender].label;
                let note = format!("{label}, {}: a run failed: {cause}", key.cell.words());
                (self.observer)(CompareEvent::Note(&note))?;
            }
            self.state.run(*key, run)?;
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(CompareFailure::Interrupted);
            }
        }
        Ok(true)
    }
}
