//! The shape of one sample's activation.

use std::fmt;

/// Height × width × channels of one sample, channels innermost (NHWC). A vector is `1 × 1 × c`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows of pixels.
    pub h: usize,
    /// Columns of pixels.
    pub w: usize,
    /// Channels of a pixel.
    pub c: usize,
}

impl Shape {
    /// `h × w × c`.
    pub const fn new(h: usize, w: usize, c: usize) -> Self {
        Self { h, w, c }
    }

    /// A vector of `c` numbers.
    pub const fn vector(c: usize) -> Self {
        Self { h: 1, w: 1, c }
    }

    /// Numbers per sample.
    pub const fn size(self) -> usize {
        self.h * self.w * self.c
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { h: 1, w: 1, c } => write!(f, "{c}"),
            Self { h, w, c } => write!(f, "{h}×{w}×{c}"),
        }
    }
}
