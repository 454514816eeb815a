//! Products of row-major matrices and orthonormal columns: what PowerSGD needs.
//!
//! One of its three products' sides is the rank, a handful, and the others are in the thousands. A plain
//! loop over a row of two or three elements would not use vector instructions: the loops here run along
//! the long sides, over blocks that fit on the stack. All orders are fixed, so that equal input makes
//! equal output, bit by bit.

/// Most columns of a block: ranks up to this take one pass over the large matrix.
const FEW: usize = 8;

/// Elements along the long side of a block.
const LONG: usize = 256;

/// A block: a few long rows.
type Block = [[f32; LONG]; FEW];

/// dst (m×n) = a (m×k) · b (k×n), with either operand stored transposed.
pub fn multiply(
    dst: &mut [f32],
    (m, n, k): (usize, usize, usize),
    a: &[f32],
    a_transposed: bool,
    b: &[f32],
    b_transposed: bool,
) {
    assert_eq!((dst.len(), a.len(), b.len()), (m * n, m * k, k * n), "elements of {m}×{k} · {k}×{n}");
    let a_at = |i: usize, l: usize| if a_transposed { a[l * m + i] } else { a[i * k + l] };
    let b_at = |l: usize, j: usize| if b_transposed { b[j * k + l] } else { b[l * n + j] };
    let mut block: Block = [[0.0; LONG]; FEW];
    dst.fill(0.0);
    if n > FEW {
        // Along the rows of dst: block row l is a piece of b's row l.
        for (j, js) in blocks(n, LONG) {
            for (l, ls) in blocks(k, FEW) {
                for (l, row) in (l..).zip(&mut block[..ls]) {
                    (j..).zip(&mut row[..js]).for_each(|(j, x)| *x = b_at(l, j));
                }
                for i in 0..m {
                    let dst = &mut dst[i * n + j..][..js];
                    (l..).zip(&block[..ls]).for_each(|(l, row)| add_multiple(dst, a_at(i, l), row));
                }
            }
        }
    } else if a_transposed {
        // Along the columns of dst: block row j is a piece of dst's column j.
        for (i, is) in blocks(m, LONG) {
            block.as_flattened_mut().fill(0.0);
            for l in 0..k {
                let a = &a[l * m + i..][..is];
                (0..n).zip(&mut block).for_each(|(j, column)| add_multiple(column, b_at(l, j), a));
            }
            for x in 0..is {
                let dst = &mut dst[(i + x) * n..][..n];
                dst.iter_mut().zip(&block).for_each(|(dst, column)| *dst = column[x]);
            }
        }
    } else {
        // Along the rows of a: block row j is a piece of b's column j.
        for (l, ls) in blocks(k, LONG) {
            for (j, column) in (0..n).zip(&mut block) {
                (l..).zip(&mut column[..ls]).for_each(|(l, x)| *x = b_at(l, j));
            }
            for i in 0..m {
                let a = &a[i * k + l..][..ls];
                let dst = &mut dst[i * n..][..n];
                dst.iter_mut().zip(&block).for_each(|(dst, column)| *dst += dot(a, column));
            }
        }
    }
}

/// The starts and lengths of the blocks of at most `most` that cover `len`.
fn blocks(len: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(most).map(move |start| (start, most.min(len - start)))
}

/// dst += factor · row, as far as both go.
fn add_multiple(dst: &mut [f32], factor: f32, row: &[f32]) {
    dst.iter_mut().zip(row).for_each(|(d, x)| *d += factor * x);
}

/// a · b, as far as both go, summed in lanes.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let len = a.len().min(b.len());
    let ((a, a_rest), (b, b_rest)) = (a[..len].as_chunks::<16>(), b[..len].as_chunks::<16>());
    let mut lanes = [0.0; 16];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    lanes.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}

/// Of a column's length, how much must be left of it for the column not to depend on those before it. Less
/// is no more than the rounding of its elements.
const INDEPENDENT: f64 = 1e-5;

/// Makes the columns of a rows×cols matrix orthonormal (modified Gram–Schmidt); a column that depends on
/// those before it gives way to a unit vector, so that no direction is lost for good.
pub fn orthonormalise(matrix: &mut [f32], rows: usize, cols: usize) {
    assert_eq!(matrix.len(), rows * cols, "elements of {rows}×{cols}");
    for c in 0..cols {
        let length = columns(matrix, cols, c, c).sqrt();
        let mut left = project_out(matrix, cols, c);
        // What is not finite fails this test and is noticed.
        if left == 0.0 || left < INDEPENDENT * length {
            // Some unit vector is at least as independent as they are on average.
            let enough = (0.5 * rows.saturating_sub(c) as f64 / rows as f64).sqrt();
            left = 0.0;
            for i in (c < rows).then_some(0..rows).into_iter().flatten() {
                matrix.chunks_mut(cols).enumerate().for_each(|(r, row)| row[c] = f32::from(u8::from(r == i)));
                left = project_out(matrix, cols, c);
                if left >= enough {
                    break;
                }
            }
        }
        for row in matrix.chunks_mut(cols) {
            row[c] = if left == 0.0 { 0.0 } else { (f64::from(row[c]) / left) as f32 };
        }
    }
}

/// The product of two columns.
fn columns(matrix: &[f32], cols: usize, a: usize, b: usize) -> f64 {
    matrix.chunks(cols).map(|row| f64::from(row[a]) * f64::from(row[b])).sum()
}

