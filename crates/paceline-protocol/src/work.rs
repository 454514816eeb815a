//! One pass of a micro-batch through a stage.

use std::fmt;

/// What is done with a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkKind {
    /// The forward pass.
    Forward,
    /// The backward pass: gradients of the stage's parameters and of what it was handed.
    Backward,
}

/// One pass of a micro-batch through a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Work {
    /// The stage.
    pub stage: usize,
    /// Forward or backward.
    pub kind: WorkKind,
    /// The micro-batch.
    pub micro: usize,
}

impl Work {
    /// The forward pass.
    pub fn forward(stage: usize, micro: usize) -> Self {
        Self { stage, kind: WorkKind::Forward, micro }
    }

    /// The backward pass.
    pub fn backward(stage: usize, micro: usize) -> Self {
        Self { stage, kind: WorkKind::Backward, micro }
    }

    /// The work of a neighbouring stage that this waits for, where there are `stages`.
    pub fn waits_for(self, stages: usize) -> Option<Self> {
        let stage = match self.kind {
            WorkKind::Forward => self.stage.checked_sub(1)?,
            WorkKind::Backward => Some(self.stage + 1).filter(|&next| next < stages)?,
        };
        Some(Self { stage, ..self })
    }
}

/// As PyTorch writes it: `1F0` is the forward pass of micro-batch 0 through stage 1.
impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            WorkKind::Forward => 'F',
            WorkKind::Backward => 'B',
        };
        write!(f, "{}{kind}{}", self.stage, self.micro)
    }
}
