//! A child that ends with the thread that has started it, however that ends.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};

/// The kernel asks the child to end when the thread that starts it has ended: be that the main one.
pub(crate) fn end_with_parent(command: &mut Command) {
    // SAFETY: one system call, which allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(|| set_parent_process_death_signal(Some(Signal::TERM)).map_err(io::Error::from));
    }
}
