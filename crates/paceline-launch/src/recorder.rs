//! A rank's own record, and its way to the launcher.

use std::cell::RefCell;
use std::sync::Arc;

use paceline_record::metric::Metrics;
use paceline_record::{Batch, Observer, Recorder, Recording, Ship, StepRow, WaitForRoom};

use crate::control::{self, RankEvent};

/// Bytes of the pipe to the launcher.
const PIPE: usize = 1 << 20;

/// A rank's record, if it keeps one; shared by what the rank does and by its pauses.
pub struct RankRecorder(RefCell<Option<Recorder>>);

impl RankRecorder {
    /// Begins a record, if one is asked for; `ship` takes it to the launcher.
    pub fn open(recording: Option<Recording>, metrics: &Metrics, ship: impl FnOnce() -> Ship) -> Self {
        let start = |recording| Recorder::start(recording, metrics, ship());
        Self(RefCell::new(recording.map(start)))
    }

    /// Who records links and messages.
    pub fn observer(&self) -> Option<Arc<Observer>> {
        self.0.borrow().as_ref().map(Recorder::observer)
    }

    pub fn step(&self, row: StepRow) {
        self.0.borrow_mut().iter_mut().for_each(|recorder| recorder.step(row));
    }

    /// Ships everything so far: what a checkpoint has behind it is in the record.
    pub fn flush(&self) {
        self.0.borrow_mut().iter_mut().for_each(Recorder::flush);
    }

    /// Ships what is left; nothing is recorded after that.
    pub fn close(&self) {
        drop(self.0.borrow_mut().take());
    }
}

/// Ships batches over standard output, beside what the rank says there, as long as the pipe has room.
pub fn to_launcher() -> Ship {
    let stdout = std::io::stdout();
    // A longer pipe holds what the launcher has not read yet; a shorter one only drops rows sooner.
    let size = rustix::pipe::fcntl_setpipe_size(&stdout, PIPE);
    let size = size.or_else(|_| rustix::pipe::fcntl_getpipe_size(&stdout)).unwrap_or(0);
    Box::new(move |batch: &Batch, wait: WaitForRoom| {
        let message = RankEvent::Recorded(Box::new(batch.clone()));
        let numbers = batch.numbers();
        // A frame that does not fit would keep the rank's next word waiting behind it.
        let waiting = rustix::io::ioctl_fionread(&stdout).unwrap_or(0) as usize;
        if !wait.0 && waiting + 4 * numbers.len() > size / 2 {
            return false;
        }
        // A launcher that does not listen any more has ended: nothing is left to tell.
        control::write(&mut stdout.lock(), &message, &numbers).is_ok()
    })
}
