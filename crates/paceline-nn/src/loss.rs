//! What training minimises.

use crate::real::Real;
use crate::shape::Shape;

/// What the network should have answered.
#[derive(Clone, Copy, Debug)]
pub enum Targets<'a, T> {
    /// The class of each sample, or of each position of each sample where the network answers per position:
    /// softmax cross-entropy, the mean over a sample's positions.
    Classes(&'a [u16]),
    /// The numbers themselves: mean squared error over a sample's outputs.
    Numbers(&'a [T]),
}

impl<T> Targets<'_, T> {
    /// Number of samples, for outputs of this shape.
    pub fn samples(&self, output: Shape) -> usize {
        match self {
            Targets::Classes(classes) => classes.len() / positions(output),
            Targets::Numbers(numbers) => numbers.len() / output.size(),
        }
    }
}

/// Answers per sample: one per pixel, each of as many numbers as there are channels.
fn positions(output: Shape) -> usize {
    output.h * output.w
}

/// A batch's loss and hits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Summed over the samples.
    pub loss: f64,
    /// Predictions whose largest output was the right class (0 for numbers).
    pub correct: usize,
    /// Predictions: one per sample, or one per position.
    pub predictions: usize,
    /// Samples.
    pub samples: usize,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.loss += other.loss;
        self.correct += other.correct;
        self.predictions += other.predictions;
        self.samples += other.samples;
    }
}

impl Outcome {
    /// Mean loss of a sample.
    pub fn mean_loss(&self) -> f64 {
        self.loss / self.samples.max(1) as f64
    }

    /// Fraction of predictions that were right.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.predictions.max(1) as f64
    }

    /// Nothing yet of as many samples as there are targets.
    fn of<T>(targets: &Targets<'_, T>, output: Shape) -> Self {
        let samples = targets.samples(output);
        let predictions = match targets {
            Targets::Classes(classes) => {
                assert_eq!(classes.len(), samples * positions(output), "a class for every position");
                classes.len()
            }
            Targets::Numbers(_) => samples,
        };
        Self { predictions, samples, ..Self::default() }
    }
}

/// The loss of `output`, whose samples have this shape.
pub(crate) fn value<T: Real>(output: &[T], shape: Shape, targets: Targets<'_, T>) -> Outcome {
    let mut outcome = Outcome::of(&targets, shape);
    match targets {
        Targets::Classes(classes) => {
            for (row, &class) in output.chunks_exact(shape.c).zip(classes) {
                let best = largest(row);
                let sum: T = row.iter().map(|&v| (v - row[best]).exp()).sum();
                outcome.classified(row, class, best, sum);
            }
            outcome.loss /= positions(shape) as f64;
        }
        Targets::Numbers(numbers) => {
            let size = shape.size();
            output
                .chunks_exact(size)
                .zip(numbers.chunks_exact(size))
                .for_each(|(y, t)| outcome.compared(y, t));
        }
    }
    outcome
}

/// The loss of `output`, and `scale` × its gradient in `gradient`.
pub(crate) fn with_gradient<T: Real>(
    output: &[T],
    shape: Shape,
    targets: Targets<'_, T>,
    scale: T,
    gradient: &mut [T],
) -> Outcome {
    let mut outcome = Outcome::of(&targets, shape);
    match targets {
        Targets::Classes(classes) => {
            let scale = scale / T::of(positions(shape) as f64);
            let rows = output.chunks_exact(shape.c).zip(gradient.chunks_exact_mut(shape.c));
            for ((row, slope), &class) in rows.zip(classes) {
                let best = largest(row);
                let mut sum = T::ZERO;
                for (s, &v) in slope.iter_mut().zip(row) {
                    *s = (v - row[best]).exp();
                    sum += *s;
                }
                let factor = scale / sum;
                slope.iter_mut().for_each(|s| *s = *s * factor);
                outcome.classified(row, class, best, sum);
                slope[usize::from(class)] -= scale;
            }
            outcome.loss /= positions(shape) as f64;
        }
        Targets::Numbers(numbers) => {
            let size = shape.size();
            let weight = T::of(2.0 / size as f64) * scale;
            let rows = output.chunks_exact(size).zip(gradient.chunks_exact_mut(size));
            for ((row, slope), numbers) in rows.zip(numbers.chunks_exact(size)) {
                slope.iter_mut().zip(row.iter().zip(numbers)).for_each(|(s, (&y, &t))| *s = weight * (y - t));
                outcome.compared(row, numbers);
            }
        }
    }
    outcome
}

