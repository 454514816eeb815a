//! What a script keeps, for somebody who joins: between two steps it is asked to save itself, as for a checkpoint, and its
//! worker stops there. So nobody can be a step further, and whoever joins begins where all others are.

use paceline_attach::ScriptMessage;

use super::{ScriptSource, Waits};
use crate::error::TrainError;

/// Whether what a script keeps is wanted for somebody who joins, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Handing {
    /// It is not.
    NotAsked,
    /// The script was told to save itself.
    Asked,
    /// It has, and waits.
    Saved,
    /// It has not, for this reason.
    Nothing(String),
    /// This script joins: another one's parameters lie in its memory already.
    Received,
}

impl Handing {
    /// What came of it, told once.
    pub(super) fn told(&mut self) -> Option<Result<(), String>> {
        match std::mem::replace(self, Self::NotAsked) {
            Self::Saved => Some(Ok(())),
            Self::Nothing(problem) => Some(Err(problem)),
            before => {
                *self = before;
                None
            }
        }
    }

    /// Members have changed: what was asked for before is not wanted any more.
    pub(super) fn forget(&mut self) {
        if *self == Self::Asked {
            *self = Self::NotAsked;
        }
    }
}

impl ScriptSource {
    /// The script says something that is not about saving itself.
    pub(super) fn computes_on(&mut self, message: &ScriptMessage) {
        if self.handing == Handing::Asked && *message != ScriptMessage::Leave {
            let problem =
                "its script does not save itself when it is told to, so that nobody can begin where it is";
            self.handing = Handing::Nothing(problem.into());
        }
    }

    /// If the script has saved itself for somebody who joins, its worker stops here.
    pub(super) fn saved_itself(&mut self) -> Result<(), TrainError> {
        if self.handing != Handing::Asked || self.waits != Waits::Go {
            return Ok(());
        }
        // Two numbers say how much it is.
        if self.state.len() <= 2 {
            let problem = "its script keeps nothing when it saves itself: who joins would not have its optimiser's memory";
            self.handing = Handing::Nothing(problem.into());
            return Ok(());
        }
        self.handing = Handing::Saved;
        Err(TrainError::Regroup)
    }
}
