//! What a user of the program sees.

#![allow(clippy::print_stderr, reason = "tests say what they saw")]

mod analyze;
mod bad_input;
mod batches;
mod browser;
mod compare;
mod control_groups;
mod data;
mod distributed;
mod doctor;
mod elastic;
mod engines;
mod exits;
mod explain;
mod explain_sentences;
mod faults;
mod gpus;
mod home;
mod hostile_text;
mod join;
mod join_strangers;
mod kept;
mod machines;
mod matrix;
mod measure;
mod members;
mod model_files;
mod namespaces;
mod network;
mod one_story;
mod own_strategy;
mod peers;
mod pipelines;
mod predict;
mod record;
mod resume;
#[allow(dead_code, reason = "its own crate attacks in more ways")]
#[path = "../../../paceline-wire/tests/conformance/rpc.rs"]
mod rpc;
mod runs;
mod script_auto;
mod script_calibration;
mod script_studies;
mod scripts;
mod serve;
mod simulate;
mod slurm;
mod special_files;
mod stages;
mod storage;
mod strangers;
mod strategy_files;
mod studies;
mod study_nodes;
mod support;
mod tables;
mod targets;
mod terminal;
mod three_nodes;
mod train;
mod transfer;
mod transports;
mod weights;
mod wheel;
mod workloads;
