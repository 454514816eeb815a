//! What training minimises.

use crate::real::Real;

/// What the network should have answered.
#[derive(Clone, Copy, Debug)]
pub enum Targets<'a, T> {
    /// The class of each sample: softmax cross-entropy.
    Classes(&'a [u8]),
    /// The numbers themselves: mean squared error over a sample's outputs.
    Numbers(&'a [T]),
}

impl<T> Targets<'_, T> {
    /// Number of samples, for outputs of `size` numbers each.
    pub fn samples(&self, size: usize) -> usize {
        match self {
            Targets::Classes(classes) => classes.len(),
            Targets::Numbers(numbers) => numbers.len() / size,
        }
    }
}

/// A batch's loss and hits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Summed over the samples.
    pub loss: f64,
    /// Samples whose largest output was their class (0 for numbers).
    pub correct: usize,
    /// Samples.
    pub samples: usize,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.loss += other.loss;
        self.correct += other.correct;
        self.samples += other.samples;
    }
}

impl Outcome {
    /// Mean loss of a sample.
    pub fn mean_loss(&self) -> f64 {
        self.loss / self.samples.max(1) as f64
    }

    /// Fraction of samples classified rightly.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.samples.max(1) as f64
    }
}

/// The loss of `output`, which has `size` numbers per sample.
pub(crate) fn value<T: Real>(output: &[T], size: usize, targets: Targets<'_, T>) -> Outcome {
    let mut outcome = Outcome { samples: targets.samples(size), ..Outcome::default() };
    for (sample, row) in output.chunks_exact(size).take(outcome.samples).enumerate() {
        match targets {
            Targets::Classes(classes) => {
                let (class, best) = (usize::from(classes[sample]), largest(row));
                let sum: T = row.iter().map(|&v| (v - row[best]).exp()).sum();
                outcome.classified(row, class, best, sum);
            }
            Targets::Numbers(numbers) => outcome.compared(row, &numbers[sample * size..(sample + 1) * size]),
        }
    }
    outcome
}

/// The loss of `output`, and `scale` × its gradient in `gradient`.
pub(crate) fn with_gradient<T: Real>(
    output: &[T],
    size: usize,
    targets: Targets<'_, T>,
    scale: T,
    gradient: &mut [T],
) -> Outcome {
    let mut outcome = Outcome { samples: targets.samples(size), ..Outcome::default() };
    let rows = output.chunks_exact(size).zip(gradient.chunks_exact_mut(size));
    for (sample, (row, slope)) in rows.take(outcome.samples).enumerate() {
        match targets {
            Targets::Classes(classes) => {
                let (class, best) = (usize::from(classes[sample]), largest(row));
                let mut sum = T::ZERO;
                for (s, &v) in slope.iter_mut().zip(row) {
                    *s = (v - row[best]).exp();
                    sum += *s;
                }
                let factor = scale / sum;
                slope.iter_mut().for_each(|s| *s = *s * factor);
                slope[class] -= scale;
                outcome.classified(row, class, best, sum);
            }
            Targets::Numbers(numbers) => {
                let numbers = &numbers[sample * size..(sample + 1) * size];
                let weight = T::of(2.0 / size as f64) * scale;
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
    /// Adds a sample's cross-entropy; `sum` is that of the exponentials, the largest number being 1.
    fn classified<T: Real>(&mut self, row: &[T], class: usize, best: usize, sum: T) {
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
        let got = value(&[0.5f64; 8], 4, Targets::Classes(&[3, 0]));
        assert!((got.mean_loss() - 4f64.ln()).abs() < 1e-12);
        assert_eq!((got.correct, got.samples), (1, 2));
    }

    #[test]
    fn a_nan_output_is_a_nan_loss_and_no_hit_is_made_up() {
        assert!(value(&[f32::NAN, 0.0], 2, Targets::Classes(&[1])).loss.is_nan());
    }

    #[test]
    fn mean_squared_error_and_its_slope() {
        let mut gradient = [0.0; 2];
        let got = with_gradient(&[1.0, 3.0], 2, Targets::Numbers(&[0.0, 1.0]), 0.5, &mut gradient);
        assert_eq!(got.loss, 2.5);
        assert_eq!(gradient, [0.5, 1.0]);
    }
}
