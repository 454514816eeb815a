//! The tile transforms of Winograd's convolution, compiled per instruction set.
//!
//! A tile of 6×6 inputs gives 4×4 outputs of a 3×3 kernel or 2×2 outputs of a 5×5 kernel with 36
//! multiplications per channel instead of 144 or 100. The points are 0, ±1, ±2 and ∞, so kernel sizes
//! differ only in the weight and output transforms. Rounding stays near 10⁻⁶ of the result.
//!
//! `U` (transformed inputs) and `M` (products) are laid out `[36][tiles][channels]`.

use super::level::{Isa, Level};
use super::vector::{Plain, Vector};
use crate::real::Real;
use crate::shape::Shape;

/// Side of an input tile.
pub const SIDE: usize = 6;
pub const POINTS: usize = SIDE * SIDE;

/// The tiles of a batch of images: which part of the image each one reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct Tiles {
    pub image: Shape,
    /// Tiles of an image, vertically and horizontally.
    pub grid: [usize; 2],
    pub step: usize,
    /// How far the first tile begins before the image.
    pub before: usize,
    /// Length of the tile dimension of `U` or `M`.
    pub stride: usize,
}

impl Tiles {
    /// A tile's image and the place of its corner in it.
    #[inline(always)]
    fn corner(&self, tile: usize) -> (usize, isize, isize) {
        let per = self.grid[0] * self.grid[1];
        let (image, within) = (tile / per, tile % per);
        let at = |i: usize| (i * self.step) as isize - self.before as isize;
        (image, at(within / self.grid[1]), at(within % self.grid[1]))
    }
}

/// Six values written out, so that none of them passes through memory.
macro_rules! lines {
    (|$i:ident| $value:expr) => { lines!($i $value, 0 1 2 3 4 5) };
    ($i:ident $value:expr, $($n:literal)*) => { [$({ let $i = $n; $value }),*] };
}

/// The input transform along one dimension.
#[inline(always)]
fn input_line<T: Real, V: Vector<T>>(d: &[V; SIDE]) -> [V; SIDE] {
    let by = |f: f64| V::splat(T::of(f));
    let (a, b) = (d[4].plus_times(by(-4.0), d[2]), d[3].plus_times(by(-4.0), d[1]));
    let (c, e) = (d[4].minus(d[2]), d[3].minus(d[1]));
    [
        d[4].plus_times(by(-5.0), d[2]).plus_times(by(4.0), d[0]),
        a.plus(b),
        a.minus(b),
        c.plus_times(by(2.0), e),
        c.plus_times(by(-2.0), e),
        d[5].plus_times(by(-5.0), d[3]).plus_times(by(4.0), d[1]),
    ]
}

/// The output transform along one dimension, to `M` outputs.
#[inline(always)]
fn output_line<T: Real, V: Vector<T>, const M: usize>(m: &[V; SIDE]) -> [V; M] {
    let by = |f: f64| V::splat(T::of(f));
    let (s1, d1) = (m[1].plus(m[2]), m[1].minus(m[2]));
    let (s2, d2) = (m[3].plus(m[4]), m[3].minus(m[4]));
    let mut y = [d1.plus_times(by(2.0), d2); M];
    y[0] = m[0].plus(s1).plus(s2);
    if M == 4 {
        y[2] = s1.plus_times(by(4.0), s2);
        y[3] = d1.plus_times(by(8.0), d2);
    }
    y[M - 1] = y[M - 1].plus(m[5]);
    y
}

/// The output transform's transpose along one dimension, from `M` output gradients.
#[inline(always)]
fn gradient_line<T: Real, V: Vector<T>, const M: usize>(y: &[V; M]) -> [V; SIDE] {
    let by = |f: f64| V::splat(T::of(f));
    let (mut even1, mut odd1, mut even2, mut odd2) = (y[0], y[1], y[0], y[1]);
    if M == 4 {
        (even1, odd1) = (even1.plus(y[2]), odd1.plus(y[3]));
        (even2, odd2) = (even2.plus_times(by(4.0), y[2]), odd2.plus_times(by(4.0), y[3]));
    }
    [
        y[0],
        even1.plus(odd1),
        even1.minus(odd1),
        even2.plus_times(by(2.0), odd2),
        even2.plus_times(by(-2.0), odd2),
        y[M - 1],
    ]
}

