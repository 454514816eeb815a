//! Accuracy over time.

/// Evaluations that are averaged before convergence is judged.
const WINDOW: usize = 3;

/// The evaluations of a run.
#[derive(Debug, Default)]
pub struct Curve {
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// Goes on from earlier evaluations.
    pub fn new(points: Vec<(f64, f64)>) -> Self {
        Self { points }
    }

    /// The evaluations: seconds and accuracy.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// Adds an evaluation at `seconds` of the training clock.
    pub fn push(&mut self, seconds: f64, accuracy: f64) {
        self.points.push((seconds, accuracy));
    }

    /// When `target` was first reached.
    pub fn time_to(&self, target: f64) -> Option<f64> {
        self.points.iter().find(|(_, accuracy)| *accuracy >= target).map(|(seconds, _)| *seconds)
    }

    /// When the smoothed accuracy (mean of up to the last three evaluations) was first within 1% of its
    /// final value.
    pub fn convergence(&self) -> Option<f64> {
        let smooth: Vec<f64> = (0..self.points.len())
            .map(|i| {
                let window = &self.points[(i + 1).saturating_sub(WINDOW)..=i];
                window.iter().map(|(_, accuracy)| accuracy).sum::<f64>() / window.len() as f64
            })
            .collect();
        let last = *smooth.last()?;
        smooth.iter().position(|accuracy| *accuracy >= 0.99 * last).map(|i| self.points[i].0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_to_accuracy_and_convergence() {
        let mut curve = Curve::default();
        assert_eq!((curve.time_to(0.0), curve.convergence()), (None, None));
        for (t, a) in [(1.0, 0.5), (2.0, 0.9), (3.0, 0.9), (4.0, 0.9), (5.0, 0.905)] {
            curve.push(t, a);
        }
        assert_eq!(curve.time_to(0.9), Some(2.0));
        assert_eq!(curve.time_to(0.99), None);
        assert_eq!(curve.convergence(), Some(4.0));
    }
}
