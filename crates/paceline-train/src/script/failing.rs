//! What becomes of a script that fails, or that does not keep to the protocol.

use paceline_attach::{AttachError, RankMessage, ScriptFailure, ScriptProcess, ScriptSocket};
use paceline_record::FailureKind;

use crate::error::TrainError;

/// The failure of a script whose connection has failed.
pub(super) fn gone(process: &ScriptProcess, socket: &mut ScriptSocket, error: AttachError) -> TrainError {
    match error {
        AttachError::Nonsense(what) => refuse(socket, what),
        AttachError::Closed { torn } => {
            let why = process.why();
            let cut = if torn > 0 {
                format!("; {torn} bytes of a frame that did not come whole")
            } else {
                String::new()
            };
            script_failed(ScriptFailure { message: why.message + &cut, ..why })
        }
        AttachError::System(error) => TrainError::Script {
            message: format!("its script's connection failed: {error}"),
            hint: "is the machine out of memory or descriptors?".into(),
            kind: FailureKind::Other,
        },
    }
}

/// The failure of a script's process.
pub fn script_failed(failure: ScriptFailure) -> TrainError {
    let ScriptFailure { message, hint, lost } = failure;
    let kind = if lost { FailureKind::Lost } else { FailureKind::Other };
    TrainError::Script { message, hint, kind }
}

/// Ends the conversation with a script that does not keep to the protocol.
pub(super) fn refuse(socket: &mut ScriptSocket, what: String) -> TrainError {
    let message = format!("its script said what the attach protocol does not know: {what}");
    let hint = "docs/attach.md says what a script may say, and when".into();
    refuse_script(socket, (message, hint), FailureKind::Protocol)
}

pub(super) fn refuse_script(
    socket: &mut ScriptSocket,
    (message, hint): (String, String),
    kind: FailureKind,
) -> TrainError {
    // A script that is gone has nobody to be told.
    let _ = socket.say(&RankMessage::Refused { message: &format!("{message}; {hint}") });
    TrainError::Script { message, hint, kind }
}