/// Row `i` of the `S × S` patch of an image at `corner`, zeros outside the image.
#[inline(always)]
fn patch_row<T: Real, V: Vector<T>, const S: usize>(
    image: &[T],
    shape: Shape,
    (top, left): (isize, isize),
    channel: usize,
    i: usize,
) -> [V; S] {
    let mut row = [V::splat(T::ZERO); S];
    let (y, w) = (top + i as isize, shape.w as isize);
    if y >= 0 && y < shape.h as isize {
        let line = y as usize * shape.w;
        if left >= 0 && left + S as isize <= w {
            for (j, v) in row.iter_mut().enumerate() {
                *v = V::load(image, (line + left as usize + j) * shape.c + channel);
            }
        } else {
            for (j, v) in row.iter_mut().enumerate() {
                let x = left + j as isize;
                if x >= 0 && x < w {
                    *v = V::load(image, (line + x as usize) * shape.c + channel);
                }
            }
        }
    }
    row
}

/// Stores column `j` of a tile's 36 results.
#[inline(always)]
fn store_column<T: Real, V: Vector<T>>(column: [V; SIDE], j: usize, out: &mut [T], stride: usize, at: usize) {
    for (i, v) in column.iter().enumerate() {
        v.store(out, (i * SIDE + j) * stride + at);
    }
}

#[inline(always)]
fn input_tile<T: Real, V: Vector<T>>(
    image: &[T],
    tiles: &Tiles,
    corner: (isize, isize),
    c: usize,
    i: usize,
    u: &mut [T],
) {
    let rows = lines!(|i| input_line::<T, V>(&patch_row::<T, V, SIDE>(image, tiles.image, corner, c, i)));
    for j in 0..SIDE {
        let column = input_line::<T, V>(&lines!(|i| rows[i][j]));
        store_column(column, j, u, tiles.stride * tiles.image.c, i * tiles.image.c + c);
    }
}

#[inline(always)]
fn gradient_tile<T: Real, V: Vector<T>, const M: usize>(
    image: &[T],
    tiles: &Tiles,
    corner: (isize, isize),
    c: usize,
    i: usize,
    m: &mut [T],
) {
    let mut rows = [[V::splat(T::ZERO); SIDE]; M];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = gradient_line::<T, V, M>(&patch_row::<T, V, M>(image, tiles.image, corner, c, i));
    }
    for j in 0..SIDE {
        let mut line = [rows[0][j]; M];
        for (v, row) in line.iter_mut().zip(&rows) {
            *v = row[j];
        }
        let column = gradient_line::<T, V, M>(&line);
        store_column(column, j, m, tiles.stride * tiles.image.c, i * tiles.image.c + c);
    }
}

/// What happens to a finished output.
#[derive(Clone, Copy, Debug)]
pub struct Finish<'a, T> {
    /// Added per channel, unless empty.
    pub bias: &'a [T],
    /// Whether negative results become zero.
    pub relu: bool,
    /// Whether to add to what the output holds.
    pub add: bool,
}

#[inline(always)]
fn output_tile<T: Real, V: Vector<T>, const M: usize>(
    m: &[T],
    tiles: &Tiles,
    (top, left): (usize, usize),
    c: usize,
    i: usize,
    image: &mut [T],
    finish: Finish<'_, T>,
) {
    let shape = tiles.image;
    let zero = V::splat(T::ZERO);
    let point = |k: usize, j: usize| V::load(m, ((k * SIDE + j) * tiles.stride + i) * shape.c + c);
    let rows = lines!(|k| output_line::<T, V, M>(&lines!(|j| point(k, j))));
    let bias = if finish.bias.is_empty() { zero } else { V::load(finish.bias, c) };
    for j in 0..M {
        let outputs = output_line::<T, V, M>(&lines!(|k| rows[k][j]));
        for (k, v) in outputs.iter().enumerate() {
            if top + k < shape.h && left + j < shape.w {
                let at = ((top + k) * shape.w + left + j) * shape.c + c;
                let mut v = v.plus(bias);
                if finish.add {
                    v = v.plus(V::load(image, at));
                }
                if finish.relu {
                    v = v.max(zero);
                }
                v.store(image, at);
            }
        }
    }
}