/// Takes the columns before it out of a column; the length that is left.
fn project_out(matrix: &mut [f32], cols: usize, c: usize) -> f64 {
    // Where little of a column is left, rounding has turned that towards the others again: hence twice.
    for before in (0..c).chain(0..c) {
        let along = columns(matrix, cols, before, c);
        for row in matrix.chunks_mut(cols) {
            row[c] = (f64::from(row[c]) - along * f64::from(row[before])) as f32;
        }
    }
    columns(matrix, cols, c, c).sqrt()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matrix(rows: usize, cols: usize, seed: u32) -> Vec<f32> {
        let mut state = seed | 1;
        (0..rows * cols)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                state as f32 / 2f32.powi(31) - 1.0
            })
            .collect()
    }

    fn transposed(matrix: &[f32], rows: usize, cols: usize) -> Vec<f32> {
        (0..rows * cols).map(|at| matrix[at % rows * cols + at / rows]).collect()
    }

    fn check_multiply((m, n, k): (usize, usize, usize), seed: u32) {
        let (a, b) = (matrix(m, k, seed), matrix(k, n, seed.wrapping_add(77)));
        let (a_t, b_t) = (transposed(&a, m, k), transposed(&b, k, n));
        for (a_transposed, b_transposed) in [(false, false), (false, true), (true, false), (true, true)] {
            let a_stored = if a_transposed { &a_t } else { &a };
            let b_stored = if b_transposed { &b_t } else { &b };
            let mut dst = vec![f32::NAN; m * n];
            multiply(&mut dst, (m, n, k), a_stored, a_transposed, b_stored, b_transposed);
            for i in 0..m {
                for j in 0..n {
                    let exact: f64 = (0..k).map(|l| f64::from(a[i * k + l]) * f64::from(b[l * n + j])).sum();
                    let off = (f64::from(dst[i * n + j]) - exact).abs();
                    let most = 1e-6 * (k as f64).max(1.0);
                    assert!(off <= most, "{m}×{k} · {k}×{n} ({a_transposed}, {b_transposed}): {off}");
                }
            }
            let mut again = vec![7.0; m * n];
            multiply(&mut again, (m, n, k), a_stored, a_transposed, b_stored, b_transposed);
            assert_eq!(dst, again);
        }
    }

    /// PᵀP minus what it should be: one on the diagonal, or zero where the column is.
    fn off_identity(p: &[f32], rows: usize, cols: usize) -> f64 {
        let mut worst = 0f64;
        for a in 0..cols {
            for b in 0..cols {
                let dot: f64 =
                    (0..rows).map(|r| f64::from(p[r * cols + a]) * f64::from(p[r * cols + b])).sum();
                let zero = (0..rows).all(|r| p[r * cols + a] == 0.0);
                worst = worst.max((dot - f64::from(u8::from(a == b && !zero))).abs());
            }
        }
        worst
    }

    fn zero_columns(p: &[f32], cols: usize) -> Vec<usize> {
        (0..cols).filter(|c| p.iter().skip(*c).step_by(cols).all(|&v| v == 0.0)).collect()
    }

    proptest! {
        #[test]
        fn products_are_those_of_a_plain_loop(m in 0usize..40, n in 0usize..40, k in 0usize..40, seed: u32) {
            check_multiply((m, n, k), seed);
        }

        #[test]
        fn columns_become_orthonormal(cols in 1usize..9, more in 0usize..300, seed: u32) {
            let rows = 2 * cols + more;
            let mut p = matrix(rows, cols, seed);
            let mut again = p.clone();
            orthonormalise(&mut p, rows, cols);
            prop_assert!(off_identity(&p, rows, cols) < 1e-5);
            prop_assert_eq!(zero_columns(&p, cols), Vec::<usize>::new());
            orthonormalise(&mut again, rows, cols);
            prop_assert_eq!(p, again);
        }
    }

    #[test]
    fn products_with_sides_longer_than_a_block_are_those_of_a_plain_loop() {
        for sides in [(300, 2, 600), (600, 2, 300), (300, 530, 2), (3, 600, 9), (260, 8, 257), (260, 9, 257)]
        {
            check_multiply(sides, 5);
        }
    }

    #[test]
    fn nearly_dependent_columns_become_orthonormal_too() {
        let (rows, cols) = (500, 64);
        for mix in [1.0, 1e-2, 1e-3, 3e-5] {
            let common = matrix(rows, 1, 9);
            let mut p = matrix(rows, cols, 3);
            p.chunks_mut(cols)
                .zip(&common)
                .for_each(|(row, c)| row.iter_mut().for_each(|v| *v = c + mix * *v));
            orthonormalise(&mut p, rows, cols);
            assert!(off_identity(&p, rows, cols) < 1e-5, "{mix}");
        }
    }

    #[test]
    fn dependent_columns_give_way_to_independent_ones() {
        let (rows, cols) = (200, 6);
        for size in [1e-30, 1.0, 1e15] {
            let mut p = matrix(rows, cols, 11);
            for row in p.chunks_mut(cols) {
                row.iter_mut().for_each(|v| *v *= size);
                row[2] = 0.0;
                row[3] = 2.0 * row[0] - 0.3 * row[1];
                row[5] = row[4];
            }
            orthonormalise(&mut p, rows, cols);
            assert_eq!(zero_columns(&p, cols), [0usize; 0]);
            assert!(off_identity(&p, rows, cols) < 1e-5);
        }
    }

    #[test]
    fn there_are_no_more_independent_columns_than_rows() {
        let mut p = matrix(3, 5, 21);
        orthonormalise(&mut p, 3, 5);
        assert_eq!(zero_columns(&p, 5), [3, 4]);
        orthonormalise(&mut [], 0, 5);
        orthonormalise(&mut [], 5, 0);
    }

    #[test]
    fn what_is_not_finite_is_noticed() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut p = [1.0, 2.0, bad, 4.0];
            orthonormalise(&mut p, 2, 2);
            assert!(p.iter().any(|v| v.is_nan()));
        }
    }
}
