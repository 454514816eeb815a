//! How training fails.

use paceline_record::FailureKind;

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
    /// A peer is gone.
    #[error("rank {rank} was lost at step {step}: {cause}")]
    Lost {
        /// The peer.
        rank: usize,
        /// This rank's step.
        step: u64,
        /// What the connection said.
        cause: String,
    },
    /// The members of an elastic run stop where they are, to go on as others.
    #[error("the members of the run change")]
    Regroup,
    /// Nothing came for too long.
    #[error("nothing was heard of rank {rank} for {seconds} s at step {step}")]
    Silent {
        /// Who was waited for.
        rank: usize,
        /// How long.
        seconds: u64,
        /// This rank's step.
        step: u64,
    },
    /// The launcher did not say what came of an evaluation.
    #[error("the launcher did not say within {seconds} s what came of the evaluation after step {step}")]
    Verdict {
        /// Steps done.
        step: u64,
        /// How long was waited.
        seconds: u64,
    },
    /// The system gave no memory for the model.
    #[error("no memory for the model's {numbers} numbers: {source}")]
    Memory {
        /// How many.
        numbers: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// The plan has a name that this version does not know.
    #[error(transparent)]
    Plan(#[from] paceline_plan::PlanError),
    /// The transport failed.
    #[error(transparent)]
    Wire(#[from] paceline_wire::WireError),
    /// What was kept at a pause does not fit.
    #[error("the checkpoint does not fit this run: {problem}")]
    Restore {
        /// What, and why.
        problem: String,
    },
    /// The dataset could not be read on.
    #[error(transparent)]
    Data(#[from] paceline_data::DataError),
    /// The model answers another number of questions than the dataset asks.
    #[error(
        "model {model} on {data}: the model gives {answers} answers per sample, the dataset asks for {asked}"
    )]
    Positions {
        /// The model.
        model: String,
        /// The dataset.
        data: String,
        /// Answers per sample.
        answers: usize,
        /// Answers that are asked for.
        asked: usize,
    },
    /// The model has no exits, or not such that devices and tiers above them could compute it.
    #[error("model {model} has no early exits between devices and tiers above them: {problem}")]
    Exits {
        /// The model.
        model: String,
        /// What is missing.
        problem: String,
    },
    /// A device that the model has not got.
    #[error("--lost {device}: {model} has devices 0 to {last}")]
    NoSuchDevice {
        /// The device.
        device: usize,
        /// The model.
        model: String,
        /// The last device.
        last: usize,
    },
    /// Answers with early exits that cannot be given so.
    #[error("--{flag} {value} with --exits: {problem}")]
    ExitFlag {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The model cannot take the dataset's samples.
    #[error("model {model} on {data}: {source}")]
    Shape {
        /// The model.
        model: String,
        /// The dataset.
        data: String,
        /// Which layer, and why.
        source: Box<paceline_nn::ShapeError>,
    },
    /// The weights that training should start from cannot be used.
    #[error("weights {file}: {problem}")]
    Weights {
        /// The file.
        file: String,
        /// Why not.
        problem: String,
    },
    /// A layer cannot be frozen.
    #[error("frozen layer {layer}: {problem}")]
    Frozen {
        /// Its name.
        layer: String,
        /// Why not.
        problem: String,
    },
    /// A script cannot go on.
    #[error("{message}")]
    Script {
        /// What happened.
        message: String,
        /// What to do.
        hint: String,
        /// Which kind of failure it is.
        kind: FailureKind,
    },
    /// The model file describes no network for the dataset's samples.
    #[error("model file {file} on {data}, {source}")]
    Description {
        /// The file's name.
        file: String,
        /// The dataset.
        data: String,
        /// Which line, and why.
        source: Box<paceline_nn::description::DescriptionError>,
    },
}

impl TrainError {
    /// Which kind of failure it is.
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::Diverged { .. } => FailureKind::Diverged,
            Self::Shape { .. } | Self::Positions { .. } | Self::Description { .. } => FailureKind::Plan,
            Self::NoSuchDevice { .. } | Self::ExitFlag { .. } => FailureKind::Usage,
            Self::Weights { .. } | Self::Frozen { .. } | Self::Plan(_) | Self::Exits { .. } => {
                FailureKind::Plan
            }
            Self::Data(_) | Self::Restore { .. } => FailureKind::Storage,
            Self::Lost { .. } | Self::Regroup | Self::Silent { .. } | Self::Verdict { .. } => {
                FailureKind::Lost
            }
            Self::Wire(_) => FailureKind::Protocol,
            Self::Memory { .. } => FailureKind::Other,
            Self::Script { kind, .. } => *kind,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> String {
        let hint = match self {
            TrainError::Diverged { .. } => "try a smaller --lr, a --warmup, or a larger --batch",
            TrainError::Regroup | TrainError::Lost { .. } => {
                "the run ends when a process is lost; see the first error"
            }
            TrainError::Silent { .. } => {
                "the process is alive but makes no progress: is the machine overloaded?"
            }
            TrainError::Verdict { .. } => {
                "is the machine overloaded? --eval-samples N takes less of the test split"
            }
            TrainError::Wire(paceline_wire::WireError::Deadline { .. }) => {
                "is the machine overloaded (fewer ranks start sooner), or something else using the ports?"
            }
            TrainError::Wire(_) => "is something else using the ports, or the machine out of sockets?",
            TrainError::Memory { .. } => {
                "a smaller --batch, --micro-batches or a smaller model takes less memory"
            }
            TrainError::Plan(_) => "`paceline train --help` lists what this version knows",
            TrainError::Restore { .. } => "was it made by another version? start the run again without it",
            TrainError::Data(error) => return error.hint(),
            TrainError::Script { hint, .. } => hint,
            TrainError::Positions { .. } => {
                "text asks for the next character at every position: take a model of sequences for it, and \
                 only for it; `paceline model list` shows them"
            }
            TrainError::Shape { .. } => {
                "choose a model for samples of this size; `paceline model list` shows them"
            }
            TrainError::Weights { .. } => {
                "--init takes a PyTorch state_dict in float32, saved as safetensors, at the same place on every \
                 machine; --init-partial takes what fits and starts the rest from the seed"
            }
            TrainError::Exits { .. } => {
                "take --model ddnn or ddnn-edge; docs/exits.md says what a model file needs for --exits"
            }
            TrainError::NoSuchDevice { .. } => "name devices that there are",
            TrainError::ExitFlag { .. } => "give one number that fits, or leave the flag out",
            TrainError::Frozen { .. } => "`paceline model show` lists a model's layers",
            TrainError::Description { .. } => {
                "`paceline model show --model-file FILE --data NAME` shows what a file describes"
            }
        };
        hint.into()
    }
}
