//! Least squares that takes columns in their order: one that depends on those before it is left out, and what can
//! then not be told is known.
//!
//! The order matters: a factor that follows from others must lose against them, not against whichever column is
//! longest, so a decomposition that pivots freely will not do.

#[derive(Clone, Debug)]
pub struct Fit {
    /// One per column; zero for columns that were left out.
    pub coefficients: Vec<f64>,
    pub rss: f64,
    /// Values beyond columns that were kept.
    pub df: usize,
    /// What the model does not account for, by value.
    pub residuals: Vec<f64>,
    kept: Vec<usize>,
    /// Orthonormal directions, one per kept column.
    basis: Vec<Vec<f64>>,
    /// Along each direction, the values.
    along: Vec<f64>,
    /// Columns of the inverse of the triangular factor.
    inverse: Vec<Vec<f64>>,
    /// Columns that were left out, as combinations of the kept ones.
    aliases: Vec<(usize, Vec<f64>)>,
}

/// A column of which less than this is new depends on those before it.
const NEW: f64 = 1e-9;

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub fn subtract(from: &mut [f64], times: f64, what: &[f64]) {
    from.iter_mut().zip(what).for_each(|(f, w)| *f -= times * w);
}

impl Fit {
    pub fn new(columns: &[Vec<f64>], values: &[f64]) -> Self {
        let (mut basis, mut kept, mut triangle): (Vec<Vec<f64>>, Vec<usize>, Vec<Vec<f64>>) =
            Default::default();
        let mut dependent = Vec::new();
        for (j, column) in columns.iter().enumerate() {
            let mut rest = column.clone();
            let mut parts = vec![0.0; basis.len()];
            // Twice: once leaves rounding errors of the size of the condition number.
            for _ in 0..2 {
                for (part, direction) in parts.iter_mut().zip(&basis) {
                    let along = dot(direction, &rest);
                    subtract(&mut rest, along, direction);
                    *part += along;
                }
            }
            let (norm, whole) = (dot(&rest, &rest).sqrt(), dot(column, column).sqrt());
            if norm <= NEW * whole || whole == 0.0 {
                dependent.push((j, parts));
                continue;
            }
            rest.iter_mut().for_each(|v| *v /= norm);
            parts.push(norm);
            basis.push(rest);
            triangle.push(parts);
            kept.push(j);
        }
        let solve = |right: &[f64]| {
            // Upper triangular; `triangle[j]` is column j.
            let mut solution = right.to_vec();
            for j in (0..solution.len()).rev() {
                solution[j] /= triangle[j][j];
                for i in 0..j {
                    solution[i] -= triangle[j][i] * solution[j];
                }
            }
            solution
        };
        let mut residuals = values.to_vec();
        let mut along = Vec::with_capacity(basis.len());
        for direction in &basis {
            along.push(dot(direction, &residuals));
            subtract(&mut residuals, along[along.len() - 1], direction);
        }
        for (direction, along) in basis.iter().zip(&mut along) {
            let rest = dot(direction, &residuals);
            subtract(&mut residuals, rest, direction);
            *along += rest;
        }
        let mut coefficients = vec![0.0; columns.len()];
        kept.iter().zip(solve(&along)).for_each(|(j, value)| coefficients[*j] = value);
        let unit = |j: usize| (0..kept.len()).map(|i| f64::from(u8::from(i == j))).collect::<Vec<f64>>();
        let inverse = (0..kept.len()).map(|j| solve(&unit(j))).collect();
        dependent.iter_mut().for_each(|(_, parts): &mut (usize, Vec<f64>)| parts.resize(kept.len(), 0.0));
        let aliases = dependent.into_iter().map(|(j, parts)| (j, solve(&parts))).collect();
        let rss = dot(&residuals, &residuals);
        let df = values.len() - kept.len();
        Self { coefficients, rss, df, residuals, kept, basis, along, inverse, aliases }
    }

    /// Variance of the residuals; none without degrees of freedom.
    pub fn variance(&self) -> Option<f64> {
        (self.df > 0).then(|| self.rss / self.df as f64)
    }

