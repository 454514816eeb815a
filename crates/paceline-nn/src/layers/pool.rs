//! Pooling: the largest or the mean of each window, or the mean of all pixels.

use super::{Backward, Forward, Layer, Place, Spec, sample};
use crate::accel::elementwise;
use crate::description::{Fields, Problem};
use crate::real::Real;
use crate::shape::Shape;

/// The largest value of each `size × size` window (what lies outside the image does not count).
#[derive(Clone, Debug, PartialEq)]
pub struct MaxPool {
    /// Side of the window.
    pub size: usize,
    /// Distance between windows.
    pub stride: usize,
    /// Rows and columns of padding on each side, less than the window.
    pub pad: usize,
}

/// The mean of each `size × size` window, padding counted as zeros.
#[derive(Clone, Debug, PartialEq)]
pub struct AveragePool {
    /// Side of the window.
    pub size: usize,
    /// Distance between windows.
    pub stride: usize,
    /// Rows and columns of zeros on each side, less than the window.
    pub pad: usize,
}

/// The mean over all pixels of each channel.
#[derive(Clone, Debug, PartialEq)]
pub struct GlobalAveragePool;

/// Longest side of a window: the number of a tap is exact in `f32`.
const WINDOW: usize = 4096;

fn pooled(x: Shape, size: usize, stride: usize, pad: usize) -> Result<Shape, String> {
    if size == 0 || stride == 0 || pad >= size {
        return Err("the window and stride must be at least 1, and the padding less than the window".into());
    }
    if size > WINDOW {
        return Err(format!("a window has at most {WINDOW} rows and columns"));
    }
    let side = |n: usize| {
        (n + 2 * pad).checked_sub(size).map(|room| room / stride + 1).ok_or_else(|| {
            format!("a window of {size} does not fit an input side of {} (padding included)", n + 2 * pad)
        })
    };
    Ok(Shape::new(side(x.h)?, side(x.w)?, x.c))
}

impl Spec for MaxPool {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        pooled(inputs[0], self.size, self.stride, self.pad)
    }
    fn fuses_relu(&self) -> bool {
        true
    }
    /// Which tap was the largest.
    fn saved(&self, _: Shape, output: Shape, _: bool) -> usize {
        output.size()
    }
    fn describe(&self) -> String {
        format!("{0}×{0}, stride {1}, pad {2}", self.size, self.stride, self.pad)
    }
}

impl Spec for AveragePool {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        pooled(inputs[0], self.size, self.stride, self.pad)
    }
    fn describe(&self) -> String {
        format!("{0}×{0}, stride {1}, pad {2}", self.size, self.stride, self.pad)
    }
}

impl Spec for GlobalAveragePool {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        Ok(Shape::vector(inputs[0].c))
    }
}

fn read_window(fields: &mut Fields<'_>) -> Result<[usize; 3], Problem> {
    let size = fields.needed("size")?;
    Ok([size, fields.size("stride")?.unwrap_or(size), fields.size("pad")?.unwrap_or(0)])
}

impl MaxPool {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, Problem> {
        let [size, stride, pad] = read_window(fields)?;
        Ok(Self { size, stride, pad })
    }

    pub(super) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        Box::new(Max {
            windows: Windows::new(at.input, at.output, [self.size; 2], self.stride, self.pad),
            disjoint: self.stride >= self.size,
            relu: at.relu,
        })
    }
}

impl AveragePool {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, Problem> {
        let [size, stride, pad] = read_window(fields)?;
        Ok(Self { size, stride, pad })
    }

    pub(super) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        Box::new(Mean { windows: Windows::new(at.input, at.output, [self.size; 2], self.stride, self.pad) })
    }
}

impl GlobalAveragePool {
    pub(super) fn read(_: &mut Fields<'_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    pub(super) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        let windows = Windows::new(at.input, at.output, [at.input.h, at.input.w], 1, 0);
        Box::new(Mean { windows })
    }
}

/// The windows of a sample: for each output pixel, its taps as (number, offset into the input).
struct Windows<T> {
    x: Shape,
    y: Shape,
    taps: Vec<(T, u32)>,
    /// `ends[i]` is the end of output pixel `i`'s taps.
    ends: Vec<usize>,
    /// Taps of a whole window, padding included.
    area: usize,
}