/// The place of the largest number, the first of equals.
fn largest<T: Real>(row: &[T]) -> usize {
    (1..row.len()).fold(0, |best, k| if row[k] > row[best] { k } else { best })
}

impl Outcome {
    /// Adds a prediction's cross-entropy; `sum` is that of the exponentials, the largest number being 1.
    fn classified<T: Real>(&mut self, row: &[T], class: u16, best: usize, sum: T) {
        let class = usize::from(class);
        assert!(class < row.len(), "class {class} of {}", row.len());
        self.correct += usize::from(best == class);
        self.loss += sum.to_f64().ln() - (row[class] - row[best]).to_f64();
    }

    /// Adds a sample's mean squared error.
    fn compared<T: Real>(&mut self, row: &[T], numbers: &[T]) {
        let squares: f64 = row.iter().zip(numbers).map(|(&y, &t)| (y - t).to_f64().powi(2)).sum();
        self.loss += squares / row.len() as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cross_entropy_of_equal_outputs_is_the_logarithm_of_their_number() {
        let got = value(&[0.5f64; 8], Shape::vector(4), Targets::Classes(&[3, 0]));
        assert!((got.mean_loss() - 4f64.ln()).abs() < 1e-12);
        assert_eq!((got.correct, got.predictions, got.samples), (1, 2, 2));
    }

    #[test]
    fn a_nan_output_is_a_nan_loss_and_no_hit_is_made_up() {
        assert!(value(&[f32::NAN, 0.0], Shape::vector(2), Targets::Classes(&[1])).loss.is_nan());
    }

    #[test]
    fn mean_squared_error_and_its_slope() {
        let mut gradient = [0.0; 2];
        let (shape, targets) = (Shape::vector(2), Targets::Numbers(&[0.0, 1.0]));
        let got = with_gradient(&[1.0, 3.0], shape, targets, 0.5, &mut gradient);
        assert_eq!(got.loss, 2.5);
        assert_eq!(gradient, [0.5, 1.0]);
    }

    #[test]
    fn positions_of_a_sample_are_averaged_and_each_counts_as_a_prediction() {
        // Two samples of three positions, four classes each.
        let output: Vec<f64> = (0..24).map(|i| f64::from(i * 7 % 5)).collect();
        let classes = [0, 1, 2, 3, 0, 1];
        let mut apart = Outcome::default();
        let mut slopes = vec![0.0; 24];
        for (i, class) in classes.iter().enumerate() {
            let row = 4 * i..4 * i + 4;
            let targets = Targets::Classes(std::slice::from_ref(class));
            apart +=
                with_gradient(&output[row.clone()], Shape::vector(4), targets, 0.5 / 3.0, &mut slopes[row]);
        }
        let mut gradient = vec![0.0; 24];
        let shape = Shape::new(1, 3, 4);
        let got = with_gradient(&output, shape, Targets::Classes(&classes), 0.5, &mut gradient);
        assert_eq!((got.samples, got.predictions, got.correct), (2, 6, apart.correct));
        assert!((got.loss - apart.loss / 3.0).abs() < 1e-12);
        assert!((got.mean_loss() - apart.mean_loss()).abs() < 1e-12);
        gradient.iter().zip(&slopes).for_each(|(g, s)| assert!((g - s).abs() < 1e-15));
        let value = value(&output, shape, Targets::Classes(&classes));
        assert!((value.loss - got.loss).abs() < 1e-12 && value.correct == got.correct);
    }
}
