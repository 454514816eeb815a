//! What takes long is made by one thread beside the pages: findings and charts of many runs, or of a long one. A page
//! shows the latest that there is, and says so. While things change, the thread works a twentieth of the time at most,
//! so that looking at a study does not slow down what is measured.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Rest after work, as a multiple of what the work took.
const REST: u32 = 19;
const LONGEST: Duration = Duration::from_secs(300);
/// How long a page waits for something small that was never made.
pub const PATIENCE: Duration = Duration::from_millis(400);
const QUEUE: usize = 16;
/// What is kept at most; what was not asked for the longest goes first.
const KEPT: usize = 48;

#[derive(Clone, Debug, Default)]
pub struct Fragment {
    /// What is told in words, as HTML.
    pub told: String,
    pub charts: String,
    /// Of what, e.g. `384 runs`.
    pub of: String,
}

pub type AnalysisTask = Box<dyn FnOnce() -> Fragment + Send>;

pub struct BackgroundResult {
    pub fragment: Option<Arc<Fragment>>,
    /// Its number: another one once it was made again.
    pub made: u64,
    /// If it is not of now: when to ask again.
    pub again: Option<Duration>,
}

#[derive(Default)]
struct Slot {
    latest: Option<Arc<Fragment>>,
    /// What the latest was made of.
    stamp: u64,
    made: u64,
    /// What is being made, or waits to be.
    wanted: Option<u64>,
    next: Option<Instant>,
    asked: u64,
}

#[derive(Default)]
struct State {
    slots: HashMap<String, Slot>,
    queue: VecDeque<(String, u64, AnalysisTask)>,
    made: u64,
    asked: u64,
}

pub struct BackgroundAnalysis {
    state: Mutex<State>,
    news: Condvar,
}

impl BackgroundAnalysis {
    pub fn start() -> std::io::Result<Arc<Self>> {
        let background = Arc::new(Self { state: Mutex::default(), news: Condvar::new() });
        let own = Arc::downgrade(&background);
        std::thread::Builder::new().name("analyst".into()).spawn(move || {
            while let Some(background) = own.upgrade() {
                background.work();
            }
        })?;
        Ok(background)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes what waits the longest, if anything does.
    fn work(&self) {
        let mut state = self.state();
        let Some((key, stamp, work)) = state.queue.pop_front() else {
            drop(self.news.wait_timeout(state, Duration::from_millis(200)));
            return;
        };
        drop(state);
        let begun = Instant::now();
        let broken = || {
            let words =
                "This could not be worked out: a fault of paceline, please report it. The table is right.";
            Fragment { told: format!("<p class=\"note\">{words}</p>"), ..Fragment::default() }
        };
        let fragment = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| broken());
        let took = begun.elapsed();
        state = self.state();
        state.made += 1;
        let made = state.made;
        if let Some(slot) = state.slots.get_mut(&key) {
            slot.latest = Some(Arc::new(fragment));
            (slot.stamp, slot.made, slot.wanted) = (stamp, made, None);
            slot.next = Some(Instant::now() + (took * REST).min(LONGEST));
        }
        drop(state);
        self.news.notify_all();
    }

    /// Counts what was made: another number means that pages have something new to show.
    pub fn made(&self) -> u64 {
        self.state().made
    }

    /// What there is under a name; `stamp` tells what it should be of, `work` makes it. What was never made is waited
    /// for a moment.
    pub fn ask(
        &self,
        key: &str,
        stamp: u64,
        patience: Duration,
        work: impl FnOnce() -> AnalysisTask,
    ) -> BackgroundResult {
        let mut state = self.state();
        state.asked += 1;
        let (asked, room) = (state.asked, state.queue.len() < QUEUE);
        let slot = state.slots.entry(key.to_owned()).or_default();
        slot.asked = asked;
        let now = Instant::now();
        let fresh = slot.latest.is_some() && slot.stamp == stamp;
        if !fresh && slot.wanted.is_none() && room && slot.next.is_none_or(|next| next <= now) {
            slot.wanted = Some(stamp);
            state.queue.push_back((key.to_owned(), stamp, work()));
            self.news.notify_all();
        }
        while state.slots.len() > KEPT {
            let oldest = state.slots.iter().filter(|(_, s)| s.wanted.is_none()).min_by_key(|(_, s)| s.asked);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { break };
            state.slots.remove(&oldest);
        }
        // Small things are there before the page is.
        let end = now + patience;
        loop {
            let slot = state.slots.get(key);
            let pending = slot.is_some_and(|s| s.wanted.is_some() && s.latest.is_none());
            let left = end.saturating_duration_since(Instant::now());
            if !pending || left.is_zero() {
                break;
            }
            state = self.news.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let Some(slot) = state.slots.get(key) else {
            return BackgroundResult { fragment: None, made: 0, again: Some(Duration::from_secs(1)) };
        };
        let fresh = slot.latest.is_some() && slot.stamp == stamp;
        let rest = slot.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()));
        let again = (!fresh).then(|| rest.max(Duration::from_millis(500)));
        BackgroundResult { fragment: slot.latest.clone(), made: slot.made, again }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(of: &str) -> AnalysisTask {
        let of = of.to_owned();
        Box::new(move || Fragment { of, ..Fragment::default() })
    }

    /// Asks until what is there is fresh.
    fn settled(background: &BackgroundAnalysis, stamp: u64, of: &str) -> BackgroundResult {
        let begun = Instant::now();
        loop {
            let shown = background.ask("a", stamp, PATIENCE, || work(of));
            if shown.again.is_none() {
                return shown;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "nothing was made");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn what_is_asked_for_is_made_once_for_each_state_and_the_last_is_shown_meanwhile() {
        let background = BackgroundAnalysis::start().unwrap();
        let first = settled(&background, 1, "one");
        assert_eq!((first.fragment.unwrap().of.as_str(), background.made()), ("one", 1));
        assert!(background.ask("a", 1, PATIENCE, || panic!("it is there")).again.is_none());
        let other = background.ask("a", 2, PATIENCE, || work("two")).fragment.unwrap().of.clone();
        assert!(other == "one" || other == "two");
        assert_eq!(settled(&background, 2, "two").fragment.unwrap().of, "two");
    }

    #[test]
    fn work_that_breaks_says_so_and_the_next_is_made() {
        let background = BackgroundAnalysis::start().unwrap();
        let begun = Instant::now();
        let said = loop {
            let shown = background.ask("bad", 1, PATIENCE, || Box::new(|| panic!("on purpose")));
            if let Some(fragment) = shown.fragment {
                break fragment.told.clone();
            }
            assert!(begun.elapsed() < Duration::from_secs(30));
        };
        assert!(said.contains("could not be worked out"), "{said}");
        assert_eq!(settled(&background, 1, "good").fragment.unwrap().of, "good");
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let background = BackgroundAnalysis::start().unwrap();
        for i in 0..3 * KEPT {
            background.ask(&format!("k{i}"), 1, PATIENCE, || work("x"));
        }
        assert!(background.state().slots.len() <= KEPT + QUEUE);
    }
}
