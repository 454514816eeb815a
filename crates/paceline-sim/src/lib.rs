//! The virtual-time driver: the same participants as in real runs, with a clock that jumps from event to
//! event. Delays, reorderings across peers and crashes all come from a seed, so every run can be replayed.
//!
//! # Layout
//! - `driver`: the participants, event by event; `report`: what happened; `notes`: as real runs record it
//!   (`driver/repetition`: steps that repeat are driven once)
//! - `recurrence`: collectives that are schedules, evaluated without their participants
//! - `changing`: runs whose members change, generation by generation
//! - `costs`: what things cost in virtual time: passes, links, hosts, a rank's own work
//! - `memory`: what stands behind regions: nothing, or real numbers
//! - `queue`: what happens when
//!
//! # Deliberately absent
//! Its own copy of any protocol, and any strategy's name.

#![forbid(unsafe_code)]

mod changing;
mod costs;
mod driver;
mod memory;
mod notes;
mod queue;
mod recurrence;
mod report;

pub use changing::{ChangingReport, ChangingRun, GenerationReport, Revocation, run_changing};
pub use costs::{Costs, HEADER, Host, PassPart, StageCost, StepFactor, WorkCost};
pub use driver::{Crash, Progress, record, run, run_repeating, run_telling, simulate};
pub use memory::{NumericMemory, RankMemory, SizesOnly, StepStart};
pub use notes::{MessageDirection, Note, StepTimes};
pub use recurrence::{RecurrenceRefusal, evaluate};
pub use report::{SimulatedPass, SimulationReport, StartedStep};