per_vector! {
    /// `U` of the tiles `first..first + count`.
    pub fn transform_inputs<T: Real, V: Vector>(x: &[T], tiles: &Tiles, first: usize, count: usize, u: &mut [T]) {
        let (channels, size) = (tiles.image.c, tiles.image.size());
        let whole = channels / V::LANES * V::LANES;
        for i in 0..count {
            let (image, top, left) = tiles.corner(first + i);
            let image = &x[image * size..(image + 1) * size];
            for c in (0..whole).step_by(V::LANES) {
                input_tile::<T, V>(image, tiles, (top, left), c, i, u);
            }
            for c in whole..channels {
                input_tile::<T, Plain<T, 1>>(image, tiles, (top, left), c, i, u);
            }
        }
    }

    /// The gradient of `M` for the tiles `first..first + count` of an output gradient.
    pub fn transform_gradients<T: Real, V: Vector>(dy: &[T], tiles: &Tiles, first: usize, count: usize, m: &mut [T]) {
        let (channels, size) = (tiles.image.c, tiles.image.size());
        let whole = channels / V::LANES * V::LANES;
        for i in 0..count {
            let (image, top, left) = tiles.corner(first + i);
            let image = &dy[image * size..(image + 1) * size];
            for c in (0..whole).step_by(V::LANES) {
                match tiles.step {
                    4 => gradient_tile::<T, V, 4>(image, tiles, (top, left), c, i, m),
                    _ => gradient_tile::<T, V, 2>(image, tiles, (top, left), c, i, m),
                }
            }
            for c in whole..channels {
                match tiles.step {
                    4 => gradient_tile::<T, Plain<T, 1>, 4>(image, tiles, (top, left), c, i, m),
                    _ => gradient_tile::<T, Plain<T, 1>, 2>(image, tiles, (top, left), c, i, m),
                }
            }
        }
    }

    /// The outputs of the tiles `first..first + count`.
    pub fn transform_outputs<T: Real, V: Vector>(
        m: &[T], tiles: &Tiles, first: usize, count: usize, y: &mut [T], finish: Finish<'_, T>,
    ) {
        let (channels, size) = (tiles.image.c, tiles.image.size());
        let whole = channels / V::LANES * V::LANES;
        for i in 0..count {
            let (image, top, left) = tiles.corner(first + i);
            let (image, corner) = (&mut y[image * size..(image + 1) * size], (top as usize, left as usize));
            for c in (0..whole).step_by(V::LANES) {
                match tiles.step {
                    4 => output_tile::<T, V, 4>(m, tiles, corner, c, i, image, finish),
                    _ => output_tile::<T, V, 2>(m, tiles, corner, c, i, image, finish),
                }
            }
            for c in whole..channels {
                match tiles.step {
                    4 => output_tile::<T, Plain<T, 1>, 4>(m, tiles, corner, c, i, image, finish),
                    _ => output_tile::<T, Plain<T, 1>, 2>(m, tiles, corner, c, i, image, finish),
                }
            }
        }
    }
}

per_level! {
    /// `out += factor · row`.
    pub fn add_times<T: Real>(factor: T, row: &[T], out: &mut [T]) {
        for (o, &v) in out.iter_mut().zip(row) {
            *o += factor * v;
        }
    }
}

/// The weight transform: value of the kernel polynomial at each point, over the point's norm.
pub fn weight_matrix(kernel: usize) -> [Vec<f64>; SIDE] {
    let at = |point: f64, norm: f64| (0..kernel).map(|i| point.powi(i as i32) / norm).collect();
    let mut last = vec![0.0; kernel];
    last[kernel - 1] = 1.0;
    [at(0.0, 4.0), at(1.0, -6.0), at(-1.0, -6.0), at(2.0, 24.0), at(-2.0, 24.0), last]
}
