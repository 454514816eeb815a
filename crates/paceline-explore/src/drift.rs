//! What the controls say about the machine, and figures corrected by it.
//!
//! The control's figure, relative to the median of all controls, is the machine's pace at that time; between two
//! controls it is interpolated. Where the pace ever differs by more than 10%, times and rates of the runs in between
//! are divided by it.

use crate::schedule::{Role, StudyRun};

/// The pace of a machine over a study, by one figure.
#[derive(Clone, Debug)]
pub struct Drift {
    /// Number of the run, and the figure of the control relative to the median.
    marks: Vec<(f64, f64)>,
}

/// Least spread between controls that is corrected for.
pub const NOTICED: f64 = 1.10;

impl Drift {
    /// From the controls of these runs, by a figure that follows the machine's pace; `None` with fewer than two that
    /// have it.
    pub fn new(made: &[StudyRun], metric: &str) -> Option<Self> {
        let figure = |m: &StudyRun| {
            let value = m.metrics()?.get(metric).copied().filter(|v| *v > 0.0)?;
            (m.job.role == Role::Control).then_some((m.job.id as f64, value))
        };
        let mut marks: Vec<(f64, f64)> = made.iter().filter_map(figure).collect();
        if marks.len() < 2 {
            return None;
        }
        let mut values: Vec<f64> = marks.iter().map(|(_, v)| *v).collect();
        values.sort_by(f64::total_cmp);
        let middle = values[values.len() / 2];
        marks.iter_mut().for_each(|(_, value)| *value /= middle);
        Some(Self { marks })
    }

    /// The greatest pace over the least.
    pub fn spread(&self) -> f64 {
        let paces = || self.marks.iter().map(|(_, pace)| *pace);
        paces().fold(0.0, f64::max) / paces().fold(f64::INFINITY, f64::min)
    }

    /// Whether figures are corrected.
    pub fn noticed(&self) -> bool {
        self.spread() > NOTICED
    }

    /// The pace when a run was made.
    pub fn pace(&self, id: u64) -> f64 {
        let at = id as f64;
        let after = self.marks.iter().position(|(id, _)| *id >= at);
        match after {
            None => self.marks[self.marks.len() - 1].1,
            Some(0) => self.marks[0].1,
            Some(i) => {
                let ((from, low), (to, high)) = (self.marks[i - 1], self.marks[i]);
                let share = (at - from) / (to - from);
                (low.ln() * (1.0 - share) + high.ln() * share).exp()
            }
        }
    }

    /// A figure of a run as it would be at the usual pace.
    pub fn corrected(&self, id: u64, value: f64) -> f64 {
        if self.noticed() { value / self.pace(id) } else { value }
    }
}
