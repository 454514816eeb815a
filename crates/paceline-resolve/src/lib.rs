//! From settings to a plan, and from a plan to what its names stand for.
//!
//! A run is described by [`PlanSettings`]: names and values as users write them on a command line, in a study file or
//! in a script. [`resolve`] makes a [`Plan`](paceline_plan::Plan) of them: defaults, checks, refusals. [`TypedPlan`]
//! is a plan with its names looked up in the registries.
//!
//! # Layout
//! - `table`: every setting, once: name, help, default, how its value is read
//! - `registries`: what names can stand for
//! - `settings`: the settings of one run
//! - `resolve`: settings to plan
//! - `command`: settings as a command line that gives the same plan again
//! - `config`: settings from a file
//! - `recut`: the plan of a run that goes on in other stages
//! - `typed`: plan to strategy, codec, optimiser and the rest
//! - `environment`: folders that the environment decides where no setting does
//!
//! # Deliberately absent
//! Command lines (clap's arguments are generated from the table, in the binary), datasets in memory, execution.

#![forbid(unsafe_code)]

mod command;
mod config;
mod environment;
mod recut;
mod registries;
mod resolve;
mod settings;
mod table;
mod typed;

pub use command::{command_line, quoted};
pub use config::RunConfig;
pub use environment::{data_folders, own_data_folder, store_folder, variable};
pub use recut::NewStages;
pub use registries::Registries;
pub use resolve::{
    AUTO_TRANSPORT, DEFAULT_EPOCHS, DEFAULT_PIPELINE, OWN_CONDITIONS, OWN_EXCHANGE, auto_transport,
    model_description, paths, resolve, strategy_description,
};
pub use settings::{PlanSettings, SCRIPT_ARGUMENT, SettingError};
pub use table::{RunSetting, SettingKind, SettingSection, SettingTable, byte_count, is_strategy_file};
pub use typed::{TypedPlan, program_of, strategy_of, strategy_program, unknown};
