//! How several runs learn, beside each other: loss and accuracy against steps, samples or the training clock.

use paceline_record::store::RunRow;
use paceline_record::{RecordError, Store};

use super::dot;
use crate::figure::{ChartAxis, ChartMark, Dot, Figure, Panel};

/// Points of a curve: of longer ones, neighbours are joined to their mean, so that several curves can be told apart.
const POINTS: usize = 200;

/// What curves are drawn against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum CurveAxis {
    #[default]
    Steps,
    Samples,
    Time,
}

impl CurveAxis {
    /// All of them, each with its word.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::Steps, "steps"), (Self::Samples, "samples"), (Self::Time, "time")];

    fn title(self) -> &'static str {
        match self {
            Self::Steps => "step",
            Self::Samples => "samples, by all workers",
            Self::Time => "training clock, s",
        }
    }

    fn choose(self, steps: f64, samples: f64, clock: f64) -> f64 {
        match self {
            Self::Steps => steps,
            Self::Samples => samples,
            Self::Time => clock,
        }
    }
}

/// The curves of one run.
#[derive(Debug, Default)]
struct Curves {
    training: Vec<Dot>,
    test: Vec<Dot>,
    accuracy: Vec<Dot>,
}

/// Loss of training, loss and accuracy on the test split: runs by the names that they are given here.
pub fn learning(
    store: &Store,
    runs: &[(String, RunRow)],
    against: CurveAxis,
) -> Result<Option<Figure>, RecordError> {
    let (mut training, mut test, mut accuracy) = (Vec::new(), Vec::new(), Vec::new());
    let (mut steps, mut joined) = (0, 1);
    for (name, run) in runs {
        let (curves, of, every) = curves(store, run, against)?;
        (steps, joined) = (steps + of, joined.max(every));
        training.push(ChartMark::curve(name, curves.training));
        test.push(ChartMark::line(name, curves.test));
        accuracy.push(ChartMark::line(name, curves.accuracy));
    }
    let panel = |title: &str, axis: &str, marks: Vec<ChartMark>| {
        let values = marks.iter().flat_map(|mark| match mark {
            ChartMark::Points { points, .. } => points.iter().map(|p| p.y).collect(),
            _ => Vec::new(),
        });
        let y = ChartAxis::fitting(axis, values.filter(|y| y.is_finite()));
        Panel::new(ChartAxis::linear(against.title()), y, marks).titled(title)
    };
    let panels = vec![
        panel("Training", "loss of the step", training),
        panel("Test split", "loss", test),
        panel("Accuracy", "accuracy on the test split, %", accuracy),
    ];
    let reading = format!(
        "One colour is one run in all panels. {}A run that is lower earlier (higher, for accuracy) learns faster in what \
         the curves are drawn against.",
        if joined > 1 {
            format!("Points of long runs are means of up to {joined} steps. ")
        } else {
            String::new()
        }
    );
    let n = format!("{steps} steps of {} runs", runs.len());
    let figure = Figure { id: "learning".into(), title: "Loss and accuracy".into(), reading, n, panels };
    Ok((!figure.is_empty()).then_some(figure))
}

/// A run's curves, its number of steps, and how many of them a point stands for.
fn curves(store: &Store, run: &RunRow, against: CurveAxis) -> Result<(Curves, usize, usize), RecordError> {
    // The loss of a step is that of all its samples, whoever had them.
    const BY_STEP: &str = "SELECT step, sum(loss * samples) / sum(samples), sum(samples), 1e-9 * min(t_ns) FROM steps \
                           WHERE run = ? AND samples > 0 AND loss IS NOT NULL GROUP BY step ORDER BY step";
    const EVALUATIONS: &str =
        "SELECT step, loss, samples, train_s, accuracy FROM evaluations WHERE run = ? ORDER BY step";
    let (steps, evaluations) = (store.numbers(BY_STEP, run)?, store.numbers(EVALUATIONS, run)?);
    let began = steps.first().map_or(0.0, |row| row[3]);
    let begins: Vec<(f64, f64)> = steps.iter().map(|row| (row[0], row[3] - began)).collect();
    let clocks = clocks(&begins, &evaluations.iter().map(|row| (row[0], row[3])).collect::<Vec<_>>());
    let mut samples = 0.0;
    let point = |(row, clock): (&Vec<f64>, f64)| {
        samples += row[2];
        dot(against.choose(row[0], samples, clock), row[1])
    };
    let points: Vec<Dot> = steps.iter().zip(clocks).map(point).collect();
    let every = points.len().div_ceil(POINTS).max(1);
    let training = points.chunks(every).map(|chunk| {
        let mean = |of: fn(&Dot) -> f64| chunk.iter().map(of).sum::<f64>() / chunk.len() as f64;
        dot(mean(|p| p.x), mean(|p| p.y))
    });
    let tested = |column: usize, scale: f64| {
        let at = |row: &Vec<f64>| dot(against.choose(row[0], row[2], row[3]), scale * row[column]);
        evaluations.iter().map(at).filter(|p| p.x.is_finite() && p.y.is_finite()).collect()
    };
    let curves = Curves { training: training.collect(), test: tested(1, 1.0), accuracy: tested(4, 100.0) };
    Ok((curves, steps.len(), every))
}

/// Training clocks at which steps began, from when they began by the wall clock, in seconds from the first. The training
/// clock stands still during evaluations (after which step, and what it said): the step that follows one that held the
/// run up begins when it goes on.
fn clocks(steps: &[(f64, f64)], evaluations: &[(f64, f64)]) -> Vec<f64> {
    let (mut paused, mut left) = (0.0f64, evaluations);
    let clock = |(step, began): &(f64, f64)| {
        while let Some(((_, clock), rest)) = left.split_first().filter(|((after, _), _)| after < step) {
            (paused, left) = (paused.max(began - clock), rest);
        }
        began - paused
    };
    steps.iter().map(clock).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_training_clock_stands_still_during_evaluations_that_hold_a_run_up() {
        // Steps take 1 s; the evaluation after step 2 takes 5 s.
        let steps = [(1.0, 0.0), (2.0, 1.0), (3.0, 7.0), (4.0, 8.0)];
        assert_eq!(clocks(&steps, &[(2.0, 2.0), (4.0, 4.0)]), [0.0, 1.0, 2.0, 3.0]);
        // One beside the run holds nobody up, whatever it says later.
        let steps = [(1.0, 0.0), (2.0, 1.0), (3.0, 2.0), (4.0, 3.0)];
        assert_eq!(clocks(&steps, &[(2.0, 2.25)]), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(clocks(&steps, &[]), [0.0, 1.0, 2.0, 3.0]);
    }
}
