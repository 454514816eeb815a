//! A [`Plan`]: one run, fully resolved, immutable, hashed. Two runs of one plan with a deterministic
//! strategy give the same parameters, bit for bit.
//!
//! Around it, what plans are chosen from: a [`Space`] of axes and constraints, and the [`Study`] file.
//!
//! # Layout
//! - `plan`: the plan itself and what makes one impossible
//! - `hosts`: where ranks sit, and what lies between their hosts
//! - `members`: how a run's members may change, and who is taken away from it
//! - `value`: a level of an axis
//! - `expression`: conditions that users write
//! - `space`: axes, constraints, points
//! - [`study`]: the study file, its schema, its mistakes
//! - `printable`: text from outside as terminals and pages may show it
//! - `sheet`: comma-separated values, which tables of runs come as
//!
//! # Deliberately absent
//! Flags and the environment (`paceline-resolve` reads them), registries (names are checked where they are
//! known), execution.

#![forbid(unsafe_code)]

mod expression;
mod hosts;
mod members;
mod plan;
mod printable;
mod sheet;
mod space;
pub mod study;
mod value;

pub use expression::{Condition, ConditionError, Formula, Scope};
pub use hosts::{Hosts, NetworkLimits, Placement};
pub use members::{Elastic, Revocations, RevokedRank};
pub use plan::{PathRule, Plan, PlanError, Script, Straggler, TrainingLength, Weights};
pub use printable::{printable, printable_lines};
pub use sheet::{Sheet, SheetRow, TableError, Terminator, to_csv};
pub use space::{Axis, ENUMERABLE, Point, Scale, Space};
pub use study::{Goal, NamedWorkload, Objective, Study, StudyError, Workload};
pub use value::{Value, nearest};
