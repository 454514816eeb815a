//! The engine itself may be killed: what it has started then ends by itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::getppid;

use super::EngineTask;
use crate::interrupt::Interrupt;

/// How often the parent is looked for.
const LOOK: Duration = Duration::from_millis(250);
/// Time to save the run without an engine, before this process ends as it is.
const GRACE: Duration = Duration::from_secs(4);

/// From now on, where the engine itself has started this process, its end asks the run to save itself and stop, and ends this process where that
/// takes too long. `tell` is called once, with what happened.
pub fn watch_parent(task: &EngineTask, interrupt: Arc<Interrupt>, tell: impl Fn(String) + Send + 'static) {
    let (parent, engine) = (getppid(), task.engine);
    if !task.supervised {
        return;
    }
    // A process that cannot start a thread is ended by the machine that leads, or by its own end.
    let _ = std::thread::Builder::new().name("parent".into()).spawn(move || {
        while getppid() == parent {
            std::thread::sleep(LOOK);
        }
        let pid = parent.map_or(0, |parent| parent.as_raw_nonzero().get());
        let cause = format!("{engine} is gone: process {pid}, which started this one, has ended");
        tell(format!("{cause}; the run stops"));
        interrupt.request_because(cause);
        let begun = Instant::now();
        while begun.elapsed() < GRACE {
            std::thread::sleep(LOOK);
        }
        interrupt.abandon();
    });
}
