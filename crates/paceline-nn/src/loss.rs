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
    run(output, size, targets, |_, _| {})
}

/// The loss of `output`, and `scale` × its gradient in `gradient`.
pub(crate) fn with_gradient<T: Real>(
    output: &[T],
    size: usize,
    targets: Targets<'_, T>,
    scale: T,
    gradient: &mut [T],
) -> Outcome {
    run(output, size, targets, |i, slope| gradient[i] = slope * scale)
}

/// Calls `slope(index, derivative of the sample's loss)` for every element of the output.
fn run<T: Real>(
    output: &[T],
    size: usize,
    targets: Targets<'_, T>,
    mut slope: impl FnMut(usize, T),
) -> Outcome {
    let samples = targets.samples(size);
    let mut outcome = Outcome { samples, ..Outcome::default() };
    for (sample, row) in output[..samples * size].chunks_exact(size).enumerate() {
        let at = sample * size;
        match targets {
            Targets::Classes(classes) => {
                let class = usize::from(classes[sample]);
                assert!(class < size, "class {class} of {size}");
                let best = (1..size).fold(0, |best, k| if row[k] > row[best] { k } else { best });
                outcome.correct += usize::from(best == class);
                let sum: T = row.iter().map(|&v| (v - row[best]).exp()).sum();
                outcome.loss += sum.to_f64().ln() - (row[class] - row[best]).to_f64();
                for (k, &v) in row.iter().enumerate() {
                    let hit = if k == class { T::ONE } else { T::ZERO };
                    slope(at + k, (v - row[best]).exp() / sum - hit);
                }
            }
            Targets::Numbers(numbers) => {
                let weight = T::of(2.0 / size as f64);
                for (k, (&y, &t)) in row.iter().zip(&numbers[at..at + size]).enumerate() {
                    outcome.loss += (y - t).to_f64().powi(2) / size as f64;
                    slope(at + k, weight * (y - t));
                }
            }
        }
    }
    outcome
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
