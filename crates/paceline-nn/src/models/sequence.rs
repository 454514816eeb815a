//! What networks that read a sequence step by step have in common.
//!
//! What a sample is to them: `1 × t × 1` are t tokens (their vocabulary is the number of classes),
//! `1 × t × c` is a series of t steps, and an image is read as the sequence of its rows. Of tokens the
//! recurrent networks and the transformer tell the next one at every position, of anything else the class,
//! from the last step.

use crate::graph::{Graph, ShapeError, ValueId};
use crate::layers::{Conv1d, Dense, Embedding, LastStep, Rows};
use crate::shape::Shape;

/// Whether samples of this shape are tokens.
pub(super) fn tokens(input: Shape) -> bool {
    input.h == 1 && input.w > 1 && input.c == 1
}

/// A network that begins with the steps of a sequence, tokens as vectors of this width.
pub(super) fn begin(input: Shape, classes: usize, width: usize) -> Result<Graph, ShapeError> {
    let mut g = Graph::new(input);
    if tokens(input) {
        g.then("embedding", Embedding { vocabulary: classes, width })?;
    } else if input.h > 1 {
        g.then("rows", Rows)?;
    }
    Ok(g)
}

/// The answer: at every position of tokens, else from the last step.
pub(super) fn answer(g: &mut Graph, name: &str, classes: usize) -> Result<ValueId, ShapeError> {
    if tokens(g.input()) {
        return g.then(name, Conv1d::each_step(classes));
    }
    g.then("last", LastStep)?;
    g.then(name, Dense { outputs: classes })
}