    /// A combination of coefficients, and its standard error in units of the residuals' deviation; none where the
    /// values do not determine it.
    pub fn combination(&self, weights: &[f64]) -> Option<(f64, f64)> {
        let own: Vec<f64> = self.kept.iter().map(|j| weights[*j]).collect();
        let size = weights.iter().map(|w| w.abs()).fold(0.0, f64::max).max(1e-300);
        let determined =
            |(j, alias): &(usize, Vec<f64>)| (weights[*j] - dot(alias, &own)).abs() <= 1e-7 * size;
        if !self.aliases.iter().all(determined) {
            return None;
        }
        let value = self.kept.iter().map(|j| weights[*j] * self.coefficients[*j]).sum();
        // R⁻ᵀw has the length of the standard error.
        let squared: f64 = self.inverse.iter().map(|column| dot(column, &own).powi(2)).sum();
        Some((value, squared.sqrt()))
    }

    /// Coefficients if values had other noise: `noise` by kept column, in the unit of the values.
    pub fn redrawn(&self, noise: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut coefficients = vec![0.0; self.coefficients.len()];
        for (i, (along, column)) in self.along.iter().zip(&self.inverse).enumerate() {
            let along = along + noise(i);
            self.kept.iter().zip(column).for_each(|(j, part)| coefficients[*j] += along * part);
        }
        coefficients
    }

    /// What noise of size 1 along each direction does to the coefficients.
    pub fn unit_errors(&self) -> Vec<Vec<f64>> {
        let spread = |column: &Vec<f64>| {
            let mut error = vec![0.0; self.coefficients.len()];
            self.kept.iter().zip(column).for_each(|(j, part)| error[*j] = *part);
            error
        };
        self.inverse.iter().map(spread).collect()
    }

    /// What columns from `from` on account for beyond those before: their sum of squares, and how many count.
    pub fn gain(&self, from: usize) -> (f64, usize) {
        let own = self.kept.iter().zip(&self.along).filter(|(j, _)| **j >= from);
        own.fold((0.0, 0), |(sum, count), (_, along)| (sum + along * along, count + 1))
    }

    /// Columns that were kept, and the values along their orthonormal directions.
    pub fn directions(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        self.kept.iter().copied().zip(self.along.iter().copied())
    }

    /// Orthonormal directions that the columns span.
    pub fn basis(&self) -> &[Vec<f64>] {
        &self.basis
    }

    /// How much each value pulls its own fit, 0 to 1.
    pub fn leverages(&self) -> Vec<f64> {
        (0..self.residuals.len()).map(|i| self.basis.iter().map(|b| b[i] * b[i]).sum()).collect()
    }

    /// Whether a column was left out because it depends on those before it.
    pub fn left_out(&self, column: usize) -> bool {
        self.aliases.iter().any(|(j, _)| *j == column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * b.abs().max(1.0)
    }

    #[test]
    fn a_line_is_found_with_its_errors() {
        // By hand: x = 0..4, y = 1 3 2 5 4; slope 0.8, intercept 1.4, rss 3.6, sxx 10.
        let columns = [vec![1.0; 5], vec![0.0, 1.0, 2.0, 3.0, 4.0]];
        let fit = Fit::new(&columns, &[1.0, 3.0, 2.0, 5.0, 4.0]);
        let (slope, error) = fit.combination(&[0.0, 1.0]).unwrap();
        assert!(close(slope, 0.8) && close(fit.coefficients[0], 1.4) && close(fit.rss, 3.6), "{fit:?}");
        assert!(close(error, 0.1f64.sqrt()) && fit.df == 3);
        assert!(close(fit.gain(1).0, 6.4) && fit.gain(1).1 == 1);
        assert!(close(fit.leverages().iter().sum(), 2.0));
    }

    #[test]
    fn what_depends_on_earlier_columns_is_left_out_and_not_told() {
        let (a, b) = (vec![1.0, 1.0, 0.0, 0.0], vec![0.0, 0.0, 1.0, 1.0]);
        let columns = [vec![1.0; 4], a, b];
        let fit = Fit::new(&columns, &[1.0, 2.0, 5.0, 6.0]);
        assert!(fit.left_out(2) && !fit.left_out(1));
        assert_eq!(fit.combination(&[0.0, 1.0, 0.0]), None, "a alone cannot be told from 1 and b");
        let (difference, _) = fit.combination(&[0.0, 1.0, -1.0]).unwrap();
        assert!(close(difference, -4.0));
        assert!(close(fit.combination(&[1.0, 0.0, 1.0]).unwrap().0, 5.5), "a mean can be told");
    }
}
