//! One worker without anybody to talk to, in this process.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paceline_data::Dataset;
use paceline_plan::Plan;
use paceline_record::process::Started;
use paceline_record::{Event, Recording, RunResult};
use paceline_train::{Brake, Course, Pause, single};

use crate::error::LaunchError;
use crate::pauses::{CheckpointContext, Decision, Pauses};

/// How often somebody looks whether the run should stop.
const WATCH: Duration = Duration::from_millis(20);

/// Runs it.
pub fn run(
    plan: &Plan,
    dataset: &Dataset,
    id: &str,
    started: Started,
    checkpointing: &CheckpointContext,
    recording: Option<Recording>,
    report: &mut dyn FnMut(Event<'_>),
) -> Result<RunResult, LaunchError> {
    let steps = single::order(plan, dataset.train.len()).1;
    let pauses = RefCell::new(Pauses::new(plan, checkpointing, steps));
    let (restored, segment) = (pauses.borrow().restored(0).cloned(), pauses.borrow().segment());
    let brake = Arc::new(Brake::starting_at(segment.from));
    let over = AtomicBool::new(false);
    let mut stopped = None;
    let mut pause = |Pause { step, part }: Pause| {
        let mut pauses = pauses.borrow_mut();
        // Told nobody else, but from now on a pause is the end.
        let _ = pauses.interrupted();
        pauses.paused(0, step, part);
        match pauses.decide("{}".into()) {
            Ok(Decision::GoOn(next)) => Some(next),
            Ok(Decision::Stop { step, path }) => {
                stopped = Some(LaunchError::Interrupted { step, steps, path, run: id.to_owned() });
                None
            }
            Err(error) => {
                stopped = Some(error);
                None
            }
        }
    };
    let course = &mut Course { restored, segment, brake: Arc::clone(&brake), pause: &mut pause };
    let ran = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if checkpointing.interrupt.requested() {
                    brake.stop_at(0);
                    return;
                }
                std::thread::sleep(WATCH);
            }
        });
        let ran = single::run(plan, dataset, id, started, recording, course, report);
        over.store(true, Ordering::Relaxed);
        ran
    })?;
    ran.ok_or_else(|| stopped.expect("a run that does not go on says why"))
}
