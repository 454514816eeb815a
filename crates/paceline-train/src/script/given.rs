//! What a script has given of the step that it computes, where members may change: a step that is made anew, with other
//! workers, is made of the same gradient, which the exchange has overwritten meanwhile.

use std::ops::Range;

use paceline_nn::Outcome;

use super::flat::OpenRanges;
use crate::source::GradientSink;

/// A script's gradient of one step, as far as it has given it.
pub(super) struct Given {
    /// The step; none before the first one.
    step: Option<u64>,
    /// Its numbers as the script gave them, and which of them it has given.
    numbers: Vec<f32>,
    ranges: Vec<Range<usize>>,
    /// Numbers before the gradient that are no part of a mean.
    flags: usize,
    /// What the gradient counts in the mean: the same for each of the workers that take part.
    weight: f32,
    /// What came of the step, once all of it was given.
    pub(super) outcome: Option<Outcome>,
}

impl Given {
    /// Nothing yet of a buffer of `numbers` elements, the first `flags` of which are no gradient.
    pub(super) fn new(numbers: usize, flags: usize) -> Self {
        let numbers = vec![0.0; numbers];
        Self { step: None, numbers, ranges: Vec::new(), flags, weight: 1.0, outcome: None }
    }

    /// So many workers take part from now on.
    pub(super) fn workers(&mut self, workers: usize) {
        self.weight = (1.0 / workers as f64) as f32;
    }

    /// Begins a step, or gives what the script has given of it before; whether that is anything.
    pub(super) fn give_again<'g>(
        &mut self,
        step: u64,
        open: &mut OpenRanges<'g>,
        sink: &mut dyn GradientSink<'g>,
    ) -> bool {
        if self.step != Some(step) {
            (self.step, self.outcome) = (Some(step), None);
            self.ranges.clear();
        }
        for range in &self.ranges {
            let Some(slice) = open.take(range.clone()) else { continue };
            slice.copy_from_slice(&self.numbers[range.clone()]);
            self.weigh(range.start, slice);
            sink.finished(range.start, slice);
        }
        !self.ranges.is_empty()
    }

    /// Keeps what the script gives from an element on, and weighs it.
    pub(super) fn keep(&mut self, offset: usize, slice: &mut [f32]) {
        let range = offset..offset + slice.len();
        self.numbers[range.clone()].copy_from_slice(slice);
        self.weigh(offset, slice);
        self.ranges.push(range);
    }

    fn weigh(&self, offset: usize, slice: &mut [f32]) {
        if offset >= self.flags {
            slice.iter_mut().for_each(|number| *number *= self.weight);
        }
    }
}
