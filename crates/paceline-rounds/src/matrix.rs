//! Small dense matrices of weights.

use serde::{Serialize, Serializer};

/// A square matrix. As JSON it is a list of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct SquareMatrix {
    side: usize,
    data: Vec<f64>,
}

/// Squarings of a power: growth is read from the 2^40th.
const SQUARINGS: u32 = 40;

impl SquareMatrix {
    /// Of rows.
    pub fn from_rows<'r>(side: usize, rows: impl Iterator<Item = &'r [f64]>) -> Self {
        let data: Vec<f64> = rows.flatten().copied().collect();
        assert_eq!(data.len(), side * side, "a square");
        Self { side, data }
    }

    /// One on the diagonal.
    pub fn identity(side: usize) -> Self {
        let one = |at: usize| f64::from(u8::from(at / side == at % side));
        Self { side, data: (0..side * side).map(one).collect() }
    }

    /// Rows.
    pub fn rows(&self) -> impl Iterator<Item = &[f64]> {
        self.data.chunks(self.side.max(1))
    }

    /// The sum of each row.
    pub fn row_sums(&self) -> Vec<f64> {
        self.rows().map(|row| row.iter().sum()).collect()
    }

    /// The sum of each column.
    pub fn column_sums(&self) -> Vec<f64> {
        (0..self.side).map(|column| self.rows().map(|row| row[column]).sum()).collect()
    }

    /// The product of two.
    pub fn times(&self, other: &Self) -> Self {
        let side = self.side;
        let mut data = vec![0.0; side * side];
        for (row, into) in self.rows().zip(data.chunks_mut(side.max(1))) {
            for (weight, others) in row.iter().zip(other.rows()).filter(|(weight, _)| **weight != 0.0) {
                into.iter_mut().zip(others).for_each(|(sum, value)| *sum += weight * value);
            }
        }
        Self { side, data }
    }

    /// The transpose.
    pub fn transposed(&self) -> Self {
        let side = self.side;
        Self { side, data: (0..side * side).map(|at| self.data[at % side * side + at / side]).collect() }
    }

    /// What differs from the columns' means: everybody's distance from the mean of all.
    pub fn centred(&self) -> Self {
        let means: Vec<f64> = self.column_sums().iter().map(|sum| sum / self.side as f64).collect();
        let data =
            self.data.chunks(self.side.max(1)).flat_map(|row| row.iter().zip(&means).map(|(v, m)| v - m));
        Self { side: self.side, data: data.collect() }
    }

    /// Adds a multiple of another one.
    pub fn add(&mut self, other: &Self, times: f64) {
        self.data.iter_mut().zip(&other.data).for_each(|(own, value)| *own += times * value);
    }

    /// The root of the sum of squares.
    pub fn norm(&self) -> f64 {
        self.data.iter().map(|v| v * v).sum::<f64>().sqrt()
    }

    /// All entries times a number.
    pub fn scaled(mut self, by: f64) -> Self {
        self.data.iter_mut().for_each(|value| *value *= by);
        self
    }

    /// The largest modulus of an eigenvalue: how fast powers grow in the end.
    pub fn spectral_radius(&self) -> f64 {
        let (mut power, mut log) = (self.clone(), 0.0);
        for _ in 0..SQUARINGS {
            let norm = power.norm();
            if norm == 0.0 || !norm.is_finite() {
                return norm;
            }
            power = power.scaled(1.0 / norm);
            power = power.times(&power);
            log = 2.0 * (log + norm.ln());
        }
        let norm = power.norm();
        let exponent = 2f64.powi(SQUARINGS as i32);
        // Powers of a nilpotent matrix vanish; what rounding has left of them is nothing.
        if norm == 0.0 { 0.0 } else { ((log + norm.ln()) / exponent).exp() }
    }

    /// The row that all rows of high powers become, if they do: how much each worker counts in the long run.
    pub fn stationary(&self) -> Option<Vec<f64>> {
        let mut power = self.clone();
        for _ in 0..SQUARINGS {
            power = power.times(&power);
            // Rows sum to one, but for rounding, which squaring doubles.
            let sums = power.row_sums();
            for (row, sum) in power.data.chunks_mut(self.side.max(1)).zip(sums) {
                row.iter_mut().for_each(|value| *value /= sum);
            }
        }
        let first: Vec<f64> = power.rows().next()?.to_vec();
        let same = power.rows().all(|row| row.iter().zip(&first).all(|(a, b)| (a - b).abs() < 1e-9));
        same.then_some(first)
    }
}

impl Serialize for SquareMatrix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.rows())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: &[&[f64]]) -> SquareMatrix {
        SquareMatrix::from_rows(rows.len(), rows.iter().copied())
    }

    #[test]
    fn radii_are_those_of_the_eigenvalues_also_where_they_are_complex_or_none() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        near(of(&[&[0.5, 0.0], &[3.0, 0.25]]).spectral_radius(), 0.5);
        near(of(&[&[0.0, -0.7], &[0.7, 0.0]]).spectral_radius(), 0.7);
        near(of(&[&[0.0, 1.0], &[0.0, 0.0]]).spectral_radius(), 0.0);
        near(SquareMatrix::identity(3).spectral_radius(), 1.0);
    }

    #[test]
    fn stationary_weights_are_those_of_absorbing_and_of_mixing_chains() {
        assert_eq!(of(&[&[1.0, 0.0], &[0.5, 0.5]]).stationary(), Some(vec![1.0, 0.0]));
        let mixing = of(&[&[0.9, 0.1], &[0.3, 0.7]]).stationary().unwrap();
        assert!((mixing[0] - 0.75).abs() < 1e-12 && (mixing[1] - 0.25).abs() < 1e-12, "{mixing:?}");
        assert_eq!(SquareMatrix::identity(2).stationary(), None);
    }
}
