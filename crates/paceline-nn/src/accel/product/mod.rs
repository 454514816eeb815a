//! The one strided tile product behind dense layers and convolutions.
//!
//! `C[r, ·] = start + Σ_o Σ_i A[r, o, i] · B[o, i, ·]`, where the offsets in `A` and `B` are linear
//! in the indices. With NHWC layout and the right strides the same loop is
//!
//! | product | rows | outer × inner | `A` | `B` |
//! |---|---|---|---|---|
//! | dense forward | samples | 1 × inputs | activations | weights |
//! | dense weight gradient | inputs | 1 × samples | activations | output gradient |
//! | convolution forward | pixels | kernel rows × taps | padded input | weights |
//! | convolution weight gradient | taps | output rows × pixels | padded input | output gradient |
//! | convolution input gradient | pixels | kernel rows × taps | padded output gradient | flipped weights |
//!
//! Nothing is packed on the way in: an element of `A` is broadcast, a vector of `B` is loaded where it
//! lies, and a tile of `C` stays in registers for the whole sum.

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
use super::level::Isa;
use super::level::Level;
use crate::real::Real;

/// What a tile of the output starts from.
#[derive(Clone, Copy, Debug)]
pub enum TileStart<'a, T> {
    /// Zero: the output is overwritten.
    Zero,
    /// One value per column.
    Bias(&'a [T]),
    /// The output's present content: the product is added to it.
    Output,
}

/// Several products of one shape, each a fixed distance from the one before.
#[derive(Clone, Copy, Debug)]
pub struct Repeat {
    /// How many.
    pub count: usize,
    /// Distance in `a`.
    pub a: usize,
    /// Distance in `b`.
    pub b: usize,
    /// Distance in `c`.
    pub c: usize,
}

impl Repeat {
    /// A single product.
    pub const ONCE: Repeat = Repeat { count: 1, a: 0, b: 0, c: 0 };
}

/// One product; see the module's table for how layers use it.
#[derive(Debug)]
pub struct Product<'a, T> {
    /// Rows of the output.
    pub rows: usize,
    /// Columns of the output, contiguous in `b` and `c`.
    pub cols: usize,
    /// Outer length of the sum.
    pub outer: usize,
    /// Inner length of the sum.
    pub inner: usize,
    /// The operand that is broadcast.
    pub a: &'a [T],
    /// Stride of a row in `a`.
    pub a_row: usize,
    /// Stride of an outer index in `a`.
    pub a_outer: usize,
    /// Stride of an inner index in `a`.
    pub a_inner: usize,
    /// The operand that is loaded as vectors.
    pub b: &'a [T],
    /// Stride of an outer index in `b`.
    pub b_outer: usize,
    /// Stride of an inner index in `b`.
    pub b_inner: usize,
    /// The output.
    pub c: &'a mut [T],
    /// Stride of a row in `c`.
    pub c_row: usize,
    /// What the output starts from.
    pub start: TileStart<'a, T>,
    /// Whether negative results become zero.
    pub relu: bool,
    /// Whether the product is one of several.
    pub repeat: Repeat,
}

