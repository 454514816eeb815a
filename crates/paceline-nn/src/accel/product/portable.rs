//! The tile product in plain Rust, for any number type and any CPU.

use super::super::level::{Isa, Level};
use super::{Product, TileStart, parts};
use crate::real::Real;

const P: usize = 4;
/// Columns of a tile: 16 so that the compiler fills vectors of any width.
const L: usize = 16;

per_level! {
    /// The whole product, tile by tile. The caller has checked the bounds.
    pub fn product<T: Real>(task: Product<'_, T>) {
        let mut task = task;
        for k in 0..task.repeat.count {
            for (j0, j1) in parts(task.cols, L) {
                for (r0, r1) in parts(task.rows, P) {
                    tile(&mut task, k, r0, r1 - r0, j0, j1 - j0);
                }
            }
        }
    }
}

#[inline(always)]
fn tile<T: Real>(t: &mut Product<'_, T>, k: usize, r0: usize, rows: usize, j0: usize, cols: usize) {
    let mut acc = [[T::ZERO; L]; P];
    match t.start {
        TileStart::Zero => {}
        TileStart::Bias(bias) => {
            for row in &mut acc[..rows] {
                row[..cols].copy_from_slice(&bias[j0..j0 + cols]);
            }
        }
        TileStart::Output => {
            for (p, row) in acc[..rows].iter_mut().enumerate() {
                let at = k * t.repeat.c + (r0 + p) * t.c_row + j0;
                row[..cols].copy_from_slice(&t.c[at..at + cols]);
            }
        }
    }
    for o in 0..t.outer {
        for i in 0..t.inner {
            let a0 = k * t.repeat.a + r0 * t.a_row + o * t.a_outer + i * t.a_inner;
            let b0 = k * t.repeat.b + o * t.b_outer + i * t.b_inner + j0;
            let b = &t.b[b0..b0 + cols];
            for p in 0..rows {
                let a = t.a[a0 + p * t.a_row];
                if let Ok(b) = <&[T; L]>::try_from(b) {
                    for j in 0..L {
                        acc[p][j] += a * b[j];
                    }
                } else {
                    for (c, &b) in acc[p].iter_mut().zip(b) {
                        *c += a * b;
                    }
                }
            }
        }
    }
    for (p, row) in acc[..rows].iter_mut().enumerate() {
        if t.relu {
            for v in row.iter_mut() {
                *v = v.max(T::ZERO);
            }
        }
        let at = k * t.repeat.c + (r0 + p) * t.c_row + j0;
        t.c[at..at + cols].copy_from_slice(&row[..cols]);
    }
}