impl<T: Real> Windows<T> {
    fn new(x: Shape, y: Shape, [height, width]: [usize; 2], stride: usize, pad: usize) -> Self {
        let (mut taps, mut ends) = (Vec::new(), Vec::new());
        for (i, j) in (0..y.h).flat_map(|i| (0..y.w).map(move |j| (i, j))) {
            for (a, b) in (0..height).flat_map(|a| (0..width).map(move |b| (a, b))) {
                let row = (i * stride + a).checked_sub(pad).filter(|&row| row < x.h);
                let column = (j * stride + b).checked_sub(pad).filter(|&column| column < x.w);
                if let (Some(row), Some(column)) = (row, column) {
                    taps.push((T::of((a * width + b) as f64), ((row * x.w + column) * x.c) as u32));
                }
            }
            ends.push(taps.len());
        }
        Self { x, y, taps, ends, area: height * width }
    }

    /// Each output pixel with its taps.
    fn each(&self) -> impl Iterator<Item = (usize, &[(T, u32)])> {
        let mut start = 0;
        self.ends
            .iter()
            .enumerate()
            .map(move |(pixel, &end)| (pixel, &self.taps[std::mem::replace(&mut start, end)..end]))
    }
}

struct Max<T> {
    windows: Windows<T>,
    /// Whether no input pixel is in two windows.
    disjoint: bool,
    relu: bool,
}

impl<T: Real> Layer<T> for Max<T> {
    fn forward(&mut self, io: Forward<'_, T>) {
        let (windows, relu, level) = (&self.windows, self.relu, io.compute.level);
        let (x_size, y_size, c) = (windows.x.size(), windows.y.size(), windows.y.c);
        io.compute.pool.split2(io.y, y_size, io.saved, y_size, x_size, |first, y, which| {
            for (i, (y, which)) in y.chunks_exact_mut(y_size).zip(which.chunks_exact_mut(y_size)).enumerate()
            {
                let x = sample(io.x, first + i, x_size);
                for (pixel, taps) in windows.each() {
                    let at = pixel * c..(pixel + 1) * c;
                    elementwise::max_of_taps(level, x, taps, &mut y[at.clone()], &mut which[at], relu);
                }
            }
        });
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        let (windows, which, level) = (&self.windows, &*io.saved, io.compute.level);
        let (x_size, y_size, c) = (windows.x.size(), windows.y.size(), windows.y.c);
        if self.relu {
            io.compute.relu_backward(io.y, io.dy);
        }
        let Some(dx) = io.dx else { return };
        let (dy, add) = (&*io.dy, dx.add || !self.disjoint);
        io.compute.pool.split(dx.values, x_size, x_size, |first, part| {
            if !dx.add {
                part.fill(T::ZERO);
            }
            for (i, dx) in part.chunks_exact_mut(x_size).enumerate() {
                let (dy, which) = (sample(dy, first + i, y_size), sample(which, first + i, y_size));
                for (pixel, taps) in windows.each() {
                    let (dy, which) = (sample(dy, pixel, c), sample(which, pixel, c));
                    elementwise::max_of_taps_backward(level, dy, which, taps, dx, add);
                }
            }
        });
    }
}

struct Mean<T> {
    windows: Windows<T>,
}

impl<T: Real> Layer<T> for Mean<T> {
    fn forward(&mut self, io: Forward<'_, T>) {
        let (windows, level) = (&self.windows, io.compute.level);
        let (x_size, y_size, c) = (windows.x.size(), windows.y.size(), windows.y.c);
        let weight = T::of(1.0 / windows.area as f64);
        io.compute.pool.split(io.y, y_size, x_size, |first, y| {
            for (i, y) in y.chunks_exact_mut(y_size).enumerate() {
                let x = sample(io.x, first + i, x_size);
                for (pixel, taps) in windows.each() {
                    elementwise::mean_of_taps(level, x, taps, weight, &mut y[pixel * c..(pixel + 1) * c]);
                }
            }
        });
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        let (windows, level) = (&self.windows, io.compute.level);
        let (x_size, y_size, c) = (windows.x.size(), windows.y.size(), windows.y.c);
        let weight = T::of(1.0 / windows.area as f64);
        let Some(dx) = io.dx else { return };
        let dy = &*io.dy;
        io.compute.pool.split(dx.values, x_size, x_size, |first, part| {
            if !dx.add {
                part.fill(T::ZERO);
            }
            for (i, dx) in part.chunks_exact_mut(x_size).enumerate() {
                let dy = sample(dy, first + i, y_size);
                for (pixel, taps) in windows.each() {
                    elementwise::mean_of_taps_backward(level, sample(dy, pixel, c), taps, weight, dx);
                }
            }
        });
    }
}