impl<'a, T> Product<'a, T> {
    /// The plain product of two matrices, `[rows, columns, length of the sum]`: `a` with the strides of its
    /// rows and of the sum, `b` with that of the sum, `c` with that of its rows.
    #[rustfmt::skip]
    pub fn matrices(
        [rows, cols, inner]: [usize; 3],
        (a, a_row, a_inner): (&'a [T], usize, usize),
        (b, b_inner): (&'a [T], usize),
        (c, c_row): (&'a mut [T], usize),
        start: TileStart<'a, T>,
    ) -> Self {
        let (outer, a_outer, b_outer) = (1, 0, 0);
        let (relu, repeat) = (false, Repeat::ONCE);
        Self {
            rows, cols, outer, inner, a, a_row, a_outer, a_inner, b, b_outer, b_inner, c, c_row, start, relu, repeat,
        }
    }

    fn is_empty(&self) -> bool {
        self.rows == 0 || self.cols == 0 || self.repeat.count == 0
    }

    /// Panics unless every element that the product touches lies inside its slice. The kernels rely
    /// on it.
    fn check(&self) {
        let last = |n: usize, stride: usize| (n - 1).checked_mul(stride).expect("strides fit");
        let within = |len: usize, parts: &[usize]| {
            parts.iter().try_fold(0usize, |sum, &p| sum.checked_add(p)).is_some_and(|end| end <= len)
        };
        let Repeat { count, a, b, c } = self.repeat;
        if self.outer > 0 && self.inner > 0 {
            let (o, i) = (self.outer, self.inner);
            let parts = [
                last(count, a),
                last(self.rows, self.a_row),
                last(o, self.a_outer),
                last(i, self.a_inner),
                1,
            ];
            assert!(within(self.a.len(), &parts), "operand a is too short");
            let parts = [last(count, b), last(o, self.b_outer), last(i, self.b_inner), self.cols];
            assert!(within(self.b.len(), &parts), "operand b is too short");
        }
        let parts = [last(count, c), last(self.rows, self.c_row), self.cols];
        assert!(within(self.c.len(), &parts), "the output is too short");
        if let TileStart::Bias(bias) = self.start {
            assert!(bias.len() >= self.cols, "the bias is too short");
        }
    }
}

/// Cuts `n` into the fewest parts of at most `most`, as even as possible.
fn parts(n: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = n.div_ceil(most);
    (0..count).map(move |i| (i * n / count, (i + 1) * n / count))
}

/// The product in `f32`, with the best kernel of `level`.
pub(crate) fn product_f32(level: Level, task: Product<'_, f32>) {
    #[cfg(target_arch = "x86_64")]
    if level.0 != Isa::Portable && !task.is_empty() {
        task.check();
        // SAFETY: the level proves the CPU's features, and `check` the bounds.
        return unsafe { if level.0 == Isa::Avx512 { x86::avx512(task) } else { x86::avx2(task) } };
    }
    product_portable(level, task);
}

/// The product with the portable kernel: in `f64` always, since that is the reference.
pub(crate) fn product_portable<T: Real>(level: Level, task: Product<'_, T>) {
    if !task.is_empty() {
        task.check();
        portable::product(level, task);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, one element at a time, in f64.
    fn definition(t: &Product<'_, f32>, k: usize, r: usize, j: usize) -> f64 {
        let mut sum = match t.start {
            TileStart::Zero => 0.0,
            TileStart::Bias(bias) => bias[j].to_f64(),
            TileStart::Output => t.c[k * t.repeat.c + r * t.c_row + j].to_f64(),
        };
        for o in 0..t.outer {
            for i in 0..t.inner {
                sum += t.a[k * t.repeat.a + r * t.a_row + o * t.a_outer + i * t.a_inner].to_f64()
                    * t.b[k * t.repeat.b + o * t.b_outer + i * t.b_inner + j].to_f64();
            }
        }
        if t.relu { sum.max(0.0) } else { sum }
    }

    proptest! {
        #[test]
        fn every_level_computes_the_definition_on_any_shape(
            (rows, cols, outer, inner) in (1usize..40, 1usize..70, 1usize..4, 0usize..20),
            (a_row, a_inner) in (0usize..5, 0usize..5),
            (slack, start, relu, seed) in (0usize..3, 0u8..3, any::<bool>(), any::<u64>()),
        ) {
            let (a_outer, b_inner, c_row) = (7 + slack, cols + slack, cols + slack);
            let b_outer = inner * b_inner;
            let s = paceline_random::Stream::new(seed, paceline_random::Purpose::Bench);
            let fill = |n: usize, key: u64| -> Vec<f32> {
                (0..n).map(|i| s.fork(key).uniform(i as u64, -1.0, 1.0) as f32).collect()
            };
            let repeat = Repeat { count: 1 + slack, a: 3, b: 2, c: rows * c_row };
            let a = fill((rows - 1) * a_row + (outer - 1) * a_outer + inner.max(1) * a_inner + 1 + slack * 3, 0);
            let b = fill(outer * b_outer.max(b_inner) + cols + slack * 2, 1);
            let bias = fill(cols, 2);
            let before = fill(repeat.count * rows * c_row, 3);
            let start = match start { 0 => TileStart::Zero, 1 => TileStart::Bias(&bias[..]), _ => TileStart::Output };
            for level in Level::available() {
                let mut c = before.clone();
                let mut reference = before.clone();
                let task = Product {
                    rows, cols, outer, inner, a: &a, a_row, a_outer, a_inner, b: &b, b_outer, b_inner,
                    c: &mut reference, c_row, start, relu, repeat,
                };
                product_f32(level, Product { c: &mut c, ..task });
                for (k, r) in (0..repeat.count).flat_map(|k| (0..rows).map(move |r| (k, r))) {
                    for j in 0..c_row {
                        let at = k * repeat.c + r * c_row + j;
                        let want = if j < cols { definition(&task, k, r, j) } else { before[at].to_f64() };
                        prop_assert!((c[at].to_f64() - want).abs() <= 1e-5 * (1.0 + want.abs()),
                            "{level} row {r} column {j}: {} instead of {want}", c[at]);
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "operand b is too short")]
    fn a_short_operand_is_refused_before_any_kernel_runs() {
        let mut c = [0f32; 4];
        let task =
            Product::matrices([1, 4, 2], (&[1.0, 1.0], 0, 1), (&[1.0; 7], 4), (&mut c, 4), TileStart::Zero);
        product_f32(Level::detect(), task);
    }
}
