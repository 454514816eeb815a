//! How training fails.

/// A run that did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The loss is no longer a number.
    #[error("the loss became {loss} at step {step} (after {samples} samples): training has diverged")]
    Diverged {
        /// The step, counted from 1.
        step: u64,
        /// Samples before it.
        samples: u64,
        /// NaN or infinite.
        loss: f64,
    },
    /// The model cannot take the dataset's samples.
    #[error("model {model} on {data}: {source}")]
    Shape {
        /// The model.
        model: String,
        /// The dataset.
        data: String,
        /// Which layer, and why.
        source: Box<paceline_nn::graph::ShapeError>,
    },
}

impl TrainError {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            TrainError::Diverged { .. } => "try a smaller --lr, a --warmup, or a larger --batch",
            TrainError::Shape { .. } => {
                "choose a model for samples of this size; `paceline model list` shows them"
            }
        }
    }
}
