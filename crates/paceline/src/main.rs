//! The program, with what Paceline brings.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    paceline::main_with(paceline::AllRegistries::default())
}
