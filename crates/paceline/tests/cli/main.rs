//! What a user of the program sees.

#![allow(clippy::print_stderr, reason = "skipped tests say so")]

mod bad_input;
mod distributed;
mod home;
mod measure;
mod network;
mod simulate;
mod strangers;
mod support;
mod train;
mod transports;
