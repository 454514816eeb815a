//! A rectangle of an image, as one of several devices sees it.

use paceline_random::{Purpose, Stream};

use super::{Backward, Forward, InputGradient, Layer, Pass, Place, Spec};
use crate::accel::elementwise;
use crate::description::{Fields, Problem};
use crate::real::Real;
use crate::shape::Shape;

/// A rectangle of an image. While training, a sample's view is blank (all zeros) with probability `blank`, as if the
/// device were lost: a function of (seed, step, sample, place), so it does not depend on which worker has the sample.
#[derive(Clone, Debug, PartialEq)]
pub struct ViewPart {
    /// First row.
    pub top: usize,
    /// First column.
    pub left: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Probability of a blank view.
    pub blank: f64,
}

impl Spec for ViewPart {
    fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        let Self { top, left, height, width, blank } = *self;
        let Shape { h, w, c } = inputs[0];
        if height == 0 || width == 0 || top + height > h || left + width > w {
            return Err(format!(
                "{height} rows from row {top} and {width} columns from column {left} do not lie in it"
            ));
        }
        if !(0.0..1.0).contains(&blank) {
            return Err(format!("`blank` must be at least 0 and below 1, not {blank}"));
        }
        Ok(Shape::new(height, width, c))
    }
    fn describe(&self) -> String {
        let Self { top, left, height, width, blank } = self;
        let blank = if *blank > 0.0 { format!(", blank {blank}") } else { String::new() };
        format!("{height}×{width} from {top}, {left}{blank}")
    }
}

impl ViewPart {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, Problem> {
        Ok(Self {
            top: fields.needed("top")?,
            left: fields.needed("left")?,
            height: fields.needed("height")?,
            width: fields.needed("width")?,
            blank: fields.real("blank")?.map_or(0.0, |(blank, _)| blank),
        })
    }

    pub(super) fn layer<T: Real>(&self, at: Place<'_>) -> Box<dyn Layer<T>> {
        Box::new(Exec { part: self.clone(), input: at.input, output: at.output })
    }
}

struct Exec {
    part: ViewPart,
    input: Shape,
    output: Shape,
}

impl Exec {
    /// Whether the view of sample `i` is blank in this pass.
    fn is_blank(&self, pass: &Pass<'_>, i: usize) -> bool {
        if !pass.training || self.part.blank == 0.0 {
            return false;
        }
        let draw = Stream::new(pass.seed, Purpose::Dropout).fork(pass.step).fork(u64::from(pass.ids[i]));
        draw.unit((self.part.top * self.input.w + self.part.left) as u64) < self.part.blank
    }

    /// Each row of the view: its first element in the view, and in the image.
    fn rows(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let ViewPart { top, left, height, .. } = self.part;
        let (row, image_row, c) = (self.output.w * self.output.c, self.input.w * self.input.c, self.input.c);
        (0..height).map(move |i| (i * row, (top + i) * image_row + left * c))
    }
}

impl<T: Real> Layer<T> for Exec {
    fn forward(&mut self, io: Forward<'_, T>) {
        let (size, image, row) = (self.output.size(), self.input.size(), self.output.w * self.output.c);
        io.compute.pool.split(io.y, size, size, |first, y| {
            for (i, y) in y.chunks_exact_mut(size).enumerate() {
                let x = &io.x[(first + i) * image..];
                if self.is_blank(io.pass, first + i) {
                    y.fill(T::ZERO);
                    continue;
                }
                for (to, from) in self.rows() {
                    y[to..to + row].copy_from_slice(&x[from..from + row]);
                }
            }
        });
    }

    fn backward(&mut self, io: Backward<'_, T>) {
        let Some(InputGradient { values, add }) = io.dx else { return };
        let (size, image, row) = (self.output.size(), self.input.size(), self.output.w * self.output.c);
        let (dy, level) = (&*io.dy, io.compute.level);
        io.compute.pool.split(values, image, image, |first, part| {
            if !add {
                part.fill(T::ZERO);
            }
            for (i, dx) in part.chunks_exact_mut(image).enumerate() {
                if self.is_blank(io.pass, first + i) {
                    continue;
                }
                let dy = &dy[(first + i) * size..];
                for (from, to) in self.rows() {
                    elementwise::accumulate(level, &dy[from..from + row], &mut dx[to..to + row]);
                }
            }
        });
    }
}
